//! The report for a person: a line per row, the differences under it, and at the end how many rows passed.

use std::io::{self, Write};

/// The result of one row or case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// The row is as it should be.
    Passed,
    /// The row is as it should be, but only on the run of this number; the subject ran out of time before.
    PassedOnRun(usize),
    /// The row is not as it should be.
    Failed,
    /// The row can't be run on this kernel.
    NeedsTheLab,
}

/// One row of the report.
#[derive(Debug, Clone)]
pub struct Row {
    /// The group of the row.
    pub group: &'static str,
    /// The title of the row.
    pub title: String,
    /// The result of the row.
    pub mark: Mark,
    /// What the reference or a peer did.
    pub reference: String,
    /// What the subject did.
    pub subject: String,
    /// Differences and remarks, one line each.
    pub notes: Vec<String>,
}

/// The widths of the columns, and who is judged in which.
#[derive(Debug, Clone)]
pub struct Columns {
    /// The width of a title in characters; a longer one shifts the rest.
    pub title: usize,
    /// The width in characters for what the reference did; with 0 it has no column.
    pub reference: usize,
    /// The names of the reference and of the subject.
    pub names: [String; 2],
}

impl Default for Columns {
    fn default() -> Columns {
        Columns { title: 56, reference: 30, names: ["reference".into(), "subject".into()] }
    }
}

/// Prints rows, and counts them.
#[derive(Debug)]
pub struct Report<W: Write> {
    out: W,
    group: &'static str,
    columns: Columns,
    passed: usize,
    failed: usize,
    again: usize,
    waiting: usize,
}

impl<W: Write> Report<W> {
    /// Makes a report without rows.
    pub fn new(out: W) -> Report<W> {
        Report { out, group: "", columns: Columns::default(), passed: 0, again: 0, failed: 0, waiting: 0 }
    }

    /// Uses columns of other widths and names from now on.
    pub fn columns(&mut self, columns: Columns) {
        self.columns = columns;
    }

    /// Prints a row. `require_all` makes a failure of a row that needs the lab.
    pub fn row(&mut self, row: &Row, require_all: bool) -> io::Result<()> {
        let Columns { title, reference, names } = &self.columns;
        if row.group != self.group {
            self.group = row.group;
            let head = format!("  {:title$} {:reference$.reference$} {}", "", names[0], names[1]);
            writeln!(self.out, "\n{}\n{head}", row.group)?;
        }
        let sign = match row.mark {
            Mark::Passed => '✓',
            Mark::Failed => '✗',
            Mark::NeedsTheLab if require_all => '✗',
            Mark::NeedsTheLab => '·',
            Mark::PassedOnRun(_) => '↻',
        };
        match row.mark {
            Mark::Passed => self.passed += 1,
            Mark::NeedsTheLab if !require_all => self.waiting += 1,
            Mark::PassedOnRun(_) => {
                self.passed += 1;
                self.again += 1;
            }
            Mark::Failed | Mark::NeedsTheLab => self.failed += 1,
        }
        let theirs = cut(&row.reference, reference.saturating_sub(1));
        let line = format!("{sign} {:title$} {theirs:reference$} {}", row.title, cut(&row.subject, 100));
        writeln!(self.out, "{}", line.trim_end())?;
        if let Mark::PassedOnRun(run) = row.mark {
            writeln!(self.out, "      passed on the {} run", if run == 2 { "2nd" } else { "3rd" })?;
        }
        for note in &row.notes {
            writeln!(self.out, "      {}", note.replace('\n', "\n      "))?;
        }
        self.out.flush()
    }

    /// Prints a line on its own.
    pub fn remark(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "\n{text}")
    }

    /// Prints the last line; true when nothing failed.
    pub fn finish(mut self) -> io::Result<bool> {
        if self.passed + self.failed + self.waiting == 0 {
            writeln!(self.out, "there is no such row")?;
            self.failed = 1;
        }
        let waiting = match self.waiting {
            0 => String::new(),
            n => format!(", {n} need the lab"),
        };
        let again = match self.again {
            0 => String::new(),
            n => format!(", {n} of those that passed on a later run"),
        };
        writeln!(self.out, "{} passed, {} failed{waiting}{again}", self.passed, self.failed)?;
        Ok(self.failed == 0)
    }
}

fn cut(text: &str, width: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= width {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(mark: Mark, require_all: bool) -> (String, bool) {
        let row = Row {
            group: "g",
            title: "t".into(),
            mark,
            reference: "ok".into(),
            subject: "code 7".into(),
            notes: vec!["n".into()],
        };
        let mut out = Vec::new();
        let mut report = Report::new(&mut out);
        report.row(&row, require_all).unwrap();
        let good = report.finish().unwrap();
        (String::from_utf8(out).unwrap(), good)
    }

    #[test]
    fn the_last_line_counts_and_decides() {
        let (text, good) = printed(Mark::Passed, false);
        assert!(good && text.ends_with("\n1 passed, 0 failed\n"), "{text}");
        let (text, good) = printed(Mark::Failed, false);
        assert!(!good && text.ends_with("\n0 passed, 1 failed\n"), "{text}");
    }

    #[test]
    fn a_row_that_passed_on_a_later_run_is_told() {
        for require_all in [false, true] {
            let (text, good) = printed(Mark::PassedOnRun(2), require_all);
            let last = "1 passed, 0 failed, 1 of those that passed on a later run\n";
            assert!(good && text.contains("↻ t") && text.ends_with(last), "{text}");
            assert!(text.contains("      passed on the 2nd run\n      n\n"), "{text}");
        }
        assert!(printed(Mark::PassedOnRun(3), false).0.contains("passed on the 3rd run"));
    }

    #[test]
    fn a_report_without_any_row_is_a_failure() {
        let mut out = Vec::new();
        assert!(!Report::new(&mut out).finish().unwrap());
        assert_eq!(out, "there is no such row\n0 passed, 1 failed\n".as_bytes());
    }

    #[test]
    fn a_row_that_needs_the_lab_is_told_and_in_the_lab_is_a_failure() {
        let (text, good) = printed(Mark::NeedsTheLab, false);
        assert!(
            good && text.contains("· t") && text.ends_with("0 passed, 0 failed, 1 need the lab\n"),
            "{text}"
        );
        let (text, good) = printed(Mark::NeedsTheLab, true);
        assert!(!good && text.contains("✗ t"), "{text}");
    }
}
