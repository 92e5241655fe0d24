/// What can be wrong with revisions, by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A client sent something that is no revision: tell it so (CouchDB's own words).
    #[error("Invalid rev format")]
    InvalidRev,
    /// Stored bytes are not what we wrote: stop, and show it to an operator.
    #[error("stored revision tree is corrupt: {0}")]
    Corrupt(&'static str),
}
