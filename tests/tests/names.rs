//! Whose calls they were: load addresses, shared libraries, plugins, inlining, C++ names, and
//! binaries that are no longer what was traced.

use callsight_tests::{Built, Hooks, Program, Report, runtime_object, streamed};

const EXE: &str = r#"
    #include <stdio.h>
    int libf(int);
    static int local(int x) { return x + 1; }
    int main(void) { int s = 0; for (int i = 0; i < 3; i++) s = libf(local(s)); printf("%d\n", s); return 0; }
"#;
const LIB: &str = r#"
    static int local(int x) { return x + 2; }
    int libf(int x) { return local(local(x)); }
"#;

fn is_two_locals(report: &Report, build: &str) {
    assert_eq!(report.calls_of("main"), 1, "{build}");
    assert_eq!(report.calls_of("libf"), 3, "{build}");
    let mut locals: Vec<(u64, String)> = report
        .rows_of("local")
        .iter()
        .map(|row| {
            let place = row["location"].as_str().expect("a location");
            let line = place.rsplit('/').next().expect("a file").to_owned();
            (row["calls"].as_u64().expect("calls"), line)
        })
        .collect();
    locals.sort();
    assert_eq!(locals, [(3, "main.c:4".to_owned()), (6, "lib.c:2".to_owned())], "{build}");
    report.clean();
}

#[test]
fn load_addresses_of_every_kind_of_link_give_the_same_names() {
    let shared = [
        "",
        "-no-pie",
        "-Wl,-Ttext-segment=0x40000000",
        "-no-pie -Wl,-Ttext-segment=0x10000000",
        "-Wl,-z,noseparate-code",
        "-fuse-ld=lld",
        "-fuse-ld=gold",
        "-fuse-ld=mold",
    ];
    for library in ["", "-Wl,-Ttext-segment=0x7000000"] {
        for link in shared {
            let program = Program::c(EXE).file("lib.c", LIB).write();
            let script = format!(
                "F='-g -O1 -finstrument-functions'
                 gcc $F -fPIC -shared lib.c {library} -o libl.so
                 gcc $F main.c {} {link} -L. -ll -Wl,-rpath,'$ORIGIN' -o prog",
                runtime_object().display()
            );
            program.shell().ok(&script);
            program.tracing().ok("./prog");
            is_two_locals(&program.report(), &format!("exe {link:?}, lib {library:?}"));
        }
    }
    for link in ["-static", "-static-pie"] {
        let program = Program::c(EXE).file("lib.c", LIB).flags(&[link]);
        is_two_locals(&program.build(Hooks::Ours).traced("").1, link);
    }
}

#[test]
fn an_executable_without_hooks_of_its_own_serves_its_library() {
    // Only the library is instrumented; the executable carries the runtime for it.
    let program = Program::c(EXE).file("lib.c", LIB).write();
    program.shell().ok(&format!(
        "echo '{{ global: libf; local: *; }};' > lib.map
         gcc -g -finstrument-functions -fPIC -shared lib.c -Wl,-z,defs -Wl,--version-script=lib.map -o libl.so
         gcc -g main.c {} -L. -ll -Wl,-rpath,'$ORIGIN' -o prog",
        runtime_object().display()
    ));
    program.tracing().ok("./prog");
    let report = program.report();
    assert_eq!(
        (report.calls_of("libf"), report.calls_of("local"), report.calls_of("main")),
        (3, 6, 0)
    );
    report.clean();
}

/// Two of one size: `alpha` in the one, `beta` in the other, each called by its `plugin_run`.
fn make_plugins(beside: &Built) {
    beside.shell().ok(
        "echo 'static int alpha(int x) { return x; } int plugin_run(int x) { return alpha(x); }' > pa.c
         echo 'static int beta(int x) { return -x; } int plugin_run(int x) { return beta(x); }' > pb.c
         for p in pa pb; do gcc -g -finstrument-functions -fPIC -shared $p.c -o $p.so; done",
    );
}

#[test]
fn plugins_that_take_turns_at_one_address_keep_their_calls() {
    let program = Program::c(
        r#"
        #include <dlfcn.h>
        #include <stdio.h>
        static int drive(const char *path, int n) {
            void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            int (*run)(int) = (int (*)(int))dlsym(plugin, "plugin_run"), s = 0;
            for (int i = 0; i < n; i++) s += run(i);
            dlclose(plugin);
            return s;
        }
        int main(void) {
            printf("%d ", drive("./pa.so", 10));
            printf("%d ", drive("./pb.so", 20));
            printf("%d\n", drive("./pa.so", 5)); return 0; }"#,
    )
    .flags(&["-ldl"]);
    let traced = program.build(Hooks::Ours);
    make_plugins(&traced);
    let (ran, report) = traced.traced("");
    assert_eq!(ran.stdout, "45 -190 10\n");
    assert_eq!((report.calls_of("alpha"), report.calls_of("beta")), (15, 20));
    let calls = report.calls();
    assert_eq!(calls["plugin_run"], [15, 20], "one row a plugin: {:#?}", report.rows());
    assert_eq!(report.number("unmatched_exits"), 0);
}

/// A plugin that comes to the addresses of one that went, in a program that says nothing more.
#[test]
fn calls_of_a_plugin_that_was_never_noticed_have_no_names_of_another() {
    let program = Program::c(
        r#"
        #include <dlfcn.h>
        #include <unistd.h>
        static void drive(const char *path, int n, int closes) {
            void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            int (*run)(int) = (int (*)(int))dlsym(plugin, "plugin_run");
            for (int i = 0; i < n; i++) run(i);
            if (closes) dlclose(plugin);
        }
        int main(void) { drive("./pa.so", 10, 1); drive("./pb.so", 20, 0); _exit(0); }"#,
    )
    .flags(&["-ldl"]);
    let traced = program.build(Hooks::Ours);
    make_plugins(&traced);
    let (_, report) = traced.traced("");
    assert_eq!(report.calls_of("alpha"), 10, "{:#?}", report.rows());
    assert_eq!(report.calls()["plugin_run"], [10]);
    let said = report.notices().join("\n");
    assert!(said.contains("2 functions of an unknown module have no name"), "{said}");
}

/// As where another thread closes one and has not told it yet: the one is gone and the other there in one look.
#[test]
fn a_plugin_that_came_to_the_place_of_one_that_went_unseen_has_its_names_from_the_next_look_on() {
    let program = Program::c(
        r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #define PLAIN __attribute__((no_instrument_function))
        typedef int run_fn(int);
        PLAIN static void *opened(const char *path, int n) {
            void *plugin = dlopen(path, RTLD_NOW);
            run_fn *run = (run_fn *)dlsym(plugin, "plugin_run");
            while (n--) run(n);
            return plugin;
        }
        PLAIN static void look(void) { dlclose(dlopen("./pa.so", RTLD_NOW | RTLD_NOLOAD)); }
        static int leaf(int x) { return x + 1; }
        PLAIN int main(void) {
            int (*unseen)(void *) = (int (*)(void *))dlsym(dlopen("libc.so.6", RTLD_NOW), "dlclose");
            leaf(1);
            void *plugin = opened("./pa.so", 10);
            look();
            unseen(plugin);
            plugin = opened("./pb.so", 0);
            dlclose(dlopen("./pb.so", RTLD_NOW));
            run_fn *run = (run_fn *)dlsym(plugin, "plugin_run");
            for (int i = 0; i < 30; i++) run(i);
            return 0; }"#,
    )
    .flags(&["-ldl"]);
    let traced = program.build(Hooks::Ours);
    make_plugins(&traced);
    let (_, report) = traced.traced("");
    assert_eq!(
        (report.calls_of("alpha"), report.calls_of("beta")),
        (10, 30),
        "{:#?}",
        report.rows()
    );
    let said = report.notices().join("\n");
    assert!(said.contains("1 module came where another was that was not seen to go"), "{said}");
}

/// Each thread scans what is mapped when it closes a plugin, and whoever begins a segment does: neither waits
/// for the other, nor reads what a third one unmaps.
#[test]
fn threads_that_open_and_close_plugins_while_segments_are_begun_neither_hang_nor_lose_names() {
    let program = Program::c(
        r#"
        #include <dlfcn.h>
        #include <pthread.h>
        __attribute__((noinline)) static int leaf(int x) { __asm__ volatile(""); return x + 1; }
        static void *work(void *unused) {
            for (int i = 0; i < 40000; i++) {
                leaf(i);
                if (i % 2500 != 2499) continue;
                void *plugin = dlopen("./pa.so", RTLD_NOW);
                int (*run)(int) = (int (*)(int))dlsym(plugin, "plugin_run");
                for (int k = 0; k < 20; k++) run(k);
                dlclose(plugin);
            }
            return unused;
        }
        int main(void) {
            pthread_t threads[8];
            for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, 0);
            for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
            return 0; }"#,
    )
    .flags(&["-ldl", "-pthread"]);
    let traced = program.build(Hooks::Ours);
    make_plugins(&traced);
    for round in 0..3 {
        traced.tracing().env("TRACE_SEG_MB", "1").ok("timeout -s KILL 60 ./prog");
        let report = traced.report();
        let calls = ["leaf", "work", "alpha", "plugin_run"].map(|name| report.calls_of(name));
        assert_eq!(calls, [320_000, 8, 2560, 2560], "round {round}: {:?}", report.notices());
        report.clean();
    }
}

/// At its end a process asks the kernel whether its last look at what is mapped still holds. Where it has
/// no answer, or where a filter ends who asks, it looks once more.
#[test]
fn a_plugin_that_stays_open_has_names_whether_the_kernel_tells_of_changes_or_not() {
    let program = Program::c(
        r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <stddef.h>
        #include <stdio.h>
        #include <string.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        __attribute__((no_instrument_function)) static int forbid(unsigned action) {
            struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc0686611, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, action),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
            struct sock_fprog filter = { sizeof code / sizeof *code, code };
            return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
                   || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
        }
        static int leaf(int x) { return x + 1; }
        __attribute__((no_instrument_function)) int main(int argc, char **argv) {
            int early = !strcmp(argv[1], "refused"), late = !strcmp(argv[1], "killed");
            if (early && forbid(SECCOMP_RET_ERRNO | 25)) return 3;
            int s = leaf(0);
            if (late && forbid(SECCOMP_RET_KILL_PROCESS)) return 3;
            void *plugin = dlopen("./pa.so", RTLD_NOW);
            int (*run)(int) = (int (*)(int))dlsym(plugin, "plugin_run");
            for (int i = 0; i < 10; i++) s += run(i);
            printf("%d\n", s);
            return argc - 2; }"#,
    )
    .flags(&["-ldl"]);
    let traced = program.build(Hooks::Ours);
    make_plugins(&traced);
    for kernel in ["answers", "refused", "killed"] {
        let (ran, report) = traced.traced(kernel);
        assert_eq!(ran.stdout, "46\n", "{kernel}");
        let calls = ["leaf", "plugin_run", "alpha"].map(|name| report.calls_of(name));
        assert_eq!(calls, [1, 10, 10], "{kernel}");
        report.clean();
    }
}

#[test]
fn counts_are_the_same_at_every_optimization_level() {
    let program = Program::c(
        r#"
        #include <stdio.h>
        #include "tiny.h"
        int from_a(int), from_b(int);
        static int helper(int x) { return x + 3; }
        static inline __attribute__((always_inline)) int forced(int x) { return x + 1; }
        int main(void) { int s = 0; for (int i = 0; i < 10; i++) s = forced(helper(s));
            printf("%d\n", from_b(from_a(s))); return 0; }"#,
    )
    .file("tiny.h", "static inline int tiny(int x) { return x * 3 % 1009; }\n")
    .file("a.c", "#include \"tiny.h\"\nint from_a(int x) { for (int i = 0; i < 1000; i++) x = tiny(x + i); return x; }\n")
    .file("b.c", "#include \"tiny.h\"\nstatic int helper(int x) { return x - 1; }\nint from_b(int x) { for (int i = 0; i < 500; i++) x = helper(tiny(x)); return x; }\n");
    for level in [&["-O0"][..], &["-O2"], &["-Os"], &["-O2", "-flto"], &["-O3", "-flto"]] {
        let (_, report) = program.clone().flags(level).build(Hooks::Ours).traced("");
        let calls = report.calls();
        assert_eq!(calls["helper"], [10, 500], "{level:?}: two functions, never one of 510");
        assert_eq!(calls["tiny"].iter().sum::<u64>(), 1500, "{level:?}");
        assert_eq!(calls["forced"], [10], "{level:?}");
        assert_eq!(report.number("events"), 2 * 2023, "{level:?}");
        report.clean();
    }
}

#[test]
fn cpp_names_are_whole_in_every_format() {
    let program = Program::cpp(
        r#"
        #include <cstdio>
        namespace a { inline namespace v1 { namespace { int anon(int x) { return x; } } int use(int x) { return anon(x); } } }
        template <class T, int N> struct Box { T v[N]; T sum() const { T s{}; for (T x : v) s += x; return s; } };
        struct Op {
            int x;
            Op operator+(const Op &o) const { return { x + o.x }; }
            bool operator<(const Op &o) const { return x < o.x; }
            int operator()(int y) const { return x + y; }
            operator bool() const { return x; }
            Op &operator<<=(int n) { x <<= n; return *this; }
        };
        long operator"" _km(unsigned long long n) { return (long)n * 1000; }
        int größe(int x) { return x; }
        template <class... T> int count(T...) { return sizeof...(T); }
        int main() {
            Box<int, 3> box{ { 1, 2, 3 } };
            Op p{ 1 }, q{ 2 };
            int s = a::use(1) + box.sum() + (p + q)(1) + (p < q) + (p ? 1 : 0) + (int)2_km + größe(4) + count(1, 2.0, 'c');
            p <<= 2;
            auto one = [](int x) { return x; };
            auto two = [s](int x) { return x + s; };
            auto three = [&p](int x) { return p.x + x; };
            std::printf("%d\n", s + one(1) + two(2) + three(3));
            return 0;
        }"#,
    )
    .flags(&["-O0", "-std=c++17"]);
    let (_, report) = program.compared("");
    let names = [
        "a::v1::(anonymous namespace)::anon(int)",
        "Box<int, 3>::sum() const",
        "Op::operator+(Op const&) const",
        "Op::operator<(Op const&) const",
        "Op::operator()(int) const",
        "Op::operator bool() const",
        "Op::operator<<=(int)",
        "größe(int)",
        "operator\"\" _km(unsigned long long)",
        "int count<int, double, char>(int, double, char)",
    ];
    let traced = program.build(Hooks::Ours);
    traced.tracing().ok("./prog");
    let print = |format| {
        let words = ["analyze", "traces", "--top", "1000", "--format", format];
        traced.shell().callsight(&words).stdout
    };
    let (text, folded, callers) = (print("text"), print("folded"), print("callers"));
    for name in names {
        assert_eq!(report.calls_of(name), 1, "{name} in {:?}", report.calls().keys());
        let frame = name.replace(';', ":");
        assert!(
            folded.lines().any(|line| line.split(';').any(|f| f.starts_with(&frame))),
            "{name}"
        );
        assert!(text.contains(name) && callers.contains(name), "{name}");
    }
    let lambdas =
        report.rows().iter().filter(|r| r["function"].as_str().unwrap_or("").contains("lambda"));
    assert_eq!(lambdas.count(), 3);
}

#[test]
fn twelve_thousand_functions_have_twelve_thousand_rows() {
    let numbers = 0..12_000;
    let mut text = String::from("#include <stdio.h>\n");
    numbers.clone().for_each(|n| {
        text += &format!("static int function_{n}(int x) {{ return x + {}; }}\n", n % 7)
    });
    text += "static int (*const all[])(int) = {\n";
    numbers.clone().for_each(|n| text += &format!("function_{n},\n"));
    text += "};\nint main(void) { int s = 0; for (int r = 0; r < 3; r++) for (int i = 0; i < 12000; i++) \
             s = all[i](s); printf(\"%d\\n\", s); return 0; }\n";
    let program = Program::c(&text).flags(&["-O0"]);
    let traced = program.build(Hooks::Ours);
    let (_, report) = traced.traced("");
    report.clean();
    assert_eq!(report.number("functions"), 12_001);
    assert_eq!(report.rows().len(), 12_001);
    let calls = report.calls();
    assert!(numbers.into_iter().all(|n| calls[&format!("function_{n}")] == [3]));
    let few = Report::of(&traced.shell(), &["traces", "--top", "5"]);
    assert_eq!((few.rows().len(), few.number("functions")), (5, 12_001), "--top cuts rows only");
}

const FIRST_BUILD: &str = r#"
    #include <stdio.h>
    static int first(int x) { return x + 1; }
    static int second(int x) { return first(x) + 1; }
    int main(void) { int s = 0; for (int i = 0; i < 6; i++) s = second(s); printf("%d\n", s); return 0; }
"#;
const NEXT_BUILD: &str = r#"
    #include <stdio.h>
    static int inserted(int x) { return x * 7 + 1; }
    static int first(int x) { return x + 1; }
    static int second(int x) { return first(x) + 1; }
    int main(void) { int s = inserted(1); for (int i = 0; i < 6; i++) s = second(s); printf("%d\n", s); return 0; }
"#;

#[test]
fn a_rebuilt_binary_is_refused_and_the_traced_one_is_read() {
    let traced = Program::c(FIRST_BUILD).build(Hooks::Ours);
    traced.tracing().ok("./prog");
    traced.shell().ok("cp prog prog.traced");
    std::fs::write(traced.folder().join("main.c"), NEXT_BUILD).expect("write main.c");
    traced.shell().ok(&format!(
        "gcc -g -O1 -finstrument-functions main.c {} -o next && mv next prog",
        runtime_object().display()
    ));
    traced.shell().callsight(&["analyze", "traces"]).refused(&["build", "--exe"]);
    traced.shell().callsight(&["analyze", "traces", "--exe", "./prog"]).refused(&["build"]);
    let report = Report::of(&traced.shell(), &["traces", "--exe", "./prog.traced"]);
    let calls = ["main", "second", "first"].map(|name| report.calls_of(name));
    assert_eq!(calls, [1, 6, 6]);
    assert_eq!(report.rows_of("inserted").len(), 0);
}

#[test]
fn a_second_run_in_the_same_folder_is_a_run_of_its_own() {
    let program = Program::c(FIRST_BUILD);
    let traced = program.build(Hooks::Ours);
    let shell = traced.tracing();
    shell.ok("./prog && ./prog");
    let report = traced.report();
    assert_eq!(report.calls_of("second"), 12);
    assert!(report.notices().iter().any(|line| line.contains('2')), "{:?}", report.notices());
    // `run` starts afresh.
    let ran =
        traced.shell().callsight(&["run", "--dir", "traces", "--format", "json", "--", "./prog"]);
    assert_eq!(ran.code, 0, "{ran}");
    let json = ran.stdout.split_once('{').map(|(_, rest)| format!("{{{rest}")).expect("JSON");
    assert_eq!(Report::parse(&json).calls_of("second"), 6);
}

#[test]
fn threads_that_are_named_after_their_first_calls_have_their_names() {
    let program = Program::c(include_str!("../programs/named.c")).build(Hooks::Ours);
    let run = "400 1000 reader writer";
    let (_, by_file) = program.traced(run);
    let (_, _, by_ring) = streamed(&program, run, 1 << 20);
    for report in [by_file, by_ring] {
        let mut names = report.thread_names();
        names.sort();
        assert_eq!(names, ["prog", "reader", "writer"], "{:?}", report.notices());
    }
}

#[test]
fn threads_keep_their_names_when_the_segments_they_began_in_are_rotated_away() {
    let program = Program::c(include_str!("../programs/named.c")).build(Hooks::Ours);
    let shell = program.tracing().env("TRACE_MAX_MB", "1").env("TRACE_FULL", "wrap");
    // With pauses, so that both are there at the end.
    shell.ok("./prog 8000 1 reader writer");
    let report = program.report();
    assert!(report.lost() > 100_000, "seldom rotated: {:?}", report.notices());
    let mut names = report.thread_names();
    names.sort();
    assert_eq!(names, ["reader", "writer"], "{:?}", report.notices());
}
