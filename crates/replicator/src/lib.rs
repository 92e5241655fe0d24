//! Replications: parameters, ids, checkpoints, the engine, and the job that runs it.
//!
//! [`params`] reads what a user wants, [`id`] names it, [`engine`] does it. What knows the queue is built on top of these.

mod checkpoint;
pub mod engine;
mod error;
mod etf;
pub mod id;
mod metrics;
pub mod params;
mod stats;

pub use error::{Error, Step};
pub use stats::Stats;
