//! Budgets, full disks, small memory, selected threads, files that are cut: the program goes on as if
//! untraced, and what is missing is counted.

use callsight_tests::{Hooks, Program, Ran, Report, Ring, Server, skip, streamed_in};

const LOOP: &str = r#"
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/resource.h>
    static int leaf(int x) { return x + 1; }
    static int job(int n) { int s = 0; while (n--) s = leaf(s); return s; }
    int main(int argc, char **argv) {
        if (argc > 2 && !strcmp(argv[2], "fsize")) {
            struct rlimit limit = { 1 << 20, 1 << 20 };
            setrlimit(RLIMIT_FSIZE, &limit);
        }
        printf("%d\n", job(argc > 1 ? atoi(argv[1]) : 400000));
        return 0;
    }"#;
const NAMED: &str = include_str!("../programs/named.c");
/// Enters and exits of `./prog 400000`.
const LOOP_EVENTS: u64 = 800_004;

#[track_caller]
fn unharmed(ran: &Ran) {
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "400000\n", ""), "{ran}");
}

#[test]
fn a_file_size_limit_ends_the_recording_and_not_the_program() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    // The limit comes when the program is under way: what is already there is used up.
    unharmed(&program.tracing().run("exec ./prog 400000 fsize"));
    program.report().adds_up(LOOP_EVENTS);
    unharmed(&program.tracing().env("TRACE_SEG_MB", "1").run("exec ./prog 400000 fsize"));
    program.report().adds_up(LOOP_EVENTS);
    // It is there from the start.
    unharmed(&program.tracing().run("ulimit -f 1024; exec ./prog 400000"));
}

/// Runs the loop with a file system of `mib` MiB for its captures; `None` where that needs root, or
/// a kernel that lets users have their own mounts.
fn on_a_disk_of(mib: u32, settings: &str, test: &str) -> Option<(Ran, Report)> {
    let program = Program::c(LOOP).build(Hooks::Ours);
    program.tracing();
    let mount = format!("mount -t tmpfs -o size={mib}m none traces");
    let keep = "mkdir -p kept && cp traces/* kept/";
    let inner =
        format!("{mount} && TRACE_ENABLE=1 {settings} TRACE_DIR=$PWD/traces ./prog; {keep}");
    let ran = program.shell().run(&format!("unshare --map-root-user --mount bash -c '{inner}'"));
    if ran.stderr.contains("unshare") || ran.stderr.contains("mount:") {
        skip(test, &ran.stderr);
        return None;
    }
    Some((ran, Report::of(&program.shell(), &["kept"])))
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    let name = "a_full_disk_ends_the_recording_and_not_the_program";
    let Some((ran, report)) = on_a_disk_of(1, "TRACE_MIN_FREE_MB=0", name) else { return };
    unharmed(&ran);
    assert!(report.lost() > 0, "{:?}", report.notices());
    report.adds_up(LOOP_EVENTS);
}

#[test]
fn a_disk_with_too_little_room_from_the_start_still_takes_the_reason() {
    let name = "a_disk_with_too_little_room_from_the_start_still_takes_the_reason";
    let Some((ran, report)) = on_a_disk_of(40, "", name) else { return };
    unharmed(&ran);
    assert_eq!((report.number("events"), report.lost()), (0, LOOP_EVENTS));
    assert!(report.notices().iter().any(|line| line.contains("64")), "{:?}", report.notices());
}

#[test]
fn no_folder_to_write_to_leaves_the_program_alone() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    for folder in ["/proc/nope", "/dev/null/x", "no/parent/here"] {
        let shell = program.shell().env("TRACE_ENABLE", "1").env("TRACE_DIR", folder);
        unharmed(&shell.run("exec ./prog"));
    }
}

#[test]
fn a_budget_holds_and_the_rest_is_counted() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    let ran = program.tracing().env("TRACE_MAX_MB", "4").run("exec ./prog");
    unharmed(&ran);
    let size: u64 = std::fs::read_dir(program.folder().join("traces"))
        .expect("traces")
        .map(|entry| entry.expect("an entry").metadata().expect("a size").len())
        .sum();
    assert!(size <= 4 << 20, "{size} bytes with a budget of 4 MiB");
    let report = program.report();
    assert!(report.lost() > 0);
    report.adds_up(LOOP_EVENTS);
    let notices = report.notices().join("\n");
    assert!(notices.contains("budget"), "{notices}");
}

#[test]
fn an_event_limit_is_reached_exactly_by_one_thread() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    unharmed(&program.tracing().env("TRACE_MAX", "50000").run("exec ./prog"));
    let report = program.report();
    assert_eq!(report.number("events"), 50_000, "{:?}", report.notices());
    report.adds_up(LOOP_EVENTS);
}

#[test]
fn wrapping_keeps_the_end_within_the_budget() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    let shell = program.tracing().env("TRACE_MAX_MB", "4").env("TRACE_FULL", "wrap");
    unharmed(&shell.env("TRACE_SEG_MB", "1").run("exec ./prog"));
    let files: Vec<_> = std::fs::read_dir(program.folder().join("traces"))
        .expect("traces")
        .map(|entry| entry.expect("an entry"))
        .collect();
    let size: u64 = files.iter().map(|file| file.metadata().expect("a size").len()).sum();
    assert!(size <= 4 << 20, "{size} bytes with a budget of 4 MiB");
    let report = program.report();
    assert!(report.lost() > 0, "{:?}", report.notices());
    report.adds_up(LOOP_EVENTS);
    // Those that are left say how many there were: their numbers begin at 0.
    let number = |name: String| name.rsplit('.').nth(1).and_then(|n| n.parse::<usize>().ok());
    let numbers = files.iter().map(|file| number(file.file_name().into_string().expect("a name")));
    let last = numbers.map(|number| number.expect("a number")).max().expect("a file");
    let said =
        format!("{} segments with {} events were rotated", last + 1 - files.len(), report.lost());
    assert!(last >= 2 * files.len(), "not often enough to matter: {last}");
    assert!(
        report.notices().iter().any(|line| line.contains(&said)),
        "{said}: {:?}",
        report.notices()
    );
}

/// What rotated away in them is no call that was open at the fork: only the thread that forked has such.
#[test]
fn threads_that_a_forked_process_starts_have_inherited_nothing() {
    let program = Program::c(
        r#"
        #include <pthread.h>
        #include <sys/wait.h>
        #include <unistd.h>
        __attribute__((noinline)) static int leaf(int x) { __asm__ volatile(""); return x + 1; }
        static void *work(void *unused) {
            for (int i = 0; i < 100000; i++) leaf(i);
            return unused;
        }
        int main(void) {
            if (fork() > 0) return wait(0) < 0;
            pthread_t threads[3];
            for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, 0);
            for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
            return 0; }"#,
    )
    .flags(&["-pthread"])
    .build(Hooks::Ours);
    let shell = program.tracing().env("TRACE_MAX_MB", "2").env("TRACE_FULL", "wrap");
    shell.env("TRACE_SEG_MB", "1").ok("exec ./prog");
    let report = program.report();
    assert!(report.number("inherited_exits") <= 1, "main alone: {:?}", report.notices());
    assert!(report.number("exits_after_loss") > 0, "{:?}", report.notices());
}

#[test]
fn a_shared_memory_too_small_for_the_ring_costs_no_signal() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    program.tracing();
    // The last two are more than a ring can have.
    for asked in ["", "16777216", "4294967295", "400000000000", "99999999999999999999999"] {
        let inner = format!(
            "mount -t tmpfs -o size=1m none /dev/shm && rm -rf traces && TRACE_ENABLE=1 \
             TRACE_DIR=$PWD/traces TRACE_SHM=/callsight-small TRACE_SHM_SIZE={asked} exec ./prog"
        );
        let ran =
            program.shell().run(&format!("unshare --map-root-user --mount bash -c '{inner}'"));
        if ran.stderr.contains("unshare") || ran.stderr.contains("mount:") {
            return skip("a_shared_memory_too_small_for_the_ring_costs_no_signal", &ran.stderr);
        }
        unharmed(&ran);
        let report = program.report();
        assert_eq!(report.calls_of("leaf"), 400_000, "files are written instead");
        let told = "files: /dev/shm has not enough room for it";
        assert!(report.notices().iter().any(|line| line.contains(told)), "{:?}", report.notices());
    }
}

#[test]
fn a_limit_on_the_size_of_files_costs_the_ring_and_not_the_program() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    // In KiB; the last asks for the largest ring, since it asks for more than a ring can have.
    let cases = [("1000", "", "3"), ("1000", "", "2"), ("1000000", "68719476736", "3")];
    for (limit, bytes, version) in cases {
        let ring = Ring::new();
        let shell = program.tracing().env("TRACE_SHM", ring.name());
        let shell = shell.env("TRACE_SHM_SIZE", bytes).env("TRACE_RING", version);
        unharmed(&shell.run(&format!("ulimit -f {limit}; exec ./prog")));
        let report = program.report();
        let told = "it would be larger than files may be here (ulimit -f)";
        assert!(report.notices().iter().any(|line| line.ends_with(told)), "{:?}", report.notices());
        assert_eq!(report.number("events") + report.lost(), LOOP_EVENTS);
        assert!(!ring.exists());
    }
}

#[test]
fn a_limit_on_the_size_of_files_ends_no_drain_of_a_run_and_stays_the_programs_own() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    let server = Server::ours(&program.tracing(), &[]);
    let live = format!("--live 127.0.0.1:{}", server.port);
    let ran = program.shell().run(&format!(
        "ulimit -f 1000; callsight run --path kept {live} -- ./prog 20000; \
         callsight run --no-check --path other -- bash -c 'kill -XFSZ $$' || echo $?"
    ));
    server.stop();
    assert_eq!(ran.code, 0, "{ran}");
    assert!(ran.stdout.starts_with("20000\n") && ran.stdout.ends_with("153\n"), "{ran}");
    let report = Report::of(&program.shell(), &["kept"]);
    assert_eq!(report.calls_of("leaf"), 20_000, "{:?}", report.notices());
}

/// Threads that have to come by a small ring: what they lose is told where they go on.
#[test]
fn losses_in_a_version_2_ring_explain_what_does_not_match() {
    let program = Program::c(include_str!("../programs/fanout.c")).build(Hooks::Ours);
    let shell = program.tracing().env("TRACE_RING", "2");
    let (ran, _, report) = streamed_in(&shell, &program, "100", 65536);
    assert_eq!(ran.code, 0, "{ran}");
    assert!(report.lost() > 0, "the ring was never full");
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
    let blamed = report.notices().into_iter().find(|line| line.contains("longjmp"));
    assert_eq!(blamed, None);
}

#[test]
fn a_name_that_no_ring_can_have_is_told() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    for (name, why) in [
        ("/", "its name is empty"),
        ("/a/b", "its name holds a slash behind the first byte"),
        ("/..", "it cannot be opened"),
        (&format!("/{}", "x".repeat(256)), "it cannot be opened"),
        (&format!("/{}", "x".repeat(999)), "its name is too long"),
    ] {
        unharmed(&program.tracing().env("TRACE_SHM", name).run("exec ./prog"));
        let report = program.report();
        assert_eq!(report.calls_of("leaf"), 400_000, "files are written instead");
        assert!(report.notices().iter().any(|line| line.ends_with(why)), "{:?}", report.notices());
    }
    unharmed(&program.tracing().env("TRACE_SHM", "").run("exec ./prog"));
    assert_eq!(program.report().notices(), Vec::<String>::new(), "files are what is wanted");
}

#[test]
fn a_foreign_object_under_the_rings_name_is_refused() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    let ring = Ring::new();
    let path = format!("/dev/shm{}", ring.name());
    for content in ["", "short", &"x".repeat(8192)] {
        std::fs::write(&path, content).expect("write the object");
        let ran = program.tracing().env("TRACE_SHM", ring.name()).run("exec ./prog");
        unharmed(&ran);
        assert_eq!(program.report().calls_of("leaf"), 400_000, "files are written instead");
    }
}

#[test]
fn tracing_switched_off_leaves_no_file_and_no_word() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    for enable in ["", "0", "yes"] {
        let ran = program.tracing().env("TRACE_ENABLE", enable).run("exec ./prog");
        unharmed(&ran);
        let files = std::fs::read_dir(program.folder().join("traces")).expect("traces").count();
        assert_eq!(files, 0, "TRACE_ENABLE={enable:?}");
    }
}

#[test]
fn only_threads_that_were_asked_for_are_recorded() {
    let program = Program::c(
        r#"
        #define _GNU_SOURCE
        #include <pthread.h>
        static int leaf(int x) { return x + 1; }
        static void inside(void) { for (int i = 0; i < 1000; i++) leaf(i); }
        __attribute__((no_instrument_function)) static void *named(void *name) {
            pthread_setname_np(pthread_self(), name);
            inside();
            return 0;
        }
        int main(void) {
            pthread_t a, b;
            pthread_create(&a, 0, named, "worker-1");
            pthread_join(a, 0);
            pthread_create(&b, 0, named, "other");
            pthread_join(b, 0);
            return 0; }"#,
    )
    .build(Hooks::Ours);
    program.tracing().env("TRACE_THREADS", "work*").ok("./prog");
    let report = program.report();
    assert_eq!((report.calls_of("inside"), report.calls_of("leaf")), (1, 1000));
    assert_eq!(report.number("threads"), 1);
    // The first thread ends the process, and is not selected.
    for version in ["2", "3"] {
        let shell = program.tracing().env("TRACE_THREADS", "work*").env("TRACE_RING", version);
        let (_, drained, report) = streamed_in(&shell, &program, "", 1 << 20);
        assert_eq!((report.calls_of("inside"), report.calls_of("leaf")), (1, 1000), "{drained}");
        assert_eq!(
            (report.number("threads"), report.notices().len()),
            (1, 0),
            "{:?}",
            report.notices()
        );
    }
}

#[test]
fn what_a_thread_did_before_it_was_wanted_is_counted() {
    let program = Program::c(NAMED).build(Hooks::Ours);
    program.tracing().env("TRACE_THREADS", "wanted").ok("./prog 100 0 wanted");
    let report = program.report();
    // body's enter and the first leaf came too early.
    assert_eq!((report.number("events"), report.lost()), (2001, 3), "{:?}", report.notices());
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
}

#[test]
fn a_monotonic_clock_gives_the_same_calls() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    for clock in ["auto", "mono", "raw", "tsc"] {
        unharmed(&program.tracing().env("TRACE_CLOCK", clock).run("exec ./prog"));
        let report = program.report();
        assert_eq!(report.calls_of("leaf"), 400_000, "{clock}");
        report.clean();
    }
}

#[test]
fn a_spare_ring_is_taken_if_it_is_whole() {
    let program = Program::c(LOOP).build(Hooks::Ours);
    let (made, taken) = (Ring::new(), Ring::new());
    let object = |name: &str| std::path::Path::new("/dev/shm").join(name);
    let file = |ring: &Ring| object(&ring.name()[1..]);
    let spare = object(&format!(".callsight-spare-{}", &taken.name()[1..]));
    let inode = |path: &std::path::Path| {
        std::os::unix::fs::MetadataExt::ino(&path.metadata().expect("a ring"))
    };
    let run = |ring: &Ring| {
        let shell = program.tracing().env("TRACE_SHM", ring.name());
        unharmed(&shell.env("TRACE_SHM_SIZE", "65536").run("exec ./prog"));
    };
    run(&made);
    let bytes = std::fs::read(file(&made)).expect("a ring");
    std::fs::rename(file(&made), &spare).expect("make a spare");
    let made_inode = inode(&spare);
    run(&taken);
    assert_eq!((inode(&file(&taken)), spare.exists()), (made_inode, false));

    // One with holes: where /dev/shm is full, a store into them would kill the program.
    std::fs::remove_file(file(&taken)).expect("remove the ring");
    let sparse = std::fs::File::create(&spare).expect("make a spare");
    sparse.set_len(bytes.len() as u64).expect("set its size");
    let sparse_inode = inode(&spare);
    run(&taken);
    let kept = spare.exists();
    std::fs::remove_file(&spare).expect("remove the spare");
    assert!(kept && inode(&file(&taken)) != sparse_inode);
}

/// Cuts its own capture files to the length given when half of its calls are made.
const CUTS: &str = r#"
    #include <dirent.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    #define QUIET __attribute__((no_instrument_function))
    static int leaf(int x) { return x + 1; }
    static int job(int n) { int s = 0; while (n--) s = leaf(s); return s; }
    QUIET static void cut_captures(long length) {
        char path[512];
        DIR *folder = opendir("traces");
        for (struct dirent *entry; (entry = readdir(folder));) {
            snprintf(path, sizeof path, "traces/%s", entry->d_name);
            if (strstr(path, ".bin") && truncate(path, length) != 0) exit(2);
        }
        closedir(folder);
    }
    int main(int argc, char **argv) {
        int s = job(200000);
        cut_captures(argc > 1 ? atol(argv[1]) : 0);
        printf("%d\n", s + job(200000));
        return 0;
    }"#;

#[test]
fn a_capture_cut_short_under_its_program_ends_the_recording_and_not_the_program() {
    let program = Program::c(CUTS).build(Hooks::Ours);
    for length in ["100", "20000", "4000000"] {
        unharmed(&program.tracing().run(&format!("exec ./prog {length}")));
        let report = program.report();
        let notices = report.notices().join("\n");
        let short = notices.split("up to ").nth(1).and_then(|text| text.split(' ').next());
        let short: u64 = short.and_then(|number| number.parse().ok()).expect(&notices);
        let events = report.number("events") + report.lost() + short;
        // Among the records that a cut takes are notes.
        assert!((LOOP_EVENTS..LOOP_EVENTS + 100).contains(&events), "{events}: {notices}");
        assert!(notices.contains("Input/output error"), "{notices}");
    }
    unharmed(&program.tracing().env("TRACE_MODE", "summary").run("exec ./prog 0"));
}

/// Meets SIGBUS in a file of its own that it has cut, or sends it to itself; `caught` has a handler.
const BUS: &str = r#"
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>
    static void note(void) { if (write(1, "caught\n", 7) != 7) _exit(1); }
    static void on_bus(int signal) { (void)signal; note(); _exit(3); }
    static char *cut_map(void) {
        FILE *file = tmpfile();
        if (!file || ftruncate(fileno(file), 8192) != 0) exit(1);
        char *map = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
        if (map == MAP_FAILED || ftruncate(fileno(file), 0) != 0) exit(1);
        return map;
    }
    int main(int argc, char **argv) {
        if (argc > 2) signal(SIGBUS, strcmp(argv[2], "caught") ? SIG_IGN : on_bus);
        if (strcmp(argv[1], "sent")) cut_map()[5000] = 1;
        else raise(SIGBUS);
        puts("alive");
        return 0;
    }"#;

#[test]
fn a_bus_error_of_the_programs_own_is_what_it_was() {
    let plain = Program::c(BUS).build(Hooks::None);
    let traced = Program::c(BUS).build(Hooks::Ours);
    let ring = Ring::new();
    for (arguments, code) in [
        ("fault", 128 + 7),
        ("sent", 128 + 7),
        ("fault caught", 3),
        ("sent caught", 3),
        ("fault ignored", 128 + 7),
        ("sent ignored", 0),
    ] {
        let expected = plain.plain(arguments);
        assert_eq!(expected.code, code, "{expected}");
        let script = format!("exec ./prog {arguments}");
        for shell in [traced.tracing(), traced.tracing().env("TRACE_SHM", ring.name())] {
            let ran = shell.run(&script);
            assert_eq!((ran.code, ran.stdout), (code, expected.stdout.clone()), "{arguments}");
        }
    }
    // Ignored from before the start.
    let ran = traced.tracing().run("trap '' BUS; exec ./prog sent");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "alive\n"), "{ran}");
}

#[test]
fn a_ring_cut_short_under_threads_in_hooks_harms_none_of_them() {
    let text = r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        static int leaf(int x) { return x + 1; }
        static void *job(void *sum) {
            for (int i = 0; i < 400000; i++) *(int *)sum = leaf(*(int *)sum);
            return 0;
        }
        int main(int argc, char **argv) {
            pthread_t threads[4];
            int sums[4] = { 0 }, all = 0;
            for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, job, &sums[i]);
            usleep(300);
            if (argc > 2 && truncate(argv[1], atol(argv[2])) != 0) return 2;
            for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
            for (int i = 0; i < 4; i++) all += sums[i];
            printf("%d\n", all / 4);
            return 0;
        }"#;
    let program = Program::c(text).build(Hooks::Ours);
    for length in [0, 4096, 100_000, 200_000] {
        for version in ["2", "3"] {
            let ring = Ring::new();
            let file = format!("/dev/shm/{}", &ring.name()[1..]);
            let shell = program.tracing().env("TRACE_SHM", ring.name());
            let shell = shell.env("TRACE_RING", version).env("TRACE_SHM_SIZE", "262144");
            unharmed(&shell.run(&format!("exec ./prog {file} {length}")));
        }
    }
}

#[test]
fn a_file_that_has_room_for_its_head_only_in_the_end_tells_all_that_it_lacks() {
    let program = Program::c(include_str!("../programs/producer.c")).build(Hooks::Ours);
    program.tracing();
    let inner = "mount -t tmpfs -o size=1m none traces || exit 7
        head -c 2000000 /dev/zero > traces/fill; (sleep 1; rm traces/fill) &
        callsight serve --port 0 --host 127.0.0.1 --out served > said & server=$!
        until grep -qs listening said; do sleep 0.02; done
        port=$(grep -o \"127.0.0.1:[0-9]*\" said | head -n 1)
        callsight run --path traces/p --live $port -- ./prog 400000 1 5000
        mkdir kept && cp traces/p/* kept/; kill $server; wait $server";
    let ran = program.shell().run(&format!("unshare --map-root-user --mount bash -c '{inner}'"));
    if ran.stderr.contains("unshare") || ran.stderr.contains("mount:") {
        let name = "a_file_that_has_room_for_its_head_only_in_the_end_tells_all_that_it_lacks";
        return skip(name, &ran.stderr);
    }
    let report = |of: &str| Report::of(&program.shell(), &[of]);
    let (there, kept) = (report("served"), report("kept"));
    assert_eq!((there.calls_of("leaf"), there.lost()), (400_000, 0), "{ran}");
    assert_eq!(kept.number("events") + kept.lost(), there.number("events"), "{ran}");
    assert_eq!(kept.calls_of("leaf"), 0, "it had room from the start: {ran}");
}
