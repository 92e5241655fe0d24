//! Problems of a configuration, with their position.

use std::fmt;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// A file, with line and column.
    File {
        path: PathBuf,
        /// Line and column, from 1.
        at: Option<(usize, usize)>,
    },
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, at: None } => write!(f, "{}", path.display()),
            Self::File {
                path,
                at: Some((line, column)),
            } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Variable(name) => write!(f, "${name}"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Why a configuration is invalid. Never contains a value that may be secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    origin: Origin,
    key: Option<String>,
    what: String,
}

impl Problem {
    pub(super) fn new(origin: Origin, key: Option<&str>, what: String) -> Self {
        Self {
            origin,
            key: key.map(str::to_owned),
            what,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin != Origin::Default {
            write!(f, "{}: ", self.origin)?;
        }
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// An unusable configuration: one problem per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub Vec<Problem>);

impl std::error::Error for Refused {}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used")?;
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

/// `; did you mean …?` with the nearest known name, if any is near.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known
        .map(|known| (distance(name, known), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min();
    near.map_or_else(String::new, |(_, known)| {
        format!("; did you mean `{known}`?")
    })
}

/// The edit distance of two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested() {
        let known = ["max_jobs", "max_churn", "interval_sec"];
        let hint = |name| nearest(name, known.into_iter());
        assert_eq!(hint("max_job"), "; did you mean `max_jobs`?");
        assert_eq!(hint("interval"), "; did you mean `interval_sec`?");
        assert_eq!(hint("int"), "");
        assert_eq!(hint("interval_secs"), "; did you mean `interval_sec`?");
        assert_eq!(hint("quite_else"), "");
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
