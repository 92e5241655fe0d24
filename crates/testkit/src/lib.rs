//! Shared by the tests of several crates: stores of every backend, child processes to kill, servers of other vendors,
//! and a driver for fuzz tests.
//!
//! It depends on no other crate of the workspace, and only tests depend on it.
//!
//! Start with `backend.rs`, `child.rs`, `fuzz.rs` and `simulation.rs`: [`fuzz`] mutates inputs of decoders, and a [`Campaign`] runs
//! simulations seed by seed.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "only tests use it: it may fail, and reports what it skips"
)]

mod backend;
mod child;
mod cluster;
mod fuzz;
mod servers;
mod simulation;

pub use backend::{Backend, Place, fdb_cluster_file, fdb_url};
pub use child::{Child, Signal, child_command, child_url, kill_cycles, pause, role, send_signal};
pub use cluster::FdbCluster;
pub use fuzz::{fuzz, fuzz_more};
pub use servers::{CouchDb, PouchDb};
pub use simulation::{
    Campaign, Fault, Report, Schedule, actor_rng, number, often, simulated, some_time,
};
