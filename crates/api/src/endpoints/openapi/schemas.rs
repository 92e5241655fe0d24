//! Schemas of parameters, bodies and responses.

mod answers;
mod jobs;

use serde_json::{Map, Value, json};

pub(super) fn parameter(name: &str) -> Value {
    match name {
        "db" => json!({"type": "string", "pattern": DATABASE, "examples": ["_replicator"]}),
        "replicator" => {
            json!({"type": "string", "pattern": REPLICATOR, "examples": ["_replicator"]})
        }
        "rules" => json!({"type": "string", "pattern": RULES, "examples": ["_rules"]}),
        "docid" => json!({"type": "string", "minLength": 1, "examples": ["a"]}),
        "limit" | "skip" | "count" | "timeout" => json!({"type": "integer", "minimum": 0}),
        "heartbeat" => json!({"type": "integer", "minimum": 1}),
        "include_docs" | "conflicts" | "deleted_conflicts" | "descending" | "inclusive_end"
        | "revs" | "revs_info" | "latest" | "meta" | "local_seq" | "attachments" | "new_edits"
        | "update_seq" | "async" | "basic" | "data" => json!({"type": "boolean"}),
        "sort" => json!({"enum": [
            "state", "id", "type", "source", "target", "lag", "rate", "next_try", "last_updated",
        ]}),
        "state" => json!({"enum": ["pending", "running", "delivered", "dead"]}),
        "type" => {
            json!({"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,59}$", "examples": ["mail"]})
        }
        "job_state" => json!({"enum": ["pending", "running", "finished", "dead"]}),
        "remote_state" => {
            json!({"enum": ["running", "waiting", "retrying", "asleep", "paused", "failed"]})
        }
        "schedule" | "token" => {
            json!({"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$", "examples": ["nightly"]})
        }
        "timeout_sec" => json!({"type": "number", "minimum": 0, "maximum": 60}),
        "feed" => json!({"enum": ["normal", "longpoll", "continuous", "eventsource"]}),
        "filter" => json!({"enum": ["_doc_ids", "_selector", "_design"]}),
        "style" => json!({"enum": ["main_only", "all_docs"]}),
        "batch" => json!({"enum": ["ok"]}),
        "startkey" | "endkey" | "key" => {
            json!({"type": "string", "contentMediaType": "application/json", "examples": ["\"a\""]})
        }
        "keys" | "doc_ids" | "open_revs" | "atts_since" => {
            json!({"type": "string", "contentMediaType": "application/json", "examples": ["[]"]})
        }
        _ => json!({"type": "string"}),
    }
}

const REPLICATOR: &str = "^([a-z][a-z0-9_$()+-]*/)?_replicator$";
const RULES: &str = "^(spiegel|([a-z][a-z0-9_$()+-]*/)?_rules)$";
const DATABASE: &str = "^(_users|spiegel|([a-z][a-z0-9_$()+-]*/)?(_replicator|_rules))$";

const OF_JOBS: [&str; 3] = ["/_jobs", "/_schedules", "/_tokens"];

pub(super) fn error() -> Value {
    json!({"$ref": "#/components/schemas/Error"})
}

/// Responses that are not errors, and special errors, by status.
pub(super) fn answers(path: &str, method: &str) -> Map<String, Value> {
    if OF_JOBS.iter().any(|of| path.starts_with(of)) {
        return answers::answers(path, method);
    }
    let done = json!({"description": "Done", "content": {"application/json": {"schema": {}}}});
    Map::from_iter([("2XX".to_owned(), done)])
}

/// Parameters in headers.
pub(super) fn headers(path: &str, method: &str) -> Vec<Value> {
    answers::headers(path, method)
}

pub(super) fn body(path: &str, method: &str) -> Value {
    if OF_JOBS.iter().any(|of| path.starts_with(of)) {
        return jobs::body(path, method);
    }
    let text = json!({"type": "string"});
    let object = || json!({"type": "object"});
    let texts = || json!({"type": "array", "items": {"type": "string"}});
    let part = path.rsplit('/').next().unwrap_or_default();
    match part {
        "_replay" | "_remove" if !path.contains('{') => {
            let state = json!({"enum": ["delivered", "dead"]});
            let fields = json!({"rule": text, "rule_database": text, "state": state});
            members(&fields, &[])
        }
        "_session" => members(
            &json!({"name": text, "password": text}),
            &["name", "password"],
        ),
        "replications" => {
            let action = json!({"enum": ["restart", "pause", "resume", "delete"]});
            let matching = members(
                &json!({"states": texts(), "database": text, "q": text, "cause": text}),
                &[],
            );
            members(
                &json!({"action": action, "keys": texts(), "matching": matching}),
                &["action"],
            )
        }
        "_replicate" => replication(),
        "_dbs_info" => members(&json!({"keys": texts()}), &["keys"]),
        "_all_docs" | "_design_docs" => members(&json!({"keys": texts()}), &[]),
        "queries" => {
            let queries = json!({"type": "array", "items": object()});
            members(&json!({"queries": queries}), &["queries"])
        }
        "_bulk_docs" => {
            let docs = json!({"type": "array", "items": object()});
            let fields = json!({"docs": docs, "new_edits": {"type": "boolean"}});
            members(&fields, &["docs"])
        }
        "_bulk_get" => {
            let doc = members(&json!({"id": text, "rev": text}), &["id"]);
            members(&json!({"docs": {"type": "array", "items": doc}}), &["docs"])
        }
        "_revs_diff" | "_missing_revs" => {
            json!({"type": "object", "additionalProperties": texts()})
        }
        "_changes" => members(&json!({"doc_ids": texts(), "selector": object()}), &[]),
        "_find" | "_explain" => {
            let count = json!({"type": "integer", "minimum": 0});
            let fields = json!({
                "selector": object(), "fields": texts(), "limit": count, "skip": count,
                "bookmark": {"type": "string"}, "conflicts": {"type": "boolean"},
            });
            members(&fields, &["selector"])
        }
        "_security" => {
            let group = members(&json!({"names": texts(), "roles": texts()}), &[]);
            members(&json!({"admins": group, "members": group}), &[])
        }
        "_pause" | "_resume" | "_restart" | "_trigger" => jobs::closed(&json!({}), &[]),
        "_test" => trial(),
        "_start" => start(),
        "_rewind" => rewind(),
        "_revs_limit" => json!({"type": "integer", "minimum": 1}),
        "{docid}" | "{db}" => object(),
        _ => json!({}),
    }
}

fn trial() -> Value {
    let object = json!({"type": "object"});
    let change = members(&json!({"doc": object, "seq": {}}), &[]);
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let id = json!({"type": "string"});
    let fields = json!({"rule": object, "id": id, "databases": texts, "change": change});
    members(&fields, &[])
}

fn start() -> Value {
    let (flag, text) = (json!({"type": "boolean"}), json!({"type": "string"}));
    let texts =
        json!({"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1});
    let seconds = json!({"type": "number", "minimum": 0, "maximum": 3600});
    let fields = json!({
        "remotes": texts, "databases": texts, "all": flag, "url": text, "now": flag, "wait": flag,
        "timeout_sec": seconds,
    });
    members(&fields, &[])
}

fn rewind() -> Value {
    let text = json!({"type": "string"});
    let since = json!({"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]});
    let fields = json!({"since": since, "source": text, "database": text});
    members(&fields, &[])
}

fn replication() -> Value {
    let endpoint = json!({"anyOf": [
        {"type": "string", "examples": ["https://db.example.com/a"]},
        members(&json!({"url": {"type": "string"}, "headers": {"type": "object"}, "auth": {"type": "object"}}), &["url"]),
    ]});
    let (flag, text) = (json!({"type": "boolean"}), json!({"type": "string"}));
    let fields = json!({
        "source": endpoint, "target": endpoint, "continuous": flag, "create_target": flag, "cancel": flag,
        "doc_ids": {"type": "array", "items": text}, "selector": {"type": "object"}, "filter": text,
        "query_params": {"type": "object"}, "since_seq": {}, "use_checkpoints": flag,
    });
    members(&fields, &["source", "target"])
}

fn members(fields: &Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": fields, "required": required})
}
