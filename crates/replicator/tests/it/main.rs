//! Replications between in-memory peers, over real connections.

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
