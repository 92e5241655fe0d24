//! Replications: parameters, ids, checkpoints, the engine, and the jobs that run it.
//!
//! [`params`] reads what a user wants, [`id`] names it, [`engine`] does it. What knows the queue is built on top of these:
//!
//! | what | how |
//! |---|---|
//! | the service | [`Replications::open`] on a queue and databases, with a [`Setup`]; settings are [`Options`] |
//! | documents | [`Replications::prepare`] an edit, write it with [`Replications::hook`] for a [`Writer`]; [`strip::for_reader`] on every read |
//! | databases | [`Replications::create_database`], [`delete_database`](Replications::delete_database), [`rescan`](Replications::rescan); [`work_a_little`](Replications::work_a_little) in the background |
//! | `_replicate` | [`Replications::request`] for a [`Caller`], then [`Replications::wait`] for its [`Answer`] |
//! | steering | [`Replications::restart`], [`set_paused`](Replications::set_paused), [`cancel`](Replications::cancel) of what [`find`](Replications::find) finds |
//! | credentials at rest | a [`Sealer`] with keys that are not in the store |

mod checkpoint;
mod create;
mod data;
pub mod engine;
mod error;
mod etf;
mod fault;
pub mod id;
mod keys;
mod metrics;
mod options;
pub mod params;
mod seal;
mod stats;
pub mod strip;
mod writeback;

pub use create::{
    Answer, Caller, DocumentHook, Failure, JOB_TIMEOUT_MS, JOB_TYPE, Replications, Scanned, Setup,
    Started, Writer,
};
pub use data::JobState;
pub use error::{Error, Step};
pub use fault::ServiceError;
pub use options::Options;
pub use seal::{InvalidRing, Sealer, Unreadable};
pub use stats::Stats;
