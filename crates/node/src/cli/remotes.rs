//! `davenport remotes`: lists remotes of a service and starts their replications, over HTTP.

use anyhow::bail;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::output::{self, cell};
use super::service::{Service, ServiceFlags, answer, escaped};

/// Rows per request.
const PAGE: usize = 500;
const COUNTS: [&str; 5] = ["running", "waiting", "retrying", "asleep", "failed"];

#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    service: ServiceFlags,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List remotes, with the numbers of their replications by state
    List,
    /// Show a remote and its replications
    Show {
        /// Name of the remote
        name: String,
        /// Only replications in this state: running, waiting, retrying, asleep, paused or failed
        #[arg(long)]
        state: Option<String>,
        /// Maximum number of replications
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Start replications of remotes
    Start(Start),
}

#[derive(Debug, Args)]
struct Start {
    /// Names of remotes; all of them if there is none
    #[arg(value_name = "NAME", required_unless_present_any = ["all", "database"])]
    names: Vec<String>,
    /// All databases
    #[arg(long, conflicts_with = "database")]
    all: bool,
    /// Only databases of this name, beginning (`app_*`) or regular expression (`^app_`); can be repeated
    #[arg(long, value_name = "PATTERN")]
    database: Vec<String>,
    /// Only URLs of targets that contain this text
    #[arg(long, value_name = "TEXT")]
    target: Option<String>,
    /// Do not wait for the remote's delay, nor for the next try after a failure
    #[arg(long)]
    now: bool,
    /// Wait until the runs have ended, and fail if one did
    #[arg(long)]
    wait: bool,
    /// Maximum number of seconds to wait
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 3600,
        requires = "wait"
    )]
    timeout: u64,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let service = Service::new(&command.service)?;
    match command.action {
        Action::List => list(&service).await,
        Action::Show { name, state, limit } => show(&service, &name, state.as_deref(), limit).await,
        Action::Start(start) => start_all(&service, start).await,
    }
}

/// The rows of all pages up to a number, under this name, and the first page. It has `after` if there are more rows.
async fn rows(
    service: &Service,
    path: &str,
    name: &str,
    (filter, max): (Option<(&str, &str)>, usize),
) -> anyhow::Result<(Value, Vec<Value>)> {
    let (mut first, mut rows, mut after) = (Value::Null, Vec::new(), None);
    while rows.len() < max {
        let mut query = vec![("limit", (max - rows.len()).min(PAGE).to_string())];
        query.extend(filter.map(|(name, value)| (name, value.to_owned())));
        query.extend(after.map(|after| ("after", after)));
        let request = service.request(Method::GET, path)?.query(&query);
        let mut page = answer(request).await?;
        if let Value::Array(more) = page[name].take() {
            rows.extend(more);
        }
        after = page["after"].as_str().map(str::to_owned);
        if first.is_null() {
            first = page;
        }
        if after.is_none() {
            break;
        }
    }
    match (after, &mut first) {
        (Some(after), first) => first["after"] = after.into(),
        (None, Value::Object(members)) => {
            members.remove("after");
        }
        _ => {}
    }
    Ok((first, rows))
}

async fn list(service: &Service) -> anyhow::Result<()> {
    let (_, remotes) = rows(service, "/_remotes", "remotes", (None, usize::MAX)).await?;
    if service.json {
        for remote in &remotes {
            output::line(&remote.to_string());
        }
        return Ok(());
    }
    let head = [
        "NAME", "ENABLED", "FOLLOWED", "THREADS", "RUNNING", "WAITING", "RETRYING", "ASLEEP",
        "FAILED", "URLS",
    ];
    let remotes: Vec<_> = remotes.iter().map(row).collect();
    output::text(&output::table(&head, &remotes));
    Ok(())
}

fn row(remote: &Value) -> Vec<String> {
    let flag = |name: &str| if remote[name] == true { "yes" } else { "no" }.to_owned();
    let urls = remote["urls"].as_array().into_iter().flatten().map(cell);
    let mut row = vec![
        cell(&remote["name"]),
        flag("enabled"),
        flag("followed"),
        cell(&remote["threads"]),
    ];
    row.extend(COUNTS.map(|state| cell(&remote["states"][state])));
    row.push(urls.collect::<Vec<_>>().join(" "));
    row
}

async fn show(
    service: &Service,
    name: &str,
    state: Option<&str>,
    limit: usize,
) -> anyhow::Result<()> {
    let path = format!("/_remotes/{}", escaped(name));
    let filter = state.map(|state| ("state", state));
    let (mut remote, jobs) = rows(service, &path, "jobs", (filter, limit.max(1))).await?;
    if service.json {
        remote["jobs"] = jobs.into();
        output::line(&remote.to_string());
        return Ok(());
    }
    let members = remote.as_object().into_iter().flatten();
    let members = members.filter(|(name, _)| *name != "jobs" && *name != "after");
    output::text(output::table(&["", ""], &output::members(members)).trim_start());
    let head = [
        "DATABASE",
        "URL",
        "STATE",
        "NODE",
        "SINCE",
        "WAITS FOR",
        "LAST ERROR",
    ];
    let names = [
        "database",
        "url",
        "state",
        "node",
        "since",
        "waits_for",
        "last_error",
    ];
    let jobs: Vec<_> = (jobs.iter())
        .map(|job| names.map(|name| cell(&job[name])).to_vec())
        .collect();
    output::text(&output::table(&head, &jobs));
    if remote["after"].is_string() {
        output::error("more replications may exist; raise --limit to see them");
    }
    Ok(())
}

async fn start_all(service: &Service, start: Start) -> anyhow::Result<()> {
    let mut body = json!({"now": start.now, "wait": start.wait});
    if start.database.is_empty() {
        body["all"] = true.into();
    } else {
        body["databases"] = start.database.into();
    }
    if !start.names.is_empty() {
        body["remotes"] = start.names.into();
    }
    if let Some(text) = start.target {
        body["url"] = text.into();
    }
    if start.wait {
        body["timeout_sec"] = start.timeout.into();
    }
    let started = (service.send_body(Method::POST, "/_remotes/_start", body.to_string())).await?;
    if service.json {
        output::line(&started.to_string());
    } else {
        output::text(&told(&started));
    }
    let rows = started["remotes"].as_array().into_iter().flatten();
    let unknown: Vec<_> = (rows.filter(|row| row["looked_up"] == false))
        .map(|row| cell(&row["name"]))
        .collect();
    if !unknown.is_empty() {
        bail!(
            "not all databases of {} have been found, so replications may be missing; start again when `davenport remotes show NAME` says that `followed` and `looked_up` are true",
            unknown.join(", "),
        );
    }
    if started["ok"] != true {
        let count = |name: &str| started[name].as_u64().map(output::number);
        let (failed, left) = (count("failed"), count("unfinished"));
        bail!(
            "{} of the runs failed and {} have not ended; see: davenport remotes show NAME",
            failed.unwrap_or_default(),
            left.unwrap_or_default(),
        );
    }
    Ok(())
}

/// What was started, and how it ended if that was waited for.
fn told(started: &Value) -> String {
    let rows = started["remotes"].as_array().into_iter().flatten();
    let rows: Vec<_> = rows
        .filter(|row| row["started"] != 0)
        .map(|row| vec![cell(&row["name"]), cell(&row["started"])])
        .collect();
    if rows.is_empty() {
        return "nothing to start\n".to_owned();
    }
    let mut told = output::table(&["NAME", "STARTED"], &rows);
    if started["completed"].is_u64() {
        let count = |name: &str| output::number(started[name].as_u64().unwrap_or_default());
        let (completed, failed) = (count("completed"), count("failed"));
        let line = format!("{completed} completed, {failed} failed\n");
        told.push_str(&line);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_are_rows() {
        let remote = json!({"name": "eu", "enabled": true, "followed": false, "threads": 8,
            "urls": ["http://a/${name}", "http://b/${name}"],
            "states": {"running": 1, "waiting": 2, "retrying": 3, "asleep": 4, "failed": 5}});
        let urls = "http://a/${name} http://b/${name}";
        let expected = ["eu", "yes", "no", "8", "1", "2", "3", "4", "5", urls];
        assert_eq!(row(&remote), expected);
    }

    #[test]
    fn what_was_started_is_told() {
        let none = json!({"ok": true, "started": 0, "remotes": [{"name": "eu", "started": 0}]});
        assert_eq!(told(&none), "nothing to start\n");
        let waited =
            json!({"remotes": [{"name": "eu", "started": 2}], "completed": 1, "failed": 1});
        let text = told(&waited);
        assert!(
            text.contains("eu") && text.ends_with("1 completed, 1 failed\n"),
            "{text}"
        );
    }
}
