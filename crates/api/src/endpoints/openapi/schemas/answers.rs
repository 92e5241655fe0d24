//! Responses about jobs.

use serde_json::{Map, Value, json};

use super::jobs::{TYPE, closed, job, merge, settings};

/// Responses by status, for paths of jobs, schedules and tokens.
pub(super) fn answers(path: &str, method: &str) -> Map<String, Value> {
    let part = path.rsplit('/').next().unwrap_or_default();
    let of_job = path.contains("{id}");
    let answers = match (part, method) {
        ("_jobs", _) => vec![(200, page("types", &type_row()))],
        ("{type}", "get") => vec![(200, page("jobs", &job_row()))],
        ("{type}", "put") => vec![(200, ok(&json!({}))), (201, ok(&json!({})))],
        ("{type}", "post") => vec![(201, added())],
        ("_type", _) => vec![(200, type_row())],
        ("_claim", _) => vec![(200, claimed(&json!({})))],
        ("_beat", _) => vec![(200, beaten())],
        ("_finish", _) => {
            let status = json!({"enum": ["ok", "repeated", "halt"]});
            let result = all(&json!({"id": text(), "status": status}));
            vec![(200, claimed(&json!({"results": list(&result)})))]
        }
        ("_retry", _) if !of_job => {
            let running = json!({"count": count(), "running": {"const": true}});
            vec![(200, ok(&json!({"count": count()}))), (202, ok(&running))]
        }
        ("_failures", _) => vec![(200, failures())],
        ("{id}", "get") | ("_wait", _) => vec![(200, job_row())],
        ("_schedules", _) => vec![(200, page("schedules", &schedule()))],
        ("{schedule}", "get") => vec![(200, schedule())],
        ("{schedule}", "put") => {
            let next = ok(&json!({"next": time()}));
            vec![(200, next.clone()), (201, next)]
        }
        ("_run", _) => vec![(201, ok(&json!({"id": text()})))],
        ("_tokens", "get") => vec![(200, all(&json!({"tokens": list(&all(&token()))})))],
        ("_tokens", _) => {
            let mut made = token();
            merge(&mut made, &json!({"token": text()}));
            vec![(201, ok(&made))]
        }
        _ => vec![(200, ok(&json!({})))],
    };
    let answers = answers.into_iter().map(|(status, schema)| {
        let content = json!({"application/json": {"schema": schema}});
        let answer = json!({"description": "Done", "content": content});
        (status.to_string(), answer)
    });
    let mut answers: Map<_, _> = answers.collect();
    match (part, method) {
        ("_feed", _) => {
            let content = json!({"text/event-stream": {"schema": text()}});
            let feed = "States now and changes, until all jobs are finished, dead or removed";
            answers["200"] = json!({"description": feed, "content": content});
            let over = "`Last-Event-ID` is the id of the event that ended the feed";
            answers.insert("204".to_owned(), json!({"description": over}));
        }
        ("{type}", "post") => {
            let content = json!({"application/json": {"schema": super::error()}});
            let after = json!({"description": "Seconds", "schema": {"type": "integer"}});
            let full = json!({
                "description": "`max_pending` of the type is reached", "headers": {"Retry-After": after}, "content": content.clone(),
            });
            answers.insert("429".to_owned(), full);
            let used = "The `Idempotency-Key` was used for another job";
            let used = json!({"description": used, "content": content});
            answers.insert("422".to_owned(), used);
        }
        _ => {}
    }
    answers
}

/// Headers that requests may have.
pub(super) fn headers(path: &str, method: &str) -> Vec<Value> {
    let of = |name: &str, description: &str, schema: Value| {
        let required = false;
        json!({"name": name, "in": "header", "required": required, "description": description, "schema": schema})
    };
    match (path, method) {
        ("/_jobs/{type}" | "/_schedules/{schedule}/_run", "post") => vec![of(
            "Idempotency-Key",
            "Makes a repeated request add nothing twice",
            json!({"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[ -~]+$"}),
        )],
        ("/_jobs/{type}/_feed", _) => vec![of(
            "Last-Event-ID",
            "The id of the last event, which browsers send when they connect again",
            text(),
        )],
        _ => Vec::new(),
    }
}

/// Every member is always there.
fn all(members: &Value) -> Value {
    with(members, &json!({}))
}

/// Some members are always there, others not.
fn with(members: &Value, optional: &Value) -> Value {
    let required: Vec<&str> = (members.as_object().into_iter().flatten())
        .map(|(name, _)| name.as_str())
        .collect();
    let mut both = members.clone();
    merge(&mut both, optional);
    closed(&both, &required)
}

fn ok(members: &Value) -> Value {
    let mut both = json!({"ok": {"const": true}});
    merge(&mut both, members);
    all(&both)
}

fn page(name: &str, row: &Value) -> Value {
    all(&json!({name: list(row), "next": maybe("string")}))
}

fn list(row: &Value) -> Value {
    json!({"type": "array", "items": row})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

fn maybe(ty: &str) -> Value {
    json!({"type": [ty, "null"]})
}

fn maybe_time() -> Value {
    json!({"type": ["string", "null"], "format": "date-time"})
}

fn state() -> Value {
    json!({"enum": ["pending", "running", "finished", "dead"]})
}

fn type_row() -> Value {
    let counts =
        json!({"pending": count(), "running": count(), "finished": count(), "dead": count()});
    let totals = json!({
        "created": count(), "started": count(), "finished": count(), "dead": count(), "again": count(), "removed": count(),
    });
    let members = json!({
        "type": text(), "internal": flag(), "counts": all(&counts), "totals": all(&totals), "due": count(),
        "waiting_for_limits": count(), "oldest_due": maybe_time(),
    });
    // The service's own types have no settings.
    with(&members, &json!({"settings": settings(), "paused": flag()}))
}

fn job_row() -> Value {
    let members = json!({
        "id": text(), "type": text(), "internal": flag(), "state": state(), "due": time(), "created": time(),
        "finished": maybe_time(), "expires": maybe_time(), "attempt": count(), "failures": count(), "worker": maybe("string"),
        "waits_for": maybe("string"), "reason": maybe("string"),
    });
    let attempt = json!({
        "worker": text(), "start": time(), "end": maybe_time(), "reason": maybe("string"),
        "outcome": {"enum": ["done", "failed", "again", "silent", "returned", null]},
    });
    // A listing has the parts if asked for, and no attempts.
    let optional = json!({
        "data": {}, "progress": {}, "result": {}, "error": {}, "unreadable": text(), "attempts": list(&all(&attempt)),
    });
    with(&members, &optional)
}

fn added() -> Value {
    let one = ok(&json!({"id": text()}));
    let refused = json!({"id": maybe("string"), "error": text(), "reason": text()});
    let row = json!({"anyOf": [one.clone(), with(&refused, &json!({"hint": text()}))]});
    json!({"anyOf": [one, all(&json!({"results": list(&row)}))]})
}

fn claimed(beside: &Value) -> Value {
    let job = json!({
        "id": text(), "lock": text(), "attempt": count(), "data": {}, "deadline": time(), "failures": count(),
    });
    let jobs = list(&with(&job, &json!({"progress": {}})));
    let mut members = json!({"jobs": jobs, "timeout_sec": {"type": "number"}});
    merge(&mut members, beside);
    all(&members)
}

fn beaten() -> Value {
    let status = json!({"enum": ["held", "halt", "again"]});
    let row = json!({"id": text(), "status": status, "deadline": maybe_time()});
    // Of progress that was refused.
    let row = with(
        &row,
        &json!({"error": text(), "reason": text(), "hint": text()}),
    );
    all(&json!({"jobs": list(&row), "timeout_sec": {"type": "number"}, "drain": flag()}))
}

fn failures() -> Value {
    let outcome = json!({"enum": ["failed", "silent"]});
    let row = json!({
        "error": maybe("string"), "outcome": outcome, "count": count(), "last": time(), "example": text(),
    });
    all(&json!({
        "failures": list(&all(&row)), "other_errors": count(), "jobs_read": count(), "complete": flag(),
    }))
}

fn schedule() -> Value {
    let last = json!({"occurrence": time(), "id": maybe("string"), "error": maybe("string")});
    let mut last = all(&last);
    last["type"] = json!(["object", "null"]);
    let members = json!({
        "type": {"type": "string", "pattern": TYPE}, "job": job(), "overlap": {"enum": ["skip", "queue"]},
        "catch_up": {"enum": ["one", "all", "none"]}, "name": text(), "next": time(), "skipped": count(), "last": last,
    });
    let optional = json!({
        "cron": text(), "every_sec": {"type": "number"}, "zone": text(), "unreadable": text(),
    });
    with(&members, &optional)
}

fn token() -> Value {
    json!({
        "name": text(), "types": {"type": ["array", "null"], "items": text()},
        "rights": list(&json!({"enum": ["enqueue", "work", "read"]})), "created": time(), "created_by": text(),
        "expires": maybe_time(), "expired": flag(),
    })
}
