//! `POST /{rules}/_test`: what a rule would do.

use docstore::ReadOptions;
use document::json::Json;
use rules::rule::{Rule, trial};
use scheduler::strip;
use serde_json::json;

use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::reply::{self, Reply};

/// Maximum number of databases per request.
const DATABASES_MAX: usize = 1_000;

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
    Ok(reply::ok(&match Rule::parse(&body) {
        Ok(Some(rule)) => json!({
            "ok": true,
            "enabled": rule.enabled,
            "databases": trial(&rule, &id, &databases, request.get("change")),
        }),
        Ok(None) => json!({"ok": true, "enabled": false, "databases": []}),
        Err(invalid) => json!({
            "ok": false, "path": invalid.path, "reason": invalid.reason, "at": invalid.at,
        }),
    }))
}

/// The body of a rule in the database.
async fn stored(call: &Call, opened: &Opened, id: &str) -> Result<Json, Error> {
    let document = call
        .docs()
        .get(&opened.db, id, &ReadOptions::default())
        .await?;
    let sealer = call.shared.replications.sealer();
    strip::open_body(sealer, &opened.db, id, &document.body).map_err(Error::internal)
}
