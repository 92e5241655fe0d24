//! `POST /{rules}/_test`: what a rule would do; `/{rules}/{id}/_pause` and the like: what an operator does to it.

use docstore::ReadOptions;
use document::json::Json;
use rules::rule::{Listeners, Only, Progress, Rewind, Rule, RuleId, Since, Task, trial};
use scheduler::{ServiceError, strip};
use serde_json::{Value, json};

use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::endpoints::deliveries;
use crate::reply::{self, Reply};
use crate::route::RuleAction;

/// Maximum number of databases per request.
const DATABASES_MAX: usize = 1_000;
/// Maximum size of a change times the number of databases that it is tried for: the response may contain it for each.
const TRIED_BYTES_MAX: usize = 20_000_000;

pub(crate) async fn test(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    if !opened.has_rules() {
        return Err(Error::not_found("missing"));
    }
    call.allow("POST")?;
    call.check_json()?;
    let request = call.json_object().await?;
    let known = ["rule", "id", "databases", "change"];
    let members = request.as_object().unwrap_or_default();
    if let Some((name, _)) = members.iter().find(|(name, _)| !known.contains(&&**name)) {
        let reason = format!("`{name}` is unknown; use `rule` or `id`, `databases` and `change`");
        return Err(Error::bad_request(reason));
    }
    let (id, body) = match (request.get("rule"), request.get("id")) {
        (Some(rule @ Json::Object(_)), None) => (String::new(), rule.clone()),
        (None, Some(Json::String(id))) => (id.clone(), stored(call, opened, id).await?),
        _ => {
            return Err(Error::bad_request(
                "give either `rule`, an object, or `id`, a string",
            ));
        }
    };
    let databases = request.get("databases").map_or(Some(Vec::new()), |names| {
        names.as_array()?.iter().map(Json::as_str).collect()
    });
    let databases = databases.filter(|names| names.len() <= DATABASES_MAX);
    let databases = databases.ok_or_else(|| {
        Error::bad_request(format!(
            "`databases` must be a list of at most {DATABASES_MAX} names"
        ))
    })?;
    let change = request.get("change");
    let bytes = change.map_or(0, |change| change.to_string().len());
    if bytes.saturating_mul(databases.len()) > TRIED_BYTES_MAX {
        let reason = "`change` is too large for so many `databases`: its size times their number must be at most 20 MB; name fewer databases";
        return Err(Error::bad_request(reason));
    }
    let rule = Rule::parse(&body).and_then(|rule| {
        let rule = rule.map(|rule| Ok((call.shared.rules.check_secrets(&rule)?, rule)));
        rule.transpose()
    });
    Ok(reply::ok(&match rule {
        Ok(Some((warnings, rule))) => json!({
            "ok": true,
            "enabled": rule.enabled,
            "warnings": warnings,
            "databases": trial(&rule, &id, &databases, change),
        }),
        Ok(None) => json!({"ok": true, "enabled": false, "warnings": [], "databases": []}),
        Err(invalid) => json!({
            "ok": false, "path": invalid.path, "reason": invalid.reason, "at": invalid.at,
        }),
    }))
}

pub(crate) async fn act(
    call: &mut Call,
    opened: &Opened,
    id: &str,
    action: RuleAction,
) -> Result<Reply, Error> {
    let reads = action == RuleAction::Databases;
    call.allow(if reads { "GET,HEAD" } else { "POST" })?;
    let body = stored(call, opened, id).await?;
    let Some(rule) = Rule::accepted(&body).ok().flatten() else {
        return Err(Error::bad_request(
            "this document is not a rule; its `type` must be \"replicator\", \"on_change\" or \"remote\"",
        ));
    };
    if matches!(
        action,
        RuleAction::Pause | RuleAction::Resume | RuleAction::Trigger
    ) {
        call.no_members().await?;
    }
    let told = match action {
        RuleAction::Databases => databases(call, opened, id).await?,
        RuleAction::Pause => enable(call, opened, id, false).await?,
        RuleAction::Resume => enable(call, opened, id, true).await?,
        _ if !rule.enabled => {
            let reason = "the rule is paused; resume it first, with `_resume`";
            return Err(Error::bad_request(reason));
        }
        RuleAction::Trigger => trigger(call, opened, id, &rule).await?,
        RuleAction::Rewind => rewind(call, opened, id, &rule).await?,
    };
    Ok(reply::ok(&told))
}

/// How far a rule is in the databases that it has looked at.
async fn databases(call: &Call, opened: &Opened, id: &str) -> Result<Value, Error> {
    let text = |name| call.query.get(name).filter(|text| !text.is_empty());
    let only = Only {
        source: text("source").map(str::to_owned),
        database: text("database").map(str::to_owned),
    };
    let (after, limit) = deliveries::page(call)?;
    let (listeners, rule) = (listeners(call)?, rule_id(opened, id));
    let found = listeners.progress(&rule, &only, after, limit).await;
    let (found, after) = found.map_err(ServiceError::from)?;
    let row = |progress: Progress| {
        json!({
            "source": progress.source,
            "database": progress.database,
            "since": progress.since,
            "failures": progress.failures,
            "next_run": progress.next_ms.map(deliveries::time),
            "last_run": progress.last.map(|run| deliveries::run(&run.into())),
            "last_call": progress.last_call.as_ref().map(deliveries::attempt),
        })
    };
    let rows: Vec<Value> = found.into_iter().map(row).collect();
    let mut body = json!({"databases": rows});
    deliveries::add_after(&mut body, after.as_ref());
    Ok(body)
}

async fn enable(call: &Call, opened: &Opened, id: &str, enabled: bool) -> Result<Value, Error> {
    let rules = &call.shared.rules;
    let rev = rules.set_enabled(&opened.db, id, enabled).await?;
    Ok(json!({"ok": true, "id": id, "rev": rev.to_string(), "enabled": enabled}))
}

async fn trigger(call: &Call, opened: &Opened, id: &str, rule: &Rule) -> Result<Value, Error> {
    let triggered = match rule.task {
        Task::Replicate(_) | Task::Copy(_) => {
            let replications = &call.shared.replications;
            Box::pin(replications.trigger_rule(&opened.db, id)).await?
        }
        Task::Call(_) => {
            let triggered = listeners(call)?.trigger(&rule_id(opened, id)).await;
            triggered.map_err(ServiceError::from)?
        }
    };
    Ok(json!({"ok": true, "id": id, "triggered": triggered}))
}

/// `{"since": ..., "source": ..., "database": ...}`, all optional.
async fn rewind(call: &mut Call, opened: &Opened, id: &str, rule: &Rule) -> Result<Value, Error> {
    if let Task::Replicate(_) | Task::Copy(_) = rule.task {
        return Err(Error::bad_request(
            "a rule of type `replicator` or `remote` has no position to rewind: its runs continue where target and source agree; use `_trigger`",
        ));
    }
    call.check_json()?;
    let request = call.json_object().await?;
    let mut only = Only::default();
    let mut to = Rewind::Seq("0".to_owned());
    for (name, value) in request.as_object().unwrap_or_default() {
        match (&**name, value) {
            ("source", Json::String(text)) => only.source = Some(text.clone()),
            ("database", Json::String(text)) => only.database = Some(text.clone()),
            ("source" | "database", _) => {
                return Err(Error::bad_request(format!("`{name}` must be a string")));
            }
            ("since", Json::Null) => {}
            ("since", since) => match Since::parse(since) {
                Some(Since::Now) => to = Rewind::Now,
                Some(Since::Seq(seq)) => to = Rewind::Seq(seq),
                None => return Err(Error::bad_request(format!("`since` {}", Since::REASON))),
            },
            _ => {
                let reason = format!("`{name}` is unknown; use `since`, `source` and `database`");
                return Err(Error::bad_request(reason));
            }
        }
    }
    let is_of_one = matches!(&to, Rewind::Seq(seq) if seq != "0");
    if is_of_one && only.database.is_none() {
        let reason = "an update sequence belongs to one database; set `database`";
        return Err(Error::bad_request(reason));
    }
    let (listeners, rule) = (listeners(call)?, rule_id(opened, id));
    let rewound = listeners.rewind(&rule, &only, &to).await;
    let rewound = rewound.map_err(ServiceError::from)?;
    Ok(json!({"ok": true, "id": id, "rewound": rewound}))
}

fn listeners(call: &Call) -> Result<Listeners, Error> {
    let listeners = call.shared.listeners.clone();
    listeners.ok_or_else(|| Error::not_found("missing"))
}

fn rule_id(opened: &Opened, id: &str) -> RuleId {
    RuleId {
        instance: opened.db.instance(),
        doc: id.to_owned(),
    }
}

/// The body of a rule in the database.
async fn stored(call: &Call, opened: &Opened, id: &str) -> Result<Json, Error> {
    let document = match call
        .docs()
        .get(&opened.db, id, &ReadOptions::default())
        .await
    {
        Err(docstore::Error::Missing | docstore::Error::Deleted) => {
            let db = opened.db.name();
            return Err(Error::not_found(format!(
                "there is no rule `{id}` in the database `{db}`; `davenport rules list --db {db}` lists its rules"
            )));
        }
        document => document?,
    };
    let sealer = call.shared.replications.sealer();
    strip::open_body(sealer, &opened.db, id, &document.body).map_err(Error::internal)
}
