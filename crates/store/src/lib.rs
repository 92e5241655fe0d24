//! FoundationDB's contract on three backends: memory (the executable specification), LMDB (one
//! host, no set-up) and FoundationDB (a cluster).
//!
//! It must not know JSON, HTTP or jobs. Start reading with `transaction.rs` (what a caller does),
//! `pending.rs` (what a transaction has read and written, on any backend) and `memory.rs`.
//!
//! Modules depend downwards only: limits, errors and ranges, then `pending`, then a module for each
//! backend, then the enums over the backends (`local`, `transaction`, `store`), then what uses them
//! (`retry`, `metadata`, `transfer`).
//!
//! A [`Store`] is an ordered map from keys to values. It is read and written in strictly
//! serializable transactions:
//!
//! ```
//! # async fn example(store: store::Store) -> Result<(), store::Error> {
//! let count = store
//!     .transact("count_visit", |tx| async move {
//!         tx.add(b"visits", 1);
//!         tx.get(b"visits").await
//!     })
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! A transaction body is pure: all it does is read and write through its [`Transaction`]. The time
//! and random bits are determined before and passed in, so a retried body is the same transaction
//! and recognises its own earlier success (see [`Transaction::maybe_committed`]).
//!
//! Limits are the same on every backend; see [`limits`].

// Other programs may embed this crate.
#![warn(missing_docs)]

mod call;
mod counting;
mod error;
mod faults;
#[cfg(feature = "fdb")]
mod fdb;
#[cfg(not(feature = "fdb"))]
#[path = "fdb_absent.rs"]
mod fdb;
pub mod limits;
mod lmdb;
mod local;
mod memory;
mod metadata;
pub mod nodes;
mod options;
mod pending;
mod range;
mod read_all;
mod retry;
mod stats;
mod store;
mod transaction;
mod transfer;
pub mod tuple;
mod watch;

pub use call::{Call, Durable, Priority};
pub use counting::{Counting, Part, Traffic};
pub use error::{AsStoreError, Cause, Error, Limit, chain};
pub use faults::{CommitFate, FaultControl, Faults, ReadLog, Reads, Weaken, Weakened};
pub use fdb::shutdown;
pub use lmdb::Space;
pub use options::{Durability, Formats, OpenOptions};
pub use range::{KeyRange, KeyValue, RangeOptions};
pub use read_all::read_all;
pub use stats::TransactionStats;
pub use store::Store;
pub use transaction::{Alone, CommitStamp, RangeRead, Snapshot, Transaction};
pub use transfer::{Scan, Totals, TransferError};
pub use watch::Watch;

/// The result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;
