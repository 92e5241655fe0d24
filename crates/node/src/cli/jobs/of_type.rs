//! Jobs of a type of users: `davenport jobs --type TYPE`.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Action, Restart, State};
use crate::cli::output::{self, cell};
use crate::cli::service::{Service, answer, escaped, of_job};
use crate::cli::unusable;
use crate::cli::verify::counted;

/// Jobs per request.
const PAGE: u64 = 500;

pub(super) async fn run(service: &Service, ty: &str, action: &Action) -> anyhow::Result<()> {
    let of_type = OfType {
        service,
        ty,
        path: format!("/_jobs/{}", escaped(ty)),
    };
    match action {
        Action::Types => {
            let why = format!("types: leave out --type, or use `jobs --type {ty} list`");
            Err(unusable(&why))
        }
        Action::List {
            database: None,
            endpoint: None,
            states,
            limit,
        } => of_type.list(states, *limit).await,
        Action::List { .. } => Err(unusable(
            "--database and --endpoint are for replications: leave them out, or --type",
        )),
        Action::Show { id } => {
            let job = of_type.send(Method::GET, id, "").await?;
            if service.json {
                output::line(&job.to_string());
            } else {
                output::text(&describe(&job));
            }
            Ok(())
        }
        Action::Restart(restart) => of_type.retry(restart).await,
        Action::Pause { id: None } => of_type.switch(ty, "_pause", "paused").await,
        Action::Resume { id: None } => of_type.switch(ty, "_resume", "resumed").await,
        Action::Pause { .. } | Action::Resume { .. } => Err(unusable(
            "with --type, all jobs of the type are paused or resumed: leave out the id",
        )),
        Action::Cancel { id } => {
            let answer = of_type.send(Method::DELETE, id, "").await?;
            service.done(&answer, "removed", id);
            Ok(())
        }
    }
}

/// Lists types with their numbers.
pub(super) async fn types(service: &Service) -> anyhow::Result<()> {
    let answer = service.send(Method::GET, "/_jobs").await?;
    let types = answer["types"].as_array().into_iter().flatten();
    if service.json {
        types.for_each(|ty| output::line(&ty.to_string()));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = types.map(type_row).collect();
    let head = [
        "TYPE",
        "PENDING",
        "RUNNING",
        "FINISHED",
        "DEAD",
        "OLDEST DUE",
        "NOTE",
    ];
    output::text(&output::table(&head, &rows));
    Ok(())
}

struct OfType<'a> {
    service: &'a Service,
    ty: &'a str,
    path: String,
}

impl OfType<'_> {
    /// Makes a request about a job.
    async fn send(&self, method: Method, id: &str, action: &str) -> anyhow::Result<Value> {
        let path = format!("{}/{}{action}", self.path, escaped(id));
        let answer = self.service.send(method, &path).await;
        let list = format!("davenport jobs --type {} list", self.ty);
        answer.map_err(|error| of_job(error, id, &list))
    }

    async fn list(&self, states: &[State], limit: u64) -> anyhow::Result<()> {
        let mut names = Vec::new();
        for state in states {
            names.push(Some(state_name(*state)?));
        }
        if names.is_empty() {
            names.push(None);
        }
        let (mut jobs, mut has_more) = (Vec::new(), false);
        for name in names {
            let mut after = None;
            has_more |= jobs.len() as u64 >= limit;
            while (jobs.len() as u64) < limit {
                let mut query = vec![("limit", PAGE.min(limit - jobs.len() as u64).to_string())];
                query.extend(name.map(|name| ("state", name.to_owned())));
                query.extend(after.map(|after| ("after", after)));
                let request = self.service.request(Method::GET, &self.path)?;
                let mut page = answer(request.query(&query)).await?;
                if let Value::Array(rows) = page["jobs"].take() {
                    jobs.extend(rows);
                }
                after = page["next"].as_str().map(str::to_owned);
                if after.is_none() {
                    break;
                }
            }
            has_more |= after.is_some();
        }
        if self.service.json {
            for job in &jobs {
                output::line(&job.to_string());
            }
            return Ok(());
        }
        let rows: Vec<Vec<String>> = jobs.iter().map(row).collect();
        let head = ["STATE", "ID", "DUE", "ATTEMPT", "WORKER", "NOTE"];
        output::text(&output::table(&head, &rows));
        if has_more {
            output::error("more jobs may exist; raise --limit to see them");
        }
        Ok(())
    }

    /// Pauses or resumes the type.
    async fn switch(&self, ty: &str, action: &str, done: &str) -> anyhow::Result<()> {
        let path = format!("{}/{action}", self.path);
        let answer = self.service.send(Method::POST, &path).await?;
        self.service.done(&answer, done, ty);
        Ok(())
    }

    /// Retries a dead job, or all dead jobs.
    async fn retry(&self, wanted: &Restart) -> anyhow::Result<()> {
        if wanted.host.is_some() {
            return Err(unusable(
                "--host is for replications: use --error, or --all",
            ));
        }
        if let Some(id) = &wanted.id {
            let before = self.send(Method::GET, id, "").await?;
            let answer = self.send(Method::POST, id, "/_retry").await?;
            let done = match before["state"].as_str() {
                Some(state @ ("pending" | "running")) => format!("already {state}:"),
                _ => "restarted".to_owned(),
            };
            self.service.done(&answer, &done, id);
            return Ok(());
        }
        if wanted.is_empty() {
            return Err(unusable("name a job, or dead jobs by --error, or --all"));
        }
        let mut body = json!({"state": "dead"});
        if let Some(error) = &wanted.error {
            body["error"] = json!(error);
        }
        let path = format!("{}/_retry", self.path);
        let answer = self
            .service
            .send_body(Method::POST, &path, body.to_string());
        let answer = answer.await?;
        self.service.done(&answer, "restarted", &retried(&answer));
        Ok(())
    }
}

/// How many dead jobs were restarted. The service goes on with the others if there are many.
fn retried(answer: &Value) -> String {
    let jobs = counted(answer["count"].as_u64().unwrap_or_default(), "dead job");
    match &answer["running"] {
        Value::Bool(true) => format!("{jobs} so far; the service goes on with the others"),
        _ => jobs,
    }
}

fn state_name(state: State) -> anyhow::Result<&'static str> {
    Ok(match state {
        State::Pending => "pending",
        State::Running => "running",
        State::Completed | State::Finished => "finished",
        State::Failed | State::Dead => "dead",
        State::Idle | State::Unreachable | State::Crashing => {
            let why = "with --type, --states takes pending, running, finished and dead";
            return Err(unusable(why));
        }
    })
}

fn row(job: &Value) -> Vec<String> {
    let note = match (&job["reason"], &job["waits_for"]) {
        (Value::Null, Value::Null) => String::new(),
        (Value::Null, limit) => format!("waits for {}", cell(limit)),
        (reason, _) => cell(reason),
    };
    let members = ["state", "id", "due", "attempt", "worker"];
    let cells = members.map(|member| cell(&job[member]));
    cells.into_iter().chain([note]).collect()
}

fn type_row(ty: &Value) -> Vec<String> {
    let counts = ["pending", "running", "finished", "dead"];
    let counts = counts.map(|state| output::number(ty["counts"][state].as_u64().unwrap_or(0)));
    let note = match (&ty["internal"], &ty["paused"]) {
        (Value::Bool(true), _) => "of the service",
        (_, Value::Bool(true)) => "paused",
        _ => "",
    };
    let mut row = vec![cell(&ty["type"])];
    row.extend(counts);
    row.extend([cell(&ty["oldest_due"]), note.to_owned()]);
    row
}

/// A job, one member per line, its attempts last.
fn describe(job: &Value) -> String {
    let members = job.as_object().into_iter().flatten();
    let mut rows = Vec::new();
    for (name, value) in members.filter(|(name, _)| *name != "attempts") {
        rows.push(vec![name.clone(), cell(value)]);
    }
    for attempt in job["attempts"].as_array().into_iter().flatten() {
        let outcome = match &attempt["outcome"] {
            Value::Null => "running".to_owned(),
            outcome => cell(outcome),
        };
        let reason = attempt["reason"]
            .as_str()
            .map(|reason| format!(": {reason}"));
        let what = format!(
            "{outcome} by {}{}",
            cell(&attempt["worker"]),
            reason.unwrap_or_default()
        );
        rows.push(vec![cell(&attempt["start"]), what]);
    }
    output::table(&["", ""], &rows).trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_types_are_rows() {
        let job = json!({
            "state": "pending", "id": "a", "due": "T", "attempt": 2, "worker": "w", "reason": null, "waits_for": "k",
        });
        assert_eq!(row(&job), ["pending", "a", "T", "2", "w", "waits for k"]);
        let ty = json!({
            "type": "mail", "internal": false, "paused": true, "oldest_due": null,
            "counts": {"pending": 1200, "running": 1, "finished": 0, "dead": 3},
        });
        assert_eq!(
            type_row(&ty),
            ["mail", "1,200", "1", "0", "3", "-", "paused"]
        );
    }

    #[test]
    fn what_goes_on_in_the_background_is_told() {
        let told = |answer: Value| retried(&answer);
        assert_eq!(told(json!({"ok": true, "count": 1})), "1 dead job");
        assert_eq!(told(json!({"ok": true, "count": 1200})), "1,200 dead jobs");
        let answer = json!({"ok": true, "count": 1000, "running": true});
        assert_eq!(
            told(answer),
            "1,000 dead jobs so far; the service goes on with the others"
        );
    }

    #[test]
    fn a_job_is_described_with_its_attempts() {
        let job = json!({
            "data": {"b": 1}, "id": "a",
            "attempts": [
                {"worker": "w", "start": "T", "outcome": "failed", "reason": "no route"},
                {"worker": "v", "start": "U", "outcome": null, "reason": null},
            ],
        });
        assert_eq!(
            describe(&job),
            "data  {\"b\":1}\nid    a\nT     failed by w: no route\nU     running by v\n"
        );
    }
}
