//! CouchDB's HTTP API for everything about replication.
//!
//! A [`Service`] answers requests; [`listen`] brings them in. Every request takes one way: its path
//! is a [`route::Route`], its headers prove an [`auth::Identity`], the table of [`route::Access`] says
//! whether that may, and one function below `endpoints/` answers.
//!
//! | what | where |
//! |---|---|
//! | settings | [`Options`], the section `[api]` |
//! | who asks | [`auth`] |
//! | what a path names, and who may | [`route`] |
//! | the cluster behind, if there is one | [`Upstream`], the section `[upstream]` |
//! | what a failed request is answered with | [`Error`] |
//! | answers, one file for each family | `endpoints/` |

mod access;
pub mod auth;
mod call;
mod client;
mod endpoints;
mod error;
mod forwarded;
mod health;
pub mod listen;
mod metrics;
mod once;
mod options;
mod pace;
mod pipeline;
mod query;
mod reply;
pub mod route;
mod service;
mod state;
mod upstream;

/// The version of `CouchDB` whose API this is.
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
