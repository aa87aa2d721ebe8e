//! What `callsight analyze --format json` says, as tests ask for it.

use serde_json::Value;

use crate::{Calls, Shell};

/// A report.
#[derive(Clone, Debug)]
pub struct Report {
    json: Value,
}

impl Report {
    /// Runs `callsight analyze ARGUMENTS --format json`, which has to succeed.
    #[track_caller]
    pub fn of(shell: &Shell, arguments: &[&str]) -> Report {
        let mut words = vec!["analyze"];
        words.extend(arguments);
        words.extend(["--format", "json"]);
        let ran = shell.callsight(&words);
        assert_eq!(ran.code, 0, "{ran}");
        Report::parse(&ran.stdout)
    }

    /// A report that was printed, by us or by the peer.
    #[track_caller]
    pub fn parse(json: &str) -> Report {
        Report { json: serde_json::from_str(json).expect("a JSON report") }
    }

    /// A number at the top of the report.
    #[track_caller]
    pub fn number(&self, key: &str) -> u64 {
        self.json[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {:#}", self.json))
    }

    /// A number of the counting identity, in records.
    pub fn records(&self, key: &str) -> u64 {
        self.json["identity"][key].as_u64().unwrap_or_else(|| panic!("no {key} in {:#}", self.json))
    }

    /// The `!` lines.
    pub fn notices(&self) -> Vec<String> {
        let notices = self.json["notices"].as_array().expect("notices");
        notices.iter().map(|line| line.as_str().expect("text").to_owned()).collect()
    }

    /// Events lost, by cause.
    pub fn losses(&self) -> Vec<(String, u64)> {
        let losses = self.json["losses"].as_object().expect("losses");
        losses.iter().map(|(cause, n)| (cause.clone(), n.as_u64().expect("a count"))).collect()
    }

    /// All events lost.
    pub fn lost(&self) -> u64 {
        self.losses().iter().map(|(_, events)| events).sum()
    }

    /// Names of the threads, one each.
    pub fn thread_names(&self) -> Vec<String> {
        let threads = self.json["per_thread"].as_array().expect("threads");
        let name = |thread: &Value| thread["name"].as_str().unwrap_or_default().to_owned();
        threads.iter().map(name).collect()
    }

    /// The rows, one a function.
    pub fn rows(&self) -> &[Value] {
        self.json["rows"].as_array().expect("rows")
    }

    /// The rows of the function `name`.
    pub fn rows_of(&self, name: &str) -> Vec<&Value> {
        self.rows().iter().filter(|row| row["function"] == name).collect()
    }

    /// The only row of the function `name`.
    #[track_caller]
    pub fn row(&self, name: &str) -> &Value {
        match self.rows_of(name)[..] {
            [row] => row,
            ref rows => panic!("{} rows of {name} in {:#}", rows.len(), self.json),
        }
    }

    /// Total time of the only function `name`, in ms.
    #[track_caller]
    pub fn total_ms(&self, name: &str) -> f64 {
        self.row(name)["incl_ms"].as_f64().expect("incl_ms")
    }

    /// Calls by function name.
    pub fn calls(&self) -> Calls {
        let mut calls = Calls::new();
        for row in self.rows() {
            let name = row["function"].as_str().expect("a name").to_owned();
            calls.entry(name).or_default().push(row["calls"].as_u64().expect("calls"));
        }
        calls.values_mut().for_each(|numbers| numbers.sort_unstable());
        calls
    }

    /// Calls of `name` over all functions of that name.
    pub fn calls_of(&self, name: &str) -> u64 {
        self.calls().get(name).map_or(0, |numbers| numbers.iter().sum())
    }

    /// Asserts that nothing is missing or doubtful: no loss, nothing unmatched, no `!` line.
    #[track_caller]
    pub fn clean(&self) {
        assert_eq!(self.number("unmatched_exits"), 0, "{:?}", self.notices());
        assert_eq!(self.lost(), 0, "{:?}", self.notices());
        assert_eq!(self.notices(), Vec::<String>::new());
    }

    /// Asserts that what was recorded and what is counted as lost are `events`, and that a `!` line
    /// says so.
    #[track_caller]
    pub fn adds_up(&self, events: u64) {
        let (recorded, lost) = (self.number("events"), self.lost());
        assert_eq!(recorded + lost, events, "{recorded} + {lost}: {:?}", self.notices());
        assert_eq!(self.number("unmatched_exits"), 0, "{:?}", self.notices());
        assert!(lost == 0 || !self.notices().is_empty());
    }
}
