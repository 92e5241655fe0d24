//! `couch_jobs`: a transactional job queue that knows nothing of what its jobs do.
//!
//! Creators [`add`](Jobs::add) jobs of a [type](JobType), workers [`accept`](Jobs::accept) them,
//! send heartbeats with [`update`](Jobs::update) and [`finish`](Jobs::finish) them. A job whose
//! holder goes silent is recovered. Everything is a transaction on a [store], and can join the
//! caller's: a document and the job it creates are written together or not at all. There, each call waits for the one
//! before it: it may give another job a slot, or a tenant its turn, which the next call has to see.
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
//! The top of `keys.rs` describes the key space, `docs/jobs.md` the guarantees and their limits.

// Other programs may embed this crate.
#![warn(missing_docs)]

mod error;
mod handle;
mod model;
mod operations;
mod services;
mod telemetry;
mod testing;

pub use error::Error;
pub use handle::Jobs;
pub use model::class::{Class, TENANT_BYTES_MAX, Tenant};
pub use model::clock::{Clock, Entropy, Op, millis};
pub use model::header::{Attempt, DATA_BYTES_MAX, End, Outcome, REASON_BYTES_MAX, State};
pub use model::ids::{
    HOLDER_BYTES_MAX, Holder, ID_BYTES_MAX, Job, JobId, JobLock, JobType, Lane, TYPE_BYTES_MAX,
    fraction, name_part,
};
pub use model::limits::{LIMIT_BYTES_MAX, LIMIT_SLOTS_MAX, Limit, LimitName, Limits};
pub use model::machine::{Finish, Held, RETURNED, Verdict};
pub use model::types::{Sharing, StallPolicy, TypeConfig};
pub use operations::check::Check;
pub use operations::claim::{Accepted, Claim, Claimed};
pub use operations::counts::{Backlog, Counts};
pub use operations::create::{Add, Added, Retention};
pub use operations::inbox::Inbox;
pub use operations::info::JobInfo;
pub use operations::limits::LimitUse;
pub use operations::list::{Cursor, Listed, PAGE_JOBS_MAX, Page, Pages, Query};
pub use operations::rewrite::Rewritten;
pub use operations::signal::{Revive, Signal};
pub use operations::tenants::{SHARES_DEFAULT, SHARES_MAX, TenantUse};
pub use services::acceptor::{Acceptor, AcceptorHandle};
pub use services::maintenance::Maintenance;
pub use services::monitor::{ByPolicy, StallHook};
pub use services::notifier::{Notifier, NotifierHandle};
pub use services::options::Options;
pub use services::subscription::{Notice, Subscription};
pub use services::type_watcher::{TypeMap, TypeWatcher, Types};
pub use services::worker::{Failure, Retry, Task, Worker, WorkerOptions, decode, encode};
#[doc(hidden)]
pub use testing::planted::{Bug, Planted};

/// The result of every fallible operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;
