//! CouchDB's HTTP API for everything about replication.

pub mod auth;
mod error;
pub mod listen;
pub mod route;

pub use error::Error;
