//! Replications as jobs: creates them from documents and requests, runs them on nodes, and reports their state to
//! clients.
//!
//! It must not know HTTP: `api` puts these calls behind CouchDB's routes, and [`replication::engine`] does the copying.
//!
//! Start reading in `create.rs` (documents become jobs), then `server.rs` (a node claims them), then `run.rs` (one run).
//!
//! | what | how |
//! |---|---|
//! | the service | [`Replications::open`] with a queue, databases and a [`Setup`]; settings are [`Options`] |
//! | documents | [`Replications::prepare`] an edit, write it with [`Replications::hook`] for a [`Writer`]; [`strip::for_reader`] on every read |
//! | databases | [`Replications::create_database`], [`delete_database`](Replications::delete_database), [`rescan`](Replications::rescan); [`work_a_little`](Replications::work_a_little) in the background |
//! | `_replicate` | [`Replications::request`] for a [`Caller`], then [`Replications::wait`] for its [`Answer`] |
//! | control | [`Replications::restart`], [`set_paused`](Replications::set_paused), [`cancel`](Replications::cancel);
//! [`find`](Replications::find) resolves ids |
//! | listings | [`Replications::scheduler_jobs`], [`scheduler_job`](Replications::scheduler_job), [`scheduler_docs`](Replications::scheduler_docs), [`scheduler_doc`](Replications::scheduler_doc), [`active_tasks`](Replications::active_tasks), [`job_failures`](Replications::job_failures), [`summary`](Replications::summary) |
//! | all replications | [`Replications::table`], [`causes`](Replications::causes), [`nodes`](Replications::nodes), [`history`](Replications::history), [`shares`](Replications::shares), [`act`](Replications::act) on many |
//! | running | one [`Server`] per replication node |
//! | sleeping | [`Replications::follow_in`] a server, then [`wake_in`](Replications::wake_in) what sleeps on its databases |
//! | trace context of jobs | [`traces`] |
//! | credentials at rest | a [`seal::Sealer`]; [`Replications::reseal_a_little`] after a change of keys |

mod bulk;
mod create;
mod data;
mod events;
mod fault;
mod history;
mod idle;
mod keys;
mod leaving;
mod limits;
mod live;
mod metrics;
mod options;
mod outcome;
mod passwords;
mod permits;
mod quarantine;
mod remote;
mod rows;
mod run;
mod server;
mod service;
mod shares;
#[cfg(test)]
mod simulation;
mod snapshot;
mod starts;
pub mod strip;
mod testing;
pub mod traces;
mod view;
mod wake;
mod writeback;

pub use bulk::{Acted, Action, Chosen};
pub use create::{
    Answer, Asked, Caller, Candidate, DocumentHook, Ended, Failure, Meaning, Prepared, Rank, Ruled,
    Sealed, Started, Writer, count_seals,
};
pub use data::{JobState, Remote, RemoteId, remote_document, remote_name};
pub use events::{Event, EventKind, Events};
pub use fault::ServiceError;
pub use limits::{ServerLimit, StartsLimit};
pub use options::Options;
pub use passwords::{InvalidPasswords, PasswordCell, Passwords};
pub use server::{Load, Server, ServerSetup};
pub use service::{JOB_TIMEOUT, JOB_TYPE, Replications, Scanned, Secrets, Setup};
pub use snapshot::{RowState, hint};
pub use view::{
    Column, DocsPage, DocsQuery, JobsPage, JobsQuery, RemoteState, TableQuery, TasksCursor,
    VISITS_MAX,
};
pub use wake::{Following, Sleeper};
