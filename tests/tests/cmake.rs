//! CMake projects adopted by `callsight init`: odd paths, presets, exports, configure checks,
//! generators that run while building. The project's own behaviour never changes.

use std::path::PathBuf;

use callsight_tests::{Report, Shell};
use tempfile::TempDir;

/// A CMake project out of texts, in a folder of its own.
struct Project {
    folder: TempDir,
    path: PathBuf,
}

impl Project {
    fn new(files: &[(&str, &str)]) -> Project {
        Project::named("project", files)
    }

    fn named(name: &str, files: &[(&str, &str)]) -> Project {
        let folder = TempDir::with_prefix("callsight-cmake-").expect("a temporary folder");
        let path = folder.path().join(name);
        for (file, text) in files {
            let file = path.join(file);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("make folders");
            std::fs::write(file, text).expect("write a file");
        }
        Project { folder, path }
    }

    fn shell(&self) -> Shell {
        Shell::new(&self.path)
    }

    /// A shell in which everything is traced, into a folder beside the project.
    fn tracing(&self) -> Shell {
        let traces = self.folder.path().join("traces");
        self.shell().env("TRACE_ENABLE", "1").env("TRACE_DIR", traces)
    }

    fn init(&self) {
        let ran = self.shell().callsight(&["init", "."]);
        assert_eq!(ran.code, 0, "{ran}");
    }

    /// `callsight init`, configure with `-DCALLSIGHT=ON` and these options, build.
    fn build(&self, options: &str) {
        self.init();
        self.shell()
            .ok(&format!("cmake -S . -B build -DCALLSIGHT=ON {options} && cmake --build build"));
    }

    /// Runs a command of the project with recording on, and reports on it.
    fn traced(&self, command: &str) -> (String, Report) {
        let traces = self.folder.path().join("traces");
        let _ = std::fs::remove_dir_all(&traces);
        let ran = self.tracing().ok(command);
        let folder = traces.to_str().expect("UTF-8").to_owned();
        (ran.stdout, Report::of(&self.shell(), &[&folder]))
    }
}

const HELLO: &str = r#"
    #include <stdio.h>
    static int twice(int x) { return 2 * x; }
    int main(void) { printf("%d\n", twice(21)); return 0; }
"#;

#[test]
fn a_normal_build_has_no_hook_and_a_traced_one_has_all() {
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.16)\nproject(hello C)\nadd_executable(hello main.c)\n",
        ),
        ("main.c", HELLO),
    ]);
    project.build("");
    let (stdout, report) = project.traced("./build/hello");
    assert_eq!(stdout, "42\n");
    assert_eq!((report.calls_of("main"), report.calls_of("twice")), (1, 1));
    report.clean();
    let normal =
        project.shell().ok("cmake -S . -B normal && cmake --build normal && nm normal/hello");
    assert!(!normal.stdout.contains("__cyg_profile"), "{normal}");
    project.shell().ok("callsight init --undo . && test ! -e callsight");
    let lists = std::fs::read_to_string(project.path.join("CMakeLists.txt")).expect("a file");
    assert!(!lists.contains("callsight"), "{lists}");
}

#[test]
fn paths_with_blanks_commas_brackets_dollars_and_umlauts_stay_whole() {
    let project = Project::named(
        "my proj, v2 (é) $x",
        &[
            (
                "CMakeLists.txt",
                "cmake_minimum_required(VERSION 3.16)\nproject(odd C)\n\
                 add_executable(prog main.c \"sub dir/a,b.c\" \"sub dir/büro (2)#x.c\")\n",
            ),
            (
                "main.c",
                "#include <stdio.h>\nint net_up(int); int helper(int);\n\
                 int main(void) { int s = 0; for (int i = 0; i < 5; i++) s = helper(net_up(s)); printf(\"%d\\n\", s); return 0; }\n",
            ),
            ("sub dir/a,b.c", "int net_up(int x) { return x + 1; }\n"),
            ("sub dir/büro (2)#x.c", "int helper(int x) { return x + 5; }\n"),
        ],
    );
    project.build("-G Ninja");
    let (stdout, report) = project.traced("./build/prog");
    assert_eq!(stdout, "30\n");
    for (name, file, calls) in
        [("net_up", "sub dir/a,b.c:1", 5), ("helper", "sub dir/büro (2)#x.c:1", 5)]
    {
        let row = report.row(name);
        assert_eq!(row["calls"], calls);
        assert!(row["location"].as_str().expect("text").ends_with(file), "{row}");
    }
}

#[test]
fn a_cpp_only_project_with_presets_unity_and_precompiled_headers_works() {
    let presets = r#"{ "version": 3, "configurePresets": [ { "name": "dev", "generator": "Ninja Multi-Config",
        "binaryDir": "${sourceDir}/out", "cacheVariables": { "CALLSIGHT": "ON", "CMAKE_UNITY_BUILD": "ON" } } ],
        "buildPresets": [ { "name": "dev-release", "configurePreset": "dev", "configuration": "Release" } ] }"#;
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.21)\nproject(acc LANGUAGES CXX)\nadd_library(core OBJECT core.cpp)\n\
             add_executable(prog main.cpp more.cpp $<TARGET_OBJECTS:core>)\ntarget_precompile_headers(prog PRIVATE <vector>)\n",
        ),
        ("CMakePresets.json", presets),
        (
            "core.cpp",
            "namespace core { namespace { int leaf(int x) { return x + 1; } } int sum(int n) { int s = 0; for (int i = 0; i < 4; i++) s = leaf(s); return s + n; } }\n",
        ),
        ("more.cpp", "int more(int x) { return x + 6; }\n"),
        (
            "main.cpp",
            "#include <cstdio>\nnamespace core { int sum(int); }\nint more(int);\nint main() { int s = 0; for (int i = 0; i < 3; i++) s = more(core::sum(s)); std::printf(\"%d\\n\", s); }\n",
        ),
    ]);
    project.init();
    project.shell().ok("cmake --preset dev && cmake --build --preset dev-release");
    let (stdout, report) = project.traced("./out/Release/prog");
    assert_eq!(stdout, "30\n");
    let calls = ["main", "core::sum(int)", "core::(anonymous namespace)::leaf(int)", "more(int)"];
    assert_eq!(calls.map(|name| report.calls_of(name)), [1, 3, 12, 3]);
}

#[test]
fn an_exported_library_stays_free_of_the_runtime() {
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.16)\nproject(mylib C)\nadd_library(mylib STATIC mylib.c)\n\
             target_include_directories(mylib PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)\n\
             add_executable(selftest selftest.c)\ntarget_link_libraries(selftest mylib)\n\
             install(TARGETS mylib EXPORT mylibTargets ARCHIVE DESTINATION lib)\ninstall(FILES mylib.h DESTINATION include)\n\
             install(EXPORT mylibTargets FILE mylibConfig.cmake DESTINATION lib/cmake/mylib)\n\
             export(EXPORT mylibTargets FILE mylibBuild.cmake)\n",
        ),
        ("mylib.h", "int my_add(int, int);\n"),
        ("mylib.c", "#include \"mylib.h\"\nint my_add(int a, int b) { return a + b; }\n"),
        (
            "selftest.c",
            "#include \"mylib.h\"\n#include <stdio.h>\nint main(void) { int s = 0; for (int i = 0; i < 7; i++) s = my_add(s, 3); printf(\"%d\\n\", s); return 0; }\n",
        ),
    ]);
    project.build("-DCMAKE_INSTALL_PREFIX=$PWD/installed");
    let (stdout, report) = project.traced("./build/selftest");
    assert_eq!((stdout.as_str(), report.calls_of("my_add")), ("21\n", 7));
    let leaks = project.shell().run(
        "cmake --install build >/dev/null; grep -rlE 'callsight/|callsight_runtime|instrument-functions' installed build/mylibBuild.cmake --include=*.cmake",
    );
    assert_eq!(leaks.stdout, "", "{leaks}");
    project.shell().ok(
        "mkdir consumer && cd consumer
         printf 'cmake_minimum_required(VERSION 3.16)\nproject(user C)\nfind_package(mylib REQUIRED)\nadd_executable(user user.c)\ntarget_link_libraries(user mylib)\n' > CMakeLists.txt
         printf '#include <mylib.h>\nint main(void) { return my_add(1, -1); }\n' > user.c
         cmake -S . -B b -DCMAKE_PREFIX_PATH=$PWD/../installed && cmake --build b && ./b/user",
    );
}

#[test]
fn configure_checks_see_nothing_of_the_tool() {
    let lists = "cmake_minimum_required(VERSION 3.16)\nproject(checks C)\n\
        include(CheckCSourceCompiles)\ninclude(CheckCSourceRuns)\n\
        check_c_source_compiles(\"#include <math.h>\\nint main(int c, char **v) { return (int)tgamma(c); }\" TGAMMA_IN_LIBC)\n\
        try_run(RAN COMPILED ${CMAKE_BINARY_DIR}/probe ${CMAKE_SOURCE_DIR}/probe.c RUN_OUTPUT_VARIABLE PAGE)\n\
        message(STATUS \"probe says [${PAGE}]\")\n\
        add_library(calc SHARED calc.c)\nset_property(TARGET calc PROPERTY LINK_OPTIONS -Wl,-z,defs)\n\
        if(NOT TGAMMA_IN_LIBC)\n  target_link_libraries(calc m)\nendif()\n\
        add_executable(prog main.c)\ntarget_link_libraries(prog calc)\ntarget_compile_definitions(prog PRIVATE PAGE=${PAGE})\n";
    let project = Project::new(&[
        ("CMakeLists.txt", lists),
        (
            "probe.c",
            "#include <stdio.h>\nstatic int page(void) { return 42; }\nint main(void) { printf(\"%d\", page()); return 0; }\n",
        ),
        ("calc.c", "#include <math.h>\nint calc(int x) { return (int)tgamma(x); }\n"),
        (
            "main.c",
            "#include <stdio.h>\nint calc(int);\nint main(void) { printf(\"%d %d\\n\", PAGE, calc(5)); return 0; }\n",
        ),
    ]);
    let plain =
        project.shell().ok("cmake -S . -B plain && grep TGAMMA_IN_LIBC: plain/CMakeCache.txt");
    project.init();
    // Recording is on while configuring: probe programs leave nothing and print nothing.
    let traced = project.tracing().ok(
        "cmake -S . -B build -DCALLSIGHT=ON && grep TGAMMA_IN_LIBC: build/CMakeCache.txt && cmake --build build",
    );
    let check =
        |text: &str| text.lines().find(|l| l.starts_with("TGAMMA_IN_LIBC:")).map(str::to_owned);
    assert_eq!(check(&traced.stdout), check(&plain.stdout));
    assert!(traced.stdout.contains("probe says [42]"), "{traced}");
    let (stdout, report) = project.traced("./build/prog");
    assert_eq!(stdout, "42 24\n");
    assert_eq!(["main", "calc", "page"].map(|name| report.calls_of(name)), [1, 1, 0]);
    report.clean();
}

#[test]
fn a_generator_that_runs_while_building_is_not_in_the_programs_report() {
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.16)\nproject(gen C)\nadd_executable(gen gen.c)\n\
             add_custom_command(OUTPUT table.h COMMAND gen > table.h DEPENDS gen)\n\
             add_executable(prog main.c ${CMAKE_CURRENT_BINARY_DIR}/table.h)\n\
             target_include_directories(prog PRIVATE ${CMAKE_CURRENT_BINARY_DIR})\n",
        ),
        (
            "gen.c",
            "#include <stdio.h>\nstatic int cube(int x) { return x * x * x; }\nint main(void) { puts(\"static const int table[] = {\"); for (int i = 0; i < 16; i++) printf(\"%d,\\n\", cube(i)); puts(\"};\"); return 0; }\n",
        ),
        (
            "main.c",
            "#include <stdio.h>\n#include \"table.h\"\nstatic int get(int i) { return table[i]; }\nint main(void) { int s = 0; for (int i = 0; i < 16; i++) s += get(i); printf(\"%d\\n\", s); return 0; }\n",
        ),
    ]);
    project.init();
    project.tracing().ok("cmake -S . -B build -DCALLSIGHT=ON && cmake --build build");
    let (stdout, report) = project.traced("./build/prog");
    assert_eq!(stdout, "14400\n");
    assert_eq!(
        (report.calls_of("get"), report.calls_of("cube"), report.number("events")),
        (16, 0, 34)
    );
}

#[test]
fn libraries_of_every_kind_and_folders_below_are_traced() {
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.16)\nproject(kinds C)\nadd_subdirectory(libs)\nadd_executable(prog main.c)\n\
             target_link_libraries(prog one two ${CMAKE_DL_LIBS})\nadd_dependencies(prog three)\n",
        ),
        (
            "libs/CMakeLists.txt",
            "add_library(one STATIC one.c)\nadd_library(two SHARED two.c)\nadd_library(three MODULE three.c)\n\
             set_target_properties(three PROPERTIES PREFIX \"\" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})\n\
             set_target_properties(two PROPERTIES C_VISIBILITY_PRESET hidden)\n",
        ),
        ("libs/one.c", "int one(int x) { return x + 1; }\n"),
        (
            "libs/two.c",
            "static int inner(int x) { return x + 2; }\n__attribute__((visibility(\"default\"))) int two(int x) { return inner(x); }\n",
        ),
        ("libs/three.c", "int three(int x) { return x + 3; }\n"),
        (
            "main.c",
            "#include <dlfcn.h>\n#include <stdio.h>\nint one(int), two(int);\n\
             int main(void) { void *m = dlopen(\"./build/three.so\", RTLD_NOW); int (*three)(int) = (int (*)(int))dlsym(m, \"three\");\n\
             int s = 0; for (int i = 0; i < 4; i++) s = three(two(one(s))); printf(\"%d\\n\", s); return 0; }\n",
        ),
    ]);
    project.build("");
    let (stdout, report) = project.traced("./build/prog");
    assert_eq!(stdout, "24\n");
    for name in ["one", "two", "inner", "three"] {
        assert_eq!(report.calls_of(name), 4, "{name}");
    }
    report.clean();
}
