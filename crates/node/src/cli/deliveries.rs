//! `davenport deliveries`: calls of webhooks of a service, over HTTP.

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use reqwest::Method;
use serde_json::{Map, Value};

use super::output::{self, cell};
use super::service::{Service, ServiceFlags, answer, escaped};
use super::unusable;
use super::verify::counted;

/// Calls per request.
const PAGE: usize = 500;
const FILTERS: [&str; 3] = ["rule", "db", "state"];

#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    service: ServiceFlags,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List calls, in no particular order
    List {
        /// Only calls of rules with this id
        #[arg(long, value_name = "ID")]
        rule: Option<String>,
        /// Only calls of rules in this database: _rules, NAME/_rules or spiegel
        #[arg(long, value_name = "NAME")]
        db: Option<String>,
        /// Only calls in this state
        #[arg(long)]
        state: Option<State>,
        /// Maximum number of calls
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show a call with its last response and runs
    Show {
        /// Id of the call
        id: String,
    },
    /// Make a call again, or all calls of rules or in a state
    Replay(Which),
    /// Remove a call, or all calls of rules or in a state
    Remove(Which),
}

#[derive(Debug, Args)]
struct Which {
    /// Id of the call
    #[arg(conflicts_with_all = FILTERS)]
    id: Option<String>,
    /// All calls of rules with this id
    #[arg(long, value_name = "ID")]
    rule: Option<String>,
    /// All calls of rules in this database: _rules, NAME/_rules or spiegel
    #[arg(long, value_name = "NAME")]
    db: Option<String>,
    /// All calls in this state, delivered or dead [default: dead]
    #[arg(long)]
    state: Option<State>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    Pending,
    Running,
    #[value(alias = "finished")]
    Delivered,
    Dead,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let service = Service::new(&command.service)?;
    match command.action {
        Action::List {
            rule,
            db,
            state,
            limit,
        } => {
            let filters = [
                ("rule", rule),
                ("rule_database", db),
                ("state", state.map(|state| state.name().to_owned())),
            ];
            let filters = filters.into_iter();
            let filters = filters.filter_map(|(name, value)| Some((name, value?)));
            list(&service, &filters.collect::<Vec<_>>(), limit).await
        }
        Action::Show { id } => {
            let call = service.send(Method::GET, &path(&id, "")).await?;
            if service.json {
                output::line(&call.to_string());
            } else {
                output::text(&describe(&call));
            }
            Ok(())
        }
        Action::Replay(which) => {
            let one = which
                .id
                .as_deref()
                .map(|id| (Method::POST, path(id, "/_replay")));
            act(&service, which, one, "replay", "replayed").await
        }
        Action::Remove(which) => {
            let one = which.id.as_deref().map(|id| (Method::DELETE, path(id, "")));
            act(&service, which, one, "remove", "removed").await
        }
    }
}

fn path(id: &str, action: &str) -> String {
    format!("/_deliveries/{}{action}", escaped(id))
}

async fn list(service: &Service, filters: &[(&str, String)], limit: usize) -> anyhow::Result<()> {
    let (mut calls, mut after) = (Vec::new(), None);
    while calls.len() < limit {
        let mut query = filters.to_vec();
        query.push(("limit", (limit - calls.len()).min(PAGE).to_string()));
        query.extend(after.map(|after| ("after", after)));
        let request = service.request(Method::GET, "/_deliveries")?;
        let mut page = answer(request.query(&query)).await?;
        if let Value::Array(rows) = page["deliveries"].take() {
            calls.extend(rows);
        }
        after = page["after"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    if service.json {
        for call in &calls {
            output::line(&call.to_string());
        }
        return Ok(());
    }
    let rows: Vec<Vec<String>> = calls.iter().map(row).collect();
    let head = [
        "STATE", "ID", "RULE", "DATABASE", "DOCUMENT", "ATTEMPTS", "CALL", "NOTE",
    ];
    output::text(&output::table(&head, &rows));
    if after.is_some() {
        output::error("more calls exist; raise --limit to see them");
    }
    Ok(())
}

/// Whether there are calls, in any state.
async fn has_any(service: &Service, filters: &[(&str, String)]) -> anyhow::Result<bool> {
    let (mut query, mut after) = (filters.to_vec(), None);
    query.push(("limit", PAGE.to_string()));
    loop {
        let request = service.request(Method::GET, "/_deliveries")?;
        let request = request
            .query(&query)
            .query(&after.map(|after| [("after", after)]));
        let page = answer(request).await?;
        let is_empty = page["deliveries"].as_array().is_none_or(Vec::is_empty);
        after = page["after"].as_str().map(str::to_owned);
        if !is_empty || after.is_none() {
            return Ok(!is_empty);
        }
    }
}

fn row(call: &Value) -> Vec<String> {
    vec![
        cell(&call["state"]),
        cell(&call["id"]),
        rule(call),
        cell(&call["db"]),
        cell(&call["doc_id"]),
        cell(&call["attempts"]),
        format!("{} {}", cell(&call["method"]), cell(&call["url"])),
        note(call),
    ]
}

/// A rule's id and database, as in metrics.
fn rule(call: &Value) -> String {
    let id = cell(&call["rule"]);
    let database = call["rule_database"].as_str();
    database.map_or_else(|| id.clone(), |database| format!("{database}/{id}"))
}

/// Why a call has not been delivered, or else the last response.
fn note(call: &Value) -> String {
    let last = &call["last"];
    let facts = [&call["reason"], &last["error"], &last["status"]];
    let fact = facts.into_iter().find(|fact| !fact.is_null());
    fact.map(cell).unwrap_or_default()
}

/// A call, one member per line, its runs last.
fn describe(call: &Value) -> String {
    let members = call.as_object().into_iter().flatten();
    let mut rows = output::members(members.filter(|(_, value)| !value.is_array()));
    let runs = call["runs"].as_array().into_iter().flatten();
    rows.extend(runs.map(|run| {
        let what = format!("run {} on {}", cell(&run["number"]), cell(&run["node"]));
        let reason = run["reason"].as_str().map(|reason| format!(": {reason}"));
        vec![cell(&run["started"]), what + &reason.unwrap_or_default()]
    }));
    output::table(&["", ""], &rows).trim_start().to_owned()
}

/// Acts on calls; `one` is the request if a call is named.
async fn act(
    service: &Service,
    which: Which,
    one: Option<(Method, String)>,
    action: &str,
    done: &str,
) -> anyhow::Result<()> {
    if let (Some(id), Some((method, path))) = (&which.id, one) {
        let answer = service.send(method, &path).await?;
        service.done(&answer, done, id);
        return Ok(());
    }
    let of = [("rule", which.rule), ("rule_database", which.db)];
    let of = of.into_iter();
    let of: Vec<_> = of
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
    if of.is_empty() && which.state.is_none() {
        return Err(unusable("name a call, or calls by --rule, --db or --state"));
    }
    let state = which.state.unwrap_or(State::Dead).name();
    let mut body = Map::from_iter([("state".to_owned(), state.into())]);
    let members = of.iter().cloned();
    body.extend(members.map(|(name, value)| (name.to_owned(), value.into())));
    let body = Value::Object(body).to_string();
    let path = format!("/_deliveries/_{action}");
    let answer = service.send_body(Method::POST, &path, body).await?;
    let count = answer[done].as_u64().unwrap_or(0);
    if count == 0 && !of.is_empty() && !has_any(service, &of).await? {
        bail!("no call matches --rule or --db; `davenport rules list` shows rules");
    }
    service.done(&answer, done, &counted(count, "call"));
    Ok(())
}
