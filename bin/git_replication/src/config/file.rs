//! Reads files in git's configuration syntax: git parses them, and this module finds the line of a value.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::without_repository;

/// A file that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) struct Refused {
    pub(crate) file: PathBuf,
    pub(crate) line: Option<usize>,
    pub(crate) reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// One value of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) section: String,
    pub(crate) subsection: Option<String>,
    pub(crate) key: String,
    /// `None` for a key without `=`, which means true.
    pub(crate) value: Option<String>,
    /// Which of the values of this key.
    nth: usize,
}

/// The values of a file, in order.
pub(crate) struct File {
    path: PathBuf,
    text: String,
    pub(crate) entries: Vec<Entry>,
}

impl File {
    pub(crate) fn read(path: &Path) -> Result<Self, Refused> {
        let refused = |reason: String| Refused {
            file: path.to_owned(),
            line: None,
            reason,
        };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        let mut git = Command::new("git");
        without_repository(|variable| {
            git.env_remove(variable);
        });
        let listed = git
            .args(["config", "--list", "-z", "--no-includes", "--file"])
            .arg(path);
        let listed = listed
            .output()
            .map_err(|error| refused(format!("cannot run git: {error}; install git")))?;
        if !listed.status.success() {
            let reason = String::from_utf8_lossy(&listed.stderr);
            let line = reason.split(" line ").nth(1);
            let line = line.and_then(|rest| rest.split(' ').next()?.parse().ok());
            return Err(Refused {
                line,
                ..refused("git cannot parse this line; check its quotes and brackets".to_owned())
            });
        }
        let listed = String::from_utf8_lossy(&listed.stdout);
        let mut entries: Vec<Entry> = Vec::new();
        for item in listed.split_terminator('\0') {
            let (name, value) = match item.split_once('\n') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (item, None),
            };
            let Some((section, rest)) = name.split_once('.') else {
                continue;
            };
            let (subsection, key) = match rest.rsplit_once('.') {
                Some((subsection, key)) => (Some(subsection.to_owned()), key),
                None => (None, rest),
            };
            let same = |entry: &&Entry| {
                entry.section == section && entry.subsection == subsection && entry.key == key
            };
            let nth = entries.iter().filter(same).count();
            entries.push(Entry {
                section: section.to_owned(),
                subsection,
                key: key.to_owned(),
                value,
                nth,
            });
        }
        let path = path.to_owned();
        Ok(Self {
            path,
            text,
            entries,
        })
    }

    /// Why a value cannot be used.
    pub(crate) fn refuse(&self, entry: &Entry, reason: &str) -> Refused {
        let value = entry.value.as_deref().unwrap_or_default();
        Refused {
            file: self.path.clone(),
            line: self.line(entry),
            reason: format!("{} is {value:?}: {reason}", entry.key),
        }
    }

    /// Why a section cannot be used.
    pub(crate) fn refuse_section(&self, subsection: Option<&str>, reason: String) -> Refused {
        let mut sections = headers(&self.text).filter(|(_, section, name, _)| {
            section.eq_ignore_ascii_case("remote") && name.as_deref() == subsection
        });
        Refused {
            file: self.path.clone(),
            line: sections.next().map(|(line, ..)| line),
            reason,
        }
    }

    fn line(&self, entry: &Entry) -> Option<usize> {
        let mut seen = 0;
        let sections = headers(&self.text).filter(|(_, section, name, _)| {
            section.eq_ignore_ascii_case(&entry.section) && *name == entry.subsection
        });
        for (header, _, _, lines) in sections {
            for (after, line) in lines.into_iter().enumerate() {
                let key = line
                    .split(['=', '#', ';'])
                    .next()
                    .unwrap_or_default()
                    .trim();
                if key.eq_ignore_ascii_case(&entry.key) {
                    if seen == entry.nth {
                        return Some(header + after);
                    }
                    seen += 1;
                }
            }
        }
        None
    }
}

/// The sections of a file: the line, the name and the second name of each, and its lines from there on, the first of
/// them without the header.
fn headers(text: &str) -> impl Iterator<Item = (usize, &str, Option<String>, Vec<&str>)> {
    let lines: Vec<&str> = text.lines().collect();
    let starts: Vec<usize> = (0..lines.len())
        .filter(|line| lines[*line].trim_start().starts_with('['))
        .collect();
    let ends: Vec<usize> = starts
        .iter()
        .copied()
        .skip(1)
        .chain([lines.len()])
        .collect();
    starts
        .into_iter()
        .zip(ends)
        .filter_map(move |(start, end)| {
            let header = lines[start].trim_start().strip_prefix('[')?;
            let (section, name, rest) = match header.split_once('"') {
                Some((section, rest)) if !section.contains(']') => {
                    let (name, rest) = rest.rsplit_once("\"]")?;
                    let name = name.replace("\\\"", "\"").replace("\\\\", "\\");
                    (section.trim(), Some(name), rest)
                }
                _ => {
                    let (section, rest) = header.split_once(']')?;
                    (section, None, rest)
                }
            };
            let own = [rest]
                .into_iter()
                .chain(lines[start + 1..end].iter().copied());
            Some((start + 1, section, name, own.collect()))
        })
}
