//! Typed members of a rule's document. Errors name the member by its path.

use document::json::Json;

use super::pattern::{BadPattern, Pattern};

/// The longest delay, interval or time-out: a year.
const SECONDS_MAX: f64 = 366.0 * 24.0 * 3600.0;

/// Why a document is not a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", named(path))]
pub struct Invalid {
    /// The member, as `match.database`; empty if several are to blame.
    pub path: String,
    /// With advice.
    pub reason: String,
    /// The number of the character in the member's text, from 0, if one is to blame.
    pub at: Option<usize>,
}

fn named(path: &str) -> String {
    if path.is_empty() {
        return String::new();
    }
    format!("`{path}`: ")
}

impl Invalid {
    pub(super) fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            reason: reason.into(),
            at: None,
        }
    }

    pub(super) fn at(self, at: usize) -> Self {
        Self {
            at: Some(at),
            ..self
        }
    }

    fn pattern(path: String, bad: &BadPattern) -> Self {
        Self {
            path,
            reason: bad.to_string(),
            at: bad.at,
        }
    }
}

/// An object, and its path followed by a dot.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    path: String,
    members: &'a [(String, Json)],
    /// They have been checked before.
    accepted: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn new(body: &'a Json, accepted: bool) -> Self {
        Self {
            path: String::new(),
            members: body.as_object().unwrap_or_default(),
            accepted,
        }
    }

    /// False if they were accepted before, perhaps by a version with fewer checks.
    pub(super) fn are_new(&self) -> bool {
        !self.accepted
    }

    pub(super) fn members(&self) -> &'a [(String, Json)] {
        self.members
    }

    pub(super) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    pub(super) fn invalid(&self, name: &str, reason: impl Into<String>) -> Invalid {
        Invalid::new(self.path(name), reason)
    }

    /// A member that is there and not null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Json> {
        let mut members = self.members.iter();
        let found = members.find_map(|(member, value)| (member == name).then_some(value));
        found.filter(|value| **value != Json::Null)
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, Invalid> {
        let text = self.get(name).map(|value| value.as_str().ok_or(value));
        text.transpose()
            .map_err(|_| self.invalid(name, "must be a string"))
    }

    pub(super) fn needed(&self, name: &str) -> Result<&'a str, Invalid> {
        self.text(name)?
            .ok_or_else(|| self.invalid(name, "is missing; add it"))
    }

    pub(super) fn boolean(&self, name: &str, default: bool) -> Result<bool, Invalid> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => (value.as_bool())
                .ok_or_else(|| self.invalid(name, "must be true or false, without quotes")),
        }
    }

    /// A number of seconds, or of another unit that a second has `per_second` of.
    pub(super) fn seconds(&self, name: &str, per_second: f64) -> Result<Option<f64>, Invalid> {
        let number = self.number(name, 0.0, SECONDS_MAX * per_second)?;
        Ok(number.map(|number| number / per_second))
    }

    pub(super) fn number(&self, name: &str, min: f64, max: f64) -> Result<Option<f64>, Invalid> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = match value {
            Json::Number(digits) => digits.parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| (min..=max).contains(number));
        let reason = || format!("must be a number from {min} to {max}, without quotes");
        Ok(Some(number.ok_or_else(|| self.invalid(name, reason()))?))
    }

    pub(super) fn count(&self, name: &str) -> Result<Option<u32>, Invalid> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let count = value
            .as_integer()
            .and_then(|count| u32::try_from(count).ok());
        let reason = "must be a whole number, 0 or more, without quotes";
        Ok(Some(count.ok_or_else(|| self.invalid(name, reason))?))
    }

    /// An object of our own, in which a member that does not exist is a mistake.
    pub(super) fn object(&self, name: &str, known: &[&str]) -> Result<Option<Self>, Invalid> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let Some(members) = value.as_object() else {
            let known = known.join("`, `");
            let reason = format!("must be an object with members among `{known}`");
            return Err(self.invalid(name, reason));
        };
        let fields = Self {
            path: format!("{}.", self.path(name)),
            members,
            accepted: self.accepted,
        };
        fields.only(known)?;
        Ok(Some(fields))
    }

    /// Checks that it has no other members, except those of CouchDB, whose names start with `_`.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Invalid> {
        let is_own = |name: &str| self.path.is_empty() && name.starts_with('_');
        let mut members = self.members.iter();
        let unknown = members.find(|(name, _)| !known.contains(&&**name) && !is_own(name));
        unknown.map_or(Ok(()), |(unknown, _)| {
            let reason = format!("is unknown; use `{}`", known.join("`, `"));
            Err(self.invalid(unknown, reason))
        })
    }

    pub(super) fn pattern(&self, name: &str) -> Result<Option<Pattern>, Invalid> {
        let text = self.text(name)?;
        text.map(|text| self.compiled(name, text)).transpose()
    }

    /// The pattern in a member.
    pub(super) fn compiled(&self, name: &str, text: &str) -> Result<Pattern, Invalid> {
        let pattern = if self.accepted {
            Pattern::accepted(text)
        } else {
            Pattern::parse(text)
        };
        pattern.map_err(|bad| Invalid::pattern(self.path(name), &bad))
    }
}
