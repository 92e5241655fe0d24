//! Jobs from their documents and requests to their ends, between in-memory databases over real connections.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::duration_suboptimal_units,
    clippy::needless_pass_by_value,
    reason = "a test may fail, tells a story, and says what it skips"
)]

mod cut_off;
mod documents;
mod fixture;
mod idle;
mod limits;
mod nodes;
mod requests;
mod shares;
mod sleep;
mod suspects;
