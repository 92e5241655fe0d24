/// Why a body does not describe a replication, for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub(crate) String);

impl Invalid {
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<couch::InvalidEndpoint> for Invalid {
    fn from(error: couch::InvalidEndpoint) -> Self {
        Self(error.to_string())
    }
}
