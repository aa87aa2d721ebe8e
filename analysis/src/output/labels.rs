//! Functions and lines as people see them: files named as shortly as keeps them apart.

use std::collections::{HashMap, HashSet};

use crate::elf::Location;
use crate::report::{Report, Row};

/// Short names of source files.
pub struct Labels {
    short: HashMap<String, String>,
}

impl Labels {
    /// Labels for all files a report mentions.
    pub fn of(report: &Report) -> Labels {
        let rows = report.rows.iter().filter_map(|row| row.location.as_ref());
        let callers = report.callers.iter().filter_map(|row| row.location.as_ref());
        let files: HashSet<&str> =
            rows.chain(callers).map(|location| location.file.as_str()).collect();
        let mut by_last: HashMap<&str, Vec<&str>> = HashMap::new();
        files.into_iter().for_each(|file| by_last.entry(tail(file, 1)).or_default().push(file));
        let mut short = HashMap::new();
        for files in by_last.values() {
            let parts = parts_that_differ(files);
            short
                .extend(files.iter().map(|file| (file.to_string(), tail(file, parts).to_string())));
        }
        Labels { short }
    }

    /// `file:line`.
    pub fn place(&self, location: &Location) -> String {
        let file = self.short.get(&location.file).unwrap_or(&location.file);
        format!("{file}:{}", location.line)
    }

    /// `name (file:line) [module]`.
    pub fn function(&self, row: &Row) -> String {
        let mut label = row.function.clone();
        if let Some(location) = &row.location {
            label += &format!(" ({})", self.place(location));
        }
        if row.named && !row.in_main_module && !row.module.is_empty() {
            label += &format!(" [{}]", tail(&row.module, 1));
        }
        label
    }
}

/// How many last parts tell these paths apart; all of them where nothing does.
fn parts_that_differ(files: &[&str]) -> usize {
    let most = files.iter().map(|file| file.split('/').count()).max().unwrap_or(1);
    (1..most)
        .find(|parts| {
            let tails: HashSet<&str> = files.iter().map(|file| tail(file, *parts)).collect();
            tails.len() == files.len()
        })
        .unwrap_or(most)
}

/// The last `parts` parts of a path.
fn tail(path: &str, parts: usize) -> &str {
    match path.rmatch_indices('/').nth(parts - 1) {
        Some((at, _)) => &path[at + 1..],
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(files: &[&str]) -> Vec<String> {
        let row = |file: &&str| Row {
            location: Some(Location { file: file.to_string(), line: 7 }),
            ..Row::default()
        };
        let report = Report { rows: files.iter().map(row).collect(), ..Report::default() };
        let labels = Labels::of(&report);
        let places = report.rows.iter().filter_map(|row| row.location.as_ref());
        places.map(|location| labels.place(location)).collect()
    }

    #[test]
    fn a_file_of_its_own_name_needs_no_folder() {
        assert_eq!(short(&["/home/me/app/main.c", "/lib/x.c"]), ["main.c:7", "x.c:7"]);
    }

    #[test]
    fn files_of_one_name_show_as_much_as_keeps_them_apart() {
        assert_eq!(short(&["/p/a/src/u.c", "/p/b/src/u.c"]), ["a/src/u.c:7", "b/src/u.c:7"]);
    }
}
