//! Bodies of requests for jobs.

use serde_json::{Value, json};

pub(super) fn body(path: &str, method: &str) -> Value {
    match path.rsplit('/').next().unwrap_or_default() {
        "{type}" if method == "put" => settings(),
        "{type}" => {
            let many = closed(
                &json!({"jobs": {"type": "array", "maxItems": 500, "items": job()}}),
                &["jobs"],
            );
            json!({"anyOf": [job(), many]})
        }
        "{schedule}" => {
            let fields = json!({
                "type": {"type": "string", "pattern": TYPE}, "job": job(), "cron": {"type": "string", "examples": ["30 4 * * mon-fri"]},
                "every_sec": {"type": "number", "minimum": 1, "maximum": 1e9},
                "zone": {"type": "string", "examples": ["Europe/Berlin"]},
                "overlap": {"enum": ["skip", "queue"]}, "catch_up": {"enum": ["one", "all", "none"]},
            });
            closed(&fields, &["type", "job"])
        }
        "_tokens" => {
            let fields = json!({
                "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
                "types": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": TYPE}},
                "rights": {"type": "array", "minItems": 1, "items": {"enum": ["enqueue", "work", "read"]}},
                "expires_sec": {"type": "number", "minimum": 0.001, "maximum": 1e9},
            });
            closed(&fields, &["name", "rights"])
        }
        "_claim" => {
            let fields = json!({"worker": worker(), "count": count(), "wait_sec": wait()});
            closed(&fields, &["worker"])
        }
        "_beat" => held(&json!({"progress": raw()}), &json!({}), &[]),
        "_finish" => {
            let run = json!({
                "outcome": {"enum": ["done", "failed", "again"]}, "result": raw(), "error": raw(), "delay_sec": seconds(),
                "retry": {"type": "boolean"},
            });
            let count = json!({"type": "integer", "minimum": 0, "maximum": 500});
            let claim = json!({"claim": count, "worker": worker(), "wait_sec": wait()});
            held(&run, &claim, &["outcome"])
        }
        "_retry" if !path.contains("{id}") => {
            let error = json!({"not": {"type": "null"}});
            let fields = json!({"state": {"enum": ["dead"]}, "error": error});
            closed(&fields, &["state"])
        }
        // `_pause` and the like.
        _ => closed(&json!({}), &[]),
    }
}

pub(super) const TYPE: &str = "^[a-z][a-z0-9_-]{0,59}$";
/// Neither `.` nor `..`, and no `_` at the start.
const ID: &str = r"^([^_.]|\.[^.]|\.\.[\s\S])";

pub(super) fn job() -> Value {
    let text = || json!({"type": "string", "minLength": 1, "maxLength": 256});
    let fields = json!({
        "id": {"type": "string", "pattern": ID, "maxLength": 256}, "data": raw(), "delay_sec": seconds(),
        "due": {"type": "string", "format": "date-time"}, "class": {"enum": ["urgent", "normal", "bulk"]},
        "tenant": text(), "key": text(), "on_exists": {"enum": ["replace", "keep", "earliest"]},
    });
    closed(&fields, &["data"])
}

pub(super) fn settings() -> Value {
    let names = || json!({"type": "array", "items": {"type": "string"}});
    let whole = || json!({"type": "integer", "minimum": 0, "maximum": 10_000});
    let retry = json!({
        "limit": {"type": ["integer", "null"], "minimum": 0, "maximum": 1_000_000}, "delay_sec": seconds(),
        "multiplier": {"type": "number", "minimum": 1, "maximum": 100}, "max_delay_sec": seconds(),
        "jitter": {"type": "number", "minimum": 0, "maximum": 1},
    });
    let rate = closed(
        &json!({"max": whole(), "per_sec": {"type": "number", "minimum": 0.001, "maximum": 1e9}}),
        &["max", "per_sec"],
    );
    let roles = json!({"enqueue": names(), "work": names(), "read": names()});
    let fields = json!({
        "timeout_sec": {"type": "number", "minimum": 1, "maximum": 86_400},
        "retention_sec": {"type": ["number", "null"], "minimum": 0, "maximum": 1e9},
        "retry": closed(&retry, &[]),
        "limits": {"type": "object", "additionalProperties": {"anyOf": [whole(), rate]}},
        "shares": {
            "type": ["object", "null"],
            "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 1_000},
        },
        "roles": closed(&roles, &[]),
        "max_pending": {"type": ["integer", "null"], "minimum": 1},
        "max_data_bytes": {"type": "integer", "minimum": 1, "maximum": queue::DATA_BYTES_MAX},
        "sealed": {"type": "boolean"},
    });
    closed(&fields, &[])
}

/// Held jobs with these members.
fn held(of_job: &Value, beside: &Value, required: &[&str]) -> Value {
    let text = json!({"type": "string"});
    let mut fields = json!({"id": text, "lock": text});
    merge(&mut fields, of_job);
    let needed: Vec<&str> = ["id", "lock"].iter().chain(required).copied().collect();
    let jobs = json!({"type": "array", "maxItems": 500, "items": closed(&fields, &needed)});
    let mut body = json!({"jobs": jobs});
    merge(&mut body, beside);
    closed(&body, &["jobs"])
}

pub(super) fn merge(into: &mut Value, from: &Value) {
    for (name, value) in from.as_object().into_iter().flatten() {
        into[name] = value.clone();
    }
}

pub(super) fn closed(fields: &Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": fields, "required": required, "additionalProperties": false})
}

/// What is passed on as it is.
fn raw() -> Value {
    json!({"description": format!("Any JSON that is nested at most {} deep.", queue::DEPTH_MAX)})
}

fn worker() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": jobs::HOLDER_BYTES_MAX})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": 500})
}

fn wait() -> Value {
    json!({"type": "number", "minimum": 0, "maximum": 60, "examples": [0]})
}

fn seconds() -> Value {
    json!({"type": "number", "minimum": 0, "maximum": 1e9})
}
