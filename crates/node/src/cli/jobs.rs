//! `davenport jobs`: lists and controls jobs of a service, over HTTP.

mod of_type;
mod requests;

use anyhow::bail;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::Value;

use super::output::{self, cell};
use super::service::{Service, ServiceFlags, of_job};
use super::unusable;
use requests::{LIST, path};

#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    service: ServiceFlags,
    /// Act on users' jobs of this type instead of replications
    #[arg(long = "type", global = true, value_name = "TYPE")]
    ty: Option<String>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List job types with the numbers of their jobs
    Types,
    /// List jobs; finished ones only by --states
    List {
        #[arg(
            long,
            value_name = "STATE,STATE",
            value_delimiter = ',',
            help = "Only jobs in these states: pending, running, idle, unreachable, crashing, completed, failed; with --type: pending, running, finished, dead"
        )]
        states: Vec<State>,
        /// Only jobs of documents of this database
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
        /// Only jobs whose source or target contains this
        #[arg(long, value_name = "TEXT")]
        endpoint: Option<String>,
        /// Maximum number of jobs
        #[arg(long, default_value_t = 100)]
        limit: u64,
    },
    /// Show one job
    Show {
        /// Job id, replication id, document id or DATABASE/DOCUMENT
        id: String,
    },
    /// Run a job now and clear its errors; or all jobs that failed for a reason
    Restart(Restart),
    /// Pause a replication; with --type and no id, the type: its jobs are not claimed
    Pause {
        /// Job id or replication id
        id: Option<String>,
    },
    /// Resume a replication; with --type and no id, the type
    Resume {
        /// Job id or replication id
        id: Option<String>,
    },
    /// Cancel a replication started with `_replicate`; with --type, remove a job
    Cancel {
        /// Job id or replication id
        id: String,
    },
}

/// The state of a job; the service shows the idle and the unreachable as running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum State {
    Pending,
    Running,
    Idle,
    Unreachable,
    Crashing,
    Completed,
    Failed,
    /// With `--type`, what is completed without.
    Finished,
    /// With `--type`, what is failed without.
    Dead,
}

#[derive(Debug, Args)]
struct Restart {
    /// Job id or replication id
    #[arg(conflicts_with_all = ["error", "host", "all"])]
    id: Option<String>,
    #[arg(
        long,
        value_name = "ERROR",
        help = "All crashing and failed jobs with this error, such as db_not_found"
    )]
    error: Option<String>,
    /// All crashing and failed jobs with a source or target on this host
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// All crashing and failed jobs
    #[arg(long)]
    all: bool,
}

impl State {
    /// The name of the state that the service knows.
    fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running | Self::Idle | Self::Unreachable => "running",
            Self::Crashing => "crashing",
            Self::Completed | Self::Finished => "completed",
            Self::Failed | Self::Dead => "failed",
        }
    }

    /// Finished jobs are listed by their documents.
    fn is_finished(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Finished | Self::Dead
        )
    }

    fn has(self, job: &Value) -> bool {
        job["state"] == self.name()
            && match self {
                Self::Idle => job["info"]["idle"] == true,
                Self::Unreachable => !job["info"]["unreachable"].is_null(),
                _ => true,
            }
    }
}

impl Restart {
    /// Whether it names no jobs.
    fn is_empty(&self) -> bool {
        self.id.is_none() && self.error.is_none() && self.host.is_none() && !self.all
    }

    /// Whether a job is one of those to restart.
    fn has(&self, job: &Value) -> bool {
        let is_at = |host: &str| {
            let urls = [&job["source"], &job["target"]].into_iter();
            let urls = urls.filter_map(|url| url::Url::parse(url.as_str()?).ok());
            urls.map(|url| url[url::Position::BeforeHost..url::Position::AfterPort].to_owned())
                .any(|at| at == host || at.rsplit_once(':').is_some_and(|(name, _)| name == host))
        };
        (self.error.as_deref()).is_none_or(|error| job["info"]["error"] == error)
            && self.host.as_deref().is_none_or(is_at)
    }
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let service = Service::new(&command.service)?;
    if let Some(ty) = &command.ty {
        return of_type::run(&service, ty, &command.action).await;
    }
    match &command.action {
        Action::Types => of_type::types(&service).await,
        Action::List {
            states,
            database,
            endpoint,
            limit,
        } => {
            let filters = [("database", database), ("endpoint", endpoint)];
            let filters = filters
                .into_iter()
                .filter_map(|(name, value)| Some((name, value.clone()?)));
            service
                .list(states, &filters.collect::<Vec<_>>(), *limit)
                .await
        }
        Action::Show { id } => {
            let job = service.find(id).await?;
            if service.json {
                output::line(&job.to_string());
            } else {
                output::text(&describe(&job));
            }
            Ok(())
        }
        Action::Restart(restart) => match &restart.id {
            Some(id) => service.restart_one(id).await,
            None if restart.is_empty() => Err(unusable(
                "name a job, or jobs by --error, by --host, or --all that have failed",
            )),
            None => service.restart(restart).await,
        },
        Action::Pause { id } => {
            let id = id.as_deref();
            service.switch(id, "_pause", "paused").await
        }
        Action::Resume { id } => {
            let id = id.as_deref();
            service.switch(id, "_resume", "resumed").await
        }
        Action::Cancel { id } => {
            let answer = service.send(Method::DELETE, &path(id, "")).await;
            if answer.is_err() && service.has_document(id).await {
                bail!("{id} belongs to a replication document: delete the document to cancel it");
            }
            let answer = answer.map_err(|error| of_job(error, id, LIST))?;
            service.done(&answer, "cancelled", id);
            Ok(())
        }
    }
}

fn row(job: &Value) -> Vec<String> {
    let document = match (job["database"].as_str(), job["doc_id"].as_str()) {
        (Some(database), Some(id)) => format!("{database}/{id}"),
        _ => "-".to_owned(),
    };
    let id = match &job["id"] {
        Value::Null => &job["job_id"],
        id => id,
    };
    vec![
        cell(&job["state"]),
        cell(id),
        document,
        cell(&job["source"]),
        cell(&job["target"]),
        note(&job["info"]),
    ]
}

/// The most useful facts about a job, in a few words.
fn note(info: &Value) -> String {
    if let Some(error) = info["error"].as_str() {
        let reason = info["reason"].as_str();
        return reason.map_or_else(|| error.to_owned(), |reason| format!("{error}: {reason}"));
    }
    let mut notes = Vec::new();
    for (name, what) in [("paused", "paused"), ("idle", "idle")] {
        if info[name] == true {
            notes.push(what.to_owned());
        }
    }
    if let Some(written) = info["docs_written"].as_u64() {
        notes.push(format!("{written} written"));
    }
    if let Some(pending) = info["changes_pending"]
        .as_u64()
        .filter(|pending| *pending > 0)
    {
        notes.push(format!("{pending} pending"));
    }
    if let Some(lag) = info["lag_seconds"].as_u64().filter(|lag| *lag > 0) {
        notes.push(format!("lag {lag} s"));
    }
    notes.join(", ")
}

/// A job, one member per line, its history last.
fn describe(job: &Value) -> String {
    let members = job.as_object().into_iter().flatten();
    let mut rows = output::members(members.filter(|(_, value)| !value.is_array()));
    let history = job["history"].as_array().into_iter().flatten();
    let history = history.map(|event| {
        let mut what = cell(&event["type"]);
        if let Some(reason) = event.get("reason") {
            what = format!("{what}: {}", cell(reason));
        }
        vec![cell(&event["timestamp"]), what]
    });
    rows.extend(history);
    output::table(&["", ""], &rows).trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn jobs_are_rows() {
        let job = json!({
            "state": "running", "id": "ab+continuous", "job_id": "x|d", "database": "_replicator",
            "doc_id": "d", "source": "http://a/", "target": "http://b/",
            "info": {"docs_written": 7, "changes_pending": 3, "lag_seconds": 0, "idle": true},
        });
        let expected = [
            "running",
            "ab+continuous",
            "_replicator/d",
            "http://a/",
            "http://b/",
            "idle, 7 written, 3 pending",
        ];
        assert_eq!(row(&job), expected);
        let waiting = json!({
            "state": "crashing", "id": null, "job_id": "x|d", "database": null, "doc_id": null,
            "source": null, "target": "http://b/", "info": {"error": "nxdomain", "reason": "could not resolve http://b/"},
        });
        let expected = [
            "crashing",
            "x|d",
            "-",
            "-",
            "http://b/",
            "nxdomain: could not resolve http://b/",
        ];
        assert_eq!(row(&waiting), expected);
    }

    #[test]
    fn a_job_is_described_with_its_history() {
        let job = json!({
            "id": "ab", "node": null, "info": {"docs_written": 7},
            "history": [{"timestamp": "T", "type": "crashed", "reason": "nxdomain"}],
        });
        assert_eq!(
            describe(&job),
            "id                 ab\nnode               -\ninfo.docs_written  7\nT                  crashed: nxdomain\n"
        );
    }

    #[test]
    fn jobs_are_restarted_by_cause() {
        let job = json!({
            "source": "http://db1.example:5984/a/", "target": "https://db2.example/b/",
            "info": {"error": "db_not_found", "reason": "could not open http://db1.example:5984/a/"},
        });
        let restarts = |error: Option<&str>, host: Option<&str>| {
            let restart = Restart {
                id: None,
                error: error.map(str::to_owned),
                host: host.map(str::to_owned),
                all: false,
            };
            restart.has(&job)
        };
        assert!(restarts(None, None) && restarts(Some("db_not_found"), Some("db2.example")));
        assert!(restarts(None, Some("db1.example")) && restarts(None, Some("db1.example:5984")));
        assert!(!restarts(Some("unauthorized"), None) && !restarts(None, Some("db1")));
    }

    #[test]
    fn ids_are_escaped() {
        assert_eq!(
            path("a|b/c+d", "/_restart"),
            "/_scheduler/jobs/a%7Cb%2Fc%2Bd/_restart"
        );
    }
}
