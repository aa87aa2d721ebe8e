//! What is to be said of captures → lines, each once. What is true of many processes, streams or files
//! is one line, or a loss would have to be found among hundreds.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::counted;

/// How many are named in one line.
const NAMED: usize = 3;

/// Lines in the order in which they were said first.
#[derive(Clone, Debug, Default)]
pub struct Sentences {
    lines: Vec<Line>,
    places: BTreeMap<Words, usize>,
    /// Who is in which line already.
    told: BTreeSet<(usize, String)>,
}

#[derive(Clone, Debug)]
struct Line {
    words: Words,
    /// The first of those of whom it is true, and how many there are.
    names: Vec<String>,
    count: usize,
    /// Over all of them.
    number: u64,
}

/// Ahead of the names, behind them, and in the singular and the plural what a number is of that comes
/// last. All may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Words {
    ahead: String,
    behind: String,
    of_number: Option<[String; 2]>,
}

impl Sentences {
    /// Says this.
    pub fn say(&mut self, line: String) {
        self.add("", 0, Words { ahead: line, ..Words::default() });
    }

    /// Says `name`, or several names, and this behind.
    pub fn say_of(&mut self, name: &str, behind: &str) {
        self.add(name, 0, Words { behind: behind.into(), ..Words::default() });
    }

    /// Says how many there are of this, in the singular and the plural: over all that are told of it.
    pub fn count(&mut self, number: u64, one: &str, many: &str) {
        self.count_of("", "", number, one, many);
    }

    /// Says `name`, or several names, this behind, and a number, which is added up: how many there are of what is said last in the
    /// singular and the plural.
    pub fn count_of(&mut self, name: &str, behind: &str, number: u64, one: &str, many: &str) {
        let of_number = Some([one, many].map(String::from));
        self.add(name, number, Words { behind: behind.into(), of_number, ..Words::default() });
    }

    /// Says what is left out, and the sentence that names it and says why.
    pub fn leave_out(&mut self, name: &str, why: &str) {
        let (ahead, behind) = why.split_once(name).unwrap_or((why, ""));
        let ahead = format!("left out: {ahead}");
        self.add(name, 0, Words { ahead, behind: behind.into(), ..Words::default() });
    }

    fn add(&mut self, name: &str, number: u64, words: Words) {
        let place = *self.places.entry(words).or_insert_with_key(|words| {
            let words = words.clone();
            self.lines.push(Line { words, names: Vec::new(), count: 0, number: 0 });
            self.lines.len() - 1
        });
        let line = &mut self.lines[place];
        line.number = line.number.saturating_add(number);
        if !name.is_empty() && self.told.insert((place, name.into())) {
            line.count += 1;
            if line.names.len() < NAMED {
                line.names.push(name.into());
            }
        }
    }

    /// The lines.
    pub fn into_lines(self) -> Vec<String> {
        self.lines.into_iter().map(Line::text).collect()
    }
}

impl Line {
    fn text(self) -> String {
        let Words { ahead, behind, of_number } = self.words;
        let number = of_number.map(|[one, many]| counted(self.number, &one, &many));
        format!("{ahead}{}{behind}{}", listed(&self.names, self.count), number.unwrap_or_default())
    }
}

/// The first few of these names, of which there are `count`, and how many more.
pub fn listed(names: &[String], count: usize) -> String {
    let named = &names[..names.len().min(NAMED)];
    let more = count.saturating_sub(named.len());
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_true_of_many_is_one_line_with_their_number() {
        let mut sentences = Sentences::default();
        for number in 1..=5 {
            let name = format!("stream {number}");
            sentences.say_of(&name, ": no anchor");
            sentences.say_of(&name, ": no anchor");
            if number > 2 {
                sentences.count_of(&name, ": ", number, "block is missing", "blocks are missing");
            }
            sentences.say("it rains".into());
        }
        for path in ["/a", "/b"] {
            sentences.leave_out(path, &format!("read {path}: it is empty"));
        }
        sentences.count_of("process 1", ": ", 1, "call was left", "calls were left");
        assert_eq!(
            sentences.into_lines(),
            [
                "stream 1, stream 2, stream 3 and 2 more: no anchor",
                "it rains",
                "stream 3, stream 4, stream 5: 12 blocks are missing",
                "left out: read /a, /b: it is empty",
                "process 1: 1 call was left",
            ]
        );
    }
}
