//! One grammar of callsight.toml: what `init` and CMake at configure time make of a text.

mod common;

use std::fs;
use std::path::Path;

use callsight_integrations::{Options, Sinks, plan_init, sinks_of};
use common::{Project, cmake, run};

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cmake/CallsightSelection.cmake");
/// Reads the file `SELECTION` as a configure run does, in a fiftieth of its time.
const READ: &str = "cmake_policy(VERSION 3.16)\ninclude(\"${MODULE}\")\n\
                    file(READ \"${SELECTION}\" text)\n\
                    _callsight_parse_selection(\"${SELECTION}\" \"${text}\")\n";

const FULL: &str = "# all\n[files] # of these\ninclude = [\"a/*\", # one\n  'b.c' ,]\r\nexclude=[]\n\
                    \t[targets]\nexclude = [\n]  # none\n[sinks]\npath=\"t;\" # x\nlive = 'h:1'\n";

/// A project that has the selection, and a script beside it.
fn project() -> Project {
    let project = Project::new(&[("CMakeLists.txt", "project(x C)\n")]);
    fs::write(project.beside("read.cmake"), READ).expect("write the script");
    project
}

/// What `init` says against `selection`, from the file's name on.
fn refusal(project: &Project, selection: &[u8]) -> Option<String> {
    project.write("callsight/callsight.toml", selection);
    let error = plan_init(&project.root, &Options::default()).err()?.to_string();
    Some(error[error.find("callsight.toml:").expect("the file and a line")..].to_owned())
}

fn understood_by_cmake(selection: &Path, script: &Path) -> Result<String, String> {
    let mut command = cmake();
    command.arg(format!("-DMODULE={MODULE}"));
    command.arg(format!("-DSELECTION={}", selection.display()));
    command.arg("-P").arg(script);
    run(command)
}

/// `init` and CMake say the same of `selection`; gives what.
#[track_caller]
fn both(project: &Project, selection: impl AsRef<[u8]>) -> Option<String> {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = String::from_utf8_lossy(selection.as_ref()).into_owned();
    let refused = refusal(project, selection.as_ref());
    let path = project.path("callsight/callsight.toml");
    match (&refused, understood_by_cmake(&path, &project.beside("read.cmake"))) {
        (None, Ok(_)) => {}
        (Some(said), Err(by_cmake)) => {
            assert!(words(&by_cmake).contains(&words(said)), "{shown:?}: {said}\n{by_cmake}");
        }
        (said, by_cmake) => panic!("{shown:?}: {said:?}, by CMake: {by_cmake:?}"),
    }
    refused
}

#[test]
fn a_selection_that_the_build_understands_is_kept() {
    let project = project();
    let marked = format!("\u{feff}{FULL}");
    for selection in [
        FULL,
        &marked,
        "",
        "\u{feff}",
        "# nothing",
        "[files]",
        "[files]\r\n[targets]\r\n",
        "[files]\ninclude = [\"a\"] exclude = [\"\u{e9} + (x) $y.c\"]",
        "[files]\ninclude = ['say \"a\"', \"b's\"]\n[targets]\ninclude = []\n",
        "[sinks]",
        "[sinks]\r\npath = \"traces\"\r\nlive = \"[::1]:9001\"",
        "[sinks]\n[files]\ninclude = []\n[sinks]\n\tlive\t=\t''# none\npath=''",
        "[sinks]\npath = \"a ${b} @c@ ]['\" # \u{e9}\n",
    ] {
        assert_eq!(both(&project, selection), None, "{selection:?}");
    }
}

#[test]
fn a_selection_that_the_build_does_not_understand_is_refused_with_its_line() {
    let project = project();
    for (selection, line, said) in [
        ("exclude = [\"a\"]\n", 1, "exclude = [\"a\"]"),
        ("[files]\n\nexcludes = [\"a\"]\n", 3, "excludes = [\"a\"]"),
        ("[functions]\n", 1, "[functions]"),
        ("[files] include = []\n", 1, "[files] include = []"),
        ("[files]\nexclude = [\"a\" \"b\"]\n", 2, "\"b\"]"),
        ("[files]\nexclude = [\"[ab].c\"]\n", 2, "\"[ab].c\"]"),
        ("[files]\nexclude = [\"a\\\\b.c\"]\n", 2, "\"a\\\\b.c\"]"),
        ("[files]\nexclude = [\"a;b\"]\n", 2, "\"a;b\"]"),
        ("[files]\nexclude = [\"\"]\n", 2, "\"\"]"),
        ("[files]\nexclude = [\"a]\n", 2, "\"a]"),
        ("[files]\nexclude = [,]\n", 2, ",]"),
        ("[files]\nexclude = [\n\"a\"\n", 4, "end of the file"),
        ("[files]\nexclude = \"a\"\n", 2, "exclude = \"a\""),
        ("[files]\r\nexclude = [a]\r\n", 2, "a]"),
        ("[files]\nexclude = []\n[targets]\n[files]\nexclude = [\"a\"]\n", 5, "exclude = [\"a\"]"),
        ("\u{feff}\n\u{feff}[files]\n", 2, "\\xef\\xbb\\xbf[files]"),
        ("<<<<<<< HEAD\n", 1, "<<<<<<< HEAD"),
        ("path = \"a\"\n", 1, "path = \"a\""),
        ("[sinks]\nport = \"a\"\n", 2, "port = \"a\""),
        ("[sinks]\npaths = \"a\"\n", 2, "paths = \"a\""),
        ("[sinks]\npath = a\n", 2, "path = a"),
        ("[sinks]\npath = [\"a\"]\n", 2, "path = [\"a\"]"),
        ("[sinks]\npath = \"a\" live = \"b\"\n", 2, "path = \"a\" live = \"b\""),
        ("[sinks]\npath = \"a\\\\b\"\n", 2, "path = \"a\\\\b\""),
        ("[sinks]\nlive = \"a\n\"\n", 2, "live = \"a"),
        ("[sinks]\nlive = \"a\"\n[files]\n[sinks]\nlive = \"\"\n", 5, "live = \"\""),
        ("[sinks]\ninclude = [\"a\"]\n", 2, "include = [\"a\"]"),
        ("[files]\npath = \"a\"\n", 2, "path = \"a\""),
    ] {
        let refused = both(&project, selection).unwrap_or_else(|| panic!("{selection:?} is kept"));
        let start = format!("callsight.toml:{line}: `{said}` is not understood: under [files] or");
        assert!(refused.starts_with(&start) && !refused.contains('\n'), "{refused}");
    }
}

#[test]
fn a_terminal_acts_on_nothing_of_a_selection_that_is_not_understood() {
    let project = project();
    let bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'\n').collect();
    for from in (0..bytes.len()).step_by(40) {
        let line = [b"[sinks]\npath = ", &bytes[from..bytes.len().min(from + 40)]].concat();
        let refused = both(&project, &line).expect("it is no string in quotes");
        assert!(refused.chars().all(|c| matches!(c, ' '..='~')), "{refused}");
    }
    let binary = [b"[sinks]\npath = \x1b[2J\x07\xff\x9b".as_slice(), &[b'x'; 9000]].concat();
    let refused = both(&project, &binary).expect("it is a binary");
    assert!(refused.contains(":2: `path = \\x1b[2J\\x07\\xff\\x9bxxx"), "{refused}");
    assert!(refused.contains("xxx...` is not understood") && refused.len() < 500, "{refused}");
}

#[test]
fn init_and_cmake_agree_on_every_cut_and_every_lost_character_of_a_selection() {
    let project = project();
    let mut refused = 0;
    for at in 0..FULL.len() {
        let lost = format!("{}{}", &FULL[..at], &FULL[at + 1..]);
        for text in [&FULL[..at], &lost] {
            refused += usize::from(both(&project, text).is_some());
        }
    }
    assert!((FULL.len() / 2..2 * FULL.len()).contains(&refused), "{refused}");
}

#[test]
fn sinks_are_those_of_the_nearest_file_as_seen_from_its_project() {
    let project = project();
    let deep = project.path("a/b");
    fs::create_dir_all(&deep).expect("folders");
    project.write("callsight/callsight.toml", FULL);
    let sinks = |path: &str, live: &str, root: &Path| Sinks {
        root: root.to_owned(),
        path: Some(path.to_owned()),
        live: Some(live.to_owned()),
    };
    let of = |folder: &Path| sinks_of(folder).expect("the sinks");
    assert_eq!(of(&deep), sinks("t;", "h:1", &project.root));
    project.write("callsight.toml", "[sinks]\npath = 'above'\nlive = ''\n");
    assert_eq!(of(&project.root), sinks("above", "", &project.root));
    project.write("a/callsight.toml", "# nothing\n");
    project.write("callsight.toml", "[sinks]\npath = '\u{e9}t\u{e9}'\nlive = 'h:2'\n");
    assert_eq!(of(&project.root), sinks("\u{e9}t\u{e9}", "h:2", &project.root));
    let nothing = Sinks { root: project.path("a"), ..Sinks::default() };
    assert_eq!(of(&deep), nothing);
    project.write("a/callsight.toml", "[files]\ninclude = 'for the build to say'\n");
    assert_eq!(of(&deep), nothing);
    project.write("a/b/callsight.toml", "[sinks]\npath = traces\n");
    let said = sinks_of(&deep).expect_err("no string in quotes").to_string();
    assert!(said.contains("a/b/callsight.toml:2: `path = traces`"), "{said}");
    project.write("a/b/callsight.toml", "[files]\n[sink]\npath = 'traces'\n");
    let said = sinks_of(&deep).expect_err("another table").to_string();
    assert!(said.contains("a/b/callsight.toml:2: `[sink]`"), "{said}");
    project.write("a/b/callsight.toml", "path = 'traces'\n");
    let said = sinks_of(&deep).expect_err("no table").to_string();
    assert!(said.contains("a/b/callsight.toml:1: `path = 'traces'`"), "{said}");
}

#[test]
fn nothing_is_written_where_the_selection_is_not_understood() {
    let project = project();
    project.write("callsight/callsight.toml", "[file]\n");
    let before = project.files();
    assert!(project.refusal().contains("callsight/callsight.toml:1: `[file]`"));
    assert_eq!(project.files(), before);
    project.write("callsight/callsight.toml", "[files]\n");
    project.init();
    project.write("callsight/callsight.toml", "[files\n");
    let before = project.files();
    assert!(project.refusal().contains("callsight/callsight.toml:1: `[files`"));
    assert_eq!(project.files(), before);
    // It can be taken out all the same.
    assert_eq!(project.undo().len(), 1);
    assert_eq!(project.read("CMakeLists.txt"), b"project(x C)\n");
}
