//! Creating jobs from documents and requests.
//!
//! A document and its job are written in one transaction. [`Replications::prepare`](crate::Replications::prepare)
//! validates and completes an edit before it; the hook runs in it. The job follows the winning revision: an equal
//! replication changes nothing, a different one replaces the job, a deletion removes it, and removing a terminal state
//! runs the job again.

mod control;
mod hook;
mod meaning;
mod owner;
mod pages;
mod request;
mod reseal;
mod ruled;
mod scan;
mod start;

pub use hook::DocumentHook;
pub use meaning::{Meaning, Prepared};
pub use owner::{Rank, Writer};
pub(crate) use pages::of_rule;
pub(crate) use request::RULED;
pub use request::{Answer, Caller, Failure, Started};
pub use reseal::{Sealed, count_seals};
pub(crate) use ruled::Fate;
pub use ruled::Ruled;
pub use start::{Asked, Candidate, Ended};

#[cfg(test)]
mod tests;
