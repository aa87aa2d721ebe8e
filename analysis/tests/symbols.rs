//! Real binaries, made by the C compiler → names, lines, and refusals to name wrongly.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use callsight_analysis::{Detail, Error, Options, Report};
use callsight_format::{ByteOrder, Origin};
use common::{Captures, Records, assert_noticed};
use object::{Object, ObjectSymbol};
use tempfile::TempDir;

const BIAS: u64 = 0x5500_0000_0000;
const MAIN_C: &str = "\
static int helper(int x) { return x + 1; }
int other(int x);
int outer(int x)
{
    return helper(x) +
           other(x);
}
int main(void) { return outer(1); }
";
const OTHER_C: &str = "
static int helper(int x) { return x - 1; }
int other(int x) { return helper(x); }
";

/// A program in a directory of its own.
struct Program {
    _directory: TempDir,
    path: PathBuf,
    build_id: Vec<u8>,
}

impl Program {
    fn new(build_id: u8, flags: &[&str]) -> Program {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("main.c"), MAIN_C).expect("write");
        fs::write(directory.path().join("other.c"), OTHER_C).expect("write");
        let id = [build_id; 20];
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let done = Command::new("cc")
            .current_dir(directory.path())
            .args(["-g", "-O0", "main.c", "other.c", "-o", "app"])
            .arg(format!("-Wl,--build-id=0x{hex}"))
            .args(flags)
            .status()
            .expect("run cc");
        assert!(done.success(), "cc made the program");
        let path = directory.path().join("app");
        Program { _directory: directory, path, build_id: id.to_vec() }
    }

    /// Addresses of the functions of this name, in the file.
    fn addresses(&self, name: &str) -> Vec<u64> {
        let bytes = fs::read(&self.path).expect("read the program");
        let file = object::File::parse(&bytes[..]).expect("an ELF file");
        let named = file.symbols().filter(|symbol| symbol.name() == Ok(name));
        let mut found: Vec<u64> = named.map(|symbol| symbol.address()).collect();
        found.sort_unstable();
        found
    }

    fn address(&self, name: &str, index: usize) -> u64 {
        BIAS + self.addresses(name)[index]
    }

    /// What the program does when it runs; the first helper as if it were inlined.
    fn calls(&self) -> String {
        let main = self.address("main", 0);
        let outer = self.address("outer", 0);
        let other = self.address("other", 0);
        let (helper, other_helper) = (self.address("helper", 0), self.address("helper", 1));
        let (in_main, in_outer, in_other) = (main + 9, outer + 9, other + 9);
        [
            format!("enter @{main}"),
            format!("enter @{outer} from {in_main}"),
            format!("enter @{helper} from {in_main}, exit @{helper}"),
            format!("enter @{other} from {in_outer}"),
            format!("enter @{other_helper} from {in_other}, exit @{other_helper}"),
            format!("exit @{other}, exit @{outer}, exit @{main}"),
        ]
        .join(", ")
    }

    /// A capture of a run of ours, which says that it is of the program at `path`.
    fn capture(&self, path: &Path) -> Captures {
        self.capture_of(path, &self.calls())
    }

    fn capture_of(&self, path: &Path, calls: &str) -> Captures {
        let path = path.to_str().expect("a path in UTF-8");
        let records = Records::default()
            .again(7, 7, path)
            .module(7, BIAS, 1 << 24, &self.build_id, path)
            .process(7, 7, path)
            .name(7, "app")
            .thread(7, calls);
        Captures::new(&[("trace.7.7.0.bin", records.file_mapped(0))])
    }

    /// A capture that names no program.
    fn foreign_capture(&self) -> Captures {
        let origin = Origin { load_bias: BIAS, t0_ns: 5, ..Origin::default() };
        let records = Records::default().thread(7, &self.calls());
        Captures::new(&[("trace.7.7.0.bin", records.file_of(origin, ByteOrder::Little))])
    }
}

fn folded(report: &Report) -> String {
    let mut out = Vec::new();
    report.write_folded(&mut out, 0).expect("written");
    let text = String::from_utf8(out).expect("UTF-8");
    let mut paths: Vec<&str> = text.lines().filter_map(|line| line.rsplit(' ').nth(1)).collect();
    paths.sort_unstable();
    paths.join(" ")
}

fn with_exe(path: &Path) -> Options {
    Options { exes: vec![path.to_path_buf()], ..Options::default() }
}

/// `name file:line calls` of each row, by line.
fn names(report: &Report) -> Vec<String> {
    let place = |row: &callsight_analysis::Row| {
        let location = row.location.as_ref();
        let file = |file: &str| file.rsplit('/').next().unwrap_or(file).to_string();
        location.map_or("-".to_string(), |at| format!("{}:{}", file(&at.file), at.line))
    };
    let mut names: Vec<String> = report
        .rows
        .iter()
        .map(|row| format!("{} {} {}", row.function, place(row), row.calls))
        .collect();
    names.sort();
    names
}

const NAMES: [&str; 5] = [
    "helper main.c:1 1",
    "helper other.c:2 1",
    "main main.c:8 1",
    "other other.c:3 1",
    "outer main.c:4 1",
];

#[test]
fn two_statics_of_one_name_are_two_rows_with_lines() {
    let program = Program::new(1, &[]);
    let report = program.capture(&program.path).analyze().expect("a report");
    assert_eq!(names(&report), NAMES);
    assert!(report.notices.is_empty(), "{:?}", report.notices);
    assert!(report.rows.iter().all(|row| row.in_main_module && row.build_id.starts_with("0101")));
}

#[test]
fn an_executable_that_is_not_position_independent_has_the_same_names() {
    let program = Program::new(1, &["-no-pie"]);
    assert_eq!(names(&program.capture(&program.path).analyze().expect("a report")), NAMES);
}

#[test]
fn a_toolchains_addr2line_gives_the_same_names() {
    let program = Program::new(1, &[]);
    let options = Options { addr2line: Some(PathBuf::from("addr2line")), ..Options::default() };
    let report = program.capture(&program.path).analyze_with(&options).expect("a report");
    assert_eq!(names(&report), NAMES);
}

#[test]
fn a_rebuilt_program_is_refused_and_the_traced_one_accepted() {
    let (traced, rebuilt) = (Program::new(1, &[]), Program::new(2, &[]));
    let captures = traced.capture(&rebuilt.path);
    let error = captures.analyze().expect_err("another build");
    let message = error.to_string();
    assert!(matches!(error, Error::OtherBuild { .. }), "{message}");
    for part in ["0101010101", "0202020202", "--exe", rebuilt.path.to_str().expect("UTF-8")] {
        assert!(message.contains(part), "{part} in {message}");
    }
    let report = captures.analyze_with(&with_exe(&traced.path)).expect("a report");
    assert_eq!(names(&report), NAMES);
}

#[test]
fn a_wrong_exe_is_refused_even_if_the_right_one_is_in_place() {
    let (traced, rebuilt) = (Program::new(1, &[]), Program::new(2, &[]));
    let captures = traced.capture(&traced.path);
    let error = captures.analyze_with(&with_exe(&rebuilt.path)).expect_err("another build");
    assert!(matches!(error, Error::OtherBuild { .. }), "{error}");
}

#[test]
fn a_library_of_another_build_has_no_names_rather_than_wrong_ones() {
    let (traced, rebuilt) = (Program::new(1, &[]), Program::new(2, &[]));
    let library = rebuilt.path.to_str().expect("UTF-8");
    let records = Records::default()
        .process(7, 7, "/bin/app")
        .module(7, BIAS, 1 << 24, &traced.build_id, library)
        .thread(7, &traced.calls());
    let captures = Captures::new(&[("trace.7.7.0.bin", records.file_mapped(0))]);
    let report = captures.analyze().expect("a report");
    assert!(report.rows.iter().all(|row| !row.named && row.function.starts_with("app+0x")));
    assert_noticed(&report, "the file here is build 0202");
}

#[test]
fn a_program_that_is_not_here_has_no_names_and_the_report_says_why() {
    let program = Program::new(1, &[]);
    let report = program.capture(Path::new("/gone/app")).analyze().expect("a report");
    assert_noticed(&report, "5 functions of /gone/app have no name");
    assert_noticed(&report, "pass the traced binary with --exe");
    let found = program.capture(Path::new("/gone/app")).analyze_with(&with_exe(&program.path));
    assert_eq!(names(&found.expect("a report")), NAMES);
}

#[test]
fn a_foreign_capture_takes_its_names_from_exe() {
    let program = Program::new(1, &[]);
    let report =
        program.foreign_capture().analyze_with(&with_exe(&program.path)).expect("a report");
    assert_eq!(names(&report), NAMES);
    assert_noticed(&report, "nothing proves that");
    let unnamed = program.foreign_capture().analyze().expect("a report");
    assert_noticed(&unnamed, "name it with --exe");
}

#[test]
fn a_foreign_capture_refuses_a_program_that_does_not_fit() {
    let program = Program::new(1, &[]);
    // 64 more bytes before each function: none starts where it did.
    let moved = Program::new(1, &["-fpatchable-function-entry=64,64"]);
    let error = program.foreign_capture().analyze_with(&with_exe(&moved.path)).expect_err("misfit");
    assert!(matches!(error, Error::OtherProgram { .. }), "{error}");
}

#[test]
fn a_call_is_inside_the_function_its_return_address_lies_in() {
    let program = Program::new(1, &[]);
    let main = program.address("main", 0);
    let (outer, other) = (program.address("outer", 0), program.address("other", 0));
    // `outer` is left without an exit, then `main` calls `other`, which has the larger frame.
    let calls = format!(
        "enter @{main} sp 4096, enter @{outer} from {} sp 3200, enter @{other} from {} sp 1600, \
         exit @{other}, exit @{main}",
        main + 9,
        main + 10
    );
    let detail = Detail { paths: true, callers: false };
    let options = Options { detail, ..Options::default() };
    let captures = program.capture_of(&program.path, &calls);
    let report = captures.analyze_with(&options).expect("a report");
    assert_eq!(folded(&report), "main main;other main;outer");
    assert_eq!((report.totals.skipped_calls, report.totals.unmatched_exits), (1, 0));
}

#[test]
fn a_stripped_program_has_places_in_it_for_names() {
    let program = Program::new(1, &[]);
    let captures = program.capture(&program.path);
    let traced_main = program.addresses("main")[0];
    let done = Command::new("strip").arg(&program.path).status().expect("run strip");
    assert!(done.success());
    let report = captures.analyze().expect("a report");
    assert!(report.rows.iter().all(|row| !row.named), "{:?}", names(&report));
    assert_noticed(&report, "5 functions have no name");
    let main = format!("app+{:#x}", traced_main);
    assert!(report.rows.iter().any(|row| row.function == main), "{main} in {:?}", names(&report));
}

#[test]
fn a_second_exe_that_nothing_can_be_looked_up_in_is_said() {
    let (first, second) = (Program::new(1, &[]), Program::new(2, &[]));
    let exes = vec![first.path.clone(), second.path.clone()];
    let both = Options { exes, ..Options::default() };
    let report = first.foreign_capture().analyze_with(&both).expect("a report");
    assert_noticed(&report, &format!("--exe {} is not used", second.path.display()));
    let one = first.foreign_capture().analyze_with(&with_exe(&first.path)).expect("a report");
    assert!(one.notices.iter().all(|line| !line.contains("is not used")), "{:?}", one.notices);
}

#[test]
fn exe_must_be_a_binary() {
    let program = Program::new(1, &[]);
    let text = program.path.with_file_name("main.c");
    let error = program.foreign_capture().analyze_with(&with_exe(&text)).expect_err("no binary");
    assert!(matches!(error, Error::Binary { .. }), "{error}");
}

/// All output formats of one report.
fn outputs(program: &Program) -> String {
    let detail = Detail { paths: true, callers: true };
    let options = Options { detail, ..Options::default() };
    let report = program.capture(&program.path).analyze_with(&options).expect("a report");
    let mut out = Vec::new();
    report.write_text(&mut out, 3).expect("written");
    out.extend(b"\n--- folded\n");
    report.write_folded(&mut out, 0).expect("written");
    out.extend(b"\n--- callers\n");
    report.write_callers(&mut out, 0).expect("written");
    out.extend(b"\n--- json\n");
    report.write_json(&mut out, 1).expect("written");
    let directory = program.path.parent().and_then(Path::to_str).expect("UTF-8").to_string();
    let text = String::from_utf8(out).expect("UTF-8");
    let start = text.find("\"address\": ").expect("an address");
    let end = start + text[start..].find('\n').expect("a line");
    let text = text.replace(&text[start..end], "\"address\": \"0x...\",");
    text.replace(&directory, "DIR").replace(env!("CARGO_PKG_VERSION"), "VERSION")
}

#[test]
fn the_outputs_are_the_golden_ones() {
    let found = outputs(&Program::new(1, &[]));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/outputs.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&golden, &found).expect("write the golden file");
    }
    let expected = fs::read_to_string(&golden).expect("the golden file");
    assert_eq!(found, expected, "rewrite it with UPDATE=1 cargo test");
}
