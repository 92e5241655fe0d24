//! `davenport jobs`: lists and controls jobs of a service, over HTTP.

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;

use super::output;

/// Jobs per request.
const PAGE: u64 = 500;

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// URL of a frontend
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "DAVENPORT_URL",
        default_value = "http://127.0.0.1:5985"
    )]
    url: String,
    /// Administrator's name and password
    #[arg(
        long,
        global = true,
        value_name = "NAME:PASSWORD",
        env = "DAVENPORT_USER",
        hide_env_values = true
    )]
    user: Option<String>,
    /// Print the JSON returned by the service
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List jobs that are not finished
    List {
        /// Only jobs in these states: pending, running, crashing
        #[arg(long, value_name = "STATE,STATE")]
        states: Option<String>,
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
    /// Show one job, by job id or replication id
    Show {
        /// Job id or replication id
        id: String,
    },
    /// Run a job now and clear its errors
    Restart {
        /// Job id or replication id
        id: String,
    },
    /// Cancel a replication started with `_replicate`
    Cancel {
        /// Job id or replication id
        id: String,
    },
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let service = Service::new(&command)?;
    match &command.action {
        Action::List {
            states,
            database,
            endpoint,
            limit,
        } => {
            let filters = [
                ("states", states),
                ("database", database),
                ("endpoint", endpoint),
            ];
            let filters = filters
                .into_iter()
                .filter_map(|(name, value)| Some((name, value.clone()?)));
            service.list(&filters.collect::<Vec<_>>(), *limit).await
        }
        Action::Show { id } => {
            let job = service.send(Method::GET, &path(id, "")).await?;
            if service.json {
                output::line(&job.to_string());
            } else {
                output::text(&describe(&job));
            }
            Ok(())
        }
        Action::Restart { id } => {
            let answer = service.send(Method::POST, &path(id, "/_restart")).await?;
            service.done(&answer, "restarted", id);
            Ok(())
        }
        Action::Cancel { id } => {
            let answer = service.send(Method::DELETE, &path(id, "")).await;
            if answer.is_err() && service.has_document(id).await {
                bail!("{id} belongs to a replication document: delete the document to cancel it");
            }
            let answer = answer?;
            service.done(&answer, "cancelled", id);
            Ok(())
        }
    }
}

fn path(id: &str, action: &str) -> String {
    let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
    format!("/_scheduler/jobs/{id}{action}")
}

struct Service {
    client: Client,
    url: String,
    user: Option<(String, String)>,
    json: bool,
}

impl Service {
    fn new(command: &Command) -> anyhow::Result<Self> {
        let user = command.user.as_deref().map(|user| {
            let (name, password) = user
                .split_once(':')
                .context("--user: write NAME:PASSWORD")?;
            Ok::<_, anyhow::Error>((name.to_owned(), password.to_owned()))
        });
        Ok(Self {
            client: Client::new(),
            url: command.url.trim_end_matches('/').to_owned(),
            user: user.transpose()?,
            json: command.json,
        })
    }

    async fn list(&self, filters: &[(&str, String)], limit: u64) -> anyhow::Result<()> {
        let mut jobs = Vec::new();
        let mut bookmark = None;
        let mut total = 0;
        while (jobs.len() as u64) < limit {
            let rest = (limit - jobs.len() as u64).min(PAGE);
            let mut query = vec![("limit", rest.to_string())];
            query.extend(filters.iter().cloned());
            query.extend(bookmark.map(|bookmark| ("bookmark", bookmark)));
            let request = self.request(Method::GET, "/_scheduler/jobs").query(&query);
            let mut page = answer(request).await?;
            total = page["total_rows"].as_u64().unwrap_or(0);
            let Some(Value::Array(mut rows)) = page.get_mut("jobs").map(Value::take) else {
                bail!("{} did not return a list of jobs", self.url);
            };
            jobs.append(&mut rows);
            bookmark = page["bookmark"].as_str().map(str::to_owned);
            if bookmark.is_none() {
                break;
            }
        }
        if self.json {
            for job in &jobs {
                output::line(&job.to_string());
            }
            return Ok(());
        }
        let rows: Vec<Vec<String>> = jobs.iter().map(row).collect();
        let head = ["STATE", "ID", "DOCUMENT", "SOURCE", "TARGET", "NOTE"];
        output::text(&output::table(&head, &rows));
        output::error(&format!("{} of {total} jobs", jobs.len()));
        Ok(())
    }

    /// Whether a document created the job. Such a job can only be cancelled through the document, and the service's
    /// error does not say so in a form that programs can rely on.
    async fn has_document(&self, id: &str) -> bool {
        let job = self.send(Method::GET, &path(id, "")).await;
        job.is_ok_and(|job| !job["doc_id"].is_null())
    }

    fn done(&self, answer: &Value, what: &str, id: &str) {
        if self.json {
            output::line(&answer.to_string());
        } else {
            output::line(&format!("{what} {id}"));
        }
    }

    async fn send(&self, method: Method, path: &str) -> anyhow::Result<Value> {
        answer(self.request(method, path)).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let json = "application/json";
        let request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .header("accept", json)
            .header("content-type", json);
        match &self.user {
            Some((name, password)) => request.basic_auth(name, Some(password)),
            None => request,
        }
    }
}

/// The response to a request, or the service's error.
async fn answer(request: RequestBuilder) -> anyhow::Result<Value> {
    let response = request
        .send()
        .await
        .context("cannot reach the service; check --url or DAVENPORT_URL")?;
    let status = response.status();
    let json: Option<Value> = response.json().await.ok();
    if status.is_success() {
        return json.context("the response is not JSON; check that --url is a Davenport frontend");
    }
    let part = |name| json.as_ref().and_then(|json| json[name].as_str());
    let (error, reason) = (part("error").unwrap_or("?"), part("reason").unwrap_or("?"));
    let hint = match status.as_u16() {
        401 => "; set --user or DAVENPORT_USER to an administrator",
        _ => "",
    };
    bail!("{} {error}: {reason}{hint}", status.as_u16())
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
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
        text(&job["state"]),
        text(id),
        document,
        text(&job["source"]),
        text(&job["target"]),
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
    let mut rows = Vec::new();
    for (name, value) in job.as_object().into_iter().flatten() {
        match value {
            Value::Object(members) => {
                let inner = members
                    .iter()
                    .map(|(inner, value)| vec![format!("{name}.{inner}"), text(value)]);
                rows.extend(inner);
            }
            Value::Array(_) => {}
            value => rows.push(vec![name.clone(), text(value)]),
        }
    }
    let history = job["history"].as_array().into_iter().flatten();
    let history = history.map(|event| {
        let mut what = text(&event["type"]);
        if let Some(reason) = event.get("reason") {
            what = format!("{what}: {}", text(reason));
        }
        vec![text(&event["timestamp"]), what]
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
    fn ids_are_escaped() {
        assert_eq!(
            path("a|b/c+d", "/_restart"),
            "/_scheduler/jobs/a%7Cb%2Fc%2Bd/_restart"
        );
    }
}
