//! What a person reads: a line per row, the differences under it, and at the end how many passed.

use std::io::{self, Write};

/// How one row or case came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// As it should be.
    Passed,
    /// Not as it should be.
    Failed,
    /// Can't be run on this kernel.
    NeedsTheLab,
}

/// A row of the report.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its group.
    pub group: &'static str,
    /// Its title.
    pub title: String,
    /// How it came out.
    pub mark: Mark,
    /// What the reference, or a peer, did.
    pub reference: String,
    /// What the subject did.
    pub subject: String,
    /// Differences and remarks, a line each.
    pub notes: Vec<String>,
}

/// How wide a title and what the reference did may be, and who is judged in which column.
#[derive(Debug, Clone)]
pub struct Columns {
    /// Characters for a title; a longer one moves the rest.
    pub title: usize,
    /// Characters for what the reference did; 0: it has no column.
    pub reference: usize,
    /// Names of the reference and of the subject.
    pub names: [String; 2],
}

impl Default for Columns {
    fn default() -> Columns {
        Columns { title: 56, reference: 30, names: ["reference".into(), "subject".into()] }
    }
}

/// Prints rows and counts them.
#[derive(Debug)]
pub struct Report<W: Write> {
    out: W,
    group: &'static str,
    columns: Columns,
    passed: usize,
    failed: usize,
    waiting: usize,
}

impl<W: Write> Report<W> {
    /// An empty report.
    pub fn new(out: W) -> Report<W> {
        Report { out, group: "", columns: Columns::default(), passed: 0, failed: 0, waiting: 0 }
    }

    /// From now on, others in columns of other widths.
    pub fn columns(&mut self, columns: Columns) {
        self.columns = columns;
    }

    /// Prints a row; `require_all` turns one that needs the lab into a failure.
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
        };
        match row.mark {
            Mark::Passed => self.passed += 1,
            Mark::NeedsTheLab if !require_all => self.waiting += 1,
            Mark::Failed | Mark::NeedsTheLab => self.failed += 1,
        }
        let theirs = cut(&row.reference, reference.saturating_sub(1));
        let line = format!("{sign} {:title$} {theirs:reference$} {}", row.title, cut(&row.subject, 100));
        writeln!(self.out, "{}", line.trim_end())?;
        for note in &row.notes {
            writeln!(self.out, "      {}", note.replace('\n', "\n      "))?;
        }
        self.out.flush()
    }

    /// A line on its own.
    pub fn remark(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "\n{text}")
    }

    /// Prints the last line. Returns true when nothing failed and there was at least one row: a filter that matches no row
    /// is a mistake of its caller.
    pub fn finish(mut self) -> io::Result<bool> {
        if self.passed + self.failed + self.waiting == 0 {
            writeln!(self.out, "there is no such row")?;
            self.failed = 1;
        }
        let waiting = match self.waiting {
            0 => String::new(),
            n => format!(", {n} need the lab"),
        };
        writeln!(self.out, "{} passed, {} failed{waiting}", self.passed, self.failed)?;
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
