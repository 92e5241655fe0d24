//! What a rule would do, without doing it.

use couch::Endpoint;
use document::json::Json;
use document::mango::{Budget, TooExpensive};
use serde_json::{Map, Value, json};

use super::call::{Call, Sign, Target, is_secret};
use super::document::{Rule, Task};
use super::template::{Change, Unsendable};
use super::webhook::Webhook;

/// In place of a secret.
const MASKED: &str = "***";

/// For each of these databases, whether the rule is about it and what it would do for a change, an object with `doc`
/// and `seq`. Passwords, secrets and the values of headers that may be credentials are masked.
pub fn trial(rule: &Rule, id: &str, databases: &[&str], change: Option<&Json>) -> Vec<Value> {
    let sample = Json::Object(vec![
        ("_id".to_owned(), Json::String("example".to_owned())),
        ("_rev".to_owned(), Json::String("1-0".to_owned())),
    ]);
    let doc = change
        .and_then(|change| change.get("doc"))
        .unwrap_or(&sample);
    let seq = change
        .and_then(|change| change.get("seq"))
        .unwrap_or(&Json::Null);
    let text = |name| doc.get(name).and_then(Json::as_str).unwrap_or_default();
    let of_database = |db: &&str| {
        let Some(captures) = rule.databases.captures_by_name(db) else {
            return json!({"name": db, "matches": false});
        };
        let mut shown = json!({"name": db, "matches": true, "captures": captures});
        let change = Change {
            source: "",
            db,
            captures: &captures,
            doc_id: text("_id"),
            rev: text("_rev"),
            doc,
            seq,
        };
        let more = match &rule.task {
            Task::Replicate(replicate) => match replicate.body(db, &captures) {
                Ok(body) => json!({"replication": masked(&body)}),
                Err(error) => json!({"error": error.to_string()}),
            },
            Task::Call(webhook) => call(webhook, id, &change),
            Task::Copy(remote) => {
                let one = |(_, body): (_, Result<Json, Unsendable>)| match body {
                    Ok(body) => masked(&body),
                    Err(error) => json!({"error": error.to_string()}),
                };
                json!({"replications": remote.bodies(db).map(one).collect::<Vec<_>>()})
            }
        };
        shown
            .as_object_mut()
            .into_iter()
            .for_each(|shown| shown.extend(more.as_object().cloned().unwrap_or_default()));
        shown
    };
    databases.iter().map(of_database).collect()
}

fn call(webhook: &Webhook, id: &str, change: &Change<'_>) -> Value {
    match accepts(webhook, change.doc) {
        Ok(true) => {}
        Ok(false) => return json!({"accepts": false}),
        Err(error) => return json!({"error": error.to_string()}),
    }
    match webhook.call("", id, change) {
        Ok(call) => {
            json!({"accepts": true, "call": call.target.as_ref().map(|target| shown(&call, target))})
        }
        Err(error) => json!({"accepts": true, "error": error.to_string()}),
    }
}

/// `if` and `selector`.
fn accepts(webhook: &Webhook, doc: &Json) -> Result<bool, TooExpensive> {
    let selected = |selector: &document::mango::Selector| {
        selector.matches(&doc.to_value(), &mut Budget::of_document())
    };
    Ok(webhook.accepts(doc)? && webhook.selector().map_or(Ok(true), |one| selected(one))?)
}

fn shown(call: &Call, target: &Target) -> Value {
    let mut masked = target.clone();
    let own = target.url.query().filter(|own| !own.is_empty());
    masked.url.set_query(own.map(|_| MASKED));
    let mut url = masked.with_query(call.query.as_deref());
    // A URL with a host can have both.
    let _ = (url.set_username(""), url.set_password(None));
    let headers = target.headers.iter().map(|(name, value)| {
        let value = if is_secret(name) { MASKED } else { value };
        (name.clone(), json!(value))
    });
    let body = call.body.as_deref().map(serde_json::from_str::<Value>);
    let sign = target.sign.as_ref().map(|sign| match sign {
        Sign::Secret(_) => "v1",
        Sign::SecretRef(_) => "v1, with a named secret",
    });
    json!({
        "method": call.method,
        "url": url.as_str(),
        "headers": headers.collect::<Map<_, _>>(),
        "body": body.and_then(Result::ok),
        "sign": sign,
        "debounce": call.debounce,
    })
}

/// The body of a replication without credentials.
fn masked(body: &Json) -> Value {
    let mut body = body.to_value();
    for name in ["source", "target", "proxy", "source_proxy", "target_proxy"] {
        let Some(value) = body.get_mut(name) else {
            continue;
        };
        let url = value.get("url").unwrap_or(value).as_str();
        let endpoint = url.and_then(|url| Endpoint::from_url(url).ok());
        *value = endpoint.map_or(json!(MASKED), |endpoint| json!(endpoint.url_text()));
    }
    body
}
