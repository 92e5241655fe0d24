//! One replication between two CouchDB-compatible servers: its parameters, ids, checkpoints, and the engine that
//! copies.
//!
//! It must not know where replications come from or who runs them: no store, no queue, no documents of `_replicator`.
//! The caller passes a [`engine::Gate`] that can refuse a checkpoint, and an [`engine::Observer`] that is notified of
//! it.
//!
//! Start reading in [`params`], then [`id`], then [`engine`].

mod checkpoint;
pub mod engine;
mod error;
mod etf;
pub mod id;
mod metrics;
mod names;
pub mod params;
mod stats;

pub use error::{Error, Step};
pub use stats::Stats;
