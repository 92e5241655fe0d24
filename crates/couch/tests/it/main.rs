//! The client against servers that say exactly what a test wants.

mod auth;
mod changes;
mod documents;
mod egress;
mod fake;
mod limits;
mod pool;
mod proxies;
mod redirects;
mod requests;
