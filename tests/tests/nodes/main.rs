//! Nodes as processes: alone, several on one store, killed, stopped, and reloaded.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod fleet;
mod options;
mod single;
