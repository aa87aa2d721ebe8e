//! Many processes and threads at once, against the independent count.

use std::process::Command;
use std::time::Duration;

use callsight_tests::{Built, Drain, Hooks, Program, Report, Ring, Server, streamed};

const STORM: &str = include_str!("../programs/storm.c");
const FANOUT: &str = include_str!("../programs/fanout.c");

/// Calls of functions that do the same in every run.
fn calls(report: &Report) -> [u64; 4] {
    ["leaf", "small", "work", "spin"].map(|name| report.calls_of(name))
}

fn truth(forks: &str) -> [u64; 4] {
    let (ran, counts) = Program::c(STORM).build(Hooks::Count).counted(forks);
    assert_eq!(ran.stdout, "bad 0\n");
    ["leaf", "small", "work", "spin"].map(|name| counts.calls[name].iter().sum())
}

#[test]
fn forks_among_running_threads_lose_and_share_nothing_in_files() {
    let program = Program::c(STORM).build(Hooks::Ours);
    let ran = program.tracing().env("TRACE_MAX_MB", "0").run("exec ./prog 60");
    assert_eq!(ran.stdout, "bad 0\n", "{ran}");
    let report = program.report();
    assert_eq!(calls(&report), truth("60"));
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
}

#[test]
fn forks_among_running_threads_lose_and_share_nothing_in_a_ring() {
    let program = Program::c(STORM).build(Hooks::Ours);
    let (ran, drained, report) = streamed(&program, "60", 256 << 20);
    assert_eq!(ran.stdout, "bad 0\n", "{ran}");
    // Children live and die between two looks of the drain.
    assert!(drained.all().contains("unaccounted=0"), "{drained}");
    assert_eq!(calls(&report), truth("60"));
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
}

/// Children in turn, more than a ring names, that are killed and that nobody waits for.
const ZOMBIES: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) static void work(void) { __asm__ volatile(""); }
int main(void)
{
    int bad = 0;
    for (int child = 0; child < 300; child++) {
        siginfo_t info;
        pid_t pid = fork();
        for (int call = 0; pid == 0 && call < 20; call++)
            work();
        if (pid == 0)
            kill(getpid(), SIGKILL);
        bad += waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) != 0;
    }
    printf("bad %d\n", bad);
}
"#;

#[test]
fn children_that_nobody_waits_for_keep_no_place_in_a_ring() {
    let program = Program::c(ZOMBIES).build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), program.tracing());
    // No drain frees the places meanwhile.
    let ran = shell.clone().env("TRACE_SHM", ring.name()).ok("exec ./prog");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("bad 0\n", ""), "{ran}");
    let files = std::fs::read_dir(program.folder().join("traces")).map_or(0, Iterator::count);
    assert_eq!(files, 0, "all are in the ring: {ran}");
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drained = Drain::ours(&shell, &ring, server.port).finish();
    server.stop();
    assert!(drained.all().contains("unaccounted=0"), "{drained}");
    assert_eq!(program.report().calls_of("work"), 6000, "{drained}");
}

#[test]
fn more_threads_than_pages_do_not_starve_each_other() {
    let program = Program::c(FANOUT);
    let (_, counts) = program.build(Hooks::Count).counted("2000");
    let (_, drained, report) = streamed(&program.build(Hooks::Ours), "2000", 4096);
    let (delivered, lost) = (report.number("events"), report.lost());
    assert_eq!(delivered + lost, counts.events(), "{drained}");
    // Four pages of 30 events: what is kept for ever by threads that wait would be 120.
    assert!(delivered > 1000, "only {delivered} events came through: {drained}");
}

#[test]
fn wrapping_counts_every_event_that_it_gives_up() {
    let program = Program::c(FANOUT);
    let (_, counts) = program.build(Hooks::Count).counted("");
    let traced = program.build(Hooks::Ours);
    traced.tracing().env("TRACE_MAX_MB", "4").env("TRACE_FULL", "wrap").ok("./prog");
    let report = traced.report();
    assert_eq!(report.number("events") + report.lost(), counts.events());
}

/// Three threads that count their calls where another process can see it, for ever; with an argument so
/// many of one thread, no file can be opened after the first half.
const COUNTING: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#define PLAIN __attribute__((no_instrument_function))
static volatile unsigned long *counts;
__attribute__((noinline)) static void leaf(void) { __asm__ volatile(""); }
PLAIN static void *forever(void *of)
{
    for (;;) {
        ++*(volatile unsigned long *)of;
        leaf();
    }
    return NULL;
}
PLAIN int main(int count, char **words)
{
    if (count > 1) {
        long calls = atol(words[1]);
        struct rlimit none = { 3, 3 };
        for (long call = 0; call < calls; call++) {
            if (call == calls / 2)
                setrlimit(RLIMIT_NOFILE, &none);
            leaf();
        }
        return 0;
    }
    int file = open("counts", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (ftruncate(file, 4096) != 0)
        return 1;
    counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    pthread_t threads[3];
    for (int thread = 0; thread < 3; thread++)
        pthread_create(&threads[thread], NULL, forever, (void *)(counts + 16 * thread));
    return pthread_join(threads[0], NULL);
}
"#;

/// Enters and exits of the calls that [`COUNTING`] has begun.
fn made_by(program: &Built) -> u64 {
    let counts = std::fs::read(program.folder().join("counts")).unwrap_or_default();
    let words = counts.chunks_exact(8);
    2 * words.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).sum::<u64>()
}

#[test]
fn a_capture_that_wraps_can_be_read_while_it_is_written() {
    let program = Program::c(COUNTING).build(Hooks::Ours);
    let shell = program.tracing().env("TRACE_MAX_MB", "1").env("TRACE_FULL", "wrap");
    let mut command = Command::new("./prog");
    let mut child = shell.prepare(&mut command).spawn().expect("start the program");
    while made_by(&program) < 500_000 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut rotated = 0;
    for _ in 0..12 {
        let before = made_by(&program);
        let report = program.report();
        let after = made_by(&program);
        let told = report.number("events") + report.lost();
        assert!(before <= told + 3 * 512 && told <= after, "{told} of {before} to {after}");
        rotated = report.lost();
    }
    child.kill().expect("end the program");
    child.wait().expect("its end");
    assert!(rotated > 100_000, "{rotated} events were rotated away");
}

#[test]
fn what_was_rotated_away_is_known_of_a_killed_program_too() {
    let program = Program::c(COUNTING).build(Hooks::Ours);
    for tenths_of_ms in (1500..4000).step_by(370) {
        let shell = program.tracing().env("TRACE_MAX_MB", "1").env("TRACE_FULL", "wrap");
        let pause = format!("0.{tenths_of_ms:04}");
        shell.run(&format!("./prog & sleep {pause}; kill -9 $!; wait $! || true"));
        let made = made_by(&program);
        let report = program.report();
        let told = report.number("events") + report.lost();
        // Of each thread a call that was under way, and a window in a segment that was rotated away.
        assert!(
            made - told.min(made) <= 3 * 512 && told <= made,
            "{told} of {made} after {pause} s"
        );
        assert!(report.lost() > 0, "never rotated: {:?}", report.notices());
    }
}

#[test]
fn what_was_rotated_away_is_told_where_no_next_segment_can_be_made() {
    let program = Program::c(COUNTING).build(Hooks::Ours);
    program.tracing().env("TRACE_MAX_MB", "1").env("TRACE_FULL", "wrap").ok("./prog 120000");
    let report = program.report();
    assert_eq!(report.number("events") + report.lost(), 240_000, "{:?}", report.notices());
    assert!(report.notices().iter().any(|line| line.contains("rotated")), "{:?}", report.notices());
}

/// Handlers that interrupt each other while their thread records: what main prints is how many calls
/// there were, its own among them.
const HANDLERS: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define PLAIN __attribute__((noinline, no_instrument_function))
static long calls = 1;
static int depth, entered, stop;
__attribute__((noinline)) static void leaf(void)
{
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}
PLAIN static void burst(long count)
{
    while (count-- > 0)
        leaf();
}
PLAIN static void on_signal(int number)
{
    (void)number;
    __atomic_fetch_add(&depth, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&entered, 1, __ATOMIC_RELAXED);
    burst(20);
    __atomic_fetch_sub(&depth, 1, __ATOMIC_RELAXED);
}
PLAIN static void *send(void *to)
{
    /* One is not sent before another has come, and not too deep: the stack must have room. */
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        int before = __atomic_load_n(&entered, __ATOMIC_RELAXED);
        if (__atomic_load_n(&depth, __ATOMIC_RELAXED) >= 8)
            continue;
        pthread_kill(*(pthread_t *)to, SIGUSR1);
        while (__atomic_load_n(&entered, __ATOMIC_RELAXED) == before)
            ;
    }
    return NULL;
}
PLAIN static void storm(long count)
{
    pthread_t self = pthread_self(), senders[2];
    for (int at = 0; at < 2; at++)
        pthread_create(&senders[at], NULL, send, &self);
    burst(count);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int at = 0; at < 2; at++)
        pthread_join(senders[at], NULL);
}
#ifdef __x86_64__
/* Comes behind each instruction of main's thread, and at every 500th or so makes some calls. */
PLAIN static void on_step(int number)
{
    static unsigned random = 1, left;
    (void)number;
    if (left-- > 0)
        return;
    random = random * 1103515245 + 12345;
    left = random >> 16 & 1023;
    burst(random >> 26 & 31);
}
PLAIN static void step(long count)
{
    const unsigned long trap_flag = 0x100;
    __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() | trap_flag);
    burst(count);
    __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() & ~trap_flag);
}
#else
PLAIN static void on_step(int number) { (void)number; }
PLAIN static void step(long count) { burst(count); }
#endif
int main(int argc, char **argv)
{
    struct sigaction action = { .sa_flags = SA_NODEFER };
    int steps = argc > 1 && strcmp(argv[1], "step") == 0;
    action.sa_handler = steps ? on_step : on_signal;
    sigaction(steps ? SIGTRAP : SIGUSR1, &action, NULL);
    (steps ? step : storm)(argc > 2 ? atol(argv[2]) : 0);
    printf("calls %ld\n", calls);
}
"#;

/// Every event of a run of [`HANDLERS`] is delivered or dropped, and everybody says the same of it.
fn check_handlers(program: &Built, arguments: &str, ring_bytes: u64) {
    let (shell, ring) = (program.tracing(), Ring::new());
    let _ = std::fs::remove_dir_all(program.folder().join("traces"));
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drain = Drain::ours(&shell, &ring, server.port);
    let ran = shell
        .env("TRACE_SHM", ring.name())
        .env("TRACE_SHM_SIZE", ring_bytes.to_string())
        .ok(&format!("exec ./prog {arguments}"));
    let (drained, served) = (drain.finish().all(), server.stop());
    let calls = ran.stdout.trim().strip_prefix("calls ").and_then(|calls| calls.parse().ok());
    let calls: u64 = calls.unwrap_or_else(|| panic!("no calls: {ran}"));
    let report = program.report();
    let (events, lost) = (report.number("events"), report.lost());
    assert_eq!(events + lost, 2 * calls, "{:?}\n{drained}\n{served}", report.losses());
    assert!(lost > 0, "{events} events fit into {ring_bytes} bytes");
    let forwarded = format!("done, {events} events forwarded, {lost} dropped (full {lost}), ");
    assert!(drained.contains(&(forwarded + "unaccounted=0")), "{events}, {lost}: {drained}");
    let ended = format!("ended: 1 stream, {events} events, {lost} dropped, unaccounted=0");
    assert!(served.contains(&ended), "{events}, {lost}: {served}");
}

#[test]
fn handlers_that_interrupt_each_other_tell_no_loss_twice() {
    let program = Program::c(HANDLERS).build(Hooks::Ours);
    for ring_bytes in [65_536, 1 << 20] {
        check_handlers(&program, "storm 300000", ring_bytes);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_handler_behind_any_instruction_of_a_hook_tells_no_loss_twice() {
    let program = Program::c(HANDLERS).build(Hooks::Ours);
    check_handlers(&program, "step 15000", 4096);
}

/// The first hook of a thread blocks signals, and those that came meanwhile are handled right behind it.
#[test]
fn signals_during_the_first_hooks_of_threads_make_no_threads_more() {
    let program = Program::c(
        r#"
        #include <pthread.h>
        #include <signal.h>
        #include <sys/time.h>
        static volatile int signals;
        __attribute__((noinline)) static void leaf(void) { __asm__ volatile(""); }
        static void handle(int number) { (void)number; leaf(); signals++; }
        static void *work(void *unused) { for (int i = 0; i < 20; i++) leaf(); return unused; }
        int main(void) {
            struct itimerval often = { { 0, 20 }, { 0, 20 } }, never = { { 0, 0 }, { 0, 0 } };
            signal(SIGALRM, handle);
            setitimer(ITIMER_REAL, &often, 0);
            for (int round = 0; round < 20; round++) {
                pthread_t threads[4];
                for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, 0);
                for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
            }
            setitimer(ITIMER_REAL, &never, 0);
            return 0; }"#,
    )
    .flags(&["-pthread"])
    .build(Hooks::Ours);
    for round in 0..5 {
        let (_, report) = program.traced("");
        assert_eq!(report.number("threads"), 81, "round {round}: {:?}", report.notices());
        assert_eq!(report.calls_of("work"), 80);
        report.clean();
    }
}
