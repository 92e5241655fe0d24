//! What goes wrong on purpose, and what feeds tell, as a client sees it on the wire.

#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests fail by panicking, and tell their story at length"
)]

mod faults;
mod feeds;
mod restart;
