//! Reads files in git's configuration syntax, as git parses them.

use std::path::{Path, PathBuf};

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
        let mut file = Self {
            path: path.to_owned(),
            entries: Vec::new(),
        };
        let mut git = without_repository("git");
        git.args(["config", "--list", "-z", "--no-includes", "--file"]);
        let listed = git.arg(path).env("LC_ALL", "C").output();
        let listed =
            listed.map_err(|error| file.refuse(format!("cannot run git: {error}; install git")))?;
        if !listed.status.success() {
            let told = String::from_utf8_lossy(&listed.stderr);
            let told = told.trim().trim_start_matches("fatal: ");
            return Err(file.refuse(format!("git cannot read it: {told}")));
        }
        let listed = String::from_utf8_lossy(&listed.stdout);
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
            let (section, key) = (section.to_owned(), key.to_owned());
            Some(Entry {
                section,
                subsection,
                key,
                value,
            })
        });
        file.entries = entries.collect();
        Ok(file)
    }

    pub(crate) fn refuse(&self, reason: String) -> Refused {
        let file = self.path.clone();
        Refused { file, reason }
    }

    /// Why a value cannot be used. It is shown without credentials.
    pub(crate) fn refuse_value(&self, entry: &Entry, reason: &str) -> Refused {
        let (section, key) = (&entry.section, &entry.key);
        let name = match &entry.subsection {
            Some(subsection) => format!("{section}.{subsection}.{key}"),
            None => format!("{section}.{key}"),
        };
        let value = redact(entry.value.as_deref().unwrap_or_default());
        self.refuse(format!("{name} is {value:?}: {reason}"))
    }
}
