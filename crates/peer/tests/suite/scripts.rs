//! The scripts.

pub mod attachments;
pub mod bulk;
pub mod changes;
pub mod databases;
pub mod documents;
pub mod revisions;
