//! `couch_jobs`: a transactional job queue that knows nothing of what its jobs do.
//!
//! Creators [`add`](Jobs::add) jobs of a [type](JobType), processors [`accept`](Jobs::accept) them,
//! send heart-beats with [`update`](Jobs::update) and [`finish`](Jobs::finish) them. A job whose
//! holder goes silent comes back. Everything is a transaction on a [store], and can be part of the
//! caller's: a document and the job it makes are written together or not at all.
//!
//! ```
//! # async fn example() -> Result<(), jobs::Error> {
//! use jobs::{Add, Clock, Entropy, Finish, Holder, JobType, Jobs, TypeConfig};
//!
//! let store = store::Store::open("memory:").await?;
//! let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
//! let mail = JobType::new("mail")?;
//! jobs.set_type(&mail, TypeConfig::new(30_000)).await?;
//!
//! jobs.add(&mail, Add::new("to-bob".try_into()?, "hello")).await?;
//!
//! let me = Holder::new("node-1")?;
//! for accepted in jobs.accept(&mail, &me, 10).await?.jobs {
//!     let held = jobs.finish(&accepted.job, Finish::done()).await?;
//!     assert!(!held.again);
//! }
//! # Ok(()) }
//! ```
//!
//! The key space is described at the top of `keys.rs`, the promises and their limits in
//! `docs/jobs.md`.

mod acceptor;
mod bells;
pub mod bench;
#[cfg(test)]
mod bites;
mod check;
mod claim;
mod clock;
mod codec;
mod counts;
mod effects;
mod error;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod golden;
mod header;
mod ids;
mod info;
mod jobs;
mod keep_alive;
mod keys;
mod leases;
mod list;
mod machine;
mod maintenance;
#[cfg(test)]
mod model_bites;
mod monitor;
mod notifier;
mod options;
mod pause;
mod planted;
#[cfg(test)]
mod races;
mod rewrite;
#[cfg(test)]
mod simulation;
mod subscription;
mod sweep;
mod telemetry;
mod type_watcher;
mod types;
mod work;

pub use acceptor::{Acceptor, AcceptorHandle};
pub use check::Check;
pub use claim::{Accepted, Claim, Claimed};
pub use clock::{Clock, Entropy, Op};
pub use counts::{Backlog, Counts};
pub use error::Error;
pub use header::{Attempt, DATA_BYTES_MAX, End, Outcome, REASON_BYTES_MAX, State};
pub use ids::{
    HOLDER_BYTES_MAX, Holder, ID_BYTES_MAX, Job, JobId, JobLock, JobType, Lane, TYPE_BYTES_MAX,
};
pub use info::JobInfo;
pub use jobs::{Add, Added, Jobs, Retention};
pub use list::{Cursor, Listed, PAGE_JOBS_MAX, Page, Query};
pub use machine::Verdict;
pub use maintenance::Maintenance;
pub use monitor::{ByPolicy, StallHook};
pub use notifier::{Notifier, NotifierHandle};
pub use options::Options;
pub use rewrite::Rewritten;
pub use subscription::{Notice, Subscription};
pub use type_watcher::{TypeMap, TypeWatcher, Types};
pub use types::{StallPolicy, TypeConfig};
pub use work::{Finish, Held};

/// What every fallible operation of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;
