//! Real programs: zlib and cJSON through `callsight init`, Lua through its Makefile; the number of
//! calls of every function against the independent count of the same program.

use std::path::{Path, PathBuf};

use callsight_tests::runtime_object;
use callsight_tests::{Calls, Counts, Hooks, Report, Shell, count_object, real_source};
use tempfile::TempDir;

/// A fresh copy of a third-party tree.
fn copy_of(name: &str) -> TempDir {
    let folder = TempDir::with_prefix("callsight-real-").expect("a temporary folder");
    let source = real_source(name);
    Shell::new(folder.path()).ok(&format!("cp -r {} tree", source.display()));
    folder
}

/// No optimization level of the project's own, and none of CMake's remarks on old projects.
const QUIET: &str = "-DCMAKE_BUILD_TYPE=None -Wno-dev -Wno-deprecated";

/// Builds a CMake project by hand with the counting hook: on every target, and in every link.
fn counted_build(folder: &Path, options: &str) -> PathBuf {
    let count = count_object().display();
    let flags = Hooks::Count.flags().join(" ");
    Shell::new(folder).ok(&format!(
        "cp -r tree counted && cd counted && cmake -S . -B build {QUIET} {options} \
         -DCMAKE_C_FLAGS='-O1 {flags}' -DCMAKE_EXE_LINKER_FLAGS={count} \
         && cmake --build build --parallel 2"
    ));
    folder.join("counted/build")
}

/// Builds the same project as its user does: `callsight init`, then `-DCALLSIGHT=ON`.
fn traced_build(folder: &Path, options: &str) -> PathBuf {
    Shell::new(folder).ok(&format!(
        "cp -r tree traced && callsight init traced && cd traced \
         && cmake -S . -B build {QUIET} {options} -DCMAKE_C_FLAGS=-O1 -DCALLSIGHT=ON \
         && cmake --build build --parallel 2"
    ));
    folder.join("traced/build")
}

/// Runs a script in both builds; each leaves its own record.
fn both(counted: &Path, traced: &Path, script: &str) -> (Calls, Report) {
    let counts = counted.join("counts");
    let fresh = "rm -rf counts traces && mkdir counts traces";
    Shell::new(counted).env("COUNT_DIR", &counts).ok(&format!("{fresh} && {script}"));
    let shell = Shell::new(traced).env("TRACE_ENABLE", "1").env("TRACE_DIR", traced.join("traces"));
    shell.ok(&format!("{fresh} && {script}"));
    (Counts::read(&counts).calls, Report::of(&Shell::new(traced), &["traces"]))
}

fn total(calls: &Calls) -> u64 {
    calls.values().flatten().sum()
}

#[test]
fn zlib_by_cmake() {
    let folder = copy_of("zlib");
    let counted = counted_build(folder.path(), "");
    let traced = traced_build(folder.path(), "");
    let (calls, report) = both(&counted, &traced, "./example");
    assert!(total(&calls) > 1000, "{calls:?}");
    assert_eq!(report.calls(), calls);
    report.clean();
    // The executable and libz.so together, on a text of 40,000 words.
    let words = "for i in $(seq 40000); do echo word $((i * 7919 % 1009)); done > words.txt";
    let script = format!(
        "{words}; ./minigzip < words.txt > words.gz && ./minigzip -d < words.gz | cmp - words.txt"
    );
    let (calls, report) = both(&counted, &traced, &script);
    assert!(calls.contains_key("deflate") && calls.contains_key("inflate"), "{calls:?}");
    assert_eq!(report.calls(), calls);
}

#[test]
fn cjson_by_cmake() {
    let folder = copy_of("cjson");
    let options = "-DENABLE_CJSON_TEST=ON";
    let counted = counted_build(folder.path(), options);
    let traced = traced_build(folder.path(), options);
    let (calls, report) = both(&counted, &traced, "./cJSON_test");
    assert!(total(&calls) > 1000, "{calls:?}");
    assert_eq!(report.calls(), calls);
    report.clean();
    // Its unit tests: Unity leaves frames by longjmp, one program goes 10,000 frames deep.
    let (calls, report) = both(
        &counted,
        &traced,
        "cd tests; for t in *; do case $t in *.instr) continue;; esac; if [ -f $t ] && [ -x $t ]; then ./$t; fi; done",
    );
    assert!(total(&calls) > 100_000, "{}", total(&calls));
    assert_eq!(report.calls(), calls);
    assert_eq!(report.number("unmatched_exits"), 0);
}

#[test]
fn lua_by_make() {
    let folder = copy_of("lua5.4");
    // A fixed seed of its hash and a cache of one string: else both go by addresses, and the number
    // of calls differs by some tens from run to run.
    let script = r#"
        local t = {}
        for i = 1, 2000 do t[i] = ("%d:%d"):format(i, i * i % 97) end
        table.sort(t)
        for i = 1, 300 do pcall(error, { i }) end
        local co = coroutine.wrap(function() for i = 1, 500 do coroutine.yield(i) end end)
        for i = 1, 500 do co() end
        print(#table.concat(t, ","), select(2, pcall(string.rep)))
    "#;
    let build = |name: &str, hook: &Path, flags: &str| {
        let shell = Shell::new(folder.path());
        shell.ok(&format!(
            "cp -r tree {name} && make -C {name}/src lua CC='gcc -std=gnu99' \
             MYCFLAGS=\"{flags} -O1 -DLUA_USE_POSIX -DSTRCACHE_N=1 -DSTRCACHE_M=1 '-Dluai_makeseed(L)=1u'\" \
             MYLDFLAGS='-Wl,-E {}'",
            hook.display()
        ));
        let src = folder.path().join(name).join("src");
        std::fs::write(src.join("t.lua"), script).expect("write the script");
        src
    };
    let flags = Hooks::Ours.flags().join(" ");
    let counted = build("counted", count_object(), &flags);
    let traced = build("traced", runtime_object(), &flags);
    let (calls, report) = both(&counted, &traced, "./lua t.lua");
    assert!(total(&calls) > 50_000, "{}", total(&calls));
    assert_eq!(report.calls(), calls);
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
}
