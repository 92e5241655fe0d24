//! One replication between two CouchDB-compatible servers: what a user asks for, the ids it goes by, its checkpoints, and
//! the engine that copies.
//!
//! It must not know where replications come from or who runs them: no store, no queue, no documents of `_replicator`.
//! Whoever starts a run passes a [`engine::Gate`] that can refuse a checkpoint, and an [`engine::Observer`] that hears of it.
//!
//! Start reading in [`params`] (what a body means), then [`id`] (what it is called), then [`engine`].

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
