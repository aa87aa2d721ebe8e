//! Sandboxes and filters of system calls: who may ask the system nothing any more goes on as if
//! untraced, and what cannot be recorded is counted.

use callsight_tests::{Drain, Hooks, Program, Ring, Server, streamed_in};

#[test]
fn hooks_into_a_ring_make_no_system_call() {
    let program = Program::c(
        r#"
        #include <linux/audit.h>
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <stddef.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        static int leaf(int x) { return x + 1; }
        static int work(int n) { int s = 0; while (n--) s = leaf(s); return s; }
        int main(void) {
            work(10);
            struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            };
            struct sock_fprog filter = { sizeof code / sizeof *code, code };
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 9;
            int s = work(100000);
            write(1, s == 100000 ? "ok\n" : "no\n", 3);
            _exit(0);
        }"#,
    )
    .build(Hooks::Ours);
    let ring = Ring::new();
    let shell = program.tracing();
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drain = Drain::ours(&shell, &ring, server.port);
    // Small: pages are claimed, and some of their claims fail.
    let small = shell.env("TRACE_SHM", ring.name()).env("TRACE_SHM_SIZE", "1000000");
    let ran = small.run("exec ./prog");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ok\n"), "{ran}");
    assert_eq!(drain.finish().code, 0);
    server.stop();
    // main, two calls of work, 100,010 of leaf; main does not return.
    program.report().adds_up(2 * 100_012 + 1);
}

#[test]
fn a_filter_that_kills_for_what_the_runtime_asks_the_system_kills_nobody() {
    let program = Program::c(include_str!("../programs/renounce.c")).build(Hooks::Ours);
    // main and two calls of work; threads have a function of their own.
    let events = |how: &str| {
        2 * (1 + 2 * 101)
            + match how {
                "family" => 4 * 2 * 1001 + 2 * 2 * 101,
                "threads" => 4 * 2 * 102,
                _ => 0,
            }
    };
    for (what, how) in [
        ("files-kill", "alone"),
        ("files-kill", "threads"),
        ("files-kill", "family"),
        ("files-trap", "threads"),
        ("files-trap", "family"),
        ("most-kill", "alone"),
        ("most-kill", "threads"),
        ("most-kill", "family"),
        ("all-kill", "alone"),
        ("all-kill", "family"),
    ] {
        let case = format!("{what} {how}");
        let (ran, drained, report) = streamed_in(&program.tracing(), &program, &case, 1 << 20);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{case}: {ran}");
        report.adds_up(events(how));
        // A child that may not even ask for its pid has no place in the ring.
        let lost = if case == "all-kill family" { events(how) - events("alone") } else { 0 };
        assert_eq!(report.lost(), lost, "{case}: {drained}\n{:?}", report.notices());
        assert_eq!(report.rows_of("leaf").len(), 1, "{case}: everybody's leaf has its name");
    }
    // Into files the recording ends, and is counted.
    for how in ["alone", "threads", "family"] {
        let ran = program.tracing().run(&format!("exec ./prog files-kill {how}"));
        assert_eq!(ran.code, 0, "{ran}");
        program.report().adds_up(events(how));
    }
}

/// `syscall`, which the runtime has for its own sake, is libc's to everybody else.
#[test]
fn system_calls_by_number_are_what_they_were() {
    let program = Program::c(
        r#"
        #define _GNU_SOURCE
        #include <errno.h>
        #include <stdio.h>
        #include <sys/mman.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(void) {
            errno = 0;
            long none = syscall(SYS_close, -1);
            printf("%ld %d\n", none, errno);
            /* All six arguments. */
            char *page = (char *)syscall(SYS_mmap, 0L, 4096L, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1L, 0L);
            page[4095] = 1;
            printf("%d %d\n", page[0], syscall(SYS_getpid) == getpid());
            printf("%ld %d\n", syscall(SYS_mmap, 0L, 4096L, 0, MAP_PRIVATE, -1L, 1L), errno);
            printf("%ld %d\n", syscall(SYS_seccomp, 77L, 0L, 0L), errno);
            printf("%ld %d\n", syscall(SYS_seccomp, 1L, 0L, 0L), errno);
            return 0; }"#,
    );
    let plain = program.clone().build(Hooks::None).plain("");
    assert_eq!(plain.stdout.lines().next(), Some("-1 9"), "{plain}");
    for link in ["-pie", "-static"] {
        let (ran, report) = program.clone().flags(&[link]).build(Hooks::Ours).traced("");
        assert_eq!((ran.code, &ran.stdout), (plain.code, &plain.stdout), "{link}");
        assert_eq!(report.calls_of("main"), 1, "{link}");
    }
}

#[test]
fn a_thread_that_gives_up_its_clock_goes_on_and_its_calls_are_counted() {
    let program = Program::c(
        r#"
        #include <linux/seccomp.h>
        #include <stdlib.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        static int leaf(int x) { return x + 1; }
        static int work(int n) { int s = 0; while (n--) s = leaf(s); return s; }
        int main(int count, char **argv) {
            work(atoi(argv[1]));
            if (argv[2][0] == 't') {
                /* Given up, and taken back. */
                if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)) return 9;
                work(100);
                if (prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0)) return 9;
                work(10);
            }
            if (argv[2][1] == 'y' ? syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, 0)
                                  : prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0)) return 9;
            int s = work(100000);
            write(1, s == 100000 ? "ok\n" : "no\n", 3);
            syscall(SYS_exit, 0);
        }"#,
    )
    .build(Hooks::Ours);
    // main, two calls of work, those of leaf; main does not return.
    let events = |before: u64| 2 * (100_002 + before) + 1;
    // Around 250 calls the loss note would cross the end of a window.
    let cases = [(10, "syscall")].into_iter().chain((230..256).map(|before| (before, "strict")));
    for (before, how) in cases.chain([(10, "strict")]) {
        let ran = program.tracing().run(&format!("exec ./prog {before} {how}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "ok\n"), "{how} {before}: {ran}");
        let report = program.report();
        report.adds_up(events(before));
        assert_eq!(report.lost(), 200_002, "{how} {before}: {:?}", report.notices());
    }
    // Beside that: two calls of work and 110 of leaf, of which 101 are lost.
    program.tracing().ok("exec ./prog 10 tsc");
    let report = program.report();
    report.adds_up(events(10) + 2 * 112);
    assert_eq!(report.lost(), 200_002 + 202, "{:?}", report.notices());
    assert_eq!(report.calls_of("leaf"), 20);
    // Where recording had stopped before.
    program.tracing().env("TRACE_MAX", "100").ok("exec ./prog 1000 strict");
    program.report().adds_up(events(1000));
    for version in ["2", "3"] {
        let shell = program.tracing().env("TRACE_RING", version);
        let (ran, _, report) = streamed_in(&shell, &program, "10 strict", 1 << 20);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "ok\n"), "{ran}");
        report.adds_up(events(10));
        assert_eq!(report.lost(), 200_002, "ring {version}: {:?}", report.notices());
    }
}
