//! Reads files in git's configuration syntax, as git parses them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::without_repository;
use crate::target::redact;

/// A file that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", file.display())]
pub(crate) struct Refused {
    pub(crate) file: PathBuf,
    pub(crate) reason: String,
}

/// One value of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) section: String,
    pub(crate) subsection: Option<String>,
    pub(crate) key: String,
    /// `None` for a key without `=`, which means true.
    pub(crate) value: Option<String>,
}

/// The values of a file, in order.
pub(crate) struct File {
    path: PathBuf,
    pub(crate) entries: Vec<Entry>,
}

impl File {
    pub(crate) fn read(path: &Path) -> Result<Self, Refused> {
        let mut git = Command::new("git");
        without_repository(|variable| {
            git.env_remove(variable);
        });
        git.env("LC_ALL", "C")
            .args(["config", "--list", "-z", "--no-includes", "--file"])
            .arg(path);
        let file = |entries| Self {
            path: path.to_owned(),
            entries,
        };
        let listed = match git.output() {
            Ok(listed) if listed.status.success() => listed.stdout,
            Ok(listed) => {
                let told = String::from_utf8_lossy(&listed.stderr);
                let told = told.trim().trim_start_matches("fatal: ");
                return Err(file(Vec::new()).refuse(format!("git cannot read it: {told}")));
            }
            Err(error) => {
                let reason = format!("cannot run git: {error}; install git");
                return Err(file(Vec::new()).refuse(reason));
            }
        };
        let listed = String::from_utf8_lossy(&listed);
        let entries = listed.split_terminator('\0').filter_map(|item| {
            let (name, value) = match item.split_once('\n') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (item, None),
            };
            let (section, rest) = name.split_once('.')?;
            let (subsection, key) = match rest.rsplit_once('.') {
                Some((subsection, key)) => (Some(subsection.to_owned()), key),
                None => (None, rest),
            };
            Some(Entry {
                section: section.to_owned(),
                subsection,
                key: key.to_owned(),
                value,
            })
        });
        Ok(file(entries.collect()))
    }

    pub(crate) fn refuse(&self, reason: String) -> Refused {
        Refused {
            file: self.path.clone(),
            reason,
        }
    }

    /// Why a value cannot be used. It is shown without credentials.
    pub(crate) fn refuse_value(&self, entry: &Entry, reason: &str) -> Refused {
        let section = [Some(&entry.section), entry.subsection.as_ref()];
        let section: Vec<&str> = section.into_iter().flatten().map(String::as_str).collect();
        let (section, key) = (section.join("."), &entry.key);
        let value = redact(entry.value.as_deref().unwrap_or_default());
        self.refuse(format!("{section}.{key} is {value:?}: {reason}"))
    }
}
