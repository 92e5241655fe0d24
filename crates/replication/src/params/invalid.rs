//! Why a body is refused.

/// Why a body describes no replication, for the user to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub(crate) String);

impl Invalid {
    /// What is wrong with a body, for its author.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<couch::InvalidEndpoint> for Invalid {
    fn from(error: couch::InvalidEndpoint) -> Self {
        Self(error.to_string())
    }
}
