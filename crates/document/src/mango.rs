//! Mango selectors: `CouchDB`'s declarative filter.
//!
//! A selector is normalised in `CouchDB`'s three steps (operators made explicit, field names pushed down to the
//! tests, negations pushed down to the tests), because the outcome defines both what a selector matches and the id of a
//! replication that uses it. Some consequences look odd and are kept: `{"x": {"$ne": 1}}` does not match a document
//! without `x`, an empty `$or` matches everything, and `$nor` inside `$elemMatch` matches nothing.
//!
//! Two things differ from `CouchDB`: `$text` is refused, for it needs an index and would match everything here; and
//! `$regex` understands the Perl syntax of the `fancy-regex` crate, in which `.`, `\d` and `\w` are about Unicode
//! characters instead of bytes.

mod matcher;
mod normal;

use serde_json::Value;

use crate::json::Json;
use matcher::Condition;
pub use normal::{Normal, Path};

/// A valid selector, ready to match.
#[derive(Debug)]
pub struct Selector {
    normal: Normal,
    condition: Condition,
}

impl Selector {
    /// Reads a selector from JSON text.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::new(&Json::parse(text)?)
    }

    /// Validates and normalises a selector.
    pub fn new(selector: &Json) -> Result<Self, Error> {
        let normal = normal::normalize(selector)?;
        let condition = Condition::compile(&normal)?;
        Ok(Self { normal, condition })
    }

    /// Whether a document, with its `_id` and `_rev`, satisfies the selector.
    pub fn matches(&self, document: &Value) -> bool {
        document.is_object() && self.condition.matches(document)
    }

    /// The normal form, from which replication ids are made.
    pub fn normal(&self) -> &Normal {
        &self.normal
    }
}

/// Why a selector is refused; the texts are `CouchDB`'s.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not JSON.
    #[error("selector is not valid JSON")]
    Syntax(#[from] serde_json::Error),
    /// The selector is something else than an object.
    #[error("Selector must be a JSON object, not: {0}")]
    NotObject(String),
    /// An operator got an argument of the wrong type.
    #[error("Bad argument for operator {operator}: {argument}")]
    BadArgument {
        /// The operator.
        operator: String,
        /// Its argument as an Erlang term.
        argument: String,
    },
    /// An operator that `CouchDB` knows and does not have.
    #[error("Unsupported operator: {0}")]
    NotSupported(String),
    /// Something else that starts with `$`.
    #[error("Invalid operator: {0}")]
    InvalidOperator(String),
    /// A field name with an empty part, as `a..b`.
    #[error("Invalid field name: {0}")]
    InvalidFieldName(String),
    /// A test that stands at the top and so tests no field.
    #[error("One or more conditions is missing a field name.")]
    MissingFieldName,
}

impl Error {
    /// The value of `error` in `CouchDB`'s answer, the message being its `reason`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Syntax(_) => "bad_request",
            Self::NotObject(_) => "invalid_selector_json",
            Self::BadArgument { .. } => "bad_arg",
            Self::NotSupported(_) => "not_supported",
            Self::InvalidOperator(_) => "invalid_operator",
            Self::InvalidFieldName(_) => "invalid_field_name",
            Self::MissingFieldName => "invalid_selector",
        }
    }

    pub(crate) fn bad_argument(operator: &str, argument: &Json) -> Self {
        Self::BadArgument {
            operator: operator.to_owned(),
            argument: argument.as_erlang().to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
