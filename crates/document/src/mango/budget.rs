//! Limits the cost of matching.

/// Steps per document: a fraction of a second, unless regular expressions are built to be slow.
const DOCUMENT_STEPS: u64 = 20_000_000;
/// Steps for all documents of one request.
const REQUEST_STEPS: u64 = 2_000_000_000;

/// The remaining steps. A step is about the cost of comparing two short values, or one byte with a regular expression.
#[derive(Clone, Debug)]
pub struct Budget(u64);

/// Matching exceeded its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the selector is too expensive to match: simplify its regular expressions (look-around, back-references and nested repetitions cost most) or test fewer elements"
)]
pub struct TooExpensive;

impl TooExpensive {
    /// The value of `error` in responses.
    pub const NAME: &str = "filter_too_expensive";
}

impl Budget {
    pub fn of_document() -> Self {
        Self(DOCUMENT_STEPS)
    }

    /// The budget for all documents that a request examines.
    pub fn of_request() -> Self {
        Self(REQUEST_STEPS)
    }

    pub fn left(&self) -> u64 {
        self.0
    }

    /// Takes steps, or all that are left.
    pub fn spend(&mut self, steps: u64) -> Result<(), TooExpensive> {
        let left = self.0.checked_sub(steps);
        self.0 = left.unwrap_or(0);
        left.map(drop).ok_or(TooExpensive)
    }
}
