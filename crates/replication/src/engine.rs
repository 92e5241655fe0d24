//! One run of one replication.
//!
//! ```text
//!  changes feed ──> batches ──> what is missing ──> read ──> write ──> through sequence ──> checkpoint
//!   (reader)                    └──────────── several batches at once ───────────┘
//! ```
//!
//! A run is one future: the reader, the batches in work, checkpoints and timers are polled by one loop, so nothing survives
//! when it is dropped, and dropping it at any moment is safe. Memory is bounded by the size and number of batches and, over
//! all runs of a node, by a [`Budget`]. A run that waits for changes holds one connection and no buffers.

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

use couch::{Network, Seq};
use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::time::timeout;
use tracing::{Instrument as _, info_span};

pub use budget::Budget;
pub use handles::{Checkpoint, Control, Gate, Halt, Handles};
pub use observer::{Mistake, Observer};
pub use progress::{FailedDoc, Phase, Progress, StartedFrom};

use crate::error::Error;
use crate::id::{Identity, Service};
use crate::metrics;
use crate::params::{Filter, Replication};
use crate::stats::Stats;

/// What an operator can set about all runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pause before a revision is fetched again that the source announced and did not have (`missing_doc_retry_msec`).
    pub missing_doc_retry: Duration,
    /// Longer document ids are passed over (`max_document_id_length`).
    pub document_id_bytes_max: Option<usize>,
    /// A run ends when nothing moved for so long although there is something to do.
    pub no_progress_timeout: Option<Duration>,
    /// No request is repeated after so long: half of `health_threshold`.
    pub retry_window: Duration,
    /// Longest time of a request that is no stream (`request_timeout`).
    pub request_timeout: Option<Duration>,
    /// How long a stop waits for the batches in work.
    pub stop_grace: Duration,
    /// Memory of all runs.
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
    /// Its names.
    pub identity: Identity,
    /// The function of its filter that the names were made of.
    pub filter_code: Option<String>,
    /// What earlier runs counted.
    pub stats: Stats,
    /// A new random name, 32 hexadecimal digits.
    pub session_id: String,
    /// How the endpoints are reached.
    pub network: Network,
    pub settings: Settings,
    /// Hears of checkpoints.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Run {
    /// A run of its own, which no job stands behind, with default settings. `session_id` is random.
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

/// How long a source may take to say whether it has more.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// How a run ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything was copied.
    Completed,
    /// It was asked to stop.
    Stopped,
    /// The filter function at the source is another one now, so the replication has another id.
    FilterChanged,
}

/// A run that did not fail.
#[derive(Clone, Debug)]
pub struct Report {
    pub ending: Ending,
    /// The result as `POST /_replicate` answers it, without `ok`.
    pub result: Map<String, Value>,
    /// The last state of its progress.
    pub progress: Progress,
}

/// Finds out the ids of a replication; for a `ddoc/name` filter its function is fetched from the source and returned.
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

/// Whether a source has changes after a sequence that a run would be told of, also when that cannot be found out: whoever
/// runs next says why.
pub async fn has_more(run: &Run, since: &Seq) -> bool {
    let (replication, settings) = (&run.replication, &run.settings);
    let options = &replication.options;
    let ask = async {
        let source = open::connect(&run.network, &replication.source, options, settings, 1);
        let source = source.await.ok()?;
        context::has_after(&source, options, since).await.ok()
    };
    timeout(ANSWER_MAX, ask).await.ok().flatten() != Some(false)
}

/// Runs a replication until it is done, fails, or is stopped. A continuous one is never done.
pub async fn run(run: Run, handles: Handles) -> Result<Report, Error> {
    let abort = handles.abort.clone();
    let stop = handles.stop.clone();
    // Boxed, so that a run that waits does not keep room for what it did before.
    let inner = async {
        let opened = tokio::select! {
            biased;
            // Nothing was done yet, so there is nothing to record.
            () = stop.cancelled() => return Ok(stopped_early()),
            opened = Box::pin(open::open(&run, Timestamp::now())).instrument(info_span!("open")) => {
                opened.inspect_err(|_| metrics::failed_start())?
            }
        };
        Box::pin(driver::drive(&run, opened, handles)).await
    };
    tokio::select! {
        biased;
        () = abort.cancelled() => Err(Error::Halted),
        outcome = inner => outcome,
    }
}

fn stopped_early() -> Report {
    let progress = Progress {
        phase: Phase::Ended,
        ..Progress::default()
    };
    Report {
        ending: Ending::Stopped,
        result: Map::new(),
        progress,
    }
}
