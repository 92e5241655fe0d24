//! Replication ids as text. `id.rs` computes them.

use std::fmt;

/// The part of a replication id that identifies its checkpoints: 32 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BaseId(String);

impl BaseId {
    pub(crate) fn new(digits: String) -> Self {
        Self(digits)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BaseId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A base id and the suffixes of `continuous` and `create_target`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReplicationId(String);

impl ReplicationId {
    pub(crate) fn new(id: String) -> Self {
        Self(id)
    }

    /// Parses an id from a client. A space is a `+` that was not escaped in a URL, except in the id of a document's
    /// job.
    pub fn from_client(text: &str) -> Self {
        if text.contains('|') {
            return Self(text.to_owned());
        }
        Self(text.replace(' ', "+"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ReplicationId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
