//! Tables for people.

use std::io::{self, Write};

use serde_json::Value;

/// Writes to standard output; a reader that has gone away is no error.
pub(super) fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // `fairleadd attachments | head` is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

pub(super) fn print_json(value: &Value) -> io::Result<()> {
    print(&format!("{value:#}\n"))
}

/// Formats objects as rows under these columns; a column that is empty in every row is left out.
pub(super) fn table(rows: &[Value], columns: &[&str]) -> String {
    let columns: Vec<&str> =
        columns.iter().copied().filter(|c| rows.iter().any(|r| !cell(&r[*c]).is_empty())).collect();
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(|c| c.to_uppercase()).collect()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|c| cell(&row[*c])).collect()));
    let width = |n: usize| lines.iter().map(|line| line[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let padded = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(padded.collect::<Vec<String>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(cell).collect::<Vec<String>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_line_up_and_empty_ones_are_left_out() {
        let rows = [json!({"name": "a", "ips": ["10.0.0.2/24", "fd00::2/64"]}), json!({"name": "longer"})];
        let expected = "NAME    IPS\na       10.0.0.2/24,fd00::2/64\nlonger\n";
        assert_eq!(table(&rows, &["name", "mac", "ips"]), expected);
    }
}
