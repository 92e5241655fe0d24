//! Git mirrors: pushes what changes in repositories that several nodes share to remotes, as jobs of a [queue](jobs).
//!
//! It reads Gerrit's `replication.config` and keeps what Gerrit promises, without its shared directory of tasks: a
//! push is a job of one remote and one target, so no two nodes push to one target at a time, and a push whose node
//! dies is done by another. It knows nothing of CouchDB. What git does, git does: pushes are child processes.
//!
//! Start reading in `mirrors.rs`, then `push.rs` and `serve.rs`.

pub mod cli;
mod config;
mod event;
#[cfg(test)]
mod gerrit;
mod http;
mod mirrors;
mod process;
mod project;
mod push;
mod refs;
mod runner;
mod serve;
mod show;
mod start;
mod target;
