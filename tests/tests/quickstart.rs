//! The quick start for a remote target, word for word, on a fresh CMake project.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use callsight_tests::{Shell, StreamPort, callsight};
use tempfile::TempDir;

const LISTS: &str =
    "cmake_minimum_required(VERSION 3.16)\nproject(yourapp C)\nadd_executable(yourapp main.c)\n";
const MAIN: &str = r#"
#include <stdio.h>
static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
int main(void) { printf("%d\n", fib(20)); return 0; }
"#;

#[test]
fn from_init_to_the_report() {
    // Port 9001 and the ring /callsight0 are what the quick start says: one test at a time.
    let _port = StreamPort::lock();
    let host = TempDir::with_prefix("callsight-host-").expect("a temporary folder");
    let device = TempDir::with_prefix("callsight-device-").expect("a temporary folder");
    let project = device.path();
    std::fs::write(project.join("CMakeLists.txt"), LISTS).expect("write CMakeLists.txt");
    std::fs::write(project.join("main.c"), MAIN).expect("write main.c");

    let mut serve = Command::new(callsight());
    let on_host = Shell::new(host.path());
    let mut server =
        on_host.prepare(serve.arg("serve")).stdout(Stdio::null()).spawn().expect("serve");
    wait_for_port();

    on_host.ok(&format!("callsight init --stream {}", project.display()));
    let on_device = Shell::new(project);
    on_device.ok(
        "cmake -S . -B build -DCALLSIGHT=ON && cmake --build build && cp build/yourapp.instr .",
    );
    on_device.ok("cc -O2 -o callsight/trace_stream callsight/trace_stream.c callsight/zstd.c");
    let ran = on_device.ok("./callsight/trace_stream /callsight0 127.0.0.1 9001 &
         TRACE_ENABLE=1 TRACE_SHM=/callsight0 ./yourapp.instr
         wait");
    assert!(ran.stdout.contains("6765"), "{ran}");

    server.kill().expect("end the server");
    server.wait().expect("the server's end");
    let app = project.join("yourapp.instr");
    let report = on_host.ok(&format!(
        "cp {} . && callsight analyze traces/ --exe ./yourapp.instr --top 20",
        app.display()
    ));
    let top = report.stdout.lines().next().unwrap_or_default();
    for word in
        ["events=43784", "threads=1", "functions=2", "unmatched_exits=0", "unclosed_enters=0"]
    {
        assert!(top.contains(word), "{word}: {report}");
    }
    assert!(!report.stdout.lines().any(|line| line.starts_with('!')), "{report}");
    assert!(report.stdout.contains("fib (main.c:3)"), "{report}");
}

fn wait_for_port() {
    let begin = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", 9001)).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the server does not listen on 9001");
        std::thread::sleep(Duration::from_millis(20));
    }
}
