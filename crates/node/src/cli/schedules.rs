//! `davenport schedules`: schedules of a service, over HTTP.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::Value;

use super::output::{self, cell};
use super::service::{Service, ServiceFlags, escaped};

#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    service: ServiceFlags,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List schedules
    List,
    /// Show one schedule
    Show {
        /// Name of the schedule
        name: String,
    },
    /// Make or replace a schedule
    Put {
        /// Name of the schedule
        name: String,
        /// A file with the schedule as JSON
        file: PathBuf,
    },
    /// Add a job of a schedule now, besides its occurrences
    Run {
        /// Name of the schedule
        name: String,
    },
    /// Remove a schedule; jobs that it has added stay
    Remove {
        /// Name of the schedule
        name: String,
    },
}

fn path(name: &str) -> String {
    format!("/_schedules/{}", escaped(name))
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let service = Service::new(&command.service)?;
    match &command.action {
        Action::List => list(&service).await,
        Action::Show { name } => {
            let found = service.send(Method::GET, &path(name)).await?;
            if service.json {
                output::line(&found.to_string());
            } else {
                let rows = output::members(found.as_object().into_iter().flatten());
                output::text(output::table(&["", ""], &rows).trim_start());
            }
            Ok(())
        }
        Action::Put { name, file } => put(&service, name, file).await,
        Action::Run { name } => {
            let path = format!("{}/_run", path(name));
            let answer = service.send(Method::POST, &path).await?;
            service.done(&answer, "added", &cell(&answer["id"]));
            Ok(())
        }
        Action::Remove { name } => {
            let answer = service.send(Method::DELETE, &path(name)).await?;
            service.done(&answer, "removed", name);
            Ok(())
        }
    }
}

async fn list(service: &Service) -> anyhow::Result<()> {
    let answer = service.send(Method::GET, "/_schedules").await?;
    let schedules = answer["schedules"].as_array().into_iter().flatten();
    if service.json {
        schedules.for_each(|found| output::line(&found.to_string()));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = schedules.map(row).collect();
    let head = ["NAME", "TYPE", "OCCURS", "ZONE", "NEXT", "LAST", "NOTE"];
    output::text(&output::table(&head, &rows));
    Ok(())
}

async fn put(service: &Service, name: &str, file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let answer = service.send_body(Method::PUT, &path(name), text).await?;
    service.done(&answer, "next occurrence:", &cell(&answer["next"]));
    Ok(())
}

fn row(found: &Value) -> Vec<String> {
    let occurs = match &found["every_sec"] {
        Value::Null => cell(&found["cron"]),
        seconds => format!("every {seconds} s"),
    };
    let note = found["last"]["error"].as_str().unwrap_or_default();
    vec![
        cell(&found["name"]),
        cell(&found["type"]),
        occurs,
        cell(&found["zone"]),
        cell(&found["next"]),
        cell(&found["last"]["occurrence"]),
        note.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schedules_are_rows() {
        let cron = json!({"name": "a", "type": "mail", "cron": "@daily", "zone": "UTC", "next": "T", "last": null});
        assert_eq!(row(&cron), ["a", "mail", "@daily", "UTC", "T", "-", ""]);
        let last = json!({"occurrence": "S", "error": "skipped"});
        let every = json!({"name": "a", "type": "mail", "every_sec": 5, "next": "T", "last": last});
        assert_eq!(
            row(&every),
            ["a", "mail", "every 5 s", "-", "T", "S", "skipped"]
        );
    }
}
