//! Nodes as processes: alone, several on one store, killed, stopped, and reloaded.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and tells how long it took"
)]

mod changes;
mod commands;
mod fleet;
mod jobs;
mod keys;
mod migration;
mod options;
mod pages;
mod remotes;
mod rules;
mod schedules;
mod single;
mod spiegel;
mod tls;
mod traces;
mod upstream;
mod verify;
