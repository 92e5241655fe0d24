//! Replications between in-memory peers, over real connections.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::duration_suboptimal_units,
    clippy::needless_pass_by_value,
    reason = "a test may fail, tells a story, and says what it skips"
)]
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
mod rejected;
mod requests;
mod seeds;
mod servers;
