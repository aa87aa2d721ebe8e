//! C++ and the generators with more than one configuration.

mod common;

use common::{Hooks, Project, cmake, cmake_is_at_least, hooks_of, output_of, run};

/// C++ only, with an object library, a precompiled header, a unity build and presets.
fn cxx_only() -> Project {
    Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.16)\nproject(cxx LANGUAGES CXX)\n\
             add_library(core OBJECT core.cpp)\n\
             add_executable(prog main.cpp more.cpp $<TARGET_OBJECTS:core>)\n\
             target_precompile_headers(prog PRIVATE <vector> <string>)\n\
             set_target_properties(prog PROPERTIES UNITY_BUILD ON)\n",
        ),
        (
            "CMakePresets.json",
            "{ \"version\": 3, \"configurePresets\": [ { \"name\": \"dev\", \
             \"generator\": \"Ninja Multi-Config\", \"binaryDir\": \"${sourceDir}/../out\", \
             \"cacheVariables\": { \"CALLSIGHT\": \"ON\", \"CMAKE_CXX_FLAGS\": \"-fvisibility=hidden\" } } ] }\n",
        ),
        ("core.cpp", "namespace core { int sum() { return 3; } }\n"),
        ("more.cpp", "int more() { return std::vector<int>(4).size(); }\n"),
        (
            "main.cpp",
            "#include <cstdio>\nnamespace core { int sum(); }\nint more();\n\
             int main() { std::printf(\"%d\\n\", core::sum() + more()); }\n",
        ),
    ])
}

#[test]
fn a_project_without_a_c_compiler_works_and_stays_without_one() {
    let project = cxx_only();
    let build = project.init().build_with_hooks();
    assert_eq!(hooks_of(&build.join("prog")), Hooks::Has);
    assert_eq!(hooks_of(&build.join("CMakeFiles/core.dir/core.cpp.o")), Hooks::Calls);
    assert_eq!(output_of(build.join("prog.instr")), "7");
    let cache = std::fs::read_to_string(build.join("CMakeCache.txt")).expect("read the cache");
    assert!(!cache.contains("CMAKE_C_COMPILER:"), "C was enabled");
}

#[test]
fn ninja_multi_config_has_hooks_and_a_link_in_every_configuration() {
    if !cmake_is_at_least(3, 17) {
        return;
    }
    let project = cxx_only();
    project.init();
    let options = ["-G", "Ninja Multi-Config", "-DCALLSIGHT=ON"];
    project.configure("multi", &options).expect("configure");
    for configuration in ["Debug", "Release"] {
        project.build_more("multi", &["--config", configuration]);
        let program = project.beside("multi").join(configuration).join("prog.instr");
        assert_eq!(hooks_of(&program), Hooks::Has);
        assert_eq!(output_of(program), "7");
    }
}

#[test]
fn presets_work() {
    if !cmake_is_at_least(3, 21) {
        return;
    }
    let project = cxx_only();
    project.init();
    let mut configure = cmake();
    configure.args(["--preset", "dev"]).current_dir(&project.root);
    run(configure).unwrap_or_else(|said| panic!("configure: {said}"));
    project.build_more("out", &["--config", "Release"]);
    assert_eq!(hooks_of(&project.beside("out/Release/prog")), Hooks::Has);
}

#[test]
fn clang_builds_with_hooks_too() {
    let project = cxx_only();
    let options = ["-DCALLSIGHT=ON", "-DCMAKE_CXX_COMPILER=clang++"];
    let build = project.init().build("clang", &options);
    assert_eq!(hooks_of(&build.join("prog")), Hooks::Has);
    assert_eq!(output_of(build.join("prog")), "7");
}
