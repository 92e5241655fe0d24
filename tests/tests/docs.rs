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
