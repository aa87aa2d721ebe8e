//! Who called what from where, a line each: calls, total, `callee <- caller (file:line)`.

use std::io::{self, Write};

use super::labels::Labels;
use super::{duration, limit};
use crate::report::{CallerRow, Report};

impl Report {
    /// Writes the callers, greatest total first, `top` of them (0 for all). Needs
    /// [`Detail::callers`](crate::Detail).
    ///
    /// # Errors
    /// What `out` gives.
    pub fn write_callers(&self, out: &mut impl Write, top: usize) -> io::Result<()> {
        let labels = Labels::of(self);
        writeln!(out, "{:>12} {:>10}  callee <- caller", "calls", "total")?;
        for row in &self.callers[..limit(top, self.callers.len())] {
            let (calls, total) = (row.calls, duration(row.total_ns));
            writeln!(out, "{calls:>12} {total:>10}  {}", self.line(row, &labels))?;
        }
        Ok(())
    }

    fn line(&self, row: &CallerRow, labels: &Labels) -> String {
        let callee = &self.rows[row.callee].function;
        let caller = row.caller.map_or("[thread start]", |caller| &self.rows[caller].function);
        let place = match (&row.location, row.inlined) {
            (_, true) => " (inlined)".to_string(),
            (Some(location), false) => format!(" ({})", labels.place(location)),
            (None, false) => String::new(),
        };
        format!("{callee} <- {caller}{place}")
    }
}
