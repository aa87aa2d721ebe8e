//! What `init` writes into a project and `--undo` takes out, byte for byte. Runs no CMake.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use callsight_integrations::{Options, plan_init, plan_install, plan_undo};
use common::Project;

const SIMPLE: &str = "cmake_minimum_required(VERSION 3.16)\nproject(x C)\nadd_executable(x x.c)\n";

#[track_caller]
fn comes_back(text: impl AsRef<[u8]>) {
    let project = Project::new(&[("x.c", "int main(void) { return 0; }\n")]);
    project.write("CMakeLists.txt", text);
    let before = project.files();
    project.init();
    assert_ne!(project.files(), before);
    assert_eq!(project.undo(), Vec::<String>::new());
    assert_eq!(project.files(), before);
    assert!(!project.path("callsight").exists());
}

#[test]
fn undo_gives_back_every_byte() {
    comes_back(SIMPLE);
    comes_back(SIMPLE.replace('\n', "\r\n"));
    comes_back(SIMPLE.trim_end());
    comes_back("project(x C)");
    comes_back(format!("\u{feff}{SIMPLE}"));
    comes_back([SIMPLE.as_bytes(), b"# caf\xe9 in Latin-1\n"].concat());
    comes_back("project(\n  x\n  # project( in a comment\n  LANGUAGES C)\r\nadd_library(x x.c)\n");
}

#[test]
fn the_edit_is_shown_as_a_diff() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/simple.diff");
    let diff = project.plan().diff();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(golden, &diff).expect("write the golden file");
    }
    assert_eq!(diff, fs::read_to_string(golden).expect("read the golden file"));
}

#[test]
fn a_plan_alone_writes_nothing() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    let before = project.files();
    assert!(!project.plan().is_empty());
    assert_eq!(project.files(), before);
}

#[test]
fn a_second_init_changes_nothing() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    project.init();
    assert!(project.plan().is_empty());
    project.init_with_drain();
    assert!(project.plan().is_empty(), "a project keeps the drain it has");
}

#[test]
fn an_outdated_file_is_brought_up_to_date_and_named() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    project.init();
    let name = "callsight/CallsightTriple.cmake";
    let current = project.read(name);
    // As an older version would have left it: other contents, and the record says so.
    let record = String::from_utf8(project.read("callsight/.init.toml")).expect("UTF-8");
    let line = record.lines().find(|line| line.contains("CallsightTriple")).expect("its line");
    project.write(name, "a");
    let older = record.replace(line, "\"CallsightTriple.cmake\" = \"1-af63dc4c8601ec8c\"");
    project.write("callsight/.init.toml", older);

    let plan = project.plan();
    let changed: Vec<_> = plan.changes().iter().map(|change| plan.name_of(change)).collect();
    assert_eq!(changed, [name, "callsight/.init.toml"].map(std::path::Path::new));
    plan.apply().expect("apply the plan");
    assert_eq!(project.read(name), current);
}

#[test]
fn a_selection_that_was_edited_stays() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    project.init();
    project.write("callsight/callsight.toml", "[files]\nexclude = [\"a.c\"]\n");
    assert!(project.plan().is_empty() && project.plan().notes().is_empty());
    let said = project.undo();
    assert_eq!(said, ["callsight/callsight.toml stays: it was changed by hand"]);
    assert_eq!(project.read("CMakeLists.txt"), SIMPLE.as_bytes());
    assert_eq!(fs::read_dir(project.path("callsight")).expect("list").count(), 1);
    // And another init takes it up again.
    project.init();
    assert!(project.read("callsight/callsight.toml").ends_with(b"[\"a.c\"]\n"));
}

#[test]
fn a_module_that_was_edited_stays_and_is_named() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    project.init();
    project.write("callsight/CallsightConfig.cmake", "# mine\n");
    let plan = project.plan();
    assert!(plan.is_empty());
    assert!(plan.notes()[0].starts_with("callsight/CallsightConfig.cmake was changed by hand"));
}

#[test]
fn what_the_user_built_there_stays() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    project.init_with_drain();
    project.write("callsight/trace_stream", "\x7fELF");
    let said = project.undo();
    assert_eq!(said, ["callsight/trace_stream stays: `callsight init` did not write it"]);
    assert!(project.path("callsight/trace_stream").exists());
    assert!(!project.path("callsight/zstd.c").exists());
}

#[test]
fn the_drain_lies_where_the_documented_command_line_looks_for_it() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    project.init();
    assert!(!project.path("callsight/trace_stream.c").exists());
    project.init_with_drain();
    for name in ["trace_stream.c", "trace_shm.h", "zstd.c", "zstd.h", "zstd.LICENSE"] {
        assert!(project.path("callsight").join(name).is_file(), "{name}");
    }
}

#[test]
fn undo_after_later_edits_cuts_out_the_block_only() {
    for text in [SIMPLE.to_owned(), SIMPLE.replace('\n', "\r\n")] {
        let project = Project::new(&[("CMakeLists.txt", &text)]);
        project.init();
        let added = "add_library(later later.c)\n";
        let edited = [project.read("CMakeLists.txt"), added.into()].concat();
        project.write("CMakeLists.txt", edited);
        project.undo();
        assert_eq!(project.read("CMakeLists.txt"), format!("{text}{added}").as_bytes());
    }
}

#[test]
fn undo_without_a_record_cuts_out_the_block_and_says_what_stays() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    project.init();
    fs::remove_file(project.path("callsight/.init.toml")).expect("remove the record");
    let said = project.undo();
    assert_eq!(said, ["callsight/ stays: it has no record of what `callsight init` wrote"]);
    assert_eq!(project.read("CMakeLists.txt"), SIMPLE.as_bytes());
}

#[test]
fn undo_of_what_was_never_done_changes_nothing() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    assert!(plan_undo(&project.root).expect("a plan").is_empty());
}

#[test]
fn a_half_open_marker_is_refused_both_ways() {
    let half = SIMPLE.replace("project(x C)\n", "project(x C)\n# >>> callsight (managed) >>>\n");
    let project = Project::new(&[("CMakeLists.txt", &half)]);
    let before = project.files();
    assert!(project.refusal().contains("line 3 has a callsight marker without its counterpart"));
    let undo = plan_undo(&project.root).expect_err("it must be refused").to_string();
    assert!(undo.contains("line 3"), "{undo}");
    assert_eq!(project.files(), before);
}

#[test]
fn what_cannot_be_edited_safely_is_refused_in_one_sentence() {
    for (text, part) in [
        ("project(x C\n", "line 1: the call is not closed"),
        ("add_library(x x.c)\n", "neither project() nor cmake_minimum_required()"),
        ("add_library(x x.c)\n", "${CMAKE_CURRENT_SOURCE_DIR}/callsight/callsight.cmake"),
        ("p\0r\0o\0j\0", "not text in UTF-8"),
    ] {
        let project = Project::new(&[("CMakeLists.txt", text)]);
        let said = project.refusal();
        assert!(said.contains(part) && !said.contains('\n'), "{said}");
        assert!(!project.path("callsight").exists());
    }
}

#[test]
fn other_build_systems_are_named_and_the_way_by_hand_too() {
    for (file, system) in [("Cargo.toml", "Cargo"), ("Makefile", "Make"), ("meson.build", "Meson")]
    {
        let project = Project::new(&[(file, "")]);
        let said = project.refusal();
        assert!(said.contains(&format!("built by {system}, ")), "{said}");
        assert!(said.contains("-finstrument-functions") && said.contains("callsight_runtime.o"));
    }
    let said = Project::new(&[("main.c", "")]).refusal();
    assert!(said.contains("no build system found"), "{said}");
    let nowhere = Project::new(&[]).path("missing");
    let said = plan_init(&nowhere, &Options::default()).expect_err("refused").to_string();
    assert!(said.contains("that is no folder"), "{said}");
}

#[test]
fn the_path_may_be_the_file_itself() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    let plan = plan_init(&project.path("CMakeLists.txt"), &Options::default()).expect("a plan");
    assert_eq!(plan.diff(), project.plan().diff());
}

#[test]
fn a_link_within_the_project_is_followed_and_stays_a_link() {
    let project = Project::new(&[("cmake/top.txt", SIMPLE)]);
    symlink("cmake/top.txt", project.path("CMakeLists.txt")).expect("make a link");
    project.init();
    assert!(project.path("CMakeLists.txt").is_symlink());
    assert_ne!(project.read("cmake/top.txt"), SIMPLE.as_bytes());
    project.undo();
    assert_eq!(project.read("cmake/top.txt"), SIMPLE.as_bytes());
}

#[test]
fn a_link_out_of_the_project_is_refused() {
    let project = Project::new(&[]);
    fs::write(project.beside("shared.txt"), SIMPLE).expect("write a file");
    symlink("../shared.txt", project.path("CMakeLists.txt")).expect("make a link");
    let said = project.refusal();
    assert!(said.contains("outside the project; put a copy"), "{said}");
    fs::remove_file(project.beside("shared.txt")).expect("remove a file");
    let said = project.refusal();
    assert!(said.contains("leads nowhere") && said.contains("restore the file"), "{said}");
}

#[test]
fn a_read_only_file_is_refused_and_other_permissions_are_kept() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    let set = |mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(project.path("CMakeLists.txt"), permissions).expect("chmod");
    };
    set(0o444);
    assert!(project.refusal().contains("read-only"));
    // What has nothing to do needs no rights.
    assert!(callsight_integrations::plan_undo(&project.path(".")).expect("a plan").is_empty());
    set(0o640);
    project.init();
    let mode = fs::metadata(project.path("CMakeLists.txt")).expect("stat").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    set(0o440);
    let said = callsight_integrations::plan_undo(&project.path(".")).expect_err("a change");
    assert!(said.to_string().contains("read-only"), "{said}");
}

#[test]
fn a_file_in_the_way_is_refused_and_nothing_is_written() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE), ("callsight/callsight.cmake", "#\n")]);
    let before = project.files();
    assert!(project.refusal().contains("`callsight init` did not write"));
    assert_eq!(project.files(), before);

    let project = Project::new(&[("CMakeLists.txt", SIMPLE), ("callsight", "a file\n")]);
    assert!(project.refusal().contains("`callsight init` did not write"));
    fs::remove_file(project.path("callsight")).expect("remove a file");
    symlink("/nowhere", project.path("callsight")).expect("make a link");
    assert!(project.refusal().contains("`callsight init` did not write"));
}

#[test]
fn a_failure_in_the_middle_is_taken_back() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    let plan = project.plan();
    // Comes up after the plan was made, where a folder is needed.
    project.write("callsight/lib", "a file");
    let before = project.files();
    let said = plan.apply().expect_err("it must fail").to_string();
    assert!(said.contains("callsight/lib"), "{said}");
    assert_eq!(project.files(), before);
}

#[test]
fn a_file_that_changed_after_the_plan_is_not_overwritten() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE)]);
    let plan = project.plan();
    project.write("CMakeLists.txt", "project(y)\n");
    let before = project.files();
    let said = plan.apply().expect_err("it must fail").to_string();
    assert!(said.contains("something else has changed it"), "{said}");
    assert_eq!(project.files(), before);
}

#[test]
fn a_record_that_leads_elsewhere_is_not_followed() {
    let project = Project::new(&[("CMakeLists.txt", SIMPLE), ("keep.txt", "a")]);
    project.init();
    let record = String::from_utf8(project.read("callsight/.init.toml")).expect("UTF-8");
    project.write("callsight/.init.toml", record + "\"../keep.txt\" = \"1-af63dc4c8601ec8c\"\n");
    project.undo();
    assert_eq!(project.read("keep.txt"), b"a");
}

#[test]
fn an_installed_package_is_planned_once() {
    let project = Project::new(&[]);
    let prefix = project.path("usr");
    plan_install(&prefix).expect("a plan").apply().expect("install");
    assert!(prefix.join("lib/cmake/Callsight/CallsightConfig.cmake").is_file());
    assert!(prefix.join("include/callsight/trace_shm.h").is_file());
    assert!(prefix.join("share/callsight/drain/zstd.c").is_file());
    assert!(plan_install(&prefix).expect("a plan").is_empty());
}
