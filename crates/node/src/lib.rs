//! Configuration, roles and wiring of a Davenport process: what the binaries run.

pub mod cli;
