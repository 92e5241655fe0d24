//! The data of a job's row in the queue, as JSON. Its progress, which changes often, has its own row.

mod asleep;
mod label;
mod origin;
mod remote;
mod spec;

use docstore::InstanceId;
use document::json::Json;
use jiff::Timestamp;
use jobs::JobId;
use seal::{Sealer, Unreadable};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use store::Transaction;

use crate::fault::ServiceError;
use crate::traces;
pub(crate) use asleep::{Asleep, Wake};
pub(crate) use label::{Census, counted, label, waiting};
pub(crate) use origin::{Origin, tenant_named};
pub(crate) use remote::{REMOTES, remote_of, remote_pool};
pub use remote::{Remote, RemoteId, remote_document, remote_name};
use replication::engine::Resume;
use replication::params::{Defaults, Grant, Invalid, Replication};
pub(crate) use spec::{Shown, Spec};

/// Maximum bytes of a document id in a job id; longer ones are cut and end with a hash.
const DOC_ID_BYTES_MAX: usize = 150;

/// The state of a job, as users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It waits to run.
    Pending,
    Running,
    /// It failed, and waits to be retried.
    Crashing,
    Completed,
    /// It failed, and will not be retried.
    Failed,
}

impl JobState {
    /// CouchDB's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Crashing => "crashing",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// Whether the state stays until a user acts.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// An event of a job's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    #[serde(rename = "type")]
    pub(crate) kind: Kind,
    pub(crate) timestamp: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Added,
    Started,
    Stopped,
    Pending,
    Crashed,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::Pending => "pending",
            Self::Crashed => "crashed",
        }
    }
}

/// A server that gives no response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outage {
    pub(crate) server: String,
    pub(crate) reason: String,
}

/// How long a replication that follows its source has not caught up with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Behind {
    /// In seconds.
    pub(crate) since: i64,
    /// Longer than `lagging_after_sec`.
    #[serde(skip_serializing_if = "is_false", default)]
    pub(crate) lagging: bool,
}

/// The data of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobData {
    pub(crate) origin: Origin,
    pub(crate) state: JobState,
    /// `None` when the document could not be parsed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) spec: Option<Spec>,
    #[serde(default)]
    pub(crate) shown: Shown,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) rep_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) base_id: Option<String>,
    /// The error of a crashing or failed job, the statistics of a completed one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) info: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) doc_state: Option<String>,
    #[serde(skip_serializing_if = "is_false", default)]
    pub(crate) paused: bool,
    /// It runs, has caught up and waits for changes.
    #[serde(skip_serializing_if = "is_false", default)]
    pub(crate) idle: bool,
    /// It sleeps in the store. Its state is still `running`, and it is idle.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) asleep: Option<Asleep>,
    /// `None` if it has caught up, or is to run only once.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) behind: Option<Behind>,
    /// Up to where it had read its source when it was put back because the source said that there was more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) asked_through: Option<Box<str>>,
    /// It runs, and one of its servers gives no response.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) unreachable: Option<Outage>,
    #[serde(default)]
    pub(crate) error_count: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) last_error: Option<String>,
    /// Since when the database that its rule is about has been missing, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) missing_since: Option<i64>,
    pub(crate) last_updated: i64,
    #[serde(default)]
    pub(crate) last_start: i64,
    /// When the replication was parsed.
    pub(crate) start_time: i64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) pid: Option<String>,
    /// The span of the request that created it, until its first run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) trace: Option<String>,
    /// Newest first.
    pub(crate) history: Vec<Event>,
    /// What the last run found out for the next.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) resume: Option<Resume>,
    /// The response to `POST /_replicate`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) result: Option<Map<String, Value>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
pub(crate) fn is_false(truth: &bool) -> bool {
    !truth
}

/// The job id of a document, computed without reading the store. Differs once the database is recreated.
/// What the ids of all jobs of a rule begin with, and possibly others.
pub(crate) fn rule_jobs_start(instance: InstanceId, doc_id: &str) -> String {
    let doc_id = escaped(doc_id);
    let end = doc_id.floor_char_boundary(DOC_ID_BYTES_MAX);
    format!("{instance}|{}", &doc_id[..end])
}

/// Clients put job ids into URLs, where `+` decodes to a space.
fn escaped(doc_id: &str) -> String {
    doc_id.replace('%', "%25").replace(' ', "%20")
}

pub(crate) fn document_job_id(instance: InstanceId, doc_id: &str) -> JobId {
    let doc_id = &escaped(doc_id);
    let id = if doc_id.len() <= DOC_ID_BYTES_MAX {
        format!("{instance}|{doc_id}")
    } else {
        let hash = hash(doc_id);
        let end = doc_id.floor_char_boundary(DOC_ID_BYTES_MAX);
        format!("{instance}|{}|{hash}", &doc_id[..end])
    };
    JobId::new(id).expect("a job id has room for a cut document id")
}

/// 32 digits that stand for a text which is too long.
pub(crate) fn hash(text: &str) -> String {
    let hash = Sha256::digest(text);
    let (head, _) = hash.split_at(16);
    let head = head.try_into().expect("sixteen bytes are sixteen bytes");
    format!("{:032x}", u128::from_be_bytes(head))
}

/// A job id as clients see it.
pub(crate) fn job_text(job: &JobId) -> String {
    String::from_utf8_lossy(job.as_bytes()).into_owned()
}

impl Behind {
    pub(crate) fn since_ms(ms: i64) -> Self {
        Self {
            since: ms.div_euclid(1000),
            lagging: false,
        }
    }
}

impl JobData {
    /// The data of a new job.
    pub(crate) fn new(
        sealer: &Sealer,
        job: &JobId,
        origin: Origin,
        (body, grant): (&Json, Option<&Grant>),
        wanted: Result<&Replication, &Invalid>,
        now_ms: i64,
    ) -> Self {
        let now = now_ms.div_euclid(1000);
        let (state, info) = match wanted {
            Ok(_) => (JobState::Pending, None),
            Err(invalid) => (
                JobState::Failed,
                Some(json!({"error": invalid.to_string()})),
            ),
        };
        Self {
            origin,
            state,
            spec: wanted.ok().map(|_| Spec::new(sealer, job, body, grant)),
            shown: wanted.map(Shown::of).unwrap_or_default(),
            rep_id: None,
            base_id: None,
            info,
            doc_state: text(body, "_replication_state"),
            paused: body.get("paused").and_then(Json::as_bool) == Some(true),
            idle: false,
            asleep: None,
            behind: None,
            asked_through: None,
            unreachable: None,
            error_count: u32::from(state == JobState::Failed),
            last_error: None,
            missing_since: None,
            last_updated: now,
            last_start: 0,
            start_time: now,
            node: None,
            pid: None,
            trace: traces::current(),
            history: vec![Event {
                kind: Kind::Added,
                timestamp: now,
                reason: None,
            }],
            resume: None,
            result: None,
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ServiceError> {
        serde_json::from_slice(bytes)
            .map_err(|_| ServiceError::corrupt("the data of a job cannot be decoded"))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("job data is JSON")
    }

    /// The user's parameters with the service's current defaults.
    pub(crate) fn replication(
        &self,
        sealer: &Sealer,
        job: &JobId,
        defaults: &Defaults,
    ) -> Result<Result<Replication, Invalid>, ServiceError> {
        let text = match &self.spec {
            None => return Ok(Err(Invalid::new(self.error_text()))),
            Some(spec) => spec.open(sealer, job)?,
        };
        let body = Json::parse(&text)
            .map_err(|_| ServiceError::corrupt("the replication of a job cannot be decoded"))?;
        let grant = body.get(spec::GRANT).and_then(Grant::from_json);
        Ok(Replication::granted(&body, grant.as_ref(), defaults))
    }

    /// The user's parameters, if they are sealed.
    pub(crate) fn sealed(&self) -> Option<&str> {
        match &self.spec {
            Some(Spec::Sealed(sealed)) => Some(sealed),
            Some(Spec::Plain(_)) | None => None,
        }
    }

    /// Reseals the parameters if the sealing key has changed, and returns whether it did.
    pub(crate) fn reseal(&mut self, sealer: &Sealer, job: &JobId) -> Result<bool, Unreadable> {
        match &mut self.spec {
            Some(spec) => spec.reseal(sealer, job),
            None => Ok(false),
        }
    }

    /// Ends a sleep, for a transaction that writes this data.
    pub(crate) fn wake_in(&mut self, tx: &Transaction, job: &JobId) {
        if let Some(asleep) = self.asleep.take() {
            self.idle = false;
            asleep.end_in(tx, job);
        }
    }

    /// The error as one text.
    pub(crate) fn error_text(&self) -> String {
        self.info.as_ref().map(error_text).unwrap_or_default()
    }

    /// The start of the run, in seconds, while earlier failures still count.
    pub(crate) fn unhealthy_since(&self) -> Option<i64> {
        (self.error_count > 0).then_some(self.last_start)
    }

    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.origin, Origin::Request { .. })
    }

    /// Adds events to the history, the last one newest, and drops the oldest beyond `max`.
    pub(crate) fn note(&mut self, now: i64, kinds: &[(Kind, Option<&str>)], max: usize) {
        for (kind, reason) in kinds {
            self.history.insert(
                0,
                Event {
                    kind: *kind,
                    timestamp: now,
                    reason: reason.map(str::to_owned),
                },
            );
        }
        self.history.truncate(max.max(1));
    }
}

/// The error of an `info` as one text.
pub(crate) fn error_text(info: &Value) -> String {
    let part = |name| info.get(name).and_then(Value::as_str);
    match (part("error"), part("reason")) {
        (Some(error), Some(reason)) => format!("{error}: {reason}"),
        (Some(text), None) | (None, Some(text)) => text.to_owned(),
        (None, None) => String::new(),
    }
}

pub(crate) fn text(body: &Json, name: &str) -> Option<String> {
    body.get(name).and_then(Json::as_str).map(str::to_owned)
}

/// Seconds since 1970 as CouchDB writes times: `2024-02-29T12:00:00Z`.
pub(crate) fn iso(seconds: i64) -> String {
    Timestamp::from_second(seconds)
        .unwrap_or_default()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_are_short_and_unique() {
        let instance = InstanceId([0xab; 16]);
        let id = document_job_id(instance, "my doc");
        assert_eq!(job_text(&id), format!("{}|my%20doc", "ab".repeat(16)));
        let long = "é".repeat(300);
        let (a, b) = (format!("{long}a"), format!("{long}b"));
        let (a, b) = (document_job_id(instance, &a), document_job_id(instance, &b));
        assert_ne!(a, b);
        assert_eq!(job_text(&a).len(), 33 + 150 + 33);
        assert!(!job_text(&a).contains('\u{fffd}'));
    }

    #[test]
    fn parameters_round_trip() {
        let sealer = Sealer::new(vec![("k".into(), [1; 32])]).unwrap();
        let body = Json::parse(
            r#"{"source":"http://u:secret@a/x","target":"http://b/y","junk":1,"since_seq":1.0,"_id":"z","paused":true,"continuous":true}"#,
        )
        .unwrap();
        let defaults = Defaults::default();
        let wanted = Replication::from_document(&body, &defaults).unwrap();
        let job: JobId = "j".try_into().unwrap();
        let origin = Origin::Request { user: None };
        for sealer in [&sealer, &Sealer::plain()] {
            let data = JobData::new(
                sealer,
                &job,
                origin.clone(),
                (&body, None),
                Ok(&wanted),
                5_999,
            );
            let bytes = data.encode();
            let shown = String::from_utf8(bytes.clone()).unwrap();
            assert_eq!(shown.contains("secret"), !sealer.seals());
            let data = JobData::decode(&bytes).unwrap();
            assert_eq!(
                data.replication(sealer, &job, &defaults).unwrap().unwrap(),
                wanted
            );
            assert_eq!(data.shown.source.as_deref(), Some("http://a/x/"));
            assert_eq!(
                (data.start_time, data.paused, data.state),
                (5, true, JobState::Pending)
            );
            assert!(
                sealer.seals()
                    == data
                        .replication(sealer, &"k".try_into().unwrap(), &defaults)
                        .is_err()
            );
        }
        let invalid = Invalid::new("no");
        let data = JobData::new(&sealer, &job, origin, (&body, None), Err(&invalid), 0);
        assert_eq!(
            (data.state, data.error_text().as_str()),
            (JobState::Failed, "no")
        );
        assert!(JobData::decode(b"{}").is_err());
    }

    #[test]
    fn a_history_is_bounded_and_newest_first() {
        let body = Json::Object(Vec::new());
        let job: JobId = "j".try_into().unwrap();
        let origin = Origin::Request { user: None };
        let invalid = Invalid::new("no");
        let mut data = JobData::new(
            &Sealer::plain(),
            &job,
            origin,
            (&body, None),
            Err(&invalid),
            0,
        );
        data.note(7, &[(Kind::Crashed, Some("x")), (Kind::Pending, None)], 2);
        let kinds: Vec<_> = data.history.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [Kind::Pending, Kind::Crashed]);
        assert_eq!(data.history[1].reason.as_deref(), Some("x"));
        assert_eq!(iso(1_709_208_000), "2024-02-29T12:00:00Z");
    }
}
