//! Names of users' types.

use std::fmt;
use std::sync::Arc;

use jobs::JobType;

use crate::{Error, Result};

/// The queue's types of users begin like this, so that users cannot touch those of the service.
pub const PREFIX: &str = "api/";
/// The service's own types, whether or not they are registered yet.
pub const OWN_TYPES: [&str; 6] = [
    "feeds",
    "git",
    "listen",
    "rep_jobs",
    "schedules",
    "webhooks",
];
/// The rest of the longest name of a type in the queue.
const BYTES_MAX: usize = jobs::TYPE_BYTES_MAX - PREFIX.len();

/// The name of a user's type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeName(Arc<str>);

impl TypeName {
    pub fn new(name: &str) -> Result<Self> {
        let first = name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_lowercase());
        let others =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        if first && name.len() <= BYTES_MAX && name.bytes().all(others) {
            return Ok(Self(name.into()));
        }
        Err(Error::Invalid(format!(
            "a job type is named with a-z, 0-9, _ and -, begins with a letter, and has at most {BYTES_MAX} characters"
        )))
    }

    /// The name of a type in the queue, if it is one of users.
    pub(crate) fn of(ty: &JobType) -> Option<Self> {
        ty.as_str()
            .strip_prefix(PREFIX)
            .map(|name| Self(name.into()))
    }

    /// The name of a type of the service itself.
    pub(crate) fn own(ty: &JobType) -> Self {
        Self(ty.as_str().into())
    }

    /// Whether it is kept for a type of the service itself.
    pub(crate) fn is_reserved(&self) -> bool {
        OWN_TYPES.contains(&self.as_str())
    }

    /// What people use instead of `/_jobs`, if it is a type of the service itself.
    pub(crate) fn used_with(&self) -> Option<&'static str> {
        Some(match self.as_str() {
            "feeds" => "`/_sources`",
            "git" => "`davenport-git queue`",
            "listen" => "`/_rules`",
            "rep_jobs" => "`/_scheduler/jobs`",
            "schedules" => "`/_schedules`",
            "webhooks" => "`/_deliveries`",
            _ => return None,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The type in the queue.
    pub(crate) fn job_type(&self) -> JobType {
        JobType::new(&format!("{PREFIX}{self}")).expect("the name leaves room for the prefix")
    }
}

/// Checks the name of something else.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    const MAX: usize = 64;
    let has =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if name.len() <= MAX
        && name.bytes().all(has)
        && !name.starts_with(['_', '-'])
        && !name.is_empty()
    {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{what} is named with a-z, 0-9, _ and -, begins with a letter or digit, and has at most {MAX} characters"
    )))
}

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_rules() {
        let long = "a".repeat(BYTES_MAX);
        for name in ["mail", "a", "rep-jobs_2", &long] {
            let name = TypeName::new(name).unwrap();
            assert_eq!(TypeName::of(&name.job_type()), Some(name));
        }
        for name in [
            "",
            "_mail",
            "2fast",
            "Mail",
            "a/b",
            "a b",
            "ä",
            &format!("{long}a"),
        ] {
            assert!(TypeName::new(name).is_err(), "{name}");
        }
        assert_eq!(TypeName::of(&JobType::new("rep_jobs").unwrap()), None);
        for name in OWN_TYPES {
            assert!(TypeName::new(name).unwrap().used_with().is_some(), "{name}");
        }
    }
}
