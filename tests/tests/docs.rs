//! The pages quote messages, functions and commands as they are in the source.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::fs;
use std::path::{Path, PathBuf};

/// Shorter pieces of messages occur everywhere.
const PIECE_CHARS_MIN: usize = 8;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All sources below a directory, as one text in which strings are as they are printed.
fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// Joins strings that continue on the next line of the source, and unescapes quotes.
fn printed(source: &str) -> String {
    let mut lines = source.lines();
    let mut text = String::with_capacity(source.len());
    while let Some(line) = lines.next() {
        let mut line = line.to_owned();
        while let Some(begun) = line.strip_suffix('\\') {
            line = begun.to_owned() + lines.next().unwrap_or_default().trim_start();
        }
        text.push_str(&line.replace("\\\"", "\""));
        text.push('\n');
    }
    text
}

/// The messages of a table row: the text in backticks in its first column.
fn messages(row: &str) -> Vec<&str> {
    let first = row.trim_start_matches('|').split(" | ").next().unwrap();
    let mut messages = Vec::new();
    let mut rest = first;
    while let Some(at) = rest.find('`') {
        let ticks = rest[at..].chars().take_while(|c| *c == '`').count();
        let fence = "`".repeat(ticks);
        let inside = &rest[at + ticks..];
        let Some(end) = inside.find(&fence) else {
            break;
        };
        messages.push(&inside[..end]);
        rest = &inside[end + ticks..];
    }
    messages
}

/// The fixed parts of a message: all but words in capitals, numbers and an ellipsis.
fn pieces(message: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for word in message.split_inclusive(' ') {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        let varies = word.contains('…')
            || word.contains('`')
            || word.contains('"')
            || bare.chars().any(|c| c.is_ascii_digit())
            || (bare.contains(|c: char| c.is_ascii_uppercase())
                && !bare.contains(|c: char| c.is_ascii_lowercase()));
        if varies {
            pieces.push(String::new());
        } else {
            pieces
                .last_mut()
                .unwrap()
                .push_str(word.trim_end_matches(": "));
            // The text after a colon comes from another part of the program.
            if word.ends_with(": ") {
                pieces.push(String::new());
            }
        }
    }
    let trim = |piece: String| piece.trim().to_owned();
    let long = |piece: &String| piece.chars().count() >= PIECE_CHARS_MIN;
    pieces.into_iter().map(trim).filter(long).collect()
}

/// Files and functions of the pages: a path in backticks, and what it should define in the next ones.
#[test]
fn functions_that_pages_name_exist() {
    let page = fs::read_to_string(root().join("docs/life-of-a-document.md")).unwrap();
    let mut named = 0;
    let mut source = None;
    for code in page.split('`').skip(1).step_by(2) {
        if Path::new(code)
            .extension()
            .is_some_and(|extension| extension == "rs")
        {
            let text = fs::read_to_string(root().join(code));
            source = Some((code, text.unwrap_or_else(|error| panic!("{code}: {error}"))));
        } else if let Some((path, text)) = source.take() {
            let defines = |end| text.contains(&format!("fn {code}{end}"));
            if code.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                assert!(
                    defines('(') || defines('<'),
                    "{path} has no function {code}"
                );
                named += 1;
            }
        }
    }
    assert!(named > 15, "the page names {named} functions");
}

#[test]
fn every_message_of_the_troubleshooting_page_exists() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let mut text = String::new();
    for directory in ["crates", "bin"] {
        sources(&root().join(directory), &mut text);
    }
    let text = printed(&text);
    let mut looked_for = 0;
    let mut missing = Vec::new();
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| message"));
    for message in rows.flat_map(messages) {
        for piece in pieces(message) {
            looked_for += 1;
            if !text.contains(&piece) {
                missing.push(format!("{piece:?} of {message:?}"));
            }
        }
    }
    assert!(looked_for > 50, "{looked_for} pieces");
    assert!(missing.is_empty(), "no source has\n{}", missing.join("\n"));
}

/// Functions and macros that make messages for people: the last literal of logs, and all literals of the others.
const MAKERS: [&str; 13] = [
    "warn!(",
    "error!(",
    "#[error(",
    "Error::bad_request(",
    "Error::busy(",
    "Error::conflict(",
    "Error::corrupt(",
    "Error::forbidden(",
    "Error::new(",
    "Error::not_found(",
    "Error::query(",
    "Error::unauthorized(",
    "Invalid::new(",
];
/// Crates and folders of the product that serve tests or measurements.
const NOT_SHIPPED: [&str; 7] = [
    "bench",
    "examples",
    "peer",
    "simulation",
    "testing",
    "testkit",
    "tests",
];

/// Sources of the product, each without its tests.
fn product(directory: &Path, texts: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if NOT_SHIPPED.contains(&name) {
            continue;
        }
        if path.is_dir() {
            product(&path, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            texts.push(printed(&product.replace("\\\"", "\u{1}")));
        }
    }
}

/// The string literals up to the parenthesis that closes a call.
fn literals(call: &str) -> Vec<String> {
    let (mut depth, mut literal, mut found) = (1, None, Vec::new());
    for c in call.chars() {
        match (&mut literal, c) {
            (Some(_), '"') => found.extend(literal.take()),
            (Some(text), c) => String::push(text, if c == '\u{1}' { '"' } else { c }),
            (None, '"') => literal = Some(String::new()),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, _) => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// A message as the page has it: an ellipsis for what varies.
fn generic(literal: &str) -> String {
    let literal = literal.replace("{{", "\u{2}").replace("}}", "\u{3}");
    let mut text = String::new();
    let mut rest = literal.as_str();
    while let Some((before, inside)) = rest.split_once('{') {
        text += before;
        text.push('…');
        rest = inside.split_once('}').map_or("", |(_, after)| after);
    }
    (text + rest).replace('\u{2}', "{").replace('\u{3}', "}")
}

#[test]
fn every_message_of_the_code_is_on_the_troubleshooting_page() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let known: Vec<Vec<String>> = rows.flat_map(messages).map(pieces).collect();
    let known: Vec<&Vec<String>> = known.iter().filter(|pieces| !pieces.is_empty()).collect();
    let mut texts = Vec::new();
    for directory in ["crates", "bin"] {
        product(&root().join(directory), &mut texts);
    }
    let mut missing = Vec::new();
    let mut looked_for = 0;
    for text in &texts {
        for maker in MAKERS {
            for (at, _) in text.match_indices(maker) {
                let mut found = literals(&text[at + maker.len()..]);
                if maker.ends_with("!(") {
                    // Before the message come fields.
                    found = found.split_off(found.len().saturating_sub(1));
                }
                for literal in found.iter().filter(|literal| literal.contains(' ')) {
                    // A message of nothing but others has no words of its own.
                    if pieces(&generic(literal)).is_empty() {
                        continue;
                    }
                    looked_for += 1;
                    let is_known =
                        |pieces: &&&Vec<String>| pieces.iter().all(|piece| literal.contains(piece));
                    if !known.iter().any(|pieces| is_known(&pieces)) {
                        missing.push(literal.clone());
                    }
                }
            }
        }
    }
    missing.sort();
    missing.dedup();
    assert!(looked_for > 250, "{looked_for} messages");
    assert!(
        missing.is_empty(),
        "docs/troubleshooting.md lacks\n{}",
        missing.join("\n")
    );
}
