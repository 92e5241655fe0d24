//! What is wrong in a body.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use crate::Error;

/// Why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not JSON.
    Syntax,
    /// A value is not what it should be.
    Value {
        /// Where, from the inside to the outside.
        path: Vec<Step>,
        /// What is to be said behind the place.
        what: String,
        /// Whether it needs a colon before it.
        is_sentence: bool,
    },
}

/// A step into a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Member(String),
    /// Counted from 0.
    Entry(usize),
}

impl Fault {
    fn value(path: Option<&str>, what: String) -> Self {
        Self::Value {
            path: path
                .map(|name| Step::Member(name.to_owned()))
                .into_iter()
                .collect(),
            what,
            is_sentence: false,
        }
    }

    /// The fault of an entry of this member.
    pub(crate) fn of_entry(self, nth: usize, member: &str) -> Self {
        self.within(Step::Entry(nth))
            .within(Step::Member(member.to_owned()))
    }

    /// The fault, as seen from a level further out.
    pub(super) fn within(mut self, step: Step) -> Self {
        if let Self::Value { path, .. } = &mut self {
            path.push(step);
        }
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Value {
            path,
            what,
            is_sentence,
        } = self
        else {
            return f.write_str("the body is not JSON");
        };
        let (mut places, mut name) = (Vec::new(), String::new());
        for step in path.iter().rev() {
            match step {
                Step::Member(member) if name.is_empty() => name.push_str(member),
                Step::Member(member) => {
                    name.push('.');
                    name.push_str(member);
                }
                Step::Entry(nth) if name.is_empty() => places.push(format!("entry {}", nth + 1)),
                Step::Entry(nth) => {
                    places.push(format!("entry {} of `{name}`", nth + 1));
                    name.clear();
                }
            }
        }
        if !name.is_empty() {
            places.push(format!("`{name}`"));
        }
        match (places.join(": "), is_sentence) {
            (place, _) if place.is_empty() => f.write_str(what),
            (place, true) => write!(f, "{place}: {what}"),
            (place, false) => write!(f, "{place} {what}"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Syntax => Self::not_json(),
            fault @ Fault::Value { .. } => Self::bad_request(fault.to_string()),
        }
    }
}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(what: T) -> Self {
        Self::Value {
            path: Vec::new(),
            what: what.to_string(),
            is_sentence: true,
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let wanted = plain(&expected.to_string());
        let found = match found {
            Unexpected::Float(_) if wanted.starts_with("a whole number") => {
                "one with a decimal point or an exponent"
            }
            Unexpected::Bool(true) => "true",
            Unexpected::Bool(false) => "false",
            Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => "a number",
            Unexpected::Other(other) => other,
            Unexpected::Str(_) => "a string",
            Unexpected::Unit | Unexpected::Option => "null",
            Unexpected::Seq => "a list",
            Unexpected::Map => "an object",
            _ => "another value",
        };
        Self::value(None, format!("must be {wanted}, not {found}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        let range = match &*expected {
            "u32" => Some(u64::from(u32::MAX)),
            "u64" | "usize" => Some(u64::MAX),
            _ => None,
        };
        let wanted = range.map_or_else(
            || plain(&expected),
            |max| format!("a whole number from 0 to {max}"),
        );
        Self::value(None, format!("must be {wanted}"))
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        let known = known.join(", ");
        Self::value(None, format!("must be one of {known}, not {found:?}"))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        let known = known.join("`, `");
        Self::value(Some(name), format!("is unknown; use `{known}`"))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::value(Some(name), "is missing; add it".to_owned())
    }

    fn duplicate_field(name: &'static str) -> Self {
        let what = "is there twice; leave out one of them";
        Self::value(Some(name), what.to_owned())
    }
}

/// What serde expects, in the words of JSON.
fn plain(expected: &str) -> String {
    let plain = match expected {
        "f64" | "f32" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => "a whole number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a JSON object",
        other if other.starts_with("struct ") => "a JSON object",
        other => other,
    };
    plain.to_owned()
}
