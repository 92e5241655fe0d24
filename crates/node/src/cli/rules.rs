//! `davenport rules`: lists, tries and controls rules of a service, over HTTP.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use document::json::Json;
use futures::{StreamExt as _, stream};
use reqwest::Method;
use rules::rule::call::is_secret;
use serde_json::Value;

use super::output::{self, cell};
use super::service::{Refusal, Service, ServiceFlags, answer, escaped};

/// Requests for states at a time.
const AT_ONCE: usize = 8;
/// Members whose values are credentials.
const SECRET: [&str; 4] = ["auth", "headers", "secret", "tls"];

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Database of the rules: _rules, NAME/_rules or spiegel
    #[arg(long, global = true, value_name = "NAME", default_value = "_rules")]
    db: String,
    #[command(flatten)]
    service: ServiceFlags,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List rules, with the states of their replications
    List,
    /// Show one rule
    Show {
        /// Id of the rule's document
        id: String,
    },
    /// Show what a rule would do, without doing it
    Test {
        /// File with the rule, or the id of a rule's document
        #[arg(value_name = "FILE|ID")]
        rule: String,
        /// Name of a database; can be repeated
        #[arg(long, value_name = "NAME", required = true)]
        database: Vec<String>,
        /// File with a changed document, or with an object {"doc", "seq"}
        #[arg(long, value_name = "FILE")]
        change: Option<PathBuf>,
    },
    /// Run the replications of a rule now, or look for changes to call about
    Trigger {
        /// Id of the rule's document
        id: String,
    },
    /// Let a rule that calls a webhook go on from another place
    Rewind {
        /// Id of the rule's document
        id: String,
        /// "now", or an update sequence, which needs --database; from the beginning if absent
        #[arg(long, value_name = "SEQ")]
        since: Option<String>,
        /// Only in this database
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
        /// Only on the source of this name
        #[arg(long, value_name = "NAME")]
        source: Option<String>,
    },
    /// Pause a rule: sets `enabled` to false
    Pause {
        /// Id of the rule's document
        id: String,
    },
    /// Resume a rule: sets `enabled` to true
    Resume {
        /// Id of the rule's document
        id: String,
    },
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let rules = Rules {
        service: Service::new(&command.service)?,
        db: command.db,
    };
    match &command.action {
        Action::List => rules.list().await,
        Action::Show { id } => rules.show(id).await,
        Action::Test {
            rule,
            database,
            change,
        } => rules.test(rule, database, change.as_deref()).await,
        Action::Trigger { id } => rules.act(id, "_trigger", "triggered", "{}").await,
        Action::Pause { id } => rules.act(id, "_pause", "paused", "{}").await,
        Action::Resume { id } => rules.act(id, "_resume", "resumed", "{}").await,
        Action::Rewind {
            id,
            since,
            database,
            source,
        } => {
            let members = [("since", since), ("database", database), ("source", source)];
            let given = |(name, text): (&'static str, &Option<String>)| {
                Some((name, Json::String(text.clone()?)))
            };
            let body = object(members.into_iter().filter_map(given)).to_string();
            rules.act(id, "_rewind", "rewound", &body).await
        }
    }
}

struct Rules {
    service: Service,
    db: String,
}

impl Rules {
    async fn list(&self) -> anyhow::Result<()> {
        let documents = self.service.documents(&self.db).await;
        let documents = documents.with_context(|| {
            format!(
                "cannot read the rules of {}; choose another database with --db",
                self.db
            )
        })?;
        let documents = documents.iter().map(|(_, document)| document);
        let rules: Vec<Value> = (documents.map(Json::to_value))
            .filter(|rule| {
                matches!(
                    rule["type"].as_str(),
                    Some("replicator" | "on_change" | "remote")
                )
            })
            .collect();
        if self.service.json {
            for rule in &rules {
                output::line(&rule.to_string());
            }
            return Ok(());
        }
        let rows = stream::iter(&rules).map(|rule| async move {
            let mut row = row(rule);
            row.push(cell(&self.run_of(rule).await["state"]));
            row
        });
        let rows: Vec<_> = rows.buffered(AT_ONCE).collect().await;
        let head = ["ID", "TYPE", "ENABLED", "DATABASES", "TARGET", "STATE"];
        output::text(&output::table(&head, &rows));
        Ok(())
    }

    async fn show(&self, id: &str) -> anyhow::Result<()> {
        let rule = self.document(id).await?.to_value();
        if self.service.json {
            output::line(&rule.to_string());
            return Ok(());
        }
        let run = self.run_of(&rule).await;
        let rule = masked("", &rule);
        let mut rows = output::members(rule.as_object().into_iter().flatten());
        let known = ["state", "last_updated", "info"].map(str::to_owned);
        let known = known.iter().filter(|name| !run[*name].is_null());
        rows.extend(output::members(known.map(|name| (name, &run[name]))));
        output::text(output::table(&["", ""], &rows).trim_start());
        if rule["type"] == "on_change" {
            self.show_databases(id).await?;
        }
        Ok(())
    }

    async fn document(&self, id: &str) -> anyhow::Result<Json> {
        let db = &self.db;
        let found = self.service.document(db, id).await;
        found.map_err(|error| {
            let refusal = error.downcast_ref::<Refusal>();
            if !refusal.is_some_and(Refusal::is_of_document) {
                return error;
            }
            anyhow!(
                "there is no rule {id} in the database {db}; `davenport rules list --db {db}` lists its rules"
            )
        })
    }

    /// The first databases that a rule has looked at.
    async fn show_databases(&self, id: &str) -> anyhow::Result<()> {
        let (databases, after) = self.first_databases(id).await?;
        if databases.is_empty() {
            output::text("It has not looked at a database yet.\n");
            return Ok(());
        }
        let rows: Vec<_> = databases.iter().map(progress).collect();
        let head = [
            "DATABASE", "SOURCE", "SINCE", "FAILURES", "NEXT", "LAST RUN", "REASON",
        ];
        output::text(&output::table(&head, &rows));
        if let Some(after) = after {
            let path = self.databases_path(id);
            output::text(&format!("more databases: GET {path}?after={after}\n"));
        }
        Ok(())
    }

    /// The first page that is not empty, and where the next one begins. Pages of rules are empty if the service has read
    /// many databases of other rules.
    async fn first_databases(&self, id: &str) -> anyhow::Result<(Vec<Value>, Option<String>)> {
        let (path, mut after) = (self.databases_path(id), None::<String>);
        loop {
            let request = self.service.request(Method::GET, &path)?;
            let query: Vec<_> = after.iter().map(|after| ("after", after)).collect();
            let mut page = answer(request.query(&query)).await?;
            after = page["after"].as_str().map(str::to_owned);
            match page["databases"].take() {
                Value::Array(databases) if !databases.is_empty() => return Ok((databases, after)),
                _ if after.is_none() => return Ok((Vec::new(), None)),
                _ => {}
            }
        }
    }

    fn databases_path(&self, id: &str) -> String {
        format!("/{}/{}/_databases", escaped(&self.db), escaped(id))
    }

    /// The row of a rule in `_scheduler/docs`: that of its replication, or a summary of those it has.
    async fn run_of(&self, rule: &Value) -> Value {
        let Some(id) = rule["_id"].as_str() else {
            return Value::Null;
        };
        let path = format!("/_scheduler/docs/{}/{}", escaped(&self.db), escaped(id));
        let row = self.service.send(Method::GET, &path).await;
        row.unwrap_or_default()
    }

    async fn test(
        &self,
        rule: &str,
        databases: &[String],
        change: Option<&Path>,
    ) -> anyhow::Result<()> {
        let names = databases.iter().cloned().map(Json::String).collect();
        let rule = match Path::new(rule) {
            file if file.is_file() => ("rule", read(file)?),
            _ => ("id", Json::String(rule.to_owned())),
        };
        let mut body = vec![rule, ("databases", Json::Array(names))];
        if let Some(file) = change {
            let mut change = read(file)?;
            if change.get("doc").is_none() {
                change = object([("doc", change)]);
            }
            body.push(("change", change));
        }
        let path = format!("/{}/_test", escaped(&self.db));
        let body = object(body).to_string();
        let answer = self.service.send_body(Method::POST, &path, body).await?;
        for warning in answer["warnings"].as_array().into_iter().flatten() {
            output::error(&format!("warning: {}", cell(warning)));
        }
        let rows = answer["databases"].as_array().into_iter().flatten();
        if self.service.json {
            output::line(&answer.to_string());
        } else if answer["ok"] == true {
            let rows: Vec<Vec<String>> = rows.map(tried).collect();
            output::text(&output::table(&["DATABASE", "RESULT"], &rows));
        }
        if answer["ok"] != true {
            let path = answer["path"].as_str().filter(|path| !path.is_empty());
            let path = path.map(|path| format!("`{path}`: ")).unwrap_or_default();
            bail!("the rule is invalid: {path}{}", cell(&answer["reason"]));
        }
        Ok(())
    }

    async fn act(&self, id: &str, action: &str, done: &str, body: &str) -> anyhow::Result<()> {
        let path = format!("/{}/{}/{action}", escaped(&self.db), escaped(id));
        let sent = (self.service).send_body(Method::POST, &path, body.to_owned());
        let answer = sent.await?;
        let count = answer[done].as_u64();
        let done = count.map_or_else(
            || done.to_owned(),
            |count| format!("{done} {} of", output::number(count)),
        );
        self.service.done(&answer, &done, id);
        Ok(())
    }
}

fn is_replicator(rule: &Value) -> bool {
    rule["type"] == "replicator"
}

fn object(members: impl IntoIterator<Item = (&'static str, Json)>) -> Json {
    let members = members.into_iter();
    Json::Object(
        members
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

fn read(file: &Path) -> anyhow::Result<Json> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    Json::parse(&text).with_context(|| format!("{shown} is not JSON"))
}

/// All columns but the state.
fn row(rule: &Value) -> Vec<String> {
    let url = |side: &Value| bare(&cell(side.get("url").unwrap_or(side)));
    let patterns = [&rule["match"]["database"], &rule["db_name"]];
    let pattern = patterns.into_iter().find_map(Value::as_str);
    let (about, does) = if is_replicator(rule) {
        (url(&rule["source"]), url(&rule["target"]))
    } else if rule["type"] == "remote" {
        let urls = (rule["url"].as_array())
            .map_or_else(|| vec![&rule["url"]], |urls| urls.iter().collect());
        let urls: Vec<_> = urls.into_iter().map(url).collect();
        (url(&rule["source"]), urls.join(" "))
    } else {
        let method = rule["method"].as_str().unwrap_or("GET");
        let method = method.to_ascii_uppercase();
        ("all".to_owned(), format!("{method} {}", url(rule)))
    };
    let enabled = if rule["enabled"] == false {
        "no"
    } else {
        "yes"
    };
    vec![
        cell(&rule["_id"]),
        cell(&rule["type"]),
        enabled.to_owned(),
        pattern.map_or(about, str::to_owned),
        does,
    ]
}

/// A URL, maybe with variables, without its user and query: both may hold credentials.
fn bare(url: &str) -> String {
    let is_http = |scheme: &str| ["http", "https"].contains(&scheme.to_ascii_lowercase().as_str());
    let short = url.split_once(':').filter(|(scheme, _)| is_http(scheme));
    let Some((scheme, rest)) = url.split_once("://").or(short) else {
        return url.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    // The URL standard also accepts `http:///user:password@host`, and backslashes.
    let rest = rest.trim_start_matches(['/', '\\']);
    let end = rest.find('/').unwrap_or(rest.len());
    let host = rest[..end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[host..])
}

/// A member of a rule without credentials.
fn masked(name: &str, value: &Value) -> Value {
    let mask = || Value::from("***");
    match value {
        Value::Object(members) if name == "headers" => {
            let shown = |(name, value): (&String, &Value)| {
                let value = if is_secret(name) {
                    mask()
                } else {
                    value.clone()
                };
                (name.clone(), value)
            };
            Value::Object(members.iter().map(shown).collect())
        }
        Value::Object(members) if !SECRET.contains(&name) => {
            let members = members.iter();
            let members = members.map(|(name, value)| (name.clone(), masked(name, value)));
            Value::Object(members.collect())
        }
        Value::Array(items) if !SECRET.contains(&name) => {
            items.iter().map(|item| masked(name, item)).collect()
        }
        Value::Null => Value::Null,
        _ if SECRET.contains(&name) => mask(),
        Value::String(text) => bare(text).into(),
        other => other.clone(),
    }
}

/// How far a rule is in a database, in a row.
fn progress(row: &Value) -> Vec<String> {
    let last = &row["last_run"];
    let times = [&last["ended"], &last["started"]];
    let members = [
        &row["database"],
        &row["source"],
        &row["since"],
        &row["failures"],
        &row["next_run"],
        times[usize::from(times[0].is_null())],
        &last["reason"],
    ];
    members.map(cell).to_vec()
}

/// What a rule would do for a database, in a row.
fn tried(database: &Value) -> Vec<String> {
    let (call, replication) = (&database["call"], &database["replication"]);
    let result = if database["matches"] != true {
        "does not match".to_owned()
    } else if let Some(error) = database["error"].as_str() {
        format!("error: {error}")
    } else if database["accepts"] == false {
        "`if` or `selector` does not match".to_owned()
    } else if call.is_object() {
        let url = cell(&call["url"]);
        format!("calls {} {url} {}", cell(&call["method"]), call["body"])
    } else if let Some(replications) = database["replications"].as_array() {
        let target = |one: &Value| cell(one["target"].get("url").unwrap_or(&one["target"]));
        let targets: Vec<_> = replications.iter().map(target).collect();
        format!("replicates to {}", targets.join(", "))
    } else {
        let side = |name: &str| cell(replication[name].get("url").unwrap_or(&replication[name]));
        format!("replicates {} to {}", side("source"), side("target"))
    };
    vec![cell(&database["name"]), result]
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::Query;
    use axum::routing::get;
    use clap::Parser;
    use serde_json::json;

    use super::*;

    /// The service reads a bounded number of databases for each page, those of other rules among them.
    #[tokio::test]
    async fn empty_pages_of_databases_are_skipped() {
        let page = async |Query(query): Query<Vec<(String, String)>>| {
            let after: Vec<&str> = query.iter().map(|(_, after)| &**after).collect();
            let page = match after[..] {
                [] => json!({"databases": [], "after": "p/1="}),
                ["p/1="] => json!({"databases": [], "after": "p2"}),
                ["p2"] => json!({"databases": [{"database": "shop"}], "after": "p3"}),
                _ => Value::Null,
            };
            page.to_string()
        };
        let router = Router::new().fallback(get(page));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let flags = ["davenport", "--url", &url, "list"];
        let command = Parsed::parse_from(flags).command;
        let rules = Rules {
            service: Service::new(&command.service).unwrap(),
            db: command.db,
        };
        let (databases, after) = rules.first_databases("hook").await.unwrap();
        assert_eq!(databases, [json!({"database": "shop"})]);
        assert_eq!(after.as_deref(), Some("p3"));
    }

    #[derive(Parser)]
    struct Parsed {
        #[command(flatten)]
        command: Command,
    }

    #[test]
    fn rules_are_rows_without_credentials() {
        let call = json!({"_id": "hook", "type": "on_change", "db_name": "^a", "method": "post",
            "url": "https://bob:pw@h.example:8443/x@y/${db_name}?key=1", "enabled": false});
        let called = "POST https://h.example:8443/x@y/${db_name}";
        assert_eq!(row(&call), ["hook", "on_change", "no", "^a", called]);
        let copy = json!({"_id": "copy", "type": "replicator", "source": {"url": "http://u:p@a/b"},
            "target": "http://u@c?x=@"});
        let expected = ["copy", "replicator", "yes", "http://a/b", "http://c"];
        assert_eq!(row(&copy), expected);
    }

    #[test]
    fn credentials_are_masked() {
        let rule = json!({"source": {"url": "http://u:p@a/b", "headers": {"X": "y", "Accept": "a/b"}}, "secret": "whsec_1",
            "params": {"n": 1, "text": "a@b"}, "auth": null});
        let expected = json!({"source": {"url": "http://a/b", "headers": {"X": "***", "Accept": "a/b"}}, "secret": "***",
            "params": {"n": 1, "text": "a@b"}, "auth": null});
        assert_eq!(masked("", &rule), expected);
        let targets = json!({"url": ["http://u:p@a/${name}?k=1",
            {"url": "https:\\\\u:p@c/d", "auth": {"basic": {"username": "x", "password": "y"}}}]});
        let expected = json!({"url": ["http://a/${name}", {"url": "https://c/d", "auth": "***"}]});
        assert_eq!(masked("", &targets), expected);
    }
}
