//! From the first constructor to the last destructor: threads, exec, signals, exits, jumps,
//! exceptions. Each program is small, and each answer is stated.

use callsight_tests::{Hooks, Program};

#[test]
fn every_moment_from_preinit_to_the_last_destructor_is_recorded() {
    let program = Program::cpp(
        r#"
        #include <cstdio>
        #include <cstdlib>
        static int leaf(int x) { return x + 1; }
        static void first() { leaf(0); }
        __attribute__((section(".preinit_array"), used)) static void (*const pre)() = first;
        __attribute__((constructor(101))) static void early() { leaf(1); }
        __attribute__((destructor(101))) static void last() { leaf(2); }
        struct Object { Object() { leaf(3); } ~Object() { leaf(4); } };
        static Object one, two;
        static void at_exit() { leaf(5); }
        int main() { atexit(at_exit); static Object three; std::puts("main"); return leaf(-1); }"#,
    );
    program
        .compared_with("", &[("leaf(int)", 11), ("first()", 1), ("last()", 1), ("at_exit()", 1)])
        .clean();
}

#[test]
fn an_ifunc_resolver_runs_in_every_kind_of_link() {
    let text = r#"
        #include <stdio.h>
        static int probe(void) { return 1; }
        static int fast(int x) { return x + 2; }
        static int slow(int x) { return x + 1; }
        static int (*pick(void))(int) { return probe() ? fast : slow; }
        int add(int x) __attribute__((ifunc("pick")));
        int main(void) { int s = 0; for (int i = 0; i < 10; i++) s = add(s); printf("%d\n", s); return 0; }"#;
    for link in ["-pie", "-no-pie", "-static", "-static-pie", "-Wl,-z,now"] {
        let (ran, report) = Program::c(text).flags(&[link]).build(Hooks::Ours).traced("");
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "20\n"), "{link}: {ran}");
        assert_eq!((report.calls_of("main"), report.calls_of("fast")), (1, 10), "{link}");
        // In static programs it runs before there is anything to record with: 4 events.
        assert!(report.calls_of("pick") <= 1, "{link}");
        assert_eq!(report.number("events") + report.lost(), 26, "{link}: {:?}", report.notices());
        assert_eq!(report.rows_of("add").len(), 0, "{link}: the resolver's frame is named pick");
    }
    let compiled = Program::c(text).flags(&["-fno-plt"]).build(Hooks::Ours).traced("");
    assert_eq!(compiled.0.stdout, "20\n", "{}", compiled.0);
}

#[test]
fn errno_survives_every_hook() {
    let program = Program::c(
        r#"
        #include <errno.h>
        #include <stdio.h>
        static int fail(int e) { errno = e; return -1; }
        static int deep(int e) { return fail(e); }
        int main(void) {
            int bad = 0;
            for (int i = 0; i < 60000; i++) { deep(1 + i % 100); bad += errno != 1 + i % 100; }
            printf("bad %d\n", bad); return 0; }"#,
    );
    let (ran, _) = program.compared("");
    assert_eq!(ran.stdout, "bad 0\n");
}

#[test]
fn a_signal_handler_may_interrupt_a_hook() {
    let program = Program::c(
        r#"
        #include <signal.h>
        #include <stdio.h>
        #include <sys/time.h>
        static volatile int hits;
        static void note(void) { hits = hits + 1; }
        static void on_alarm(int s) { (void)s; note(); }
        static int leaf(int x) { return x + 1; }
        static int mid(int x) { return leaf(leaf(x)); }
        int main(void) {
            struct itimerval every = { { 0, 200 }, { 0, 200 } };
            signal(SIGALRM, on_alarm);
            setitimer(ITIMER_REAL, &every, 0);
            int s = 0;
            for (int i = 0; i < 300000; i++) s = mid(s);
            every.it_value.tv_usec = 0;
            setitimer(ITIMER_REAL, &every, 0);
            printf("%d %d\n", s, hits); return 0; }"#,
    );
    let (ran, report) = program.build(Hooks::Ours).traced("");
    let hits: u64 =
        ran.stdout.split_whitespace().last().and_then(|n| n.parse().ok()).expect("hits");
    assert!(hits > 0, "{ran}");
    for (name, calls) in [("mid", 300_000), ("leaf", 600_000), ("on_alarm", hits), ("note", hits)] {
        assert_eq!(report.calls_of(name), calls, "{name}: {:?}", report.notices());
    }
    assert_eq!((report.number("unmatched_exits"), report.lost()), (0, 0));
}

#[test]
fn the_programs_own_malloc_is_traced_and_not_used() {
    let program = Program::c(
        r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <stddef.h>
        #include <string.h>
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        static char arena[64 << 20];
        static size_t used;
        static void *bump(size_t n) {
            pthread_mutex_lock(&lock);
            void *p = arena + used;
            used += (n + 31) & ~(size_t)15;
            pthread_mutex_unlock(&lock);
            return p;
        }
        void *malloc(size_t n) { return bump(n); }
        void free(void *p) { (void)p; }
        void *calloc(size_t n, size_t m) { return bump(n * m); }
        void *realloc(void *old, size_t n) { void *p = bump(n); if (old) memmove(p, old, n); return p; }
        static char *copy(const char *s) { char *p = malloc(strlen(s) + 1); return strcpy(p, s); }
        static void *work(void *p) { for (int i = 0; i < 500; i++) free(copy("text")); return p; }
        int main(void) {
            pthread_t t[4];
            for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, work, 0);
            for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
            puts("done"); return 0; }"#,
    );
    program.compared_with("", &[("copy", 2000), ("work", 4)]).clean();
}

#[test]
fn memory_functions_of_the_program_are_traced_and_not_used() {
    let program = Program::c(
        r#"
        #include <stddef.h>
        #include <stdio.h>
        #include <unistd.h>
        static int calls;
        void *memcpy(void *d, const void *s, size_t n) {
            calls++; char *a = d; const char *b = s; while (n--) *a++ = *b++; return d; }
        void *memset(void *d, int c, size_t n) {
            calls++; char *a = d; while (n--) *a++ = (char)c; return d; }
        static int leaf(int x) { return x + 1; }
        int main(void) {
            calls = 0;
            int s = 0;
            for (int i = 0; i < 100000; i++) s = leaf(s);
            int seen = calls;
            printf("%d %d\n", s, seen); return 0; }"#,
    )
    .flags(&["-fno-builtin", "-fno-tree-loop-distribute-patterns"]);
    let (ran, _) = program.build(Hooks::Ours).traced("");
    assert_eq!(ran.stdout, "100000 0\n", "the hooks called the program's memcpy or memset");
}

#[test]
fn every_way_to_end_keeps_its_status_and_its_calls() {
    let program = Program::c(
        r#"
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static int leaf(int x) { return x + 1; }
        static int burn(int n) { int s = 0; while (n--) s = leaf(s); return s; }
        static void die(int way) {
            burn(1000);
            switch (way) {
            case 0: _exit(10);
            case 1: abort();
            case 2: kill(getpid(), SIGKILL); break;
            case 3: quick_exit(13);
            case 4: *(volatile int *)0 = 1; break;
            case 5: exit(15);
            case 6: kill(getpid(), SIGTERM); break;
            }
        }
        int main(void) {
            for (int way = 0; way < 7; way++) {
                int status;
                fflush(stdout);
                pid_t child = fork();
                if (!child) { die(way); _exit(99); }
                waitpid(child, &status, 0);
                printf("%d ", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
            }
            puts(""); return 0; }"#,
    );
    let (ran, report) = program.compared("");
    assert_eq!(ran.stdout, "10 134 137 13 139 15 143 \n");
    assert_eq!((report.calls_of("leaf"), report.calls_of("die")), (7000, 7));
    assert_eq!(report.number("unclosed_enters"), 7, "each child ends inside die()");
}

#[test]
fn exec_starts_a_life_of_its_own() {
    let program = Program::c(
        r#"
        #include <unistd.h>
        static int leaf(int x) { return x + 1; }
        static void again(char **argv) {
            char *next[] = { argv[0], "second", 0 };
            execv("/proc/self/exe", next);
        }
        int main(int argc, char **argv) { leaf(1); if (argc == 1) again(argv); return leaf(-1); }"#,
    );
    let report = program.compared_with("", &[("leaf", 3), ("main", 2), ("again", 1)]);
    assert_eq!(report.number("unclosed_enters"), 2, "main and again of the image that is gone");
}

const THROWS: &str = r#"
    #include <cstdio>
    struct Guard { int &n; Guard(int &n) : n(n) { ++n; } ~Guard() { --n; } };
    static int guards;
    static int thrower(int n) { Guard g(guards); if (n == 0) throw 1; return thrower(n - 1) + 1; }
    static int rethrow(int n) { try { return thrower(n); } catch (int) { throw; } }
    static int caught(int n) { try { return rethrow(n); } catch (int e) { return e; } }
    static int nested() { return 1; }
    int main() {
        int sum = 0;
        for (int i = 0; i < 50; i++) sum += caught(i % 10) + nested();
        std::printf("%d %d\n", sum, guards);
        return 0;
    }"#;

#[test]
fn exceptions_close_what_they_pass() {
    for compiler in ["g++", "clang++"] {
        let program = Program::cpp(THROWS).compiler(compiler);
        let calls =
            [("thrower(int)", 275), ("rethrow(int)", 50), ("caught(int)", 50), ("nested()", 50)];
        let report = program.compared_with("", &calls);
        assert_eq!(report.number("unclosed_enters"), 0, "{compiler}");
        let callers = callers_of(&program, "nested()");
        assert_eq!(callers, ["main"], "{compiler}: no catch shifts the stack");
    }
}

/// The callers of a function, by the report's `callers` format.
fn callers_of(program: &Program, name: &str) -> Vec<String> {
    let traced = program.build(Hooks::Ours);
    traced.tracing().ok("./prog");
    let ran = traced.shell().callsight(&["analyze", "traces", "--format", "callers"]);
    let arrow = format!("{name} <- ");
    let callers = ran.stdout.lines().filter_map(|line| line.split_once(&arrow));
    callers.map(|(_, caller)| caller.split(" (").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn longjmp_never_lets_the_stack_grow() {
    let program = Program::c(
        r#"
        #include <setjmp.h>
        #include <time.h>
        static jmp_buf here;
        static void fail(int n) { if (n) fail(n - 1); else longjmp(here, 1); }
        static int protect(void) { if (!setjmp(here)) fail(20); return 1; }
        static void nap(void) { struct timespec t = { 0, 1000000 }; nanosleep(&t, 0); }
        static void after(void) { nap(); }
        int main(void) { for (int i = 0; i < 50; i += protect()) after(); return 0; }"#,
    );
    let calls = [("protect", 50), ("fail", 1050), ("after", 50), ("nap", 50)];
    let report = program.compared_with("", &calls);
    assert_eq!(report.number("unclosed_enters"), 0);
    assert!(report.total_ms("main") >= 50.0 && report.total_ms("after") >= 50.0);
    assert!(report.total_ms("fail") < 40.0, "the naps are not inside fail");
    assert_eq!(callers_of(&program, "after"), ["main"]);
}

#[test]
fn a_cancelled_thread_leaves_no_one_elses_frames_open() {
    let program = Program::c(
        r#"
        #include <pthread.h>
        #include <unistd.h>
        static int leaf(int x) { return x + 1; }
        static void wait_for_ever(void) { for (;;) pause(); }
        static void *work(void *p) { leaf(1); wait_for_ever(); return p; }
        static void *quit(void *p) { leaf(2); pthread_exit(p); }
        int main(void) {
            pthread_t a, b;
            pthread_create(&a, 0, work, 0);
            pthread_create(&b, 0, quit, 0);
            usleep(20000);
            pthread_cancel(a);
            pthread_join(a, 0);
            pthread_join(b, 0);
            return leaf(-1); }"#,
    );
    program.compared_with("", &[("leaf", 3), ("work", 1), ("wait_for_ever", 1), ("quit", 1)]);
}

#[test]
fn recursion_200000_frames_deep_is_exact() {
    let program = Program::c(
        r#"
        #include <pthread.h>
        #include <stdio.h>
        static int down(int n) { volatile int here = n; return n ? down(n - 1) + 1 : here; }
        static void *body(void *p) { printf("%d\n", down(200000)); return p; }
        int main(void) {
            pthread_t t;
            pthread_attr_t a;
            pthread_attr_init(&a);
            pthread_attr_setstacksize(&a, (size_t)1 << 30);
            pthread_create(&t, &a, body, 0);
            pthread_join(t, 0);
            return 0; }"#,
    );
    let report = program.compared_with("", &[("down", 200_001), ("body", 1)]);
    assert!(report.total_ms("down") <= report.total_ms("body"));
    let traced = program.build(Hooks::Ours);
    traced.tracing().ok("./prog");
    let folded = traced.shell().callsight(&["analyze", "traces", "--format", "folded"]);
    assert_eq!(folded.code, 0);
    assert!(folded.stdout.len() < 8 << 20, "{} bytes of folded stacks", folded.stdout.len());
}

#[test]
fn eighteen_hundred_short_threads_need_few_descriptors_and_little_memory() {
    let program = Program::c(
        r#"
        #include <pthread.h>
        #include <stdio.h>
        static int leaf(int x) { return x + 1; }
        static void *one(void *p) { leaf(1); return p; }
        static void *many(void *p) { for (int i = 0; i < 200; i++) leaf(i); return p; }
        int main(void) {
            pthread_t t[100];
            for (int i = 0; i < 1500; i++) { pthread_create(t, 0, one, 0); pthread_join(t[0], 0); }
            for (int r = 0; r < 3; r++) {
                for (int i = 0; i < 100; i++) pthread_create(&t[i], 0, many, 0);
                for (int i = 0; i < 100; i++) pthread_join(t[i], 0);
            }
            puts("done"); return 0; }"#,
    );
    let traced = program.build(Hooks::Ours);
    let limits = "ulimit -n 64 -v 1500000";
    let ran = traced.tracing().ok(&format!("{limits}; exec ./prog"));
    assert_eq!(ran.stdout, "done\n");
    let report = traced.report();
    report.clean();
    for (name, calls) in [("one", 1500), ("many", 300), ("leaf", 61_500), ("main", 1)] {
        assert_eq!(report.calls_of(name), calls, "{name}");
    }
    assert_eq!(report.number("threads"), 1801);
}

#[test]
fn exit_from_deep_inside_with_threads_running_is_in_order() {
    let program = Program::c(
        r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        static int tick(int x) { return x + 1; }
        static void *forever(void *p) { for (int n = 0;;) n = tick(n); return p; }
        static void bye(void) { puts("bye"); }
        static void quit(int n) { if (n) quit(n - 1); else { usleep(60000); exit(3); } }
        int main(void) {
            pthread_t t;
            atexit(bye);
            pthread_create(&t, 0, forever, 0);
            quit(4);
            return 0; }"#,
    );
    let (ran, report) = program.build(Hooks::Ours).traced("");
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "bye\n"), "{ran}");
    for (name, calls) in [("main", 1), ("quit", 5), ("forever", 1), ("bye", 1)] {
        assert_eq!(report.calls_of(name), calls, "{name}: {:?}", report.notices());
    }
    assert!(report.total_ms("main") >= 60.0 && report.total_ms("quit") >= 60.0);
    assert_eq!(report.number("unmatched_exits"), 0);
}

#[test]
fn time_of_recursion_is_that_of_the_outermost_call() {
    let program = Program::c(
        r#"
        #include <time.h>
        static void ms(void) { struct timespec t = { 0, 10000000 }; nanosleep(&t, 0); }
        static void rec(int n) { ms(); if (n) rec(n - 1); }
        static void pong(int n);
        static void ping(int n) { ms(); if (n) pong(n - 1); }
        static void pong(int n) { ms(); if (n) ping(n - 1); }
        int main(void) { rec(5); ping(5); return 0; }"#,
    );
    let report = program.compared_with("", &[("rec", 6), ("ping", 3), ("pong", 3), ("ms", 12)]);
    let all = report.total_ms("main");
    for name in ["rec", "ping", "pong", "ms"] {
        assert!(report.total_ms(name) <= all, "{name}");
    }
    assert!(report.total_ms("rec") >= 60.0);
    // rec is half of the naps: two outermost calls counted twice would be more than all of main.
    assert!(report.total_ms("rec") + report.total_ms("ping") <= all * 1.001);
    let own: f64 = report.rows().iter().map(|row| row["self_ms"].as_f64().expect("self_ms")).sum();
    assert!((own - all).abs() <= 0.01 * all, "self times {own} ms, main {all} ms");
}

#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let program = Program::c(
        r#"
        #include <signal.h>
        #include <stdio.h>
        int main(void) {
            struct sigaction hangup;
            sigaction(SIGHUP, 0, &hangup);
            raise(SIGHUP);
            puts(hangup.sa_handler == SIG_IGN ? "ignored" : "not ignored");
            return 0; }"#,
    )
    .build(Hooks::Ours);
    let ran = program.shell().ok("trap '' HUP; callsight run --dir traces -- ./prog");
    assert!(ran.stdout.starts_with("ignored\n"), "{ran}");
    let hang_up = "
        : > said; callsight serve --host 127.0.0.1 --port 0 --out traces > said &
        until grep -q listening said; do sleep 0.01; done
        kill -HUP $!; sleep 0.3
        if kill -TERM $!; then echo goes on; fi
        wait $!; cat said";
    let ran = program.shell().ok(&format!("trap '' HUP; {hang_up}"));
    assert!(ran.stdout.starts_with("goes on\n") && ran.stdout.contains("ended: "), "{ran}");
    let ran = program.shell().ok(hang_up);
    assert!(!ran.stdout.contains("goes on") && ran.stdout.contains("ended: "), "{ran}");
}
