//! An in-memory CouchDB-compatible server with fault injection, for tests, the demo and benchmarks.
//!
//! ```no_run
//! # async fn example() -> Result<(), peer::Error> {
//! use peer::{Fault, Faults, On, Options, Peer};
//!
//! let peer = Peer::start(Options::default()).await?;
//! peer.create_database("mail")?;
//! peer.put("mail", r#"{"_id":"a","subject":"hello"}"#)?;
//! peer.set_faults(Faults::script([(On::get("*/_changes").nth(1), Fault::CutBody { after_bytes: 10 })]));
//! println!("{}", peer.database_url("mail"));
//! # Ok(())
//! # }
//! ```
//!
//! It answers as one node of CouchDB 3.5 does, byte for byte where a client could notice. What it does not do: views, `_find`,
//! partitions, purging, JavaScript (closures stand for known functions), and anything that survives the process.

mod attachment;
mod auth;
mod clock;
mod compare;
mod db;
mod events;
mod faults;
mod functions;
mod http;
mod listener;
mod options;
mod peer;
mod record;
mod refusal;
mod render;
mod reply;
mod request;
mod security;
mod seq;
mod server;
mod supervisor;

pub use attachment::Attachment;
pub use compare::{Contents, Difference, Leaf, compare};
pub use events::FeedFaults;
pub use faults::{Fault, Faults, Injected, On, Profile};
pub use functions::{Functions, Objection, Query, UserContext, sources};
pub use listener::Door;
pub use options::{Limits, Options, SeqForm};
pub use peer::{Error, Peer};
pub use record::Recorded;
pub use refusal::Refusal;
