//! The client against servers that say exactly what a test wants.

#![expect(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests fail by panicking, and tables of cases are long"
)]

mod auth;
mod changes;
mod copies;
mod documents;
mod egress;
mod failures;
mod fake;
mod feeds;
mod health;
mod limits;
mod nonsense;
mod pool;
mod proxies;
mod redirects;
mod requests;
mod revisions;
mod secrets;
mod tls;
