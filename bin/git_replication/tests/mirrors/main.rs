//! Nodes that push from real repositories to real targets.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod crashes;
mod events;
mod failures;
mod harness;
mod pushes;
mod targets;
