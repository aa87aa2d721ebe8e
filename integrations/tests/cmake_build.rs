//! What an adopted project builds, with and without -DCALLSIGHT=ON. One tiny project a fact.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Hooks, Project, cmake_is_at_least, hooks_of, members_with_hooks, output_of, run};

/// One library of each kind and an executable, in folders of their own.
fn every_kind() -> Project {
    Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.10)\n\
             project(kinds C)\n\
             set(CMAKE_EXPORT_COMPILE_COMMANDS ON)\n\
             set(CMAKE_POSITION_INDEPENDENT_CODE ON)\n\
             add_subdirectory(libs)\n\
             add_executable(app main.c $<TARGET_OBJECTS:obj>)\n\
             target_link_libraries(app stat shar)\n\
             return()\n",
        ),
        (
            "libs/CMakeLists.txt",
            "add_library(stat STATIC stat.c)\n\
             add_library(shar SHARED shar.c)\n\
             add_library(plug MODULE plug.c)\n\
             add_library(obj OBJECT obj.c)\n\
             add_library(head INTERFACE)\n\
             add_custom_target(nothing)\n",
        ),
        ("libs/stat.c", "int stat_(void) { return 1; }\n"),
        ("libs/shar.c", "int shar(void) { return 2; }\n"),
        ("libs/plug.c", "int plug(void) { return 3; }\n"),
        ("libs/obj.c", "int obj(void) { return 4; }\n"),
        (
            "main.c",
            "#include <stdio.h>\nint stat_(void); int shar(void); int obj(void);\n\
             int main(void) { printf(\"%d\\n\", stat_() + shar() + obj()); return 0; }\n",
        ),
    ])
}

/// A project of one executable whose CMakeLists.txt goes on with `more`.
fn one_program(more: &str) -> Project {
    Project::new(&[
        (
            "CMakeLists.txt",
            &format!(
                "cmake_minimum_required(VERSION 3.10)\nproject(one C)\nadd_executable(one main.c)\n{more}"
            ),
        ),
        ("main.c", "int main(void) { return 0; }\n"),
    ])
}

#[test]
fn every_kind_of_target_is_built_with_hooks_in_every_folder() {
    let project = every_kind();
    let build = project.init().build_with_hooks();
    assert_eq!(hooks_of(&build.join("app")), Hooks::Has);
    assert_eq!(hooks_of(&build.join("libs/libshar.so")), Hooks::Calls);
    assert_eq!(hooks_of(&build.join("libs/libplug.so")), Hooks::Calls);
    assert_eq!(hooks_of(&build.join("libs/CMakeFiles/obj.dir/obj.c.o")), Hooks::Calls);
    assert_eq!(members_with_hooks(&build.join("libs/libstat.a")), ["stat.c.o"]);
    assert_eq!(output_of(build.join("app")), "7");
}

#[test]
fn a_normal_build_has_the_very_command_lines_it_had_before() {
    let project = every_kind();
    let lines = |build: &Path| {
        let commands = fs::read_to_string(build.join("compile_commands.json")).expect("compiling");
        let link = fs::read_to_string(build.join("CMakeFiles/app.dir/link.txt")).expect("linking");
        // CMake writes the files in no fixed order.
        let mut commands: Vec<String> = commands.lines().map(str::to_owned).collect();
        commands.sort();
        (commands, link)
    };
    let makefiles = ["-G", "Unix Makefiles"];
    let build = project.build("normal", &makefiles);
    let before = lines(&build);
    fs::remove_dir_all(&build).expect("remove the build");
    project.init_with_drain().build("normal", &makefiles);
    assert_eq!(lines(&build), before);
    assert_eq!(hooks_of(&build.join("app")), Hooks::None);
    assert!(!build.join("app.instr").exists());
}

#[test]
fn a_project_without_the_folder_still_configures() {
    let project = every_kind();
    project.init();
    fs::remove_dir_all(project.path("callsight")).expect("remove the folder");
    let build = project.build("without", &["-DCALLSIGHT=ON"]);
    assert_eq!(hooks_of(&build.join("app")), Hooks::None);
}

#[test]
fn each_executable_has_an_instr_link_beside_it() {
    let project = every_kind();
    let build = project.init().build_with_hooks();
    assert_eq!(fs::read_link(build.join("app.instr")).expect("a link"), Path::new("app"));
    assert_eq!(output_of(build.join("app.instr")), "7");
}

#[test]
fn an_executable_that_is_not_part_of_all_is_not_made_so() {
    let project = one_program(
        "add_executable(extra EXCLUDE_FROM_ALL main.c)\nadd_subdirectory(tools EXCLUDE_FROM_ALL)\n",
    );
    project.write("tools/CMakeLists.txt", "add_executable(tool ../main.c)\n");
    let build = project.init().build_with_hooks();
    assert!(build.join("one.instr").exists());
    assert!(!build.join("extra").exists() && !build.join("tools/tool").exists());
    project.build_more("hooks", &["--target", "extra.instr"]);
    assert_eq!(hooks_of(&build.join("extra.instr")), Hooks::Has);
}

#[test]
fn traced_programs_leave_a_capture_and_untraced_ones_do_not() {
    let project = every_kind();
    let build = project.init().build_with_hooks();
    for (enable, captures) in [("0", false), ("1", true)] {
        let traces = build.join(format!("traces{enable}"));
        let mut program = Command::new(build.join("app.instr"));
        program.env("TRACE_ENABLE", enable).env("TRACE_DIR", &traces).env_remove("TRACE_SHM");
        assert_eq!(run(program).expect("the program succeeds").trim(), "7");
        let files = fs::read_dir(&traces).map(Iterator::count).unwrap_or(0);
        assert_eq!(files > 0, captures, "TRACE_ENABLE={enable}");
    }
}

#[test]
fn configure_checks_do_not_see_the_flags() {
    let checks = "include(CheckCSourceCompiles)\n\
        check_c_source_compiles(\"int main(void) { return 0; }\" COMPILES)\n\
        try_run(RAN BUILT ${CMAKE_BINARY_DIR}/t ${CMAKE_SOURCE_DIR}/t.c RUN_OUTPUT_VARIABLE SAID)\n\
        message(STATUS \"said [${SAID}] flags [${CMAKE_C_FLAGS}] [${CMAKE_EXE_LINKER_FLAGS}]\")\n\
        file(GLOB_RECURSE left ${CMAKE_BINARY_DIR}/trace.*)\n\
        message(STATUS \"left [${left}]\")\n";
    let project = one_program(checks);
    let probe = "#include <stdio.h>\nint main(void) { printf(\"42\"); return 0; }\n";
    project.write("t.c", probe);
    project.init();
    let said = project.configure("hooks", &["-DCALLSIGHT=ON"]).expect("configure");
    assert!(said.contains("said [42] flags [] []"), "{said}");
    assert!(said.contains("left []"), "{said}");
    let kept = project.beside("hooks/CMakeFiles");
    let mut grep = Command::new("grep");
    grep.args(["-rl", "--include=CMakeOutput.log", "--include=CMakeError.log"]);
    grep.args(["--include=CMakeConfigureLog.yaml", "finstrument-functions"]).arg(kept);
    assert!(run(grep).is_err(), "a check was compiled with the flag");
}

#[test]
fn nothing_of_it_is_installed_or_exported() {
    let project = every_kind();
    let text = String::from_utf8(project.read("CMakeLists.txt")).expect("UTF-8");
    let exports = "install(TARGETS app stat shar EXPORT kinds RUNTIME DESTINATION bin \
        ARCHIVE DESTINATION lib LIBRARY DESTINATION lib)\n\
        install(EXPORT kinds NAMESPACE k:: DESTINATION lib/cmake/kinds FILE kindsConfig.cmake)\n\
        export(EXPORT kinds NAMESPACE k:: FILE ${CMAKE_BINARY_DIR}/kindsTargets.cmake)\nreturn()\n";
    project.write("CMakeLists.txt", text.replace("return()\n", exports));
    let prefix = project.beside("prefix");
    let option = format!("-DCMAKE_INSTALL_PREFIX={}", prefix.display());
    let build = project.init().build("hooks", &["-DCALLSIGHT=ON", &option]);
    project.build_more("hooks", &["--target", "install"]);
    for exported in
        [prefix.join("lib/cmake/kinds/kindsConfig.cmake"), build.join("kindsTargets.cmake")]
    {
        let text = fs::read_to_string(exported).expect("read the export").to_lowercase();
        assert!(!text.contains("callsight") && !text.contains("instrument"), "{text}");
    }

    let user = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.10)\nproject(user C)\nfind_package(kinds REQUIRED)\n\
             add_executable(user user.c)\ntarget_link_libraries(user k::stat)\n",
        ),
        ("user.c", "int stat_(void);\nint main(void) { return stat_() - 1; }\n"),
    ]);
    let found = user.build("b", &[&format!("-DCMAKE_PREFIX_PATH={}", prefix.display())]);
    assert_eq!(output_of(found.join("user")), "");
}

#[test]
fn a_shared_library_linked_with_z_defs_builds_and_reaches_the_programs_hooks() {
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.13)\nproject(d C)\nadd_library(d SHARED d.c)\n\
             target_link_options(d PRIVATE -Wl,-z,defs)\nadd_executable(p p.c)\n\
             target_link_options(p PRIVATE -Wl,--exclude-libs,ALL)\ntarget_link_libraries(p d)\n",
        ),
        ("d.c", "int d(void) { return 0; }\n"),
        ("p.c", "int d(void);\nint main(void) { return d(); }\n"),
    ]);
    let build = project.init().build_with_hooks();
    assert_eq!(hooks_of(&build.join("libd.so")), Hooks::Calls);
    use object::{Object, ObjectSymbol};
    let bytes = fs::read(build.join("p")).expect("read the program");
    let file = object::File::parse(bytes.as_slice()).expect("an ELF file");
    let exported =
        file.dynamic_symbols().any(|s| s.name() == Ok(common::ENTER) && s.is_definition());
    assert!(exported, "the program does not export its hooks");
}

#[test]
fn a_version_script_that_may_hide_the_hooks_is_warned_about() {
    let project = one_program(
        "set_target_properties(one PROPERTIES LINK_FLAGS -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/one.map)\n",
    );
    project.write("one.map", "{ global: main; local: *; };\n");
    project.init();
    let said = project.configure("hooks", &["-DCALLSIGHT=ON"]).expect("configure");
    assert!(said.contains("`one` is linked with a version script"), "{said}");
}

#[test]
fn odd_paths_do_not_matter() {
    // Makefiles by CMake before 3.18 break at a `$` and a `#`, whoever wrote the project.
    let all = ["Ninja", "Unix Makefiles"];
    let generators = if cmake_is_at_least(3, 18) { &all[..] } else { &all[..1] };
    for generator in generators {
        let project = Project::in_folder(
            "my proj, v2 (é) $x",
            &[
                (
                    "CMakeLists.txt",
                    "cmake_minimum_required(VERSION 3.10)\nproject(odd C)\n\
                     file(GLOB SRCS CONFIGURE_DEPENDS \"*.c\" \"sub dir/*.c\")\n\
                     add_executable(prog ${SRCS})\n",
                ),
                ("main.c", "int a(void);\nint main(void) { return a(); }\n"),
                ("sub dir/a,b (2)#é.c", "int a(void) { return 0; }\n"),
            ],
        );
        let build = project.init().build("hooks", &["-G", generator, "-DCALLSIGHT=ON"]);
        assert_eq!(hooks_of(&build.join("prog.instr")), Hooks::Has, "{generator}");
        assert_eq!(output_of(build.join("prog")), "");
    }
}

#[test]
fn a_new_runtime_relinks_the_executable() {
    let project = one_program("");
    let build = project.init().build_with_hooks();
    let link_time = || fs::metadata(build.join("one")).expect("stat").modified().expect("a time");
    let before = link_time();
    project.build_more("hooks", &[]);
    assert_eq!(link_time(), before, "nothing changed, so nothing is linked");
    let object = "callsight/lib/x86_64-linux-gnu/callsight_runtime.o";
    let object = object.replace("x86_64-linux-gnu", callsight_integrations::RUNTIME_TRIPLE);
    let later = before + std::time::Duration::from_secs(5);
    let file = fs::File::options().append(true).open(project.path(&object)).expect("open");
    file.set_modified(later).expect("touch the runtime");
    project.build_more("hooks", &[]);
    assert_ne!(link_time(), before);
}

#[test]
fn a_project_that_globs_its_sources_does_not_compile_the_drain() {
    for option in ["-DCALLSIGHT=OFF", "-DCALLSIGHT=ON"] {
        let project = Project::new(&[
            (
                "CMakeLists.txt",
                "cmake_minimum_required(VERSION 3.10)\nproject(g C)\n\
                 file(GLOB_RECURSE SRCS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)\nadd_executable(g ${SRCS})\n\
                 add_executable(drain callsight/trace_stream.c callsight/zstd.c)\n",
            ),
            ("src/main.c", "int main(void) { return 0; }\n"),
        ]);
        project.init_with_drain();
        let build = project.beside("b");
        project.configure("b", &[option]).expect("configure");
        project.build_more("b", &["--target", "g"]);
        assert_eq!(output_of(build.join("g")), "");
    }
}

#[test]
fn a_project_in_another_project_is_instrumented_up_to_its_own_folder() {
    if !cmake_is_at_least(3, 19) {
        return;
    }
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.10)\nproject(outer C)\nadd_subdirectory(inner)\n\
             add_executable(outer main.c)\n",
        ),
        ("main.c", "int main(void) { return 0; }\n"),
        (
            "inner/CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.10)\nproject(inner C)\nadd_executable(inner ../main.c)\n",
        ),
    ]);
    let plan = callsight_integrations::plan_init(&project.path("inner"), &Default::default());
    plan.expect("a plan").apply().expect("apply the plan");
    let build = project.build_with_hooks();
    assert_eq!(hooks_of(&build.join("inner/inner")), Hooks::Has);
    assert_eq!(hooks_of(&build.join("outer")), Hooks::None);
    // Both adopted: nothing is done twice.
    project.init();
    let said = project.configure("both", &["-DCALLSIGHT=ON"]).expect("configure");
    assert!(!said.contains("Warning"), "{said}");
    project.build_more("both", &[]);
    assert_eq!(hooks_of(&project.beside("both/outer")), Hooks::Has);
    // And the outer one's selection holds.
    project.write("callsight/callsight.toml", "[targets]\nexclude = [\"inner\"]\n");
    project.write("inner/callsight/callsight.toml", "[targets]\nexclude = [\"outer\"]\n");
    let build = project.build("selected", &["-DCALLSIGHT=ON"]);
    assert_eq!(hooks_of(&build.join("outer")), Hooks::Has);
    assert_eq!(hooks_of(&build.join("inner/inner")), Hooks::None);
}

#[test]
fn targets_that_the_project_itself_adds_late_are_found() {
    if !cmake_is_at_least(3, 19) {
        return;
    }
    let project = one_program(
        "function(late)\n  add_executable(late main.c)\nendfunction()\ncmake_language(DEFER CALL late)\n",
    );
    let build = project.init().build_with_hooks();
    assert_eq!(hooks_of(&build.join("late")), Hooks::Has);
}

#[test]
fn old_policies_of_the_project_do_not_matter() {
    let minimum = if cmake_is_at_least(4, 0) { "3.5" } else { "2.8.12" };
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            &format!(
                "cmake_minimum_required(VERSION {minimum})\nproject(old C)\nset(EXECUTABLE 1)\nset(C 2)\nadd_executable(old old.c)\n"
            ),
        ),
        ("old.c", "int main(void) { return 0; }\n"),
    ]);
    let build = project.init().build_with_hooks();
    assert_eq!(hooks_of(&build.join("old")), Hooks::Has);
}

#[test]
fn without_project_in_the_top_file_it_works_as_well() {
    let project = Project::new(&[
        ("CMakeLists.txt", "cmake_minimum_required(VERSION 3.10)\ninclude(all.cmake)\n"),
        ("all.cmake", "project(all C)\nadd_executable(prog ${CMAKE_CURRENT_SOURCE_DIR}/all.c)\n"),
        ("all.c", "int main(void) { return 0; }\n"),
    ]);
    let build = project.init().build_with_hooks();
    assert_eq!(hooks_of(&build.join("prog")), Hooks::Has);
}
