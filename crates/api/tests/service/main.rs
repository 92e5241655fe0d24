//! The service, asked without a network.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod changes;
mod databases;
mod documents;
mod fixture;
mod forgery;
mod limits;
mod listing;
mod owners;
mod server;
mod session;
mod users;
mod validation;
