//! Nodes that push from real repositories to real targets.

mod crashes;
mod events;
mod failures;
mod harness;
mod pushes;
mod targets;
