//! The parameters of a job: the members of the body that the parser reads, sealed as a whole. A run fills in defaults.
//! What may be shown is stored next to them in plain text.

use couch::Endpoint;
use document::json::Json;
use jobs::JobId;
use seal::{Sealer, Unreadable};
use serde::{Deserialize, Serialize};

use super::{is_false, job_text};
use replication::params::{Grant, Replication};

/// The members of a body that describe a replication.
const MEMBERS: [&str; 28] = [
    "source",
    "target",
    "proxy",
    "source_proxy",
    "target_proxy",
    "continuous",
    "create_target",
    "create_target_params",
    "doc_ids",
    "filter",
    "query_params",
    "selector",
    "since_seq",
    "use_checkpoints",
    "checkpoint_interval",
    "worker_processes",
    "worker_batch_size",
    "http_connections",
    "connection_timeout",
    "retries_per_request",
    "socket_options",
    "use_bulk_get",
    "winning_revs_only",
    "skip_deleted",
    "skip_design_docs",
    "on_write_failure",
    "filter_where",
    "trigger",
];
const MEMBER_CHECKPOINTS: &str = "checkpoints";
/// Added by the service; clients cannot write this member.
pub(super) const GRANT: &str = "_grant";

/// The parts of a replication that may be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Shown {
    pub(crate) source: Option<String>,
    pub(crate) target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_proxy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_proxy: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) continuous: bool,
    pub(crate) checkpoint_interval: u64,
    /// Whether a trigger repeats it.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) triggered: bool,
}

impl Shown {
    /// Whether it runs, or runs again, until a user stops it.
    pub(crate) fn is_endless(&self) -> bool {
        self.continuous || self.triggered
    }
}

/// The user's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Spec {
    Sealed(String),
    Plain(String),
}

fn context(job: &JobId) -> String {
    format!("job/{}", job_text(job))
}

impl Spec {
    pub(super) fn new(sealer: &Sealer, job: &JobId, body: &Json, grant: Option<&Grant>) -> Self {
        let members = body.as_object().unwrap_or_default().iter();
        let known = |name: &str| MEMBERS.contains(&name) || name == MEMBER_CHECKPOINTS;
        let members = members.filter(|(name, _)| known(name)).cloned();
        let granted = grant.map(|grant| (GRANT.to_owned(), grant.to_json()));
        let members = members.chain(granted).collect();
        let text = Json::Object(members).to_string();
        match sealer.seal(&context(job), &text) {
            Some(sealed) => Self::Sealed(sealed),
            None => Self::Plain(text),
        }
    }

    pub(super) fn reseal(&mut self, sealer: &Sealer, job: &JobId) -> Result<bool, Unreadable> {
        let Self::Sealed(sealed) = self else {
            return Ok(false);
        };
        let new = sealer.reseal(&context(job), sealed)?;
        let changed = new.is_some();
        if let Some(new) = new {
            *sealed = new;
        }
        Ok(changed)
    }

    /// The members as JSON text.
    pub(super) fn open(&self, sealer: &Sealer, job: &JobId) -> Result<String, Unreadable> {
        match self {
            Self::Plain(text) => Ok(text.clone()),
            Self::Sealed(sealed) => sealer.open(&context(job), sealed),
        }
    }
}

impl Shown {
    pub(super) fn of(replication: &Replication) -> Self {
        let proxy = |endpoint: &Endpoint| endpoint.proxy().map(ToString::to_string);
        let options = &replication.options;
        Self {
            source: Some(replication.source.to_string()),
            target: Some(replication.target.to_string()),
            source_proxy: proxy(&replication.source),
            target_proxy: proxy(&replication.target),
            continuous: options.continuous,
            triggered: options.trigger.is_some(),
            checkpoint_interval: u64::try_from(options.checkpoint_interval.as_millis())
                .unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_that_the_parser_reads_is_stored() {
        let sources = [
            include_str!("../../../replication/src/params.rs"),
            include_str!("../../../replication/src/params/options.rs"),
            include_str!("../../../replication/src/params/filter.rs"),
            include_str!("../../../replication/src/params/trigger.rs"),
        ];
        let readers = [
            "get(\"",
            "get_unless_null(\"",
            "boolean(\"",
            "integer(\"",
            "word(\"",
            "flag(\"",
            "number(\n                \"",
            "interval(\"",
            "proxy(\"",
        ];
        // Not part of a replication, or nested members.
        let others = ["cancel", "view"];
        let mut seen = 0;
        for source in sources {
            let code = source.split("#[cfg(test)]").next().unwrap();
            for reader in readers {
                for rest in code.split(reader).skip(1) {
                    let name = rest.split('"').next().unwrap();
                    let known = MEMBERS.contains(&name)
                        || others.contains(&name)
                        || name == MEMBER_CHECKPOINTS;
                    assert!(known, "`{name}` is read and not kept");
                    seen += 1;
                }
            }
        }
        assert!(seen >= MEMBERS.len(), "{seen}");
    }
}
