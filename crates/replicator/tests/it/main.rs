//! Replications between in-memory peers, over real connections.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attachments;
mod basic;
mod checkpoints;
mod conflicts;
mod continuous;
mod errors;
mod filters;
mod fixture;
mod limits;
mod ours;
mod seeds;
