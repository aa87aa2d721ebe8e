//! A ring is paused by command in the middle of calls: what the report says of the calls that were
//! open then, of threads that made none meanwhile, and of a program that lived in the pause only.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use callsight_tests::{Built, Drain, Hooks, Program, Report, Ring, Server, Shell};

/// Waits for a word after each step, so that nothing here depends on time.
const STEPS: &str = r#"
    #include <pthread.h>
    #include <semaphore.h>
    #include <stdio.h>
    #define QUIET __attribute__((no_instrument_function))
    #define CALL __attribute__((noinline))
    static sem_t begun, over;
    QUIET static void step(const char *name) { puts(name); fflush(stdout); getchar(); }
    CALL static void waits(void) { sem_post(&begun); sem_wait(&over); }
    static void *idle(void *unused) { waits(); return unused; }
    /* The first call of a thread asks what the ring says. */
    static void *notices(void *unused) { return unused; }
    CALL static void left_out(void) { __asm__(""); }
    CALL static void turn(int number) {
        __asm__("");
        if (number != 1) return;
        step("inside");
        pthread_t thread;
        pthread_create(&thread, 0, notices, 0);
        pthread_join(thread, 0);
        left_out();
    }
    CALL static void outer(void) {
        for (volatile int number = 0; number < 6; number++) {
            if (number == 3) step("paused");
            turn(number);
        }
    }
    int main(void) {
        sem_init(&begun, 0, 0);
        sem_init(&over, 0, 0);
        pthread_t thread;
        pthread_create(&thread, 0, idle, 0);
        sem_wait(&begun);
        outer();
        sem_post(&over);
        pthread_join(thread, 0);
        return 0;
    }"#;

/// The program between its steps.
struct Stepping {
    child: Child,
    words: ChildStdin,
    steps: BufReader<ChildStdout>,
}

impl Stepping {
    fn start(shell: &Shell, program: &Built) -> Stepping {
        let mut command = Command::new(&program.exe);
        let prepared = shell.prepare(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = prepared.spawn().expect("start the program");
        let words = child.stdin.take().expect("its input");
        let steps = BufReader::new(child.stdout.take().expect("its output"));
        Stepping { child, words, steps }
    }

    fn comes_to(&mut self, step: &str) {
        let mut line = String::new();
        self.steps.read_line(&mut line).expect("a step");
        assert_eq!(line.trim_end(), step);
    }

    fn goes_on(&mut self) {
        self.words.write_all(b"\n").expect("tell it to go on");
    }

    fn ends(mut self) {
        let mut rest = String::new();
        self.steps.read_to_string(&mut rest).expect("the rest of its output");
        assert_eq!(rest, "");
        assert!(self.child.wait().expect("its end").success());
    }
}

/// Runs [`STEPS`] on a ring that is paused and goes on, and another program meanwhile: the report
/// and its folded stacks.
fn paused() -> (Report, String) {
    let program = Program::c(STEPS).build(Hooks::Ours);
    let within =
        Program::c("static void left_out(void) {} int main(void) { left_out(); return 0; }");
    let within = within.build(Hooks::Ours);
    let ring = Ring::new();
    let shell = program.tracing().env("TRACE_SHM", ring.name());
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drain = Drain::ours(&shell, &ring, server.port);
    let mut steps = Stepping::start(&shell, &program);
    steps.comes_to("inside");
    assert_eq!(shell.callsight(&["rings", "--pause", ring.name()]).code, 0);
    let ran = shell.run(&format!("exec {}", within.exe.display()));
    assert_eq!(ran.code, 0, "{ran}");
    steps.goes_on();
    steps.comes_to("paused");
    assert_eq!(shell.callsight(&["rings", "--resume", ring.name()]).code, 0);
    steps.goes_on();
    steps.ends();
    let drained = drain.finish();
    server.stop();
    assert_eq!(drained.code, 0, "{drained}");
    let folded = shell.callsight(&["analyze", "traces", "--format", "folded"]).stdout;
    (program.report(), folded)
}

#[test]
fn a_pause_in_the_middle_of_calls_is_exactly_told() {
    let (report, folded) = paused();
    let notices = report.notices().join("\n");
    // Turns 0 and 1, and 3 to 5; turn 2 came in the pause.
    let calls = ["main", "idle", "waits", "outer", "turn", "notices", "left_out"];
    assert_eq!(calls.map(|name| report.calls_of(name)), [1, 1, 1, 1, 5, 0, 0], "{notices}");
    // The thread that went on, the one that came and went, and the other program.
    assert_eq!(report.number("pauses"), 3, "{notices}");
    assert!(notices.contains("recording was paused 3 times in 3 threads"), "{notices}");
    // Turn 1 returned in the pause; it, `outer` and `main` have no exact time. The other thread was
    // inside `waits` all the while, and left out no call.
    let doubtful = calls.map(|name| {
        let rows = report.rows_of(name);
        rows.iter().filter_map(|row| row["uncertain"].as_u64()).sum::<u64>()
    });
    assert_eq!(doubtful, [1, 0, 0, 1, 1, 0, 0], "{notices}");
    assert_eq!(report.number("calls_cut_by_loss"), 1, "{notices}");
    assert_eq!((report.number("unmatched_exits"), report.number("unclosed_enters")), (0, 0));
    assert!(folded.contains("main;outer;turn ") && !folded.contains("turn;"), "{folded}");
    // A pause is no loss.
    assert_eq!(report.lost(), 0, "{notices}");
    assert!(!notices.contains("lost") && !notices.contains("did not end in order"), "{notices}");
}
