//! Requests about jobs.

use anyhow::{Context, bail};
use reqwest::Method;
use serde_json::{Value, json};

use super::{Restart, State, row};
use crate::cli::output::{self, cell};
use crate::cli::service::{Service, answer, escaped};
use crate::cli::unusable;

/// Jobs per request.
const PAGE: u64 = 500;

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
        if finished.is_empty() {
            return Ok((jobs, total));
        }
        for database in self.databases().await? {
            let of = |name| filters.iter().find(|(filter, _)| *filter == name);
            if of("database").is_some_and(|(_, wanted)| *wanted != database) {
                continue;
            }
            let path = format!("/_scheduler/docs/{}", escaped(&database));
            let mut rows = Vec::new();
            total += (self.pages(&path, &finished, &[], limit, &mut rows)).await?;
            let is_at = |row: &Value| {
                let urls = [&row["source"], &row["target"]].map(cell);
                of("endpoint").is_none_or(|(_, part)| urls.iter().any(|url| url.contains(part)))
            };
            jobs.extend(rows.into_iter().filter(is_at));
            jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
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
        let rows_of = if path.contains("/docs") {
            "docs"
        } else {
            "jobs"
        };
        let names: Vec<&str> = states.iter().map(|state| state.name()).collect();
        let (mut bookmark, mut after, mut total) = (None, None, 0);
        while (jobs.len() as u64) < limit {
            let mut query = vec![("limit", PAGE.to_string())];
            if !names.is_empty() {
                query.push(("states", names.join(",")));
            }
            query.extend(filters.iter().cloned());
            query.extend(bookmark.map(|bookmark| ("bookmark", bookmark)));
            let skip = after.is_some().then(|| ("skip", "1".to_owned()));
            query.extend(after.map(|after: String| ("startkey", json!(after).to_string())));
            query.extend(skip);
            let request = self.request(Method::GET, path)?.query(&query);
            let mut page = answer(request).await?;
            total = page["total_rows"].as_u64().unwrap_or(0);
            let Some(Value::Array(rows)) = page.get_mut(rows_of).map(Value::take) else {
                bail!("{} did not return a list of jobs", self.url);
            };
            let is_full = rows.len() as u64 == PAGE;
            let last = rows.last().and_then(|row| row["doc_id"].as_str());
            after = last
                .filter(|_| is_full && rows_of == "docs")
                .map(str::to_owned);
            let has = |job: &Value| states.is_empty() || states.iter().any(|state| state.has(job));
            jobs.extend(rows.into_iter().filter(has));
            bookmark = page["bookmark"].as_str().map(str::to_owned);
            if bookmark.is_none() && after.is_none() {
                break;
            }
        }
        jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(total)
    }

    /// The replicator databases.
    async fn databases(&self) -> anyhow::Result<Vec<String>> {
        let all = self.send(Method::GET, "/_all_dbs").await?;
        let all = all.as_array().into_iter().flatten();
        let names = all.filter_map(|name| name.as_str().map(str::to_owned));
        Ok(names
            .filter(|name| name == "_replicator" || name.ends_with("/_replicator"))
            .collect())
    }

    /// A job by its id, that of its replication, or that of its document.
    pub(super) async fn find(&self, id: &str) -> anyhow::Result<Value> {
        let missing = match self.send(Method::GET, &path(id, "")).await {
            Ok(job) => return Ok(job),
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
            [] => Err(missing),
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
        let answer = self.send(Method::POST, &path).await?;
        self.done(&answer, done, id);
        Ok(())
    }

    /// Restarts the jobs that have failed for a reason.
    pub(super) async fn restart(&self, wanted: &Restart) -> anyhow::Result<()> {
        let failed = [State::Crashing, State::Failed];
        let (jobs, _) = self.jobs(&failed, &[], u64::MAX).await?;
        let jobs: Vec<Value> = jobs.into_iter().filter(|job| wanted.has(job)).collect();
        for job in &jobs {
            let id = cell(&job["job_id"]);
            let answer = self.send(Method::POST, &path(&id, "/_restart")).await;
            let answer = answer.with_context(|| format!("cannot restart {id}"))?;
            self.done(&answer, "restarted", &id);
        }
        output::error(&format!(
            "{} jobs restarted",
            output::number(jobs.len() as u64)
        ));
        Ok(())
    }

    /// Whether a document created the job. Such a job can only be cancelled through the document, and the service's
    /// error does not say so in a form that programs can rely on.
    pub(super) async fn has_document(&self, id: &str) -> bool {
        let job = self.send(Method::GET, &path(id, "")).await;
        job.is_ok_and(|job| !job["doc_id"].is_null())
    }
}
