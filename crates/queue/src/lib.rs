//! Jobs of users: what the [queue](jobs) is to programs in other languages. A user's type has settings of its own, a job
//! has data, progress, result and error as JSON, and the service decides about retries.
//!
//! Knows no HTTP: `api` parses requests and writes responses. Start reading at `types.rs`, `envelope.rs` and `work.rs`.

mod add;
mod cron;
mod envelope;
mod error;
mod keys;
mod lines;
mod lock;
mod manage;
mod name;
mod queue;
mod read;
mod reason;
mod row;
mod schedules;
mod sealed;
mod seconds;
mod settings;
mod tokens;
mod types;
mod work;

pub use add::{DEPTH_MAX, IDS_MAX, NewJob, Refused};
pub use envelope::{Envelope, Raw, given};
pub use error::{Error, Result};
pub use manage::Retried;
pub use name::TypeName;
pub use queue::{OWN_TYPES, PREFIX, Queue};
pub use read::{Failure, Failures, Following, Listing, Numbers, Run, Shown};
pub use schedules::{CatchUp, Fired, Overlap, Schedule, Scheduled, schedules_type};
pub use seconds::Seconds;
pub use settings::{DATA_BYTES_MAX, LimitSetting, RetryPolicy, Right, Roles, Settings};
pub use tokens::{NewToken, Scope, Token};
pub use types::Type;
pub use work::{
    Beat, BeatStatus, Beaten, Claim, Claimed, Ended, EndedStatus, Given, Outcome, WAIT_MAX,
};
