//! What the clients and servers of CouchDB's HTTP API share: headers, bodies, feeds and connections.
//!
//! It must not know documents, databases or credentials, and depends on no other crate of the workspace.
//!
//! Start reading at `multipart.rs`, `feed.rs` and `client.rs`.

pub mod client;
pub mod gzip;
pub mod multipart;

mod body;
mod feed;
mod header;
mod stream;
mod text;

pub use body::{Collected, TooLarge};
pub use feed::FeedKind;
pub use header::{accepts, media_type, parameter};
pub use stream::{Io, Stream};
pub use text::{chain, hex, quote, unhex};
