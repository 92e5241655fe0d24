//! All options as text: for the documentation, and as an initial configuration file.

use std::fmt::Write as _;

use serde_json::Value;

use super::schema::{Key, Section, sections};

/// Markdown tables, one per section.
pub fn markdown() -> String {
    let mut text = String::new();
    for section in sections() {
        let _ = write!(text, "### `[{}]`\n\n{}\n", section.name, section.text);
        if !section.keys.is_empty() {
            text.push_str("\n| option | default | |\n|---|---|---|\n");
        }
        for key in &section.keys {
            let default = key.default.as_ref().map(in_toml);
            let default = default.map_or_else(String::new, |value| format!("`{value}`"));
            let about = key.text.replace('|', "\\|");
            let _ = writeln!(text, "| `{}` | {default} | {about} |", key.name);
        }
        text.push('\n');
    }
    text
}

/// A file that sets every option to its default, with descriptions.
pub fn file() -> String {
    let mut text = String::from("# Davenport's options with their defaults.\n");
    for section in sections() {
        let about = comment(&section.text);
        let _ = write!(text, "\n{about}[{}]\n", section.name);
        if section.open && !section.keys.is_empty() {
            let _ = writeln!(text, "# [{}.NAME]", section.name);
        }
        for key in &section.keys {
            text.push_str(&line(section, key));
        }
    }
    text
}

fn line(section: &Section, key: &Key) -> String {
    if section.open {
        let default = key.default.as_ref().map(in_toml).unwrap_or_default();
        return format!("{}# {} = {default}\n", comment(&key.text), key.name);
    }
    let about = comment(&format!("{} (${})", key.text, section.variable(&key.name)));
    let name = &key.name;
    match &key.default {
        Some(default) => format!("{about}{name} = {}\n", in_toml(default)),
        None => format!("{about}# {name} =\n"),
    }
}

fn comment(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        if let Some(last) = lines.last_mut()
            && last.len() + word.len() < 96
        {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(format!(" {word}"));
        }
    }
    lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "#{line}");
        text
    })
}

fn in_toml(value: &Value) -> String {
    match value {
        // TOML and JSON agree for these values.
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(in_toml).collect();
            format!("[{}]", values.join(", "))
        }
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_file_of_defaults_is_a_configuration() {
        let config: Config = toml::from_str(&file()).unwrap();
        assert_eq!(config.replicator, scheduler::Options::default());
        let comments = file();
        let mut comments = comments.lines().filter(|line| line.starts_with('#'));
        assert!(comments.all(|line| line.len() <= 100));
    }

    /// `UPDATE_DOCS=1` writes the expected text.
    #[test]
    fn the_documentation_lists_every_option() {
        const BEGIN: &str = "<!-- options: made by `UPDATE_DOCS=1 cargo test -p node` -->\n";
        const END: &str = "<!-- end of options -->\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let wanted = format!("{before}{BEGIN}\n{}{END}{after}", markdown());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &wanted).unwrap();
        }
        assert!(
            text == wanted || std::env::var_os("UPDATE_DOCS").is_some(),
            "docs/operations.md is out of date: run UPDATE_DOCS=1 cargo test -p node"
        );
    }
}
