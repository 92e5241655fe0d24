//! Output of the commands. A closed pipe is not an error: the reader has read enough.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write;

use serde_json::Value;

pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", visible(text)).and_then(|()| out.flush());
}

/// Escapes control characters as in JSON: ids and errors from elsewhere must not break lines or control the terminal.
fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let mut visible = String::new();
    for char in text.chars() {
        match char {
            '\n' => visible.push_str("\\n"),
            '\t' => visible.push_str("\\t"),
            char if char.is_control() => {
                let _ = write!(visible, "\\u{:04x}", u32::from(char));
            }
            char => visible.push(char),
        }
    }
    visible.into()
}

/// Prints text without a line break.
pub(crate) fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

pub(crate) fn error(text: &str) {
    let mut out = std::io::stderr().lock();
    for line in text.lines() {
        let _ = writeln!(out, "{}", visible(line));
    }
}

/// A number with separators of thousands.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Rows below a header, columns as wide as they need to be.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |row: &Vec<String>| row.iter().map(|cell| visible(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        let widest = cells.map(|cell| cell.chars().count()).max();
        widest.unwrap_or(0).max(head[at].chars().count())
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(&rows) {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A value in a table.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Rows for the members of an object, and for those of objects in it.
pub(crate) fn members<'a>(
    members: impl IntoIterator<Item = (&'a String, &'a Value)>,
) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (name, value) in members {
        match value {
            Value::Object(members) => rows.extend(
                members
                    .iter()
                    .map(|(inner, value)| vec![format!("{name}.{inner}"), cell(value)]),
            ),
            value => rows.push(vec![name.clone(), cell(value)]),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let shown = [0, 999, 2_000, 1_234_567].map(number);
        assert_eq!(shown, ["0", "999", "2,000", "1,234,567"]);
    }

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [["a", "long one"], ["bbbb", "x"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&["ID", "NOTE"], &rows),
            "ID    NOTE\na     long one\nbbbb  x\n"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        let rows = [vec!["a\nb\u{1b}[31mc".to_owned(), "ü \u{9b}".to_owned()]];
        let expected = "ID               B\na\\nb\\u001b[31mc  ü \\u009b\n";
        assert_eq!(table(&["ID", "B"], &rows), expected);
    }
}
