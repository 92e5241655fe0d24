//! Documents without credentials: for readers who are neither owner nor administrator, and for the store.
//!
//! Both remove the same members. A reader gets a made-up revision, so that the document cannot be written back over the
//! credentials. The store keeps them sealed in the member `_sealed`, which no client can write; the rest stays readable
//! for filters and queries. A [`Grant`], which the service adds, is never shown: it is also sealed, or, if it has no
//! rights or there is no key, stored in the member `_grant`.

use docstore::{Db, Document, RevId};
use document::json::Json;
use md5::{Digest as _, Md5};
use seal::{Sealer, Unreadable};

use replication::params::Grant;

const SEALED: &str = "_sealed";
const GRANT: &str = "_grant";
const PROXIES: [&str; 3] = ["proxy", "source_proxy", "target_proxy"];
/// Members of an endpoint that may hold credentials.
const SECRET_MEMBERS: [&str; 3] = ["headers", "auth", "tls"];

#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// `None` for an anonymous reader.
    pub name: Option<&'a str>,
    /// An administrator of the database, or of the server.
    pub is_admin: bool,
}

/// The context that a document's credentials are sealed for.
fn context(db: &Db, id: &str) -> String {
    format!("doc/{}/{id}", db.instance())
}

/// The body to store; `None` if it is stored as sent.
pub fn seal_body(
    sealer: &Sealer,
    db: &Db,
    id: &str,
    body: &Json,
    grant: Option<&Grant>,
) -> Option<String> {
    let (mut members, mut hidden) = if sealer.seals() {
        strip(body.clone())?
    } else {
        (body.as_object()?.to_vec(), Vec::new())
    };
    let before = members.len();
    if let Some(grant) = grant {
        let (name, json) = (GRANT.to_owned(), grant.to_json());
        // A grant without rights is no secret.
        if sealer.seals() && grant.has_rights() {
            hidden.push(Json::Array(vec![Json::String(name), json]));
        } else {
            members.push((name, json));
        }
    }
    if !hidden.is_empty() {
        let sealed = sealer.seal(&context(db, id), &Json::Array(hidden).to_string())?;
        members.push((SEALED.to_owned(), Json::String(sealed)));
    }
    (members.len() > before).then(|| Json::Object(members).to_string())
}

/// The body as it was sent.
pub fn open_body(sealer: &Sealer, db: &Db, id: &str, stored: &str) -> Result<Json, Unreadable> {
    open_granted(sealer, db, id, stored).map(|(body, _)| body)
}

/// The body as sent, and the grant that the service added.
pub(crate) fn open_granted(
    sealer: &Sealer,
    db: &Db,
    id: &str,
    stored: &str,
) -> Result<(Json, Option<Grant>), Unreadable> {
    let json = Json::parse(stored).map_err(|_| Unreadable::Changed)?;
    let Json::Object(mut members) = json else {
        return Ok((json, None));
    };
    let mut grant = take(&mut members, GRANT);
    let Some(sealed) = take(&mut members, SEALED) else {
        let grant = grant.as_ref().and_then(Grant::from_json);
        return Ok((Json::Object(members), grant));
    };
    let sealed = sealed.as_str().ok_or(Unreadable::Changed)?;
    let hidden = sealer.open(&context(db, id), sealed)?;
    let hidden = Json::parse(&hidden).map_err(|_| Unreadable::Changed)?;
    for pair in hidden.as_array().unwrap_or_default() {
        let Some([Json::String(name), value]) = pair.as_array() else {
            return Err(Unreadable::Changed);
        };
        if name == GRANT {
            grant = Some(value.clone());
            continue;
        }
        let member = members.iter_mut().find(|(given, _)| given == name);
        member.ok_or(Unreadable::Changed)?.1 = value.clone();
    }
    let grant = grant.map(|grant| Grant::from_json(&grant).ok_or(Unreadable::Changed));
    Ok((Json::Object(members), grant.transpose()?))
}

fn take(members: &mut Members, name: &str) -> Option<Json> {
    let at = members.iter().position(|(given, _)| given == name)?;
    Some(members.remove(at).1)
}

/// Whether a stored body may hold sealed values. Cheap, and false for most documents.
pub(crate) fn is_sealed(stored: &str) -> bool {
    stored.contains("\"_sealed\"")
}

/// The sealed value of a stored body.
pub(crate) fn sealed(stored: &str) -> Option<String> {
    if !is_sealed(stored) {
        return None;
    }
    let json = Json::parse(stored).ok()?;
    json.get(SEALED)?.as_str().map(str::to_owned)
}

/// The body with its credentials resealed; `None` if they are sealed with the current key already.
pub(crate) fn reseal_body(
    sealer: &Sealer,
    db: &Db,
    id: &str,
    stored: &str,
) -> Result<Option<String>, Unreadable> {
    let Some(old) = sealed(stored) else {
        return Ok(None);
    };
    let Some(new) = sealer.reseal(&context(db, id), &old)? else {
        return Ok(None);
    };
    let Ok(Json::Object(mut members)) = Json::parse(stored) else {
        return Err(Unreadable::Changed);
    };
    for (name, value) in &mut members {
        if name == SEALED {
            *value = Json::String(new.clone());
        }
    }
    Ok(Some(Json::Object(members).to_string()))
}

/// The document as this reader may see it. Owners and administrators see its credentials; other readers get it without
/// them, under a made-up revision if something was removed.
pub fn for_reader(
    sealer: &Sealer,
    db: &Db,
    stored: Document,
    reader: Reader<'_>,
) -> Result<Document, Unreadable> {
    if stored.id.starts_with("_design/") || !may_hold_secrets(&stored.body) {
        return Ok(stored);
    }
    let Ok(json) = Json::parse(&stored.body) else {
        return Ok(stored);
    };
    let is_owner = reader.name.is_some() && json.get("owner").and_then(Json::as_str) == reader.name;
    let mut shown = stored;
    if reader.is_admin || is_owner {
        if json.get(SEALED).is_some() || json.get(GRANT).is_some() {
            shown.body = open_body(sealer, db, &shown.id, &shown.body)?.to_string();
        }
        return Ok(shown);
    }
    let Json::Object(mut members) = json else {
        return Ok(shown);
    };
    let grant = take(&mut members, GRANT);
    let was_granted = grant.is_some();
    let has_rights =
        (grant.as_ref().and_then(Grant::from_json)).is_none_or(|grant| grant.has_rights());
    let was_sealed = take(&mut members, SEALED).is_some() || (was_granted && has_rights);
    let Some((members, hidden)) = strip(Json::Object(members)) else {
        return Ok(shown);
    };
    if !was_sealed && hidden.is_empty() && !was_granted {
        return Ok(shown);
    }
    let body = Json::Object(members).to_string();
    if !was_sealed && hidden.is_empty() {
        shown.body = body;
        return Ok(shown);
    }
    let rev = made_up(&shown.rev.id, &body);
    if let Some(revisions) = &mut shown.meta.revisions
        && let Some(first) = revisions.ids.first_mut()
    {
        *first = rev.clone();
    }
    if let Some((first, _)) = shown
        .meta
        .revs_info
        .as_mut()
        .and_then(|revs| revs.first_mut())
    {
        first.id = rev.clone();
    }
    shown.rev.id = rev;
    shown.body = body;
    Ok(shown)
}

/// A cheap test: most documents have none.
fn may_hold_secrets(body: &str) -> bool {
    const SIGNS: [&str; 10] = [
        "@",
        "?",
        "#",
        "\"headers\"",
        "\"secret\"",
        "\"auth\"",
        "\"tls\"",
        "\"_sealed\"",
        "\"_grant\"",
        "\\u",
    ];
    SIGNS.iter().any(|sign| body.contains(sign))
}

fn made_up(id: &RevId, body: &str) -> RevId {
    let mut hash = Md5::new();
    hash.update(b"stripped");
    hash.update(id.as_bytes());
    hash.update(body);
    RevId::Md5(hash.finalize().into())
}

type Members = Vec<(String, Json)>;

/// The members without credentials, and the original names and values of those that were changed.
fn strip(json: Json) -> Option<(Members, Vec<Json>)> {
    let Json::Object(mut members) = json else {
        return None;
    };
    let mut hidden = Vec::new();
    let is_webhook = members
        .iter()
        .any(|(name, value)| name == "type" && value.as_str() == Some("on_change"));
    for (name, value) in &mut members {
        let stripped = match name.as_str() {
            "source" | "target" => strip_endpoint(value),
            name if PROXIES.contains(&name) => strip_text(value),
            "url" if is_webhook => strip_text(value),
            "headers" | "secret" if is_webhook => Some(Json::Null),
            _ => None,
        };
        if let Some(stripped) = stripped {
            let value = std::mem::replace(value, stripped);
            hidden.push(Json::Array(vec![Json::String(name.clone()), value]));
        }
    }
    Some((members, hidden))
}

fn strip_endpoint(value: &Json) -> Option<Json> {
    let Json::Object(members) = value else {
        return strip_text(value);
    };
    let mut changed = false;
    let mut kept = Vec::with_capacity(members.len());
    for (name, value) in members {
        if SECRET_MEMBERS.contains(&name.as_str()) {
            changed = true;
            continue;
        }
        let stripped = strip_text(value);
        changed |= stripped.is_some();
        kept.push((name.clone(), stripped.unwrap_or_else(|| value.clone())));
    }
    changed.then_some(Json::Object(kept))
}

fn strip_text(value: &Json) -> Option<Json> {
    let text = value.as_str()?;
    let stripped = without_credentials(text);
    (stripped != text).then_some(Json::String(stripped))
}

/// A URL without userinfo, query and fragment, all of which may hold credentials.
pub(crate) fn without_credentials(text: &str) -> String {
    let mut text = without_userinfo(text);
    text.truncate(text.find(['?', '#']).unwrap_or(text.len()));
    text
}

/// A URL without userinfo. A malformed one loses everything before its last `@`, in case that is a password.
fn without_userinfo(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text
            .rsplit_once('@')
            .map_or(text, |(_, host)| host)
            .to_owned();
    };
    // The URL standard also accepts `http:///user:password@host`.
    let rest = rest.trim_start_matches(['/', '\\']);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let stripped = format!("{scheme}://{host}{path}");
    if path.contains('@') && url::Url::parse(&stripped).is_err() {
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        return format!("{scheme}://{host}");
    }
    stripped
}

#[cfg(test)]
mod tests;
