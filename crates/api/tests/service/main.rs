//! The service, asked without a network.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod databases;
mod fixture;
mod forgery;
mod limits;
mod server;
mod session;
