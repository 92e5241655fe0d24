//! Reads files in git's configuration syntax, as git parses them.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::without_repository;
use crate::target::without_user;

/// A file or an option that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(String);

impl Refused {
    pub(crate) fn argument(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// One value of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// All of these: `SECTION.SUBSECTION.KEY` or `SECTION.KEY`.
    name: String,
    pub(crate) section: String,
    pub(crate) subsection: Option<String>,
    pub(crate) key: String,
    /// `None` for a key without `=`, which means true.
    value: Option<String>,
}

impl Entry {
    pub(crate) fn text(&self) -> &str {
        self.value.as_deref().unwrap_or_default()
    }

    pub(crate) fn boolean(&self) -> Result<bool, &'static str> {
        let text = self.value.as_deref().unwrap_or("true");
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" | "" => Ok(false),
            _ => Err("give true or false"),
        }
    }

    pub(crate) fn number(&self) -> Result<u32, String> {
        let reason = || format!("give a number from 0 to {}", u32::MAX);
        self.text().trim().parse().map_err(|_| reason())
    }

    pub(crate) fn seconds(&self) -> Result<Duration, String> {
        Ok(Duration::from_secs(self.number()?.into()))
    }
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
        let mut git = Command::new("git");
        without_repository(&mut git).args(["config", "--list", "-z", "--no-includes", "--file"]);
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
            let mut parts = item.splitn(2, '\n');
            let (name, value) = (parts.next()?, parts.next());
            let (section, rest) = name.split_once('.')?;
            let (subsection, key) = rest.rsplit_once('.').unzip();
            Some(Entry {
                name: name.to_owned(),
                section: section.to_owned(),
                subsection: subsection.map(str::to_owned),
                key: key.unwrap_or(rest).to_owned(),
                value: value.map(str::to_owned),
            })
        });
        file.entries = entries.collect();
        Ok(file)
    }

    pub(crate) fn refuse(&self, reason: impl Display) -> Refused {
        Refused(format!("{}: {reason}", self.path.display()))
    }

    /// Why a value cannot be used. It is shown without credentials.
    pub(crate) fn refuse_value(&self, entry: &Entry, reason: &str) -> Refused {
        let value = without_user(entry.text());
        self.refuse(format!("{} is {value:?}: {reason}", entry.name))
    }
}
