//! One database.

mod bulk_get;
mod changes;
mod handle;
mod open_revs;
mod put;
mod writes;

pub use bulk_get::{BulkGet, Fetched, WantedRev};
pub use changes::{Change, Changes, ChangesFilter, ChangesRequest};
pub use handle::{Database, DatabaseInfo};
pub use open_revs::{Revision, Revisions, WantedRevs};
pub use writes::{DocError, MissingRevs};
