//! What matching may cost.

/// Steps that one document may cost: a fraction of a second, unless regular expressions are built to be slow.
const DOCUMENT_STEPS: u64 = 20_000_000;
/// Steps that the documents of one request may cost together.
const REQUEST_STEPS: u64 = 2_000_000_000;

/// Steps that are left. A step is about what it takes to compare two short values, or a byte with a regular expression.
#[derive(Clone, Debug)]
pub struct Budget(u64);

/// A selector took more steps than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the selector is too expensive to match: simplify its regular expressions (look-around, back-references and nested repetitions cost most) or test fewer elements"
)]
pub struct TooExpensive;

impl TooExpensive {
    /// The value of `error` in answers.
    pub const NAME: &str = "filter_too_expensive";
}

impl Budget {
    pub fn of_document() -> Self {
        Self(DOCUMENT_STEPS)
    }

    /// For all documents that a request looks at.
    pub fn of_request() -> Self {
        Self(REQUEST_STEPS)
    }

    /// How many steps are left.
    pub fn left(&self) -> u64 {
        self.0
    }

    /// Takes steps, or what is left.
    pub fn spend(&mut self, steps: u64) -> Result<(), TooExpensive> {
        let left = self.0.checked_sub(steps);
        self.0 = left.unwrap_or(0);
        left.map(drop).ok_or(TooExpensive)
    }
}
