//! Output of the commands. A closed pipe is not an error: the reader has read enough.

use std::io::Write;

use serde_json::Value;

pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Prints text without a line break.
pub(crate) fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

pub(crate) fn error(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
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
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        let widest = cells.map(|cell| cell.chars().count()).max();
        widest.unwrap_or(0).max(head[at].chars().count())
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
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
}
