//! CouchDB's HTTP API for everything about replication.

pub mod auth;
