//! The build step's joining of C files: what it may take away and what it must leave.

#[path = "../build/amalgamate.rs"]
mod amalgamate;

use amalgamate::{Amalgamation, Rules, strip_comments};

fn check(source: &str, stripped: &str) {
    assert_eq!(strip_comments(source), stripped, "{source:?}");
}

#[test]
fn comments_become_blanks() {
    check("int a; /* one\n two */ int b;\n", "int a;   int b;\n");
    check("int a; // one\nint b;\n", "int a;\nint b;\n");
    check("a/**/b\n", "a b\n");
    check("x // goes on \\\nhere\ny\n", "x\ny\n");
}

#[test]
fn what_looks_like_a_comment_in_a_literal_stays() {
    check("s = \"/* no */\";\n", "s = \"/* no */\";\n");
    check("s = \"\\\"//\"; // yes\n", "s = \"\\\"//\";\n");
    check("c = '\"'; /* yes */ d = '\\'';\n", "c = '\"';   d = '\\'';\n");
    check("#error don't /* yes */\n", "#error don't\n");
}

#[test]
fn an_empty_line_that_ends_a_macro_stays() {
    let text = joined(&[("a.c", "#define A \\\n  1 \\\n\nint a;\n\n\nint b;\n")], strip());
    assert_eq!(text, "#define A \\\n  1 \\\n\nint a;\nint b;\n");
}

#[test]
fn a_header_comes_where_it_is_first_included_and_once() {
    let files = [
        ("a.c", "#include \"x.h\"\n# include \"y.h\"\n#include <stdio.h>\nint a;\n"),
        ("x.h", "#include \"y.h\"\nint x;\n"),
        ("y.h", "int y;\n"),
    ];
    assert_eq!(joined(&files, strip()), "int y;\nint x;\n#include <stdio.h>\nint a;\n");
}

#[test]
fn rules_keep_and_leave_out_includes() {
    let files = [("a.c", "/* why */\n\n#include \"kept.h\"\n#include \"gone.h\"\nint a;\n")];
    let rules = Rules { kept: &["kept.h"], left_out: &["gone.h"], strip: false };
    assert_eq!(joined(&files, rules), "/* why */\n\n#include \"kept.h\"\nint a;\n");
}

#[test]
fn a_header_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().expect("make a folder");
    std::fs::write(dir.path().join("a.c"), "#include \"lost.h\"\n").expect("write");
    let error = Amalgamation::new(dir.path(), "", strip()).add("a.c").expect_err("no lost.h");
    assert!(error.to_string().contains("lost.h"), "{error}");
}

fn strip() -> Rules {
    Rules { strip: true, ..Rules::default() }
}

fn joined(files: &[(&str, &str)], rules: Rules) -> String {
    let dir = tempfile::tempdir().expect("make a folder");
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).expect("write");
    }
    let mut amalgamation = Amalgamation::new(dir.path(), "", rules);
    amalgamation.add(files[0].0).expect("join");
    amalgamation.finish()
}
