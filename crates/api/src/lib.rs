//! CouchDB's HTTP API for everything about replication.
//!
//! A [`Service`] answers requests; [`listen`] accepts their connections. Each request's path is parsed into a
//! [`route::Route`], its headers are authenticated to an [`auth::Identity`], [`route::Access`] says which identities
//! are allowed, and one function below `endpoints/` responds.
//!
//! | what | where |
//! |---|---|
//! | settings | [`Options`], the section `[api]` |
//! | authentication | [`auth`] |
//! | paths and access rules | [`route`] |
//! | the cluster behind the service, if any | [`Upstream`], the section `[upstream]` |
//! | error responses | [`Error`] |
//! | request handlers, one file per group | `endpoints/` |

mod access;
pub mod auth;
mod call;
mod client;
mod endpoints;
mod error;
mod forwarded;
mod health;
mod metrics;
mod once;
mod options;
mod pace;
mod parse;
mod pipeline;
mod query;
mod reply;
pub mod route;
mod service;
mod state;
mod upstream;
mod waits;

/// The version of `CouchDB` whose API this implements.
macro_rules! couchdb_version {
    () => {
        "3.5.2"
    };
}
pub(crate) use couchdb_version;

pub use client::Client;
pub use error::Error;
pub use health::Health;
pub use metrics::Metrics;
pub use options::{Cors, InvalidOption, Options, SameSite};
pub use service::{Service, Setup};
pub use upstream::{Upstream, UpstreamOptions};
