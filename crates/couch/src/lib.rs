//! One CouchDB-compatible server seen over HTTP.
//!
//! # Using it
//!
//! A node has one [`Network`]: connection pools, sessions, rate limits and the egress policy. It is
//! a cheap handle. An [`Endpoint`] opened on it becomes a [`Database`] (or, for the root of a
//! server, a [`Server`]), which is a cheap handle too; all its clones share one limit of
//! connections.
//!
//! ```no_run
//! # use couch::{ChangesRequest, Endpoint, Error, Network, NetworkOptions, RequestOptions};
//! # async fn example(endpoint: Endpoint, seed: [u8; 32]) -> Result<(), Error> {
//! let network = Network::new(NetworkOptions::default(), seed)?;
//! // Logs in, if there are credentials and sessions.
//! let source = network.database(endpoint, RequestOptions::default()).await?;
//! let info = source.info().await?;
//! println!("{} started at {}", info.update_seq.as_json(), info.instance_start_time);
//! let mut feed = source.changes(&ChangesRequest::default()).await?;
//! while let Some(change) = feed.next().await? {
//!     println!("{} {:?}", change.id, change.revs);
//! }
//! println!("{:?} {:?}", feed.last_seq(), feed.pending());
//! # Ok(())
//! # }
//! ```
//!
//! | call | request | response |
//! |---|---|---|
//! | `create(&[(name, value)])` | `PUT db` | `Err` for any status of 400 or more |
//! | `info()` | `GET db` | [`DatabaseInfo`] |
//! | `pending(&seq)` | `_changes?limit=0`, or `GET db` for numbers | rows after it, if the server says |
//! | `changes(&request)` | `_changes` | [`Changes`], a stream of [`Change`] |
//! | `revs_diff(&[(DocId, Vec<Rev>)])` | `_revs_diff` | [`MissingRevs`] in the order of the response |
//! | `bulk_get(&[WantedRev], attachments)` | `_bulk_get` as JSON | [`BulkGet`], a stream of [`Fetched`] by index of what was wanted |
//! | `open_revs(&id, revs, &atts_since)` | `GET doc?open_revs` | [`Revisions`], a stream of [`Revision`] |
//! | `bulk_docs(&[Bytes])` | `_bulk_docs`, `new_edits=false` | [`DocError`] of each document not taken |
//! | `put(&document)` | `PUT doc?new_edits=false` | |
//! | `put_with_attachments(&document, &mut attachments)` | the same, multipart, streamed from a [`Revision`] | |
//! | `local(id)`, `put_local(id, &body)` | `_local/id` | the parsed body, the new revision |
//! | `ensure_full_commit()` | `_ensure_full_commit` | `instance_start_time` |
//! | `security()`, `security_if_any()` | `GET db/_security` | the object |
//! | `put_security(&object)` | `PUT db/_security` | |
//! | `document(&id)` | `GET doc` | a [`Document`], design documents for their filters |
//! | `Server::{dbs_info, db_updates}` | `_dbs_info`, `_db_updates` | |
//!
//! Documents are [`Document`]s: the JSON text of the server, untouched, with the few members that
//! replication looks at. Everything that streams takes one of the endpoint's connections until it
//! is read to its end or dropped; dropping a future or a stream stops the request at once.
//!
//! # What every request does
//!
//! It waits for a connection of its endpoint (`http_connections`, first come first served), then as
//! long as the rate limiter of its host and method says; it carries session cookie, token or Basic
//! credentials; it follows up to five redirects, without credentials and the user's headers once
//! the origin changes; 429 (and 503 with `Retry-After`) slow all requests to that key down and
//! don't count, other 5xx, 408, lost connections and time-outs are repeated after 250 ms, doubling,
//! `retries` times and within `retry_window_ms`. Time-outs measure inactivity, apart for sending
//! and receiving, and never run while we do not read. All responses have byte limits.
//!
//! # What no request does
//!
//! Reach an address that the egress policy does not allow: host names are resolved once, all their
//! addresses checked, and the checked address is connected to. Show credentials. Hold an
//! attachment, or a feed, in memory.
//!
//! Connections are made here and not by a general-purpose client, because `connect_to` changes
//! address *and port* below TLS, literal addresses must pass the same check as resolved ones, and
//! a connection must be closed after certain responses.

mod auth;
mod body;
mod caller;
mod connect_to;
mod database;
mod document;
mod egress;
mod endpoint;
mod error;
mod exchange;
mod feed;
mod health;
mod limiter;
mod login;
mod metrics;
mod net;
mod network;
mod options;
mod payload;
mod peer;
mod policy;
mod retry;
mod rows;
mod secret;
mod server;
mod traffic;
mod types;

pub use caller::{Called, Caller, NoAnswer};
pub use database::{
    BulkGet, Change, Changes, ChangesFilter, ChangesRequest, Database, DatabaseInfo, DocError,
    Fetched, MissingRevs, Revision, Revisions, WantedRev, WantedRevs,
};
pub use document::{Attachment, Attachments, Document};
pub use egress::{Blocked, EgressOptions, Reach};
pub use endpoint::{
    AuthMethod, ClientCredentials, DEFAULT_HEADERS, Endpoint, IamKey, InvalidEndpoint, NamedSecret,
    Proxy, ProxyScheme, Schemes, TlsOverrides, USER_AGENT,
};
pub use error::{Answer, Error, Failure, Request};
pub use feed::Idle;
pub use health::{ProbeTimes, Reachability};
pub use net::{ConnectFn, ResolveFn, Resolver, Transport};
pub use network::Network;
pub use options::{NetworkOptions, RateLimitScope, RequestOptions};
pub use policy::Policy;
pub use secret::{Basic, Secret};
pub use server::{DatabaseUpdate, DatabaseUpdates, ListedDatabase, Server};
pub use traffic::Traffic;
pub use types::{DocId, Rev, Seq};
pub use wire::FeedKind;
