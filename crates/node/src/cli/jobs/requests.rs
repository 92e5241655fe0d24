//! Requests about jobs.

use std::collections::HashSet;

use anyhow::{Context, bail};
use reqwest::Method;
use serde_json::{Value, json};

use super::{Restart, State, row};
use crate::cli::output::{self, cell};
use crate::cli::service::{Service, answer, escaped, of_job};
use crate::cli::verify::counted;
use crate::cli::{Unusable, unusable};

/// Jobs per request.
const PAGE: u64 = 500;
/// Jobs that one request restarts.
const RESTARTS: usize = 1_000;

/// Lists replications with their ids.
pub(super) const LIST: &str = "davenport jobs list";

pub(super) fn path(id: &str, action: &str) -> String {
    format!("/_scheduler/jobs/{}{action}", escaped(id))
}

impl Service {
    pub(super) async fn list(
        &self,
        states: &[State],
        filters: &[(&str, String)],
        limit: u64,
    ) -> anyhow::Result<()> {
        let (jobs, total) = self.jobs(states, filters, limit).await?;
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

    /// Jobs in these states, and how many there are of any.
    async fn jobs(
        &self,
        states: &[State],
        filters: &[(&str, String)],
        limit: u64,
    ) -> anyhow::Result<(Vec<Value>, u64)> {
        let (finished, active): (Vec<State>, Vec<State>) =
            states.iter().partition(|state| state.is_finished());
        let (mut jobs, mut total) = (Vec::new(), 0);
        if !active.is_empty() || finished.is_empty() {
            let path = "/_scheduler/jobs";
            total += (self.pages(path, &active, filters, limit, &mut jobs)).await?;
        }
        if !finished.is_empty() {
            // Only this listing has finished jobs, and documents that had ended when they were written.
            let path = "/_scheduler/replications";
            let filters = filters.iter().cloned().map(|(name, value)| match name {
                // This also finds ids.
                "endpoint" => ("q", value),
                name => (name, value),
            });
            let filters: Vec<_> = filters.collect();
            total = (self.pages(path, &finished, &filters, limit, &mut jobs)).await?;
        }
        Ok((jobs, total))
    }

    /// Reads a listing until there are `limit` rows; returns how many the service has.
    async fn pages(
        &self,
        path: &str,
        states: &[State],
        filters: &[(&str, String)],
        limit: u64,
        jobs: &mut Vec<Value>,
    ) -> anyhow::Result<u64> {
        let names: Vec<&str> = states.iter().map(|state| state.name()).collect();
        let text = filters.iter().find(|(name, _)| *name == "q");
        let has = |job: &Value| {
            let urls = [&job["source"], &job["target"]].map(cell);
            let is_at = text.is_none_or(|(_, text)| urls.iter().any(|url| url.contains(text)));
            is_at && (states.is_empty() || states.iter().any(|state| state.has(job)))
        };
        let (mut bookmark, mut total) = (None, 0);
        while (jobs.len() as u64) < limit {
            let mut query = vec![("limit", PAGE.to_string())];
            if !names.is_empty() {
                query.push(("states", names.join(",")));
            }
            query.extend(filters.iter().cloned());
            query.extend(bookmark.map(|bookmark| ("bookmark", bookmark)));
            let request = self.request(Method::GET, path)?;
            let mut page = answer(request.query(&query)).await?;
            total = page["total_rows"].as_u64().unwrap_or(0);
            let mut rows = ["jobs", "replications"].into_iter();
            let rows = rows.find_map(|name| page.get_mut(name).map(Value::take));
            let Some(Value::Array(rows)) = rows else {
                bail!("{} did not return a list of jobs", self.url);
            };
            jobs.extend(rows.into_iter().map(with_info).filter(has));
            bookmark = page["bookmark"].as_str().map(str::to_owned);
            if bookmark.is_none() {
                if page["complete"] == false {
                    output::error("the service has too many replications to list all of them");
                }
                break;
            }
        }
        jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(total)
    }

    /// The databases of replications and rules.
    async fn databases(&self) -> anyhow::Result<Vec<String>> {
        let all = self.send(Method::GET, "/_all_dbs").await?;
        let all = all.as_array().into_iter().flatten();
        let names = all.filter_map(|name| name.as_str().map(str::to_owned));
        let has_jobs = |name: &String| {
            let kind = name.rsplit('/').next().unwrap_or_default();
            matches!(kind, "_replicator" | "_rules") || name == "spiegel"
        };
        Ok(names.filter(has_jobs).collect())
    }

    /// A job by its id, that of its replication, or that of its document.
    pub(super) async fn find(&self, id: &str) -> anyhow::Result<Value> {
        let missing = match self.send(Method::GET, &path(id, "")).await {
            Ok(job) => return Ok(job),
            Err(error) if error.is::<Unusable>() => return Err(error),
            Err(error) => error,
        };
        let document = |database: &str, id: &str| {
            format!("/_scheduler/docs/{}/{}", escaped(database), escaped(id))
        };
        let mut paths = Vec::new();
        for database in self.databases().await? {
            if let Some(inner) = id.strip_prefix(&format!("{database}/")) {
                paths.push(document(&database, inner));
            }
            paths.push(document(&database, id));
        }
        let mut found = Vec::new();
        for path in paths {
            found.extend(self.send(Method::GET, &path).await);
        }
        match &mut found[..] {
            [] => Err(of_job(missing, id, LIST)),
            [job] => Ok(job.take()),
            several => {
                let names = several.iter().map(|job| cell(&job["database"]));
                let names = names.collect::<Vec<_>>().join(", ");
                bail!("several databases have a document {id}: {names}; write DATABASE/DOCUMENT")
            }
        }
    }

    /// Pauses or resumes a replication.
    pub(super) async fn switch(
        &self,
        id: Option<&str>,
        action: &str,
        done: &str,
    ) -> anyhow::Result<()> {
        let Some(id) = id else {
            return Err(unusable("name a job, or a type with --type"));
        };
        let path = path(id, &format!("/{action}"));
        let answer = self.send(Method::POST, &path).await;
        let answer = answer.map_err(|error| of_job(error, id, LIST))?;
        self.done(&answer, done, id);
        Ok(())
    }

    /// Restarts a replication.
    pub(super) async fn restart_one(&self, id: &str) -> anyhow::Result<()> {
        let job = self.send(Method::GET, &path(id, "")).await;
        let job = job.map_err(|error| of_job(error, id, LIST))?;
        // The service leaves it as it is.
        if job["info"]["paused"] == true {
            bail!("{id} is paused; run `davenport jobs resume {id}`");
        }
        let answer = self.send(Method::POST, &path(id, "/_restart")).await;
        let answer = answer.map_err(|error| of_job(error, id, LIST))?;
        self.done(&answer, restarted(&job), id);
        Ok(())
    }

    /// Restarts the jobs that have failed for a reason.
    pub(super) async fn restart(&self, wanted: &Restart) -> anyhow::Result<()> {
        let failed = [State::Crashing, State::Failed];
        let (jobs, _) = self.jobs(&failed, &[], u64::MAX).await?;
        let jobs = jobs.iter().filter(|job| wanted.has(job));
        let keys: Vec<&str> = jobs.filter_map(key).collect();
        let (mut restarted, mut failed) = (0, 0);
        for keys in keys.chunks(RESTARTS) {
            let body = json!({"action": "restart", "keys": keys}).to_string();
            let sent = self.send_body(Method::POST, "/_scheduler/replications", body);
            let answer = sent.await.context("cannot restart jobs")?;
            restarted += answer["done"].as_u64().unwrap_or(0);
            failed += self.tell(keys, &answer);
        }
        output::error(&format!("{} restarted", counted(restarted, "job")));
        if failed > 0 {
            let verb = if failed == 1 { "was" } else { "were" };
            bail!("{} {verb} not restarted", counted(failed, "job"));
        }
        Ok(())
    }

    /// Prints what became of jobs, and returns how many were not restarted.
    fn tell(&self, keys: &[&str], answer: &Value) -> u64 {
        // A job that is gone needs no restart.
        let failed = answer["failed"].as_array().into_iter().flatten();
        let (gone, failed): (Vec<&Value>, Vec<&Value>) =
            failed.partition(|job| job["error"] == "not_found");
        let left = answer["left"].as_u64().unwrap_or(0);
        if self.json {
            output::line(&answer.to_string());
        } else if left == 0 {
            let others: HashSet<&str> = gone
                .into_iter()
                .chain(failed.clone())
                .filter_map(key)
                .collect();
            let done = keys.iter().filter(|key| !others.contains(*key));
            done.for_each(|key| output::line(&format!("restarted {key}")));
        }
        for job in &failed {
            let [key, error, reason] = ["key", "error", "reason"].map(|name| cell(&job[name]));
            output::error(&format!("cannot restart {key}: {error}: {reason}"));
        }
        failed.len() as u64 + left
    }

    /// Whether a document created the job. Such a job can only be cancelled through the document, and the service's
    /// error does not say so in a form that programs can rely on.
    pub(super) async fn has_document(&self, id: &str) -> bool {
        let job = self.send(Method::GET, &path(id, "")).await;
        job.is_ok_and(|job| !job["doc_id"].is_null())
    }
}

/// What a restart has done to a job, given its row from before.
fn restarted(job: &Value) -> &'static str {
    if job["state"] == "pending" || job["info"]["asleep"] == true {
        "requested a run of"
    } else {
        "restarted"
    }
}

/// What `_scheduler/replications` calls a job, or a document that has none.
fn key(job: &Value) -> Option<&str> {
    job["key"].as_str().or(job["job_id"].as_str())
}

/// A row of `_scheduler/replications` with `info`, as other rows have.
fn with_info(mut job: Value) -> Value {
    if job["key"].is_string() {
        let names = ["error", "reason", "docs_written", "doc_write_failures"];
        let members = names.map(|name| (name.to_owned(), job[name].clone()));
        let members = members.into_iter().filter(|(_, value)| !value.is_null());
        job["info"] = Value::Object(members.collect());
    }
    job
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::extract::Request;
    use clap::Parser;
    use http::StatusCode;

    use super::*;
    use crate::cli::jobs::{Command, run};

    #[derive(Parser)]
    struct Parsed {
        #[command(flatten)]
        command: Command,
    }

    /// Runs a command with a service, and returns the requests that it made.
    async fn asked(
        args: &[&str],
        answers: impl Fn(&str) -> Value + Clone + Send + Sync + 'static,
    ) -> (anyhow::Result<()>, Vec<String>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let handler = async move |request: Request| {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 100_000).await.unwrap();
            let body = String::from_utf8_lossy(&body);
            let line = format!("{} {} {body}", parts.method, parts.uri);
            let answer = answers(line.trim());
            seen.lock().unwrap().push(line.trim().to_owned());
            let status = if answer.is_null() { 404 } else { 200 };
            (StatusCode::from_u16(status).unwrap(), answer.to_string())
        };
        let router = Router::new().fallback(handler);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let args = [&["davenport", "--url", &url], args].concat();
        let done = run(Parsed::parse_from(args).command).await;
        let asked = asked.lock().unwrap().clone();
        (done, asked)
    }

    /// The cluster behind the service may have very many others.
    #[tokio::test]
    async fn only_databases_that_have_jobs_are_asked_for_one() {
        let answers = |line: &str| match line {
            "GET /_all_dbs" => json!(["_users", "a", "b/_rules", "b/a", "b/spiegel", "spiegel"]),
            line if line.ends_with("/spiegel/x") => json!({"state": "running"}),
            _ => Value::Null,
        };
        let (done, requests) = asked(&["show", "x"], answers).await;
        done.unwrap();
        let databases = ["b%2F%5Frules", "spiegel"];
        let documents = databases.map(|name| format!("GET /_scheduler/docs/{name}/x"));
        assert_eq!(requests[requests.len() - 2..], documents);
        assert_eq!(requests[requests.len() - 3], "GET /_all_dbs");
    }

    /// A filter that the service does not know is applied to all rows.
    #[tokio::test]
    async fn matching_jobs_are_listed_from_all_pages() {
        let pages = |line: &str| {
            let row = |key: &str, source: &str| json!({"key": key, "state": "failed", "source": source, "target": null});
            if line.contains("bookmark") {
                return json!({"total_rows": 3, "replications": [row("b", "http://needle/")]});
            }
            let rows = [row("needle", "http://a/"), row("a", "http://needle/")];
            json!({"total_rows": 3, "bookmark": "b", "replications": rows})
        };
        let list = ["list", "--states", "failed", "--endpoint", "needle"];
        let (done, requests) = asked(&[&list[..], &["--limit", "2"]].concat(), pages).await;
        done.unwrap();
        let path = "GET /_scheduler/replications?limit=500&states=failed&q=needle";
        assert_eq!(requests, [path.to_owned(), format!("{path}&bookmark=b")]);
        let (_, requests) = asked(&[&list[..], &["--limit", "1"]].concat(), pages).await;
        assert_eq!(requests, [path]);
    }

    #[tokio::test]
    async fn jobs_that_cannot_be_restarted_do_not_stop_the_others() {
        let answers = |error: &'static str| {
            move |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
                ["POST", "/_scheduler/replications", _] => {
                    json!({"ok": false, "done": 2, "left": 0,
                    "failed": [{"key": "a", "error": error, "reason": "missing"}]})
                }
                ["GET", path] if path.starts_with("/_scheduler/jobs") => json!({"total_rows": 1,
                    "jobs": [{"job_id": "a", "state": "crashing", "info": {"error": "x"}}]}),
                _ => json!({"total_rows": 3, "replications": [
                    {"key": "b", "job_id": null, "state": "failed", "error": "x", "reason": "y"},
                    {"key": "c", "job_id": "c", "state": "failed", "error": "x", "reason": "y"},
                ]}),
            }
        };
        let (done, requests) = asked(&["restart", "--error", "x"], answers("not_found")).await;
        done.unwrap();
        let expected = r#"POST /_scheduler/replications {"action":"restart","keys":["a","b","c"]}"#;
        assert_eq!(requests.last().unwrap(), expected);
        let (done, _) = asked(&["restart", "--all"], answers("forbidden")).await;
        assert_eq!(done.unwrap_err().to_string(), "1 job was not restarted");
    }

    #[test]
    fn only_what_has_run_is_restarted() {
        let done = |state: &str, info: Value| restarted(&json!({"state": state, "info": info}));
        for state in ["running", "crashing", "failed", "completed"] {
            assert_eq!(done(state, json!({})), "restarted", "{state}");
        }
        assert_eq!(done("pending", json!(null)), "requested a run of");
        assert_eq!(
            done("running", json!({"asleep": true})),
            "requested a run of"
        );
    }

    /// The service would leave it as it is.
    #[tokio::test]
    async fn a_paused_job_is_not_restarted() {
        let paused = |_: &str| json!({"id": "a", "info": {"paused": true}});
        let (done, requests) = asked(&["restart", "a"], paused).await;
        let error = done.unwrap_err().to_string();
        assert_eq!(error, "a is paused; run `davenport jobs resume a`");
        assert_eq!(requests, ["GET /_scheduler/jobs/a"]);
    }

    /// The request would be about another thing.
    #[tokio::test]
    async fn ids_that_a_url_cannot_have_are_refused() {
        for id in ["", ".", ".."] {
            for args in [
                &["cancel", id][..],
                &["show", id],
                &["--type", "mail", "cancel", id],
                &["--type", id, "list"],
            ] {
                let (done, requests) = asked(args, |_| json!([])).await;
                let error = done.unwrap_err();
                assert!(error.is::<Unusable>(), "{error:#}");
                assert!(requests.is_empty(), "{requests:?}");
            }
        }
    }
}
