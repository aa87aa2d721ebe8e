//! From a crate with two hooks to an archive that linkers take, and what is refused on the way.

use std::fs;
use std::path::Path;
use std::process::Command;

use callsight_build::{
    Allowed, Error, Recipe, Runtime, archive_of, check_object, gnu_triple, take_object,
};

const WORKSPACE: &str = r#"
[workspace]
members = ["runtime/shell"]
resolver = "3"
[profile.runtime]
inherits = "release"
panic = "abort"
lto = "fat"
codegen-units = 1
"#;

const SHELL: &str = r#"
[package]
name = "callsight-runtime-shell"
version = "0.1.0"
edition = "2024"
[lib]
crate-type = ["staticlib"]
"#;

const LOCK: &str = r#"version = 4

[[package]]
name = "callsight-runtime-shell"
version = "0.1.0"
"#;

const NO_STD: &str =
    "#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n";

const HOOKS: &str = r#"
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
static CALLS: AtomicUsize = AtomicUsize::new(0);
#[unsafe(no_mangle)]
pub extern "C" fn __cyg_profile_func_enter(_: *const u8, _: *const u8) { CALLS.fetch_add(1, Relaxed); }
#[unsafe(no_mangle)]
pub extern "C" fn __cyg_profile_func_exit(_: *const u8, _: *const u8) { CALLS.fetch_sub(1, Relaxed); }
"#;

fn host() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().expect("run rustc");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host line");
    host.to_owned()
}

/// Builds a runtime whose shell crate is `source`.
fn build(source: &str) -> Result<Runtime, Error> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("create a directory");
        fs::write(path, text).expect("write a file");
    };
    write("Cargo.toml", WORKSPACE);
    write("Cargo.lock", LOCK);
    write("runtime/shell/Cargo.toml", SHELL);
    write("runtime/shell/src/lib.rs", source);
    let recipe = Recipe {
        workspace: dir.path().to_owned(),
        triple: host(),
        target_dir: dir.path().join("target"),
        allowed: Allowed::default(),
    };
    recipe.build()
}

fn refusal(source: &str) -> String {
    build(&format!("{NO_STD}{source}")).expect_err("it must be refused").to_string()
}

/// Object code of a C text.
fn c_object(dir: &Path, text: &str) -> Vec<u8> {
    let (source, object) = (dir.join("t.c"), dir.join("t.o"));
    fs::write(&source, text).expect("write C");
    let done = Command::new("cc").args(["-O2", "-c", "-o"]).arg(&object).arg(&source).status();
    assert!(done.expect("run cc").success(), "compile {text}");
    fs::read(object).expect("read the object")
}

#[test]
fn the_archive_is_pulled_in_by_a_program_that_was_compiled_with_hooks() {
    let runtime = build(&format!("{NO_STD}{HOOKS}")).expect("build the runtime");
    assert_eq!(take_object(&runtime.archive).expect("one object"), runtime.object);

    let dir = tempfile::tempdir().expect("temporary directory");
    let path = |name: &str| dir.path().join(name);
    fs::write(path("main.c"), "int main(void) { return 0; }").expect("write C");
    fs::write(path("libcallsight_runtime.a"), &runtime.archive).expect("write the archive");
    let mut cc = Command::new("cc");
    cc.args(["-finstrument-functions", "-o"]).arg(path("main")).arg(path("main.c"));
    let done = cc.arg(path("libcallsight_runtime.a")).status().expect("run cc");
    assert!(done.success(), "link with the archive");
    let program = fs::read(path("main")).expect("read the program");
    check_program(&program);
}

/// The hooks of `program` are its own, not libc's empty ones.
fn check_program(program: &[u8]) {
    use object::{Object, ObjectSymbol};
    let file = object::File::parse(program).expect("an ELF file");
    for hook in callsight_build::HOOKS {
        let own = file.symbols().any(|s| s.name() == Ok(hook) && s.is_definition());
        assert!(own, "{hook} comes from elsewhere");
    }
}

#[test]
fn equal_objects_give_equal_archives() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let object = c_object(dir.path(), "void __cyg_profile_func_enter(void *a, void *b) {}");
    let archive = || archive_of("some_long_member_name.o", &object).expect("an archive");
    assert!(archive() == archive());
}

#[test]
fn a_runtime_without_hooks_is_refused() {
    assert!(refusal("").contains("0 of its objects define __cyg_profile_func_enter"));
}

#[test]
fn a_runtime_that_can_panic_is_refused() {
    let source = r#"
static mut TABLE: [usize; 4] = [0; 4];
#[unsafe(no_mangle)]
pub extern "C" fn __cyg_profile_func_enter(at: usize, _: usize) { unsafe { TABLE[at] += 1; } }
#[unsafe(no_mangle)]
pub extern "C" fn __cyg_profile_func_exit(at: usize, _: usize) { unsafe { TABLE[at] -= 1; } }
"#;
    let said = refusal(source);
    assert!(said.contains("it can panic: "), "{said}");
}

#[test]
fn every_fault_of_an_object_is_named_at_once() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let object = c_object(
        dir.path(),
        "int puts(const char *); int abs_or_so(int);
         void __cyg_profile_func_enter(void *a, void *b) { puts(\"x\"); abs_or_so(1); }
         void helper(void) {}",
    );
    let said = check_object(&object, Allowed { asks: &["abs_or_so"], replaces: &["helper"] })
        .expect_err("unfit")
        .to_string();
    for part in [
        "does not define __cyg_profile_func_exit",
        "needs functions of the program or of its libc: puts",
        "must be weak): abs_or_so",
        "exports names that a program may have: helper",
    ] {
        assert!(said.contains(part), "`{part}` is missing in: {said}");
    }
}

#[test]
fn a_weak_name_on_the_list_is_fine_and_off_the_list_is_not() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let object = c_object(
        dir.path(),
        "extern char **environ __attribute__((weak));
         void __cyg_profile_func_enter(void *a, void *b) { if (&environ) environ = 0; }
         void __cyg_profile_func_exit(void *a, void *b) {}
         __attribute__((weak)) int dlclose(void *a) { return 0; }",
    );
    check_object(&object, Allowed { asks: &["environ"], replaces: &["dlclose"] }).expect("allowed");
    let said = check_object(&object, Allowed::default()).expect_err("not allowed").to_string();
    assert!(said.contains("environ") && said.contains("dlclose"), "{said}");
}

#[test]
fn a_build_that_fails_says_so_in_cargos_words() {
    let said = refusal("fn broken( {");
    assert!(said.contains("cargo failed") && said.contains("broken"), "{said}");
}

#[test]
fn triples_lose_their_vendor_and_take_gnu_spelling() {
    for (rust, gnu) in [
        ("x86_64-unknown-linux-gnu", "x86_64-linux-gnu"),
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu"),
        ("armv7-unknown-linux-gnueabihf", "arm-linux-gnueabihf"),
        ("i686-unknown-linux-gnu", "i386-linux-gnu"),
        ("riscv64gc-unknown-linux-gnu", "riscv64-linux-gnu"),
        ("x86_64-unknown-linux-musl", "x86_64-linux-musl"),
    ] {
        assert_eq!(gnu_triple(rust), gnu);
    }
}
