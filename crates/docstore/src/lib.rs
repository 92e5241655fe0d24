//! Replicator databases: documents with their revision trees, and changes, in the same store as the
//! jobs created for documents.
//!
//! It must not know HTTP, jobs or replication: writers pass a [`WriteHook`], which runs in the write's
//! transaction and gets the document before and after the write.
//!
//! Start reading with `keys.rs` (the data model), `write.rs` and `changes.rs`.
//!
//! ```
//! use docstore::{DocStore, Edit, EditMode, InstanceId, NoHook, Options, ReadOptions};
//! use document::doc::Doc;
//!
//! # async fn example(store: store::Store) -> Result<(), docstore::Error> {
//! let docstore = DocStore::new(store, Options::default());
//! let name = docstore.name("sales/_replicator")?;
//! let db = docstore.create(&name, InstanceId([7; 16])).await?;
//!
//! let doc = Doc::parse(r#"{"source": "http://a/x", "target": "http://b/x"}"#)?;
//! let edit = Edit::new("nightly", doc)?;
//! let rev = docstore.put(&db, &edit, EditMode::NewEdits, &NoHook).await?;
//! let read = docstore.get(&db, "nightly", &ReadOptions::default()).await?;
//! assert_eq!(read.rev, rev);
//! # Ok(()) }
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! #     let store = store::Store::open("memory:").await.unwrap();
//! #     tokio::spawn(example(store)).await.unwrap().unwrap();
//! # });
//! ```
//!
//! | what | how |
//! |---|---|
//! | databases | [`DocStore::create`], [`open`](DocStore::open), [`delete_database`](DocStore::delete_database) and [`sweep`](DocStore::sweep), [`databases_page`](DocStore::databases_page), [`info`](DocStore::info), [`security`](DocStore::security), [`revs_limit`](DocStore::revs_limit) |
//! | writing | [`put`](DocStore::put), [`delete`](DocStore::delete), [`bulk_docs`](DocStore::bulk_docs), of [`Edit`]s, `_local` ones among them |
//! | reading | [`get`](DocStore::get), [`get_rev`](DocStore::get_rev), [`open_revs_page`](DocStore::open_revs_page), [`bulk_get_page`](DocStore::bulk_get_page), [`revs_diff`](DocStore::revs_diff), [`local_doc`](DocStore::local_doc) |
//! | listing | [`all_docs_page`](DocStore::all_docs_page), [`all_docs_counts`](DocStore::all_docs_counts), [`find_page`](DocStore::find_page) |
//! | changes | [`changes_page`](DocStore::changes_page), [`changes_pending`](DocStore::changes_pending), [`listen`](DocStore::listen) |
//!
//! - An operation `foo(…)` is a transaction or, where documented, several. `foo_in(&tx, …)` is part of
//!   the caller's transaction, which may contain any operations in any order, with one exception: the
//!   changes and update sequence of a database cannot be read after writes to it.
//! - Pages are bounded in rows, bytes and time; `rest` is the query of the next one. A page is consistent,
//!   a listing of several pages is not.
//! - Only leaves have bodies. The body of a replaced revision is removed by the write, as if CouchDB's
//!   compaction had run.
//! - Random bits are arguments: a database's [`InstanceId`]. Revision ids are CouchDB's, so a retried
//!   write recognises its own success.

mod all_docs;
mod changes;
mod chunks;
mod database;
mod docstore;
mod edit;
mod error;
mod find;
mod hook;
mod keys;
mod local_docs;
mod names;
mod range;
mod read;
mod record;
mod rewrite;
mod rows;
mod seq;
mod shown;
mod sweep;
mod write;

pub use all_docs::{AllDocsCounts, AllDocsPage, AllDocsQuery, AllDocsRow, AllDocsValue};
pub use changes::{ChangeRow, ChangesPage, ChangesQuery, Filter, Listener};
pub use database::{Cluster, DbInfo, Props, Sizes};
pub use docstore::{DocStore, Options};
pub use document::rev::{Rev, RevId, Revisions};
pub use edit::{Content, Edit, NewAttachment};
pub use error::{Error, Result};
pub use find::{Fields, FindPage, FindQuery};
pub use hook::{Change, NoHook, WriteHook};
pub use names::{Db, DbName, InstanceId, NotAnInstanceId};
pub use range::{IdPage, IdRange};
pub use read::{Attachments, BulkGet, OpenRevs, Opened, OpenedPage, ReadOptions, RevsDiff};
pub use rewrite::Rewritten;
pub use seq::{Seq, Since};
pub use shown::{Attachment, Document, Meta};
pub use sweep::Swept;
pub use write::{EditMode, Written};
