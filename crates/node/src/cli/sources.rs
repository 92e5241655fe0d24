//! `davenport sources`: the servers that a service follows, over HTTP.

use clap::Args;
use reqwest::Method;
use serde_json::Value;

use super::output::{self, cell};
use super::service::{Service, ServiceFlags};

#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    service: ServiceFlags,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let service = Service::new(&command.service)?;
    let answer = service.send(Method::GET, "/_sources").await?;
    if service.json {
        output::line(&answer.to_string());
        return Ok(());
    }
    let sources = answer["sources"].as_array().into_iter().flatten();
    let rows: Vec<Vec<String>> = sources.map(row).collect();
    let head = [
        "NAME", "SERVER", "FOLLOWED", "FEED", "NODE", "UPDATED", "REASON",
    ];
    output::text(&output::table(&head, &rows));
    Ok(())
}

fn row(source: &Value) -> Vec<String> {
    let followed = if source["followed"] == true {
        "yes"
    } else {
        "no"
    };
    vec![
        cell(&source["name"]),
        cell(&source["server"]),
        followed.to_owned(),
        cell(&source["feed"]),
        cell(&source["node"]),
        cell(&source["updated"]),
        cell(&source["reason"]),
    ]
}
