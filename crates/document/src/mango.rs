//! Mango selectors: `CouchDB`'s declarative filter.
//!
//! A selector is normalised in `CouchDB`'s three steps (operators made explicit, field names pushed down to the
//! tests, negations pushed down to the tests), because the result defines both what a selector matches and the id of a
//! replication that uses it. Some consequences look odd and are kept: `{"x": {"$ne": 1}}` does not match a document
//! without `x`, an empty `$or` matches everything, and `$nor` inside `$elemMatch` matches nothing.
//!
//! Three things differ from `CouchDB`: `$text` is refused, for it needs an index and would match everything here;
//! `$regex` understands the Perl syntax of the `fancy-regex` crate, in which `.`, `\d` and `\w` are about Unicode
//! characters instead of bytes; and a selector that costs more than its [`Budget`] is an error, not a mismatch.

mod budget;
mod matcher;
mod normal;
mod pattern;

use std::fmt;

use serde_json::Value;

use crate::json::{self, Json};
pub use budget::{Budget, TooExpensive};
use matcher::{Compiler, Condition};
pub use normal::{Normal, Path};
pub use pattern::{Pattern, Unusable};

/// Smaller documents are parsed and matched in well under a millisecond.
const QUICK_BYTES_MAX: usize = 64 * 1024;
/// The same limit for the product of conditions and values.
const QUICK_STEPS_MAX: u64 = 1_000_000;

/// A valid, compiled selector.
#[derive(Debug)]
pub struct Selector {
    normal: Normal,
    condition: Condition,
    /// The cost of its conditions on a document with one value.
    weight: u64,
    backtracks: bool,
}

impl Selector {
    /// Parses a selector from JSON text.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::new(&Json::parse(text)?)
    }

    /// Validates and normalises a selector.
    pub fn new(selector: &Json) -> Result<Self, Error> {
        let normal = normal::normalize(selector)?;
        let mut compiler = Compiler::default();
        let condition = Condition::compile(&normal, &mut compiler)?;
        Ok(Self {
            normal,
            condition,
            weight: compiler.weight,
            backtracks: compiler.backtracks,
        })
    }

    /// Whether a document, including `_id` and `_rev`, matches the selector.
    pub fn matches(&self, document: &Value, budget: &mut Budget) -> Result<bool, TooExpensive> {
        Ok(document.is_object() && self.condition.matches(document, budget)?)
    }

    /// Whether matching a document of this size may take long enough to delay other tasks.
    pub fn may_take_long(&self, document_bytes: usize) -> bool {
        let most = self.weight.saturating_mul(document_bytes as u64);
        self.backtracks || document_bytes > QUICK_BYTES_MAX || most > QUICK_STEPS_MAX
    }

    /// The normal form, which replication ids are computed from.
    pub fn normal(&self) -> &Normal {
        &self.normal
    }
}

/// Why a selector is invalid; the messages are `CouchDB`'s.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not JSON.
    #[error("selector is not valid JSON")]
    Syntax(#[from] json::Error),
    /// The selector is not an object.
    #[error("Selector must be a JSON object, not: {0}")]
    NotObject(String),
    /// An operator got an argument of the wrong type.
    #[error("Bad argument for operator {operator}: {argument}")]
    BadArgument {
        operator: String,
        /// Its argument as an Erlang term.
        argument: String,
    },
    /// An operator that `CouchDB` knows but does not support.
    #[error("Unsupported operator: {0}")]
    NotSupported(String),
    /// Another name that starts with `$`.
    #[error("Invalid operator: {0}")]
    InvalidOperator(String),
    /// A field name with an empty part, such as `a..b`.
    #[error("Invalid field name: {0}")]
    InvalidFieldName(String),
    /// A test at the top level, without a field.
    #[error("One or more conditions is missing a field name.")]
    MissingFieldName,
    /// It has too many conditions, or regular expressions that are too large.
    #[error(
        "the selector is too large: use fewer or shorter conditions, and regular expressions without large repetitions"
    )]
    TooLarge,
}

impl Error {
    /// `CouchDB`'s `error`; the message is its `reason`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Syntax(_) => "bad_request",
            Self::NotObject(_) => "invalid_selector_json",
            Self::BadArgument { .. } => "bad_arg",
            Self::NotSupported(_) => "not_supported",
            Self::InvalidOperator(_) => "invalid_operator",
            Self::InvalidFieldName(_) => "invalid_field_name",
            Self::MissingFieldName => "invalid_selector",
            Self::TooLarge => TooExpensive::NAME,
        }
    }

    pub(crate) fn bad_argument(operator: &str, argument: &Json) -> Self {
        Self::BadArgument {
            operator: operator.to_owned(),
            argument: shown(argument),
        }
    }
}

/// How much of an argument an error contains: an Erlang term is several times as long.
const SHOWN_BYTES_MAX: usize = 1024;

/// An argument as an Erlang term, truncated.
fn shown(argument: &Json) -> String {
    use std::fmt::Write as _;

    struct Beginning(String);
    impl fmt::Write for Beginning {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.push_str(text);
            if self.0.len() > SHOWN_BYTES_MAX {
                return Err(fmt::Error);
            }
            Ok(())
        }
    }

    let mut beginning = Beginning(String::new());
    if write!(beginning, "{}", argument.as_erlang()).is_err() {
        let end = beginning.0.floor_char_boundary(SHOWN_BYTES_MAX);
        beginning.0.truncate(end);
        beginning.0.push_str("...");
    }
    beginning.0
}

#[cfg(test)]
mod tests;
