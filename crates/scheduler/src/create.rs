//! Creating jobs from documents and requests.
//!
//! A document and its job are written in one transaction: [`Replications::prepare`](crate::Replications::prepare)
//! validates and completes an edit before it, and the hook takes part in it. The winning revision decides: an equal
//! replication changes nothing, a different one replaces the job, a deletion removes it, and a document whose terminal
//! state was removed runs again.

mod hook;
mod meaning;
mod owner;
mod request;
mod reseal;
mod scan;
mod steer;

pub use hook::DocumentHook;
pub use meaning::{Meaning, Prepared};
pub use owner::{Rank, Writer};
pub use request::{Answer, Caller, Failure, Started};
pub use reseal::{Sealed, count_seals};

#[cfg(test)]
mod tests;
