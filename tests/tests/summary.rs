//! `TRACE_MODE=summary`: the same calls as with every event kept, in files that stay small whatever
//! the program does, and that are right whenever somebody looks.

use std::path::PathBuf;

use callsight_tests::{Built, Hooks, Program, Ran, Report};

/// Runs the program with its calls summed up; its calls have to be those of the independent count.
#[track_caller]
fn check(program: &Program) -> (Built, Report) {
    let built = program.build(Hooks::Ours);
    let ran = summed(&built, "");
    let (same, counts) = program.build(Hooks::Count).counted("");
    assert_eq!((ran.code, &ran.stdout), (same.code, &same.stdout), "hooks change nothing");
    let report = report(&built);
    assert_eq!(report.calls(), counts.calls, "{:?}", report.notices());
    let all: u64 = counts.calls.values().flatten().sum();
    let line = format!("calls emitted={all} delivered={all} dropped=0 unaccounted=0\n");
    let text = built.shell().callsight(&["analyze", "traces", "--exe", "prog"]);
    assert!(text.stdout.contains(&line), "{text}");
    (built, report)
}

fn summed(built: &Built, arguments: &str) -> Ran {
    built.tracing().env("TRACE_MODE", "summary").run(&format!("exec ./prog {arguments}"))
}

/// A summary does not say of which program it is.
fn report(built: &Built) -> Report {
    Report::of(&built.shell(), &["traces", "--exe", "prog"])
}

fn files(built: &Built) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(built.folder().join("traces")).expect("traces");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn recursion_counts_once_and_the_files_are_small() {
    let program = Program::c(
        r#"
        #include <stdio.h>
        #include <unistd.h>
        static int nap(int n) { if (n) nap(n - 1); else usleep(50000); return n + 1; }
        static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
        static int down(int n) { return n ? down(n - 1) + 1 : 0; }
        int main(void) { printf("%d\n", fib(22) + nap(20) + down(100000)); return 0; }"#,
    )
    .flags(&["-fno-optimize-sibling-calls"]);
    let (built, report) = check(&program);
    let (nap, main) = (report.total_ms("nap"), report.total_ms("main"));
    assert!((50.0..=main).contains(&nap), "{nap} of {main} ms in 21 calls that are one");
    let bytes: u64 = files(&built).iter().map(|path| path.metadata().expect("a size").len()).sum();
    assert_eq!(bytes, 192 + 4 * 744, "one file, one record a function");
}

#[test]
fn percentiles_are_those_of_the_events() {
    let program = Program::c(
        r#"
        #include <stdint.h>
        #include <stdlib.h>
        #include <time.h>
        __attribute__((no_instrument_function)) static int64_t now(void) {
            struct timespec t;
            clock_gettime(CLOCK_MONOTONIC, &t);
            return t.tv_sec * 1000000000ll + t.tv_nsec;
        }
        static void spin(int64_t ns) { int64_t end = now() + ns; while (now() < end) ; }
        int main(void) {
            for (int i = 1; i <= 1000; i++) spin(i * 1000);
            return 0; }"#,
    )
    .build(Hooks::Ours);
    program.traced("");
    let events = report(&program);
    summed(&program, "");
    let sums = report(&program);
    // The median, because what other programs take of the processor lengthens some calls.
    let of = |report: &Report| report.row("spin")["p50_ns"].as_f64().expect("a percentile");
    let ratio = of(&sums) / of(&events);
    // A bucket is a quarter of an octave, and both may be off by half of it.
    assert!((0.75..1.33).contains(&ratio), "{} {}", of(&sums), of(&events));
}

#[test]
fn threads_children_and_destructors_have_their_own_files() {
    let program = Program::cpp(
        r#"
        #include <cstdio>
        #include <cstdlib>
        #include <pthread.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static int leaf(int x) { return x + 1; }
        struct Late { ~Late() { leaf(1); } };
        static Late late;
        static void work(int n) { for (int i = 0; i < n; i++) leaf(i); }
        static void *run(void *) { work(100); return nullptr; }
        static int child(int n) { work(n); return n % 7; }
        int main() {
            work(10);
            int status, sum = 0;
            for (int i = 0; i < 20; i++) {
                pid_t pid = fork();
                if (!pid) { if (i % 2) _exit(child(i)); std::exit(child(i)); }
                waitpid(pid, &status, 0);
                sum += WEXITSTATUS(status);
            }
            pthread_t thread, many[20];
            for (int i = 0; i < 50; i++) {
                pthread_create(&thread, nullptr, run, nullptr);
                pthread_join(thread, nullptr);
            }
            for (auto &one : many) pthread_create(&one, nullptr, run, nullptr);
            for (auto &one : many) pthread_join(one, nullptr);
            std::printf("%d\n", sum);
            return leaf(-1); }"#,
    );
    let (built, _) = check(&program);
    assert_eq!(files(&built).len(), 1 + 20 + 50 + 20);
}

#[test]
fn jumps_and_exceptions_close_what_they_pass() {
    let program = Program::cpp(
        r#"
        #include <csetjmp>
        #include <cstdio>
        #include <stdexcept>
        static jmp_buf back;
        static int leaf(int x) { return x + 1; }
        static int deep(int n) { if (!n) longjmp(back, 1); return deep(n - 1) + 1; }
        static int thrower(int n) { if (!n) throw std::runtime_error("x"); return thrower(n - 1) + 1; }
        static int jumped(int i) { return setjmp(back) ? leaf(i) : deep(20 + i % 5); }
        static int caught(int i) { try { return thrower(10); } catch (std::exception &) { return leaf(i); } }
        int main() {
            int s = 0;
            for (int i = 0; i < 30000; i++) s += jumped(i) + caught(i);
            // More often than there is room for open calls, from one place.
            for (volatile int i = 0; i < 300000; i++) if (!setjmp(back)) deep(1);
            std::printf("%d\n", s);
            return 0; }"#,
    );
    let (_, report) = check(&program);
    assert!(report.total_ms("jumped(int)") <= report.total_ms("main"));
    assert!(
        !report.notices().iter().any(|line| line.contains("too deep")),
        "{:?}",
        report.notices()
    );
}

#[test]
fn handlers_of_signals_may_come_inside_hooks() {
    let program = Program::c(
        r#"
        #define _GNU_SOURCE
        #include <signal.h>
        #include <stdio.h>
        #include <sys/time.h>
        static volatile int hits;
        static int again(int n) { return n ? again(n - 1) + 1 : 0; }
        static void note(void) { hits = hits + 1; }
        static void on_alarm(int s) { (void)s; note(); again(3); }
        static int leaf(int x) { return x + 1; }
        static int mid(int x) { return leaf(leaf(x)); }
        int main(void) {
            struct itimerval every = { { 0, 100 }, { 0, 100 } };
            signal(SIGALRM, on_alarm);
            setitimer(ITIMER_REAL, &every, 0);
            int s = 0;
            for (int i = 0; i < 2000000; i++) { s = mid(s); if (i % 16 == 0) again(2); }
            every.it_value.tv_usec = 0;
            setitimer(ITIMER_REAL, &every, 0);
            printf("%d %d\n", s, hits); return 0; }"#,
    )
    .build(Hooks::Ours);
    let ran = summed(&program, "");
    let report = report(&program);
    let hits: u64 =
        ran.stdout.split_whitespace().last().and_then(|n| n.parse().ok()).expect("hits");
    assert!(hits > 0, "{ran}");
    let again = 3 * 2_000_000 / 16 + 4 * hits;
    let calls = [
        ("mid", 2_000_000),
        ("leaf", 4_000_000),
        ("on_alarm", hits),
        ("note", hits),
        ("again", again),
    ];
    for (name, calls) in calls {
        assert_eq!(report.calls_of(name), calls, "{name}: {:?}", report.notices());
    }
    let roots = report.total_ms("main");
    let own: f64 = report.rows().iter().map(|row| row["self_ms"].as_f64().expect("self_ms")).sum();
    assert!((own - roots).abs() < roots / 100.0, "self times sum to {own}, main took {roots} ms");
}

#[test]
fn a_killed_process_leaves_what_it_did() {
    let program = Program::c(
        r#"
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        static int leaf(int x) { return x + 1; }
        int main(int argc, char **argv) {
            (void)argc;
            int s = 0;
            for (int i = 0; i < atoi(argv[1]); i++) s = leaf(s);
            raise(SIGKILL);
            return s; }"#,
    )
    .build(Hooks::Ours);
    assert_eq!(summed(&program, "12345").code, 137);
    let report = report(&program);
    assert_eq!((report.calls_of("leaf"), report.calls_of("main")), (12_345, 1));
}

#[test]
fn a_budget_holds_and_calls_beyond_it_are_counted() {
    let program = Program::c(
        r#"
        #include <pthread.h>
        #include <stdio.h>
        static int leaf(int x) { return x + 1; }
        static void *work(void *p) { for (int i = 0; i < 100; i++) leaf(i); return p; }
        int main(void) {
            pthread_t t;
            for (int i = 0; i < 200; i++) { pthread_create(&t, 0, work, 0); pthread_join(t, 0); }
            puts("done"); return 0; }"#,
    );
    let built = program.build(Hooks::Ours);
    let shell = built.tracing().env("TRACE_MODE", "summary").env("TRACE_MAX_MB", "1");
    assert_eq!(shell.run("exec ./prog").stdout, "done\n");
    let blocks: u64 = files(&built)
        .iter()
        .map(|path| std::os::unix::fs::MetadataExt::blocks(&path.metadata().expect("a file")))
        .sum();
    assert!(512 * blocks <= 1 << 20, "{blocks} blocks");
    let report = report(&built);
    let recorded: u64 = report.calls().values().flatten().sum();
    let notice = format!("{} calls were", 200 * 101 + 1 - recorded);
    assert!(recorded < 200 * 101, "{recorded} calls");
    assert!(report.notices().iter().any(|line| line.contains(&notice)), "{:?}", report.notices());
}

#[test]
fn functions_beyond_the_most_are_counted() {
    let mut text = String::from("#include <stdio.h>\n");
    for number in 0..5000 {
        text += &format!("static int f{number}(int x) {{ return x + {number}; }}\n");
    }
    text += "static int (*const all[])(int) = {";
    (0..5000).for_each(|number| text += &format!("f{number},"));
    text += "};\nint main(void) { int s = 0; for (int round = 0; round < 3; round++)\n\
             for (int i = 0; i < 5000; i++) s = all[i](s) & 1023; printf(\"%d\\n\", s); return 0; }";
    let built = Program::c(&text).build(Hooks::Ours);
    assert_eq!(summed(&built, "").stdout, built.plain("").stdout);
    let report = report(&built);
    let recorded: u64 = report.calls().values().flatten().sum();
    let notices = report.notices().join("\n");
    assert_eq!(report.rows().len(), 4096, "{notices}");
    assert_eq!(recorded, 3 * 4095 + 1);
    assert!(notices.contains(&format!("{} calls were", 3 * 905)), "{notices}");
}

/// Works, forks a child that works, and runs the programs that it is told.
const STARTER: &str = r#"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static int leaf(int x) { return x + 1; }
static int work(int n) { int s = 0; while (n--) s = leaf(s); return s; }
int main(int argc, char **argv) {
    if (!fork()) _exit(work(10) != 10);
    wait(0);
    int s = work(5);
    for (int i = 1; i < argc; i++) s += system(argv[i]);
    return s != 5; }"#;

#[test]
fn a_run_names_the_functions_of_its_program_and_of_no_other() {
    let built = Program::c(STARTER).build(Hooks::Ours);
    let helper =
        Program::c("static int other(int n) { return n; } int main(void) { return other(0); }");
    let helper = helper.build(Hooks::Ours);
    let shell = built.shell().env("TRACE_MODE", "summary");
    let run = |line: &str| {
        let ran = shell.ok(&format!("callsight run {line}"));
        (Report::parse(&ran.stdout).calls(), ran)
    };
    let (calls, ran) = run("--format json -- ./prog");
    assert_eq!((calls["leaf"][0], calls["main"][0]), (15, 1), "{ran}");
    // What another program's addresses are, nobody knows here.
    let (calls, ran) = run(&format!("--format json -- ./prog {}", helper.exe.display()));
    assert!(calls.keys().all(|name| name.starts_with("0x")), "{ran}");
    let (calls, ran) = run(&format!("--no-check --format json -- sh -c {}", helper.exe.display()));
    assert!(calls.keys().all(|name| name.starts_with("0x")), "{ran}");
    // Whoever names a binary is believed.
    let exe = helper.exe.display();
    let (calls, ran) = run(&format!("--no-check --exe {exe} --format json -- sh -c {exe}"));
    assert_eq!(calls["other"], [1], "{ran}");
}
