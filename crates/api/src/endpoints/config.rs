//! `/_node/{node}/_config`, read-only, for administration tools that read it first.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};

pub(crate) fn config(call: &Call, path: &[String]) -> Result<Reply, Error> {
    // Nothing that names files, commands or addresses can be changed over HTTP.
    call.allow("GET,HEAD")?;
    let sections = sections(call);
    let found = match path {
        [] => Some(Value::Object(sections)),
        [section] => Some(sections.get(section).cloned().unwrap_or_else(|| json!({}))),
        [section, key, ..] => sections
            .get(section)
            .and_then(|section| section.get(key))
            .cloned(),
    };
    match found {
        Some(found) => Ok(reply::json(StatusCode::OK, &found)),
        None => Err(Error::not_found("unknown_config_value")),
    }
}

/// Sections under `CouchDB`'s names, values as strings. None contains a secret.
fn sections(call: &Call) -> Map<String, Value> {
    let options = call.options();
    let replicator = call.shared.replications.options();
    let timeout_s = call.shared.authenticator.sessions.timeout().as_secs();
    let text = |value: &dyn std::fmt::Display| Value::String(value.to_string());
    let sections = json!({
        "chttpd": {
            "enable_cors": text(&!options.cors.origins.is_empty()),
            "max_http_request_size": text(&options.request_bytes_max),
            "require_valid_user": text(&options.require_valid_user),
        },
        "chttpd_auth": {"timeout": text(&timeout_s), "same_site": options.same_site.name()},
        "cors": {
            "credentials": text(&options.cors.credentials),
            "headers": options.cors.headers.join(", "),
            "methods": options.cors.methods.join(", "),
            "origins": options.cors.origins.join(", "),
        },
        "couchdb": {"uuid": call.shared.replications.service().uuid},
        "replicator": {
            "checkpoint_interval": text(&replicator.checkpoint_interval),
            "connection_timeout": text(&replicator.connection_timeout),
            "http_connections": text(&replicator.http_connections),
            "interval_sec": text(&replicator.interval_sec),
            "max_churn": text(&replicator.max_churn),
            "max_history": text(&replicator.max_history),
            "max_jobs": text(&replicator.max_jobs),
            "retries_per_request": text(&replicator.retries_per_request),
            "use_bulk_get": text(&replicator.use_bulk_get),
            "use_checkpoints": text(&replicator.use_checkpoints),
            "worker_batch_size": text(&replicator.worker_batch_size),
            "worker_processes": text(&replicator.worker_processes),
        },
        "uuids": {"algorithm": "random", "max_count": text(&options.uuids_max)},
        "vendor": {"name": "Davenport"},
    });
    match sections {
        Value::Object(sections) => sections,
        _ => Map::new(),
    }
}
