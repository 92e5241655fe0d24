//! Documents of `_users`: CouchDB's rules, and hashing of passwords.

use docstore::{
    Change, Db, Document, Edit, EditMode, NewAttachment, NoHook, ReadOptions, WriteHook,
};
use document::offload::offload;
use serde_json::{Map, Value, json};
use store::Transaction;

use crate::Error;
use crate::access::USER_PREFIX;
use crate::auth::hashing::Lane;
use crate::auth::password::{ITERATIONS, ITERATIONS_MAX, PasswordHash};
use crate::state::Shared;

/// Validates a document and replaces its password with a hash.
pub(crate) async fn prepare(shared: &Shared, mut edit: Edit) -> Result<Edit, Error> {
    if edit.is_local() || edit.id.starts_with("_design/") || edit.deleted {
        return Ok(edit);
    }
    let body = parsed(&edit.body).await.ok_or_else(Error::not_json)?;
    let Value::Object(mut members) = body else {
        return Err(Error::forbidden("doc.type must be user"));
    };
    check(&edit.id, &members).map_err(Error::forbidden)?;
    let Some(password) = members.remove("password") else {
        let iterations = members.get("iterations").and_then(Value::as_f64);
        if iterations.is_some_and(|iterations| iterations > f64::from(ITERATIONS_MAX)) {
            let reason = format!("`iterations` must be at most {ITERATIONS_MAX}");
            return Err(Error::forbidden(reason));
        }
        return Ok(edit);
    };
    if let Value::String(password) = password {
        store_hash(&mut members, &hash(shared, password).await?);
    } else if !password.is_null() {
        return Err(Error::bad_request("`password` must be a string"));
    }
    edit.body = Value::Object(members).to_string();
    Ok(edit)
}

/// Stores a strong hash, unless the user changed since `weak` was read. Returns whether it did.
pub(super) async fn strengthen(
    shared: &Shared,
    name: &str,
    weak: &PasswordHash,
    password: &str,
) -> Result<bool, Error> {
    let strong = &hash(shared, password.to_owned()).await?;
    let (docs, id) = (shared.docs(), &format!("{USER_PREFIX}{name}"));
    let users = &docs.name("_users")?;
    let stored = docs
        .store()
        .transact("strengthen_password", |tx| async move {
            let db = docs.open_in(&tx, users).await?;
            let before = docs.get_in(&tx, &db, id, &ReadOptions::default()).await?;
            let body = parsed(&before.body).await.unwrap_or_default();
            let Value::Object(mut members) = body.clone() else {
                return Ok(false);
            };
            if PasswordHash::from_user(&body).as_ref() != Some(weak) {
                return Ok(false);
            }
            store_hash(&mut members, strong);
            let edit = Edit {
                id: id.clone(),
                revisions: Some(before.rev.into()),
                body: Value::Object(members).to_string(),
                attachments: (before.attachments.into_iter())
                    .map(|kept| NewAttachment {
                        name: kept.name,
                        revpos: None,
                        content: None,
                    })
                    .collect(),
                ..Edit::default()
            };
            (docs.put_in(&tx, &db, &edit, EditMode::NewEdits, &NoHook)).await?;
            Ok::<_, docstore::Error>(true)
        })
        .await;
    Ok(stored?)
}

/// Hashes a password in the same queue as logins.
async fn hash(shared: &Shared, password: String) -> Result<PasswordHash, Error> {
    let salt = shared.bits().to_be_bytes();
    let hashing = shared.authenticator.verifier.hashing();
    let ticket = hashing.enter(Lane::Others)?;
    let make = move || PasswordHash::make(&password, salt, ITERATIONS);
    let hashed = hashing.run(ticket, make).await;
    hashed.ok_or_else(|| Error::internal(std::io::Error::other("hashing a password panicked")))
}

fn store_hash(members: &mut Map<String, Value>, hash: &PasswordHash) {
    let text = hash.to_config();
    let fields = text.strip_prefix("-pbkdf2:sha256-").unwrap_or_default();
    let mut fields = fields.split(',');
    let key = fields.next().unwrap_or_default();
    members.remove("password_sha");
    members.insert("password_scheme".to_owned(), json!("pbkdf2"));
    members.insert("pbkdf2_prf".to_owned(), json!("sha256"));
    members.insert("iterations".to_owned(), json!(ITERATIONS));
    members.insert("salt".to_owned(), json!(hash.salt()));
    members.insert("derived_key".to_owned(), json!(key));
}

fn check(id: &str, members: &Map<String, Value>) -> Result<(), &'static str> {
    if members.get("type").and_then(Value::as_str) != Some("user") {
        return Err("doc.type must be user");
    }
    let Some(name) = members.get("name").and_then(Value::as_str) else {
        return Err("doc.name is required");
    };
    if id.strip_prefix(USER_PREFIX) != Some(name) {
        return Err("Doc ID must be of the form org.couchdb.user:name");
    }
    if name.starts_with('_') {
        return Err("Username may not start with underscore.");
    }
    if name.contains(':') {
        return Err("Character `:` is not allowed in usernames.");
    }
    let Some(roles) = members.get("roles") else {
        return Err("doc.roles must exist");
    };
    let Some(roles) = roles.as_array() else {
        return Err("doc.roles must be an array");
    };
    for role in roles {
        match role.as_str() {
            None => return Err("doc.roles can only contain strings"),
            Some(role) if role.starts_with('_') => {
                return Err("No system roles (starting with underscore) in users db.");
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Parses a user document, a large one on a blocking thread.
pub(super) async fn parsed(body: &str) -> Option<Value> {
    let text = body.to_owned();
    offload(body.len(), move || serde_json::from_str(&text).ok()).await
}

async fn roles(document: &Document) -> Value {
    let body = parsed(&document.body).await.unwrap_or_default();
    body.get("roles").cloned().unwrap_or_else(|| json!([]))
}

/// Prevents users from changing their own roles, now or with a revision that becomes the winner later.
pub(crate) struct UserHook {
    pub(crate) is_admin: bool,
}

impl WriteHook for UserHook {
    type Error = Error;

    fn watches(&self, _: &Db, id: &str) -> bool {
        !self.is_admin && !id.starts_with("_design/")
    }

    async fn changed(&self, _: &Transaction, change: &Change<'_>) -> Result<(), Error> {
        if change.after.deleted {
            return Ok(());
        }
        let Some(before) = change.before.filter(|before| !before.deleted) else {
            return Err(Error::forbidden("Only _admin may create users."));
        };
        if change.adds_conflict {
            let reason = "Only _admin may add a conflicting revision of a user.";
            return Err(Error::forbidden(reason));
        }
        if change.winner_changed() && change.after.rev != change.written.rev {
            let reason = "Only _admin may make another revision of a user current.";
            return Err(Error::forbidden(reason));
        }
        if change.written.deleted || roles(before).await == roles(change.written).await {
            return Ok(());
        }
        Err(Error::forbidden("Only _admin may edit roles."))
    }

    async fn dropped(&self, _: &Transaction, _: &Db, _: &str) -> Result<(), Error> {
        Ok(())
    }
}
