//! A report → text for people or programs. One file a format; none of them computes anything.

mod callers;
mod folded;
mod json;
mod labels;
mod text;

/// A time for people: four digits and a unit.
fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// How many of `len` lines to print when `top` are asked for; 0 asks for all.
fn limit(top: usize, len: usize) -> usize {
    if top == 0 { len } else { top.min(len) }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_keep_three_digits_or_more() {
        let shown = [0, 9_999, 10_000, 1_636_000, 90_720_000, 12_345_000_000].map(duration);
        assert_eq!(shown, ["0 ns", "9999 ns", "10.0 us", "1636.0 us", "90.7 ms", "12.35 s"]);
    }
}
