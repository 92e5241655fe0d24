/// Errors of revisions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A malformed revision from a client. The message is CouchDB's.
    #[error("Invalid rev format")]
    InvalidRev,
    /// Corrupt stored data.
    #[error("stored revision tree is corrupt: {0}")]
    Corrupt(&'static str),
}
