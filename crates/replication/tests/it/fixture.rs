//! A peer with a source `a` and a target `b`, and replications from one to the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use couch::{EgressOptions, Network, NetworkOptions};
use document::json::Json;
use peer::{Difference, Options, Peer, compare};
use replication::engine::{
    Control, Ending, Gate, Handles, Progress, Report, Run, Settings, identify, run,
};
use replication::id::Service;
use replication::params::{Defaults, Replication};
use replication::{Error, Stats};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

static SESSIONS: AtomicU64 = AtomicU64::new(1);

pub(crate) struct World {
    pub(crate) source: Peer,
    /// Where the target is, when not with the source.
    other: Option<Peer>,
    pub(crate) network: Network,
    pub(crate) settings: Settings,
    pub(crate) defaults: Defaults,
}

/// A replication in the background; it ends when dropped.
pub(crate) struct Running {
    pub(crate) control: Control,
    task: AbortOnDropHandle<Result<Report, Error>>,
}

pub(crate) fn network() -> Network {
    let options = NetworkOptions {
        egress: EgressOptions::open(),
        ..NetworkOptions::default()
    };
    Network::new(options, [7; 32]).unwrap()
}

impl World {
    /// Source and target on one peer.
    pub(crate) async fn new() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let source = Peer::start(options).await.unwrap();
        source.create_database("a").unwrap();
        source.create_database("b").unwrap();
        Self::of(source, None)
    }

    /// Source and target on peers of their own.
    pub(crate) async fn apart(source: Options, target: Options) -> Self {
        let source = Peer::start(source).await.unwrap();
        source.create_database("a").unwrap();
        let target = Peer::start(target).await.unwrap();
        target.create_database("b").unwrap();
        Self::of(source, Some(target))
    }

    fn of(source: Peer, other: Option<Peer>) -> Self {
        let settings = Settings {
            missing_doc_retry: Duration::from_millis(10),
            ..Settings::default()
        };
        Self {
            source,
            other,
            network: network(),
            settings,
            defaults: Defaults::default(),
        }
    }

    pub(crate) fn target(&self) -> &Peer {
        self.other.as_ref().unwrap_or(&self.source)
    }

    /// The replication with these options, or other endpoints.
    pub(crate) fn replication(&self, options: &Value) -> Replication {
        let mut body = json!({
            "source": self.source.database_url("a"), "target": self.target().database_url("b"),
        });
        for (name, value) in options.as_object().unwrap() {
            body[name] = value.clone();
        }
        Replication::from_document(&Json::parse(&body.to_string()).unwrap(), &self.defaults)
            .unwrap()
    }

    pub(crate) async fn prepare(&self, options: &Value, stats: Stats) -> Result<Run, Error> {
        let replication = self.replication(options);
        let service = Service {
            uuid: "0123".to_owned(),
            legacy_host: None,
        };
        let (identity, filter_code) =
            identify(&replication, &service, &self.network, &self.settings).await?;
        let session_id = format!("{:032x}", SESSIONS.fetch_add(1, Ordering::Relaxed));
        let (network, settings) = (self.network.clone(), self.settings.clone());
        Ok(Run {
            replication,
            identity,
            filter_code,
            stats,
            failures: Arc::default(),
            last_progress: None,
            resume: None,
            session_id,
            network,
            settings,
            observer: None,
        })
    }

    pub(crate) async fn try_replicate(&self, options: Value) -> Result<Report, Error> {
        self.try_replicate_from(options, Stats::default()).await
    }

    pub(crate) async fn try_replicate_from(
        &self,
        options: Value,
        stats: Stats,
    ) -> Result<Report, Error> {
        let prepared = self.prepare(&options, stats).await?;
        let (_control, handles) = Handles::new(Gate::open());
        tokio::time::timeout(PATIENCE, run(prepared, handles))
            .await
            .expect("a replication hangs")
    }

    /// Replicates to the end.
    pub(crate) async fn replicate(&self, options: Value) -> Report {
        let outcome = self
            .try_replicate(options)
            .await
            .unwrap_or_else(|error| panic!("{}", error.to_info()));
        assert_eq!(outcome.ending, Ending::Completed);
        outcome
    }

    /// Replicates to the end, as the next run of the same job.
    pub(crate) async fn repeat(&self, options: Value, last: &Report) -> Report {
        let mut prepared = self.prepare(&options, last.progress.stats).await.unwrap();
        prepared.resume.clone_from(&last.progress.resume);
        let (_control, handles) = Handles::new(Gate::open());
        let run = tokio::time::timeout(PATIENCE, run(prepared, handles));
        run.await.expect("a replication hangs").unwrap()
    }

    pub(crate) async fn start(&self, options: Value) -> Running {
        self.start_from(options, Stats::default(), Gate::open())
            .await
    }

    pub(crate) async fn start_from(&self, options: Value, stats: Stats, gate: Gate) -> Running {
        let prepared = self.prepare(&options, stats).await.unwrap();
        Running::of(prepared, gate)
    }

    pub(crate) fn put(&self, json: &Value) {
        self.source.put("a", &json.to_string()).unwrap();
    }

    pub(crate) fn put_docs(&self, numbers: std::ops::Range<u32>) {
        let docs = numbers.map(|n| json!({"_id": format!("doc{n:04}"), "integer": n}).to_string());
        self.source.put_all("a", docs).unwrap();
    }

    /// What of the target is not as in the source.
    pub(crate) fn differences(&self) -> Vec<Difference> {
        let source = self.source.contents("a").unwrap();
        let target = self.target().contents("b").unwrap();
        compare(&source, &target)
    }

    /// Documents, leaves, attachments and checkpoints are the same.
    pub(crate) fn assert_same(&self) {
        assert_eq!(self.differences(), []);
    }

    /// The same without checkpoints.
    pub(crate) fn assert_same_docs(&self) {
        let source = self.source.contents("a").unwrap().without_locals();
        let target = self.target().contents("b").unwrap().without_locals();
        assert_eq!(compare(&source, &target), []);
    }

    pub(crate) fn target_ids(&self) -> Vec<String> {
        self.target()
            .contents("b")
            .unwrap()
            .documents
            .into_keys()
            .collect()
    }
}

impl Running {
    pub(crate) fn of(prepared: Run, gate: Gate) -> Self {
        let (control, handles) = Handles::new(gate);
        let task = AbortOnDropHandle::new(tokio::spawn(run(prepared, handles)));
        Self { control, task }
    }

    /// Waits until the progress is such.
    pub(crate) async fn until(&self, such: impl Fn(&Progress) -> bool) -> Progress {
        let mut progress = self.control.progress();
        let wait = progress.wait_for(such);
        let found = tokio::time::timeout(PATIENCE, wait)
            .await
            .expect("it does not come so far");
        found.expect("the run has ended").clone()
    }

    pub(crate) async fn end(self) -> Result<Report, Error> {
        let ended = tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("it does not end");
        ended.expect("the run does not panic")
    }

    pub(crate) async fn stop(self) -> Report {
        self.control.stop();
        let outcome = self.end().await.unwrap();
        assert_eq!(outcome.ending, Ending::Stopped);
        outcome
    }
}

/// The newest entry of a result's history.
pub(crate) fn newest(outcome: &Report) -> &Value {
    &outcome.result["history"][0]
}

/// Checked, found, read, written, failed.
pub(crate) fn counts(outcome: &Report) -> [u64; 5] {
    let stats = outcome.progress.stats;
    [
        stats.missing_checked,
        stats.missing_found,
        stats.docs_read,
        stats.docs_written,
        stats.doc_write_failures,
    ]
}
