//! Servers whose databases are followed.
//!
//! Each source has one job, held by one node at a time ([`Followers`]). It reads the server's feed of updates, and in the
//! transaction that saves its position it wakes what waits for these databases. A feed may lose updates, so the sequences
//! of the databases are compared from time to time as well (`sweep.rs`).

mod feed;
mod follower;
mod heard;
mod metrics;
pub(crate) mod options;
mod position;
mod reactions;
mod seed;
mod service;
mod sweep;
mod wake;

pub use options::{FeedKind, InvalidSource, Source, SourceOptions, SourcesOptions};
pub use position::Position;
pub use reactions::RuleBook;
pub use service::{FEEDS, Followers, list};
