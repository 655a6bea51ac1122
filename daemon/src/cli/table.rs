//! Tables for people: 80 columns wide, unless all is asked for.

use std::io::{self, Write};

use serde_json::Value;

/// The width of a terminal that nobody has made wider.
const WIDTH: usize = 80;
/// What stands between two columns.
const GAP: &str = "  ";
/// A column is made no narrower than this, unless its own cells are.
const NARROWEST: usize = 7;

/// So much of a sentence of others is shown where not everything is asked for: five lines.
const SENTENCE: usize = 5 * WIDTH;
/// So much of a name of others.
const NAME: usize = WIDTH / 2;

/// The column of pods, as `namespace/name`.
const POD: &str = "pod";
/// Columns by which people know what they look for.
const LOOKED_FOR: [&str; 2] = [POD, "address"];

/// How much of its rows a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// What fits 80 columns; a cell that is too long is shortened in its middle.
    Narrow,
    /// Every cell as long as it is.
    Wide,
}

/// Writes to standard output; a reader that has gone away is no error.
pub(super) fn print(text: &str) -> io::Result<()> {
    print_while_read(text).map(drop)
}

/// The same; false when the reader has gone away.
pub(super) fn print_while_read(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // `fairleadd attachments | head` is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        done => done.map(|()| true),
    }
}

pub(super) fn print_json(value: &Value) -> io::Result<()> {
    print(&format!("{value:#}\n"))
}

/// A sentence of others, such as what a plugin has printed, within a line for people.
pub(super) fn sentence(text: &str, extent: Extent) -> String {
    limited(text, SENTENCE, extent)
}

/// A name that others have given, within a line for people.
pub(super) fn name(text: &str, extent: Extent) -> String {
    limited(text, NAME, extent)
}

/// The text without what would move the cursor, shortened in its middle unless all is asked for.
fn limited(text: &str, width: usize, extent: Extent) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match extent {
        Extent::Narrow => shortened(&plain, width),
        Extent::Wide => plain,
    }
}

/// The rows of an answer of the daemon's; none where it is no list.
pub(super) fn rows(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Formats objects as rows under these columns; a column that is empty in every row is left out.
pub(super) fn table(rows: &[Value], columns: &[&str], extent: Extent) -> String {
    let columns: Vec<&str> =
        columns.iter().copied().filter(|c| rows.iter().any(|r| !cell(&r[*c]).is_empty())).collect();
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(|c| c.to_uppercase()).collect()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|c| cell(&row[*c])).collect()));
    let width = |n: usize| lines.iter().filter_map(|line| line.get(n)).map(|cell| length(cell)).max();
    let mut widths: Vec<usize> = (0..columns.len()).map(|n| width(n).unwrap_or(0)).collect();
    if extent == Extent::Narrow {
        fit(&mut widths, &columns);
    }
    let mut text = String::new();
    for line in &lines {
        let padded = line.iter().zip(&widths).zip(&columns).map(|((cell, width), column)| {
            let cell = if *column == POD { shortened_pod(cell, *width) } else { shortened(cell, *width) };
            format!("{cell:width$}")
        });
        text.push_str(padded.collect::<Vec<String>>().join(GAP).trim_end());
        text.push('\n');
    }
    text
}

/// Takes from the widest column until all fit, or none can be made narrower. What people
/// look for is left twice the width.
fn fit(widths: &mut [usize], columns: &[&str]) {
    let room = WIDTH.saturating_sub(GAP.len() * widths.len().saturating_sub(1));
    let weight = |column: usize| if LOOKED_FOR.contains(&columns[column]) { 2 } else { 1 };
    while widths.iter().sum::<usize>() > room {
        let narrower = (0..widths.len()).filter(|column| widths[*column] > NARROWEST * weight(*column));
        // Of two that are equally wide the last.
        let Some(widest) = narrower.max_by_key(|column| widths[*column] / weight(*column)) else { return };
        widths[widest] -= 1;
    }
}

/// A pod's namespace and name, each shortened by itself: one without the other names no pod.
fn shortened_pod(text: &str, width: usize) -> String {
    let Some((namespace, name)) = text.split_once('/') else { return shortened(text, width) };
    let room = width.saturating_sub(1);
    let for_namespace = length(namespace).min((room / 3).max(room.saturating_sub(length(name))));
    let namespace = shortened(namespace, for_namespace);
    format!("{namespace}/{}", shortened(name, room.saturating_sub(for_namespace)))
}

/// The text, or its beginning and its end: what tells pods of one owner apart stands at the end of their names.
fn shortened(text: &str, width: usize) -> String {
    let length = length(text);
    if length <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let end = kept / 2;
    let begin = text.chars().take(kept - end);
    begin.chain(['…']).chain(text.chars().skip(length - end)).collect()
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(cell).collect::<Vec<String>>().join(","),
        other => other.to_string(),
    };
    // What others have named must not move the operator's cursor or make a line of its own.
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_line_up_and_empty_ones_are_left_out() {
        let rows = [json!({"name": "a", "ips": ["10.0.0.2/24", "fd00::2/64"]}), json!({"name": "longer"})];
        let expected = "NAME    IPS\na       10.0.0.2/24,fd00::2/64\nlonger\n";
        assert_eq!(table(&rows, &["name", "mac", "ips"], Extent::Narrow), expected);
    }

    #[test]
    fn a_table_fits_80_columns_whatever_its_cells_are_and_the_ends_of_names_stay() {
        let long = |n: usize| format!("{}-{n:05}", "x".repeat(70));
        let rows: Vec<Value> =
            (0..3).map(|n| json!({"pod": long(n), "network": long(n), "age": "5m"})).collect();
        let told = table(&rows, &["pod", "network", "age"], Extent::Narrow);
        for (n, line) in told.lines().skip(1).enumerate() {
            // The header is the longest cell of the last column.
            assert_eq!(line.chars().count(), 79, "{line}");
            assert!(line.matches(&format!("-{n:05}")).count() == 2 && line.ends_with("  5m"), "{line}");
        }
        let wide = table(&rows, &["pod", "network", "age"], Extent::Wide);
        assert!(wide.contains(&long(2)), "{wide}");
    }

    #[test]
    fn of_a_long_pod_both_names_are_told() {
        let rows = [json!({
            "pod": "namespace-of-a-team/deployment-with-a-long-name-7d4b9c6f5d-x2x9z", "network": "x".repeat(40),
            "address": "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
        })];
        let told = table(&rows, &["pod", "network", "address"], Extent::Narrow);
        let pod = told.lines().nth(1).unwrap().split(' ').next().unwrap();
        let (namespace, name) = pod.split_once('/').unwrap();
        assert!(namespace.starts_with("name") && name.ends_with("x2x9z"), "{told}");
        assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
        let short = [json!({"pod": "a/du-7d4b9c6f5d-x2x9z", "network": "x".repeat(90)})];
        assert!(table(&short, &["pod", "network"], Extent::Narrow).contains("\na/du-7d4b9c6f5d-x2x9z "));
    }

    #[test]
    fn a_long_sentence_and_a_long_name_are_shortened_unless_all_is_asked_for() {
        let long = format!("begins\n{}\u{1b}[2Jends", "x".repeat(4000));
        let whole = long.replace(['\n', '\u{1b}'], " ");
        for (shown, width) in
            [(sentence(&long, Extent::Narrow), SENTENCE), (name(&long, Extent::Narrow), NAME)]
        {
            assert_eq!(shown.chars().count(), width);
            assert!(
                shown.starts_with("begins ") && shown.contains('…') && shown.ends_with("ends"),
                "{shown}"
            );
        }
        assert_eq!(sentence(&long, Extent::Wide), whole);
        assert_eq!(name("net", Extent::Narrow), "net");
    }

    #[test]
    fn a_cell_is_one_line_and_moves_no_cursor() {
        let rows = [json!({"name": "a\nb\u{1b}[2J"})];
        assert_eq!(table(&rows, &["name"], Extent::Wide), "NAME\na\\nb\\u{1b}[2J\n");
    }
}
