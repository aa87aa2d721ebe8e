//! The oldest CMake that callsight supports, where there is one: `CALLSIGHT_OLD_CMAKE` is its path.
//!
//! It cannot defer calls, so it is instrumented in another way. All other tests run under it as
//! well, with `CALLSIGHT_TEST_CMAKE`.

mod common;

use std::process::Command;

use common::{Hooks, Project, hooks_of, members_with_hooks, run};

#[test]
fn cmake_3_16_instruments_every_folder() {
    let Some(cmake) = std::env::var_os("CALLSIGHT_OLD_CMAKE") else {
        eprintln!("skipped: CALLSIGHT_OLD_CMAKE does not name a CMake 3.16 to 3.18");
        return;
    };
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.10)\nproject(old C)\nadd_subdirectory(lib)\n\
             add_executable(old main.c)\ntarget_link_libraries(old lib)\nreturn()\n",
        ),
        ("main.c", "int lib(void);\nint main(void) { return lib(); }\n"),
        ("lib/CMakeLists.txt", "add_library(lib STATIC lib.c)\n"),
        ("lib/lib.c", "int lib(void) { return 0; }\n"),
    ]);
    let build = project.beside("hooks");
    let mut configure = Command::new(&cmake);
    configure.arg("-S").arg(&project.init().root).arg("-B").arg(&build).arg("-DCALLSIGHT=ON");
    run(configure).unwrap_or_else(|said| panic!("configure: {said}"));
    let mut make = Command::new(&cmake);
    make.arg("--build").arg(&build);
    run(make).unwrap_or_else(|said| panic!("build: {said}"));
    assert_eq!(hooks_of(&build.join("old.instr")), Hooks::Has);
    assert_eq!(members_with_hooks(&build.join("lib/liblib.a")), ["lib.c.o"]);
}
