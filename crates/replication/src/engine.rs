//! One run of one replication.
//!
//! ```text
//!  changes feed ──> batches ──> what is missing ──> read ──> write ──> through sequence ──> checkpoint
//!   (reader)                    └──────────── several batches at once ───────────┘
//! ```
//!
//! A run is one future: one loop polls the reader, batches in progress, checkpoints and timers. Nothing survives when
//! it is dropped, and dropping it at any moment is safe. Memory is bounded by the size and number of batches and, over
//! all runs of a node, by a [`Budget`]. A run that waits for changes keeps one connection and no buffers.

mod attachments;
mod budget;
mod concurrency;
mod context;
mod driver;
mod handles;
mod observer;
mod open;
mod progress;
mod ratio;
mod read;
mod reader;
mod single;
mod through;
mod work;
mod write;
mod write_size;

use std::sync::Arc;
use std::time::Duration;

use couch::{Database, Network, Seq};
use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::time::timeout;
use tracing::{Instrument as _, info_span};

pub use crate::checkpoint::Resume;
pub use budget::Budget;
pub use handles::{Checkpoint, Control, Gate, Halt, Handles};
pub use observer::{Mistake, Observer};
pub use progress::{FailedDoc, Phase, Progress, StartedFrom, show_seq};

use crate::error::Error;
use crate::id::{Identity, Service};
use crate::metrics;
use crate::params::{Filter, Replication};
use crate::stats::Stats;

/// Settings of all runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pause before refetching a revision that the source announced but did not have (`missing_doc_retry_msec`).
    pub missing_doc_retry: Duration,
    /// Documents with longer ids are skipped (`max_document_id_length`).
    pub document_id_bytes_max: Option<usize>,
    /// A run fails after this time without progress while changes are pending.
    pub no_progress_timeout: Option<Duration>,
    /// Requests are not retried after this time: half of `health_threshold`.
    pub retry_window: Duration,
    /// Time limit of a request that does not stream (`request_timeout`).
    pub request_timeout: Option<Duration>,
    /// How long a stop waits for batches in progress.
    pub stop_grace: Duration,
    /// Memory shared by all runs.
    pub budget: Budget,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            missing_doc_retry: Duration::from_secs(2),
            document_id_bytes_max: None,
            no_progress_timeout: Some(Duration::from_mins(10)),
            retry_window: Duration::from_mins(1),
            request_timeout: None,
            stop_grace: Duration::from_secs(2),
            budget: Budget::default(),
        }
    }
}

#[derive(Clone)]
pub struct Run {
    /// The replication; `auth.secret_ref` is resolved.
    pub replication: Replication,
    pub identity: Identity,
    /// The source of its filter function that the ids were computed from.
    pub filter_code: Option<String>,
    /// Counters of earlier runs.
    pub stats: Stats,
    /// The documents that the target rejected in earlier runs.
    pub failures: Arc<Vec<FailedDoc>>,
    /// When an earlier run last copied anything.
    pub last_progress: Option<Timestamp>,
    /// What the last run of this job reported in its progress, if it is kept: checkpoints are then not always rewritten.
    pub resume: Option<Resume>,
    /// A new random id, 32 hexadecimal digits.
    pub session_id: String,
    /// Connections to the endpoints.
    pub network: Network,
    pub settings: Settings,
    /// Notified of checkpoints.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Run {
    /// A run without a job, with default settings. `session_id` is random.
    pub async fn alone(
        replication: Replication,
        uuid: &str,
        network: Network,
        session_id: String,
    ) -> Result<Self, Error> {
        let settings = Settings::default();
        let service = Service {
            uuid: uuid.to_owned(),
            legacy_host: None,
        };
        let (identity, filter_code) = identify(&replication, &service, &network, &settings).await?;
        Ok(Self {
            replication,
            identity,
            filter_code,
            stats: Stats::default(),
            failures: Arc::default(),
            last_progress: None,
            resume: None,
            session_id,
            network,
            settings,
            observer: None,
        })
    }

    fn planted(&self) -> Option<Mistake> {
        self.observer.as_ref()?.planted()
    }
}

/// Time limit for asking the source whether it has more changes.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// How a run ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All changes were copied.
    Completed,
    /// It was stopped.
    Stopped,
    /// The filter function at the source changed, so the replication has a new id.
    FilterChanged,
}

/// The result of a run without an error.
#[derive(Clone, Debug)]
pub struct Report {
    pub ending: Ending,
    /// The result in the form of `POST /_replicate`, without `ok`.
    pub result: Map<String, Value>,
    /// The final progress.
    pub progress: Progress,
}

/// Computes the ids of a replication. For a `ddoc/name` filter, its source is fetched and returned.
pub async fn identify(
    replication: &Replication,
    service: &Service,
    network: &Network,
    settings: &Settings,
) -> Result<(Identity, Option<String>), Error> {
    let code = match &replication.options.filter {
        Filter::User {
            design_doc, name, ..
        } => {
            let source =
                open::open_source(network, &replication.source, &replication.options, settings)
                    .await?;
            Some(open::fetch_filter(&source, design_doc, name).await?)
        }
        _ => None,
    };
    Ok((Identity::of(replication, service, code.as_deref()), code))
}

/// What a source has after a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// As many changes as were asked for, or that cannot be determined: the next run reports the error.
    More,
    /// Fewer; the last sequence of the database.
    Fewer(Seq),
}

/// Whether a source has at least so many relevant changes after a sequence.
pub async fn ahead(
    (network, settings): (&Network, &Settings),
    replication: &Replication,
    since: &Seq,
    count: u64,
) -> Ahead {
    let options = &replication.options;
    let ask = async {
        let source = open::connect(network, &replication.source, options, settings, 1);
        let source = source.await.ok()?;
        context::fewer_after(&source, options, since, count)
            .await
            .ok()
    };
    match timeout(ANSWER_MAX, ask).await.ok().flatten() {
        Some(Some(last)) => Ahead::Fewer(last),
        Some(None) | None => Ahead::More,
    }
}

/// Copies the `_security` object of the source to the target if they differ. A source that has none changes nothing: the
/// target would be open to all.
pub async fn copy_security(
    (network, settings): (&Network, &Settings),
    replication: &Replication,
) -> Result<(), Error> {
    let connect = |endpoint| open::connect(network, endpoint, &replication.options, settings, 1);
    let (source, target) =
        tokio::try_join!(connect(&replication.source), connect(&replication.target))?;
    let failed = |verb: &str, of: &Database| {
        let what = format!("{verb} `_security` of {}", of.endpoint().url_text());
        move |cause| Error::Security { what, cause }
    };
    let wanted = source.security_if_any().await;
    let Some(wanted) = wanted.map_err(failed("read", &source))? else {
        return Ok(());
    };
    let present = target.security_if_any().await;
    if present.map_err(failed("read", &target))?.as_ref() == Some(&wanted) {
        return Ok(());
    }
    let written = target.put_security(&wanted).await;
    written.map_err(failed("write", &target))
}

/// Runs a replication until it completes, fails, or is stopped. A continuous one never completes.
pub async fn run(mut run: Run, handles: Handles) -> Result<Report, Error> {
    let abort = handles.abort.clone();
    let stop = handles.stop.clone();
    // Nothing has happened yet that should be noticed.
    handles.progress.send_if_modified(|progress| {
        progress.failures = Arc::clone(&run.failures);
        progress.last_progress = run.last_progress;
        false
    });
    // Boxed, so that a waiting run does not keep space for the earlier phase.
    let inner = async {
        loop {
            let opened = tokio::select! {
                biased;
                // Nothing was done, so there is nothing to record.
                () = stop.cancelled() => return Ok(stopped_early(run.resume)),
                opened = Box::pin(open::open(&run, Timestamp::now())).instrument(info_span!("open")) => {
                    opened.inspect_err(|_| metrics::failed_start())?
                }
            };
            let was_warm = opened.resume.is_some();
            match Box::pin(driver::drive(&run, opened, handles.clone())).await {
                // It may have been another database from the beginning: one that was restored with its checkpoint.
                // A run that is to stop cannot begin anew.
                Err(Error::Checkpoint(_)) if was_warm && !stop.is_cancelled() => {
                    run.resume = None;
                    run.stats = handles.progress.borrow().stats;
                }
                ended => return ended,
            }
        }
    };
    tokio::select! {
        biased;
        () = abort.cancelled() => Err(Error::Halted),
        outcome = inner => outcome,
    }
}

fn stopped_early(resume: Option<Resume>) -> Report {
    let progress = Progress {
        resume,
        ..Progress::default()
    };
    Report {
        ending: Ending::Stopped,
        result: Map::new(),
        progress,
    }
}
