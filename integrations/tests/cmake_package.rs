//! `find_package(Callsight)` from a prefix, the functions it gives, and the selection.

mod common;

use std::fs;
use std::path::PathBuf;

use callsight_integrations::{RUNTIME_TRIPLE, VERSION, plan_install};
use common::{Hooks, Project, hooks_of, members_with_hooks};

/// A project that uses the package by itself: `more` follows its two targets.
fn user(more: &str) -> Project {
    Project::new(&[
        (
            "CMakeLists.txt",
            &format!(
                "cmake_minimum_required(VERSION 3.16)\nproject(user C)\n\
                 find_package(Callsight {VERSION} REQUIRED)\nadd_library(lib STATIC lib.c)\n\
                 add_executable(app main.c)\ntarget_link_libraries(app lib)\n{more}"
            ),
        ),
        ("lib.c", "int lib(void) { return 0; }\n"),
        ("main.c", "int lib(void);\nint main(void) { return lib(); }\n"),
    ])
}

/// An installed package that was then moved.
fn moved_prefix(project: &Project) -> PathBuf {
    let (first, then) = (project.beside("first"), project.beside("moved to, here"));
    plan_install(&first).expect("a plan").apply().expect("install");
    fs::rename(first, &then).expect("move the prefix");
    then
}

/// What CMake says when it refuses `project` with `options`, its line breaks taken out.
fn refusal(project: &Project, options: &[&str]) -> String {
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", moved_prefix(project).display());
    let options = [&[prefix.as_str()], options].concat();
    let said = project.configure("refused", &options).expect_err("it must be refused");
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn an_installed_package_works_wherever_it_was_moved() {
    let project = user("callsight_instrument(app)\n");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", moved_prefix(&project).display());
    let build = project.build("hooks", &[&prefix, "-DCALLSIGHT=ON"]);
    assert_eq!(hooks_of(&build.join("app.instr")), Hooks::Has);
    assert_eq!(members_with_hooks(&build.join("liblib.a")), [""; 0], "it was not asked for");
    let normal = project.build("normal", &[&prefix]);
    assert_eq!(hooks_of(&normal.join("app")), Hooks::None);
}

#[test]
fn a_project_may_ask_for_all_its_targets() {
    let project = user("callsight_instrument_project()\nadd_library(later STATIC lib.c)\n");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", moved_prefix(&project).display());
    let build = project.build("hooks", &[&prefix, "-DCALLSIGHT=ON"]);
    assert_eq!(hooks_of(&build.join("app")), Hooks::Has);
    assert_eq!(members_with_hooks(&build.join("liblater.a")), ["lib.c.o"]);
}

#[test]
fn a_toolchain_file_that_confines_packages_does_not_hide_the_vendored_one() {
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.16)\nproject(x C)\nadd_executable(x x.c)\n",
        ),
        ("x.c", "int main(void) { return 0; }\n"),
        (
            "toolchain.cmake",
            "set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_C_COMPILER cc)\n\
             set(CMAKE_FIND_ROOT_PATH /nowhere)\nset(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)\n",
        ),
    ]);
    let toolchain = format!("-DCMAKE_TOOLCHAIN_FILE={}", project.path("toolchain.cmake").display());
    let build = project.init().build("hooks", &["-DCALLSIGHT=ON", &toolchain]);
    assert_eq!(hooks_of(&build.join("x")), Hooks::Has);
}

#[test]
fn calls_that_make_no_sense_are_refused_by_name() {
    for (call, part) in [
        ("callsight_instrument(app NOW)", "unknown argument `NOW`"),
        ("callsight_instrument(ap)", "there is no target `ap`"),
        ("add_library(i INTERFACE)\ncallsight_instrument(i)", "`i` is not built here"),
        ("callsight_instrument_project(ALL)", "unknown argument `ALL`"),
        ("find_package(Callsight REQUIRED COMPONENTS Wings)", "no component `Wings`"),
        ("find_package(Callsight 99 REQUIRED)", "compatible with requested version"),
    ] {
        let said = refusal(&user(&format!("{call}\n")), &[]);
        assert!(said.contains(part), "{call}: {said}");
    }
}

#[test]
fn a_triple_without_a_runtime_is_refused_with_what_there_is() {
    let project = user("callsight_instrument(app)\n");
    let options = ["-DCALLSIGHT=ON", "-DCALLSIGHT_TARGET_TRIPLE=riscv64-unknown-linux-gnu"];
    let said = refusal(&project, &options);
    assert!(said.contains("no runtime for riscv64-linux-gnu"), "{said}");
    assert!(said.contains(&format!("there is: {RUNTIME_TRIPLE}.")), "{said}");
}

#[test]
fn triples_are_taken_in_every_spelling() {
    for (triple, folder) in [
        ("x86_64-pc-linux-gnu", "x86_64-linux-gnu"),
        ("x86_64-redhat-linux", "x86_64-linux-gnu"),
        ("aarch64-unknown-linux-musl", "aarch64-linux-musl"),
        ("armv7l-unknown-linux-gnueabihf", "arm-linux-gnueabihf"),
        ("i686-linux-gnu", "i386-linux-gnu"),
        ("riscv64gc-unknown-linux-gnu", "riscv64-linux-gnu"),
        ("x86_64-apple-darwin", "x86_64-apple-darwin"),
    ] {
        let project = user(&format!(
            "_callsight_gnu_triple({triple} answer)\nmessage(FATAL_ERROR \"answer=${{answer}}=\")\n"
        ));
        let said = refusal(&project, &[]);
        assert!(said.contains(&format!("answer={folder}=")), "{triple}: {said}");
    }
}

/// An adopted project with two folders of sources and a `selection`.
fn selecting(selection: &str) -> Project {
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.16)\nproject(s C)\nadd_library(alib STATIC src/a.c \
             src/b+.c third_party/deep/c.c)\nadd_executable(app main.c)\ntarget_link_libraries(app alib)\n",
        ),
        ("src/a.c", "int a(void) { return 0; }\n"),
        ("src/b+.c", "int b(void) { return 0; }\n"),
        ("third_party/deep/c.c", "int c(void) { return 0; }\n"),
        ("main.c", "int a(void);\nint main(void) { return a(); }\n"),
    ]);
    project.init().write("callsight/callsight.toml", selection);
    project
}

#[track_caller]
fn selects(selection: &str, members: &[&str]) {
    let project = selecting(selection);
    let build = project.build_with_hooks();
    assert_eq!(members_with_hooks(&build.join("libalib.a")), members, "{selection}");
    assert_eq!(hooks_of(&build.join("app")), Hooks::Has, "an executable has the runtime");
}

#[test]
fn files_are_selected_by_pattern() {
    selects("[files]\nexclude = ['third_party/*']\n", &["a.c.o", "b+.c.o"]);
    selects("[files]\nexclude = [\"third_party/\", \"src/b+.c\"]\n", &["a.c.o"]);
    selects(
        "[files] # all but\r\ninclude = [\r\n  \"src\", # these\r\n]\r\n",
        &["a.c.o", "b+.c.o"],
    );
    selects("[files]\ninclude = [\"src\"]\nexclude = [\"*/?.c\"]", &["b+.c.o"]);
    selects("[files]\nexclude = [\"a.c\", \"rc/a.c\", \"src/a\"]\n", &["a.c.o", "b+.c.o", "c.c.o"]);
    selects("[files]\nexclude = [\"src\", \"third_party\"]\n", &[]);
    selects("\u{feff}[files]\nexclude = [\"src\"]\n", &["c.c.o"]);
    selects("", &["a.c.o", "b+.c.o", "c.c.o"]);
}

#[test]
fn targets_are_selected_by_name() {
    let project = selecting("[targets]\nexclude = [\"al*\"]\n");
    let build = project.build_with_hooks();
    assert_eq!(members_with_hooks(&build.join("libalib.a")), [""; 0]);
    assert_eq!(hooks_of(&build.join("app")), Hooks::Has);
}

#[test]
fn sources_added_after_the_call_are_selected_too() {
    let project =
        user("callsight_instrument(lib)\ntarget_sources(lib PRIVATE later.c left_out.c)\n");
    project.write("later.c", "int later(void) { return 0; }\n");
    project.write("left_out.c", "int left_out(void) { return 0; }\n");
    project.write("callsight.toml", "[files]\nexclude = [\"left_out.c\"]\n");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", moved_prefix(&project).display());
    let build = project.build("hooks", &[&prefix, "-DCALLSIGHT=ON"]);
    assert_eq!(members_with_hooks(&build.join("liblib.a")), ["lib.c.o", "later.c.o"]);
}

#[test]
fn the_next_build_follows_an_edited_selection() {
    let project = selecting("");
    let build = project.build_with_hooks();
    assert_eq!(members_with_hooks(&build.join("libalib.a")).len(), 3);
    project.write("callsight/callsight.toml", "[files]\nexclude = [\"src\"]\n");
    let file = fs::File::options().append(true).open(project.path("callsight/callsight.toml"));
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    file.expect("open").set_modified(later).expect("touch the selection");
    project.build_more("hooks", &[]);
    assert_eq!(members_with_hooks(&build.join("libalib.a")), ["c.c.o"]);
}

#[test]
fn a_selection_that_is_not_understood_stops_the_configure_run_with_hooks_only() {
    let project = selecting("[files]\n\nexcludes = [\"a\"]\n");
    let said = project.configure("hooks", &["-DCALLSIGHT=ON"]).expect_err("refused");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("callsight.toml:3: `excludes = [\"a\"]` is not understood"), "{said}");
    project.configure("normal", &[]).expect("a normal build does not look at it");
}
