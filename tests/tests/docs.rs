//! Every command in README.md and docs/ is run, each page in a folder of its own, and what the
//! page shows as output is in what was printed.
//!
//! A `console` block holds commands (`$ ` in front) and output; times and numbers may differ. A
//! comment in front of a block says more:
//!
//! ```text
//! <!-- test: file NAME -->        the block is a file of that name, written first
//! <!-- test: background -->       the commands go on running while the page goes on
//! <!-- test: checkout -->         the commands run in the checkout
//! <!-- test: skip WHY -->         not run here, and why; such blocks are listed
//! ```

use std::path::{Path, PathBuf};

use callsight_tests::{Shell, StreamPort, root, skip};
use tempfile::TempDir;

#[derive(Debug, Default)]
struct Block {
    language: String,
    directive: String,
    lines: Vec<String>,
}

/// The fenced blocks of a page, each with the directive right in front of it.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut open, mut directive): (Option<Block>, String) = (None, String::new());
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.lines.push(line.to_owned()),
            (None, Some(language)) => {
                let directive = std::mem::take(&mut directive);
                open = Some(Block { language: language.to_owned(), directive, lines: Vec::new() });
            }
            (None, None) => {
                let comment = line.strip_prefix("<!-- test: ").and_then(|l| l.strip_suffix(" -->"));
                directive = comment.unwrap_or_default().to_owned();
            }
        }
    }
    assert!(open.is_none(), "a block that does not end");
    blocks
}

fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let docs = std::fs::read_dir(root().join("docs")).expect("docs/");
    pages.extend(docs.map(|entry| entry.expect("an entry").path()));
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

impl Block {
    /// The commands: lines after `$ `, with the lines a `\` carries them on to.
    fn commands(&self) -> String {
        let mut commands = String::new();
        let mut carried_on = false;
        for line in &self.lines {
            if let Some(line) = line.strip_prefix("$ ").or(carried_on.then_some(line)) {
                commands += line;
                commands.push('\n');
                carried_on = line.ends_with('\\');
            }
        }
        commands
    }

    /// The lines that are shown as output.
    fn output(&self) -> impl Iterator<Item = &String> {
        let carried_on = |at: usize| at > 0 && self.lines[at - 1].ends_with('\\');
        let lines = self.lines.iter().enumerate();
        lines
            .filter(move |(at, line)| !line.starts_with("$ ") && !carried_on(*at))
            .map(|(_, line)| line)
            .filter(|line| !line.trim().is_empty() && line.trim() != "...")
    }
}

/// A line without what differs from run to run: numbers, units of time, widths of columns.
fn normalized(line: &str) -> String {
    let mut words = String::new();
    let is_unit = |word: &&str| ["ns", "us", "µs", "ms", "s"].contains(word);
    for word in line.split_whitespace().filter(|word| !is_unit(word)) {
        let bare = word.trim_end_matches(['n', 'u', 'µ', 'm', 's']);
        let is_time = bare.ends_with(|c: char| c.is_ascii_digit());
        let mut last = ' ';
        for c in if is_time { bare } else { word }.chars() {
            let c = if c.is_ascii_digit() || (c == '.' && last == '0') { '0' } else { c };
            if c != '0' || last != '0' {
                words.push(c);
            }
            last = c;
        }
        words.push(' ');
    }
    words
}

/// The page as one script; what it prints for each block stands behind a line of its own.
fn script(page: &Path, blocks: &[Block]) -> String {
    let mut script = String::from(
        // Each command in the background is a group of its own, and goes with the page.
        "set -m\ntrap 'for job in $(jobs -p); do kill -- -$job || true; done' EXIT\nexec 2>&1\n",
    );
    for (number, block) in blocks.iter().enumerate().filter(|(_, b)| b.language == "console") {
        let commands = block.commands();
        script += &format!("echo '--- block {number}'\n");
        script += &match block.directive.as_str() {
            "" => commands,
            "checkout" => {
                format!("pushd '{}' >/dev/null\n{commands}popd >/dev/null\n", root().display())
            }
            "background" => format!(
                "{{ {commands} }} &\nuntil (exec 3<>/dev/tcp/127.0.0.1/9001) 2>/dev/null; do sleep 0.05; done\n"
            ),
            other => match other.strip_prefix("skip ") {
                Some(why) => {
                    let name = page.strip_prefix(root()).unwrap_or(page).display();
                    skip(&format!("{name} block {number}"), why);
                    continue;
                }
                None => panic!("{}: what is {other:?}?", page.display()),
            },
        };
    }
    script
}

fn run(page: &Path) {
    let text = std::fs::read_to_string(page).expect("read a page");
    let blocks = blocks(&text);
    for block in &blocks {
        assert!(
            !["", "sh", "bash", "shell"].contains(&block.language.as_str()),
            "{}: a block without a language, or commands that are not in a console block: {:?}",
            page.display(),
            block.lines
        );
    }
    let folder = TempDir::with_prefix("callsight-docs-").expect("a temporary folder");
    for block in &blocks {
        if let Some(name) = block.directive.strip_prefix("file ") {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("make folders");
            std::fs::write(path, block.lines.join("\n") + "\n").expect("write a file");
        }
    }
    let script = script(page, &blocks);
    if !script.contains("--- block") {
        return;
    }
    let _port = StreamPort::lock();
    let ran = Shell::new(folder.path()).run(&script);
    assert_eq!(ran.code, 0, "{}: {ran}", page.display());
    let printed: Vec<String> = ran.stdout.lines().map(normalized).collect();
    for block in
        blocks.iter().filter(|b| b.language == "console" && !b.directive.starts_with("skip"))
    {
        for line in block.output() {
            assert!(
                printed.contains(&normalized(line)),
                "{}: {line:?} was not printed: {ran}",
                page.display()
            );
        }
    }
}

#[test]
fn every_page_does_what_it_says() {
    let pages = pages();
    assert!(pages.len() > 5, "{pages:?}");
    pages.iter().for_each(|page| run(page));
}

#[test]
fn links_between_pages_lead_somewhere() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("read a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            let target = page.parent().expect("a folder").join(path);
            assert!(target.exists(), "{}: {link}", page.display());
        }
    }
}

#[test]
fn blocks_are_read_as_they_stand() {
    let page = "a\n<!-- test: background -->\n```console\n$ one \\\n    two\nout 12.5ms\n```\n";
    let blocks = blocks(page);
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].directive, "background");
    assert_eq!(blocks[0].commands(), "one \\\n    two\n");
    assert_eq!(blocks[0].output().collect::<Vec<_>>(), ["out 12.5ms"]);
    assert_eq!(normalized("out  12.5ms  main.c:42"), normalized("out 900ns main.c:7"));
    assert_ne!(normalized("out 1 a"), normalized("out 1 b"));
}
