//! The scripts: lists of requests, each with the answer it gets.

#![expect(
    clippy::too_many_lines,
    reason = "a script is a list, and reads best as one"
)]

pub(crate) mod attachments;
pub(crate) mod bulk;
pub(crate) mod changes;
pub(crate) mod databases;
pub(crate) mod documents;
pub(crate) mod revisions;
