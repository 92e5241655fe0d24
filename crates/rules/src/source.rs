//! Servers whose databases are followed.
//!
//! Each source has one job, held by one node at a time ([`Followers`]). It reads the server's feed of updates, and in the
//! transaction that saves its position it wakes what waits for these databases. A feed may lose updates, so the sequences
//! of the databases are compared from time to time as well ([`sweep`]).

mod feed;
mod follower;
mod options;
mod position;
mod service;
mod sweep;

pub use options::{FeedKind, InvalidSource, SourceOptions, SourcesOptions};
pub use position::Position;
pub use service::{FEEDS, Followers, list};

use couch::Endpoint;

/// A server whose databases are followed, from `[sources.NAME]`.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    server: Endpoint,
    options: SourceOptions,
    exclude: regex_automata::meta::Regex,
}

impl Source {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server, with the source's credentials.
    pub fn server(&self) -> &Endpoint {
        &self.server
    }

    pub fn options(&self) -> &SourceOptions {
        &self.options
    }

    /// Whether changes of a database count.
    pub fn follows(&self, database: &str) -> bool {
        self.options.exclude.is_empty() || !self.exclude.is_match(database)
    }
}
