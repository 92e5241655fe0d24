//! Access control: checks a caller against [`Access`].

use docstore::Db;
use document::json::Json;
use http::Method;
use queue::{Right, Scope, Type, TypeName};

use crate::Error;
use crate::auth::authenticator::Proven;
use crate::auth::{ADMIN_ROLE, Identity};
use crate::call::Call;
use crate::route::{Access, QueueRoute, Route};
use crate::state::Shared;

const NO_SERVER_ADMIN: &str = "You are not a server admin.";
pub(crate) const NO_DB_ADMIN: &str = "You are not a db or server admin.";
/// Prefix of the ids of user documents.
pub(crate) const USER_PREFIX: &str = "org.couchdb.user:";

/// A database that the caller may access.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) db: Db,
    /// The caller is an administrator of the database or the server.
    pub(crate) is_admin: bool,
}

impl Opened {
    /// True for `_users`.
    pub(crate) fn has_users(&self) -> bool {
        self.db.name().kind() == "_users"
    }

    /// True for a database of rules, which server administrators only may use: rules read with the credentials of sources.
    pub(crate) fn has_rules(&self) -> bool {
        rules::rule::KINDS.contains(&self.db.name().kind())
    }
}

/// Checks the caller's access, and opens the database if the route needs an existing one.
pub(crate) async fn admit(call: &Call) -> Result<Option<Opened>, Error> {
    let caller = call.caller();
    let access = match call.route {
        // The cluster refuses callers who may not list its databases.
        Route::AllDbs | Route::DbsInfo if call.shared.upstream.is_some() => Access::Public,
        _ => call.route.access(&call.method),
    };
    if access != Access::Public && call.options().require_valid_user && caller.name.is_none() {
        return Err(Error::unauthorized("Authentication required."));
    }
    if let Some(scope) = &call.proven.scope {
        return by_token(call, access, scope).map(|()| None);
    }
    match access {
        Access::Public | Access::Everyone => Ok(None),
        Access::Authenticated if caller.name.is_some() || caller.is_admin() => Ok(None),
        Access::Authenticated => Err(Error::unauthorized("You are not an authenticated user")),
        Access::Metrics if caller.roles.iter().any(|role| role == "_metrics") => Ok(None),
        Access::Metrics | Access::Admin if caller.is_admin() => Ok(None),
        Access::Metrics | Access::Admin => Err(Error::unauthorized(NO_SERVER_ADMIN)),
        Access::Type(right) => may(call, right).await.map(|()| None),
        Access::Member | Access::DbAdmin => {
            let name = call.route.database().unwrap_or_default();
            let opened = open(call, name).await?;
            if access == Access::DbAdmin && !opened.is_admin {
                return Err(Error::unauthorized(NO_DB_ADMIN));
            }
            Ok(Some(opened))
        }
    }
}

/// Checks the scope of an API token.
fn by_token(call: &Call, access: Access, scope: &Scope) -> Result<(), Error> {
    match (access, &call.route) {
        (Access::Public, _) | (_, Route::Queue(QueueRoute::Types)) => Ok(()),
        (Access::Type(right), Route::Queue(route)) => {
            let name = TypeName::new(route.type_name().unwrap_or_default())?;
            if scope.allows(right, &name) {
                return Ok(());
            }
            let right = right.name();
            Err(Error::forbidden(format!(
                "This API token does not have the right `{right}` to the job type `{name}`."
            )))
        }
        _ => Err(Error::forbidden(
            "API tokens are for the jobs of users only; log in with name and password.",
        )),
    }
}

/// Whether the caller may read a type of jobs.
pub(crate) fn reads(proven: &Proven, ty: &Type) -> bool {
    if let Some(scope) = &proven.scope {
        return scope.allows(Right::Read, &ty.name);
    }
    let caller = &proven.identity;
    caller.is_admin() || ty.settings.roles.allow(Right::Read, &caller.roles)
}

/// Checks the caller's right to the job type in the path.
async fn may(call: &Call, right: Right) -> Result<(), Error> {
    let caller = call.caller();
    if caller.is_admin() {
        return Ok(());
    }
    if caller.name.is_none() {
        return Err(Error::unauthorized("You are not an authenticated user"));
    }
    let Route::Queue(route) = &call.route else {
        return Err(Error::unauthorized(NO_SERVER_ADMIN));
    };
    let name = TypeName::new(route.type_name().unwrap_or_default())?;
    let ty = call.shared.queue.find(&name).await?;
    if ty.settings.roles.allow(right, &caller.roles) {
        return Ok(());
    }
    let right = right.name();
    Err(Error::forbidden(format!(
        "None of your roles is in `roles.{right}` of the job type `{name}`; ask an administrator for one."
    )))
}

/// Whether the caller administers an existing database.
pub(crate) async fn administrates(
    shared: &Shared,
    caller: &Identity,
    name: &str,
) -> Result<bool, Error> {
    let (_, security) = look(shared, name).await?;
    Ok(caller.is_admin() || security.admins.has(caller))
}

async fn look(shared: &Shared, name: &str) -> Result<(Db, Security), Error> {
    let docs = shared.docs();
    // As in CouchDB, invalid names count as databases that do not exist.
    let name = docs.name(name).map_err(|_| docstore::Error::NoDatabase)?;
    let name = &name;
    let (db, security) = docs
        .store()
        .transact("open_for_caller", |tx| async move {
            let db = docs.open_in(&tx, name).await?;
            let security = docs.security_in(&tx, &db).await?;
            Ok::<_, docstore::Error>((db, security))
        })
        .await?;
    Ok((db, Security::read(security.as_deref())))
}

/// Opens a database for a caller who is a member of it.
pub(crate) async fn open(call: &Call, name: &str) -> Result<Opened, Error> {
    let (db, security) = look(&call.shared, name).await?;
    let caller = call.caller();
    let is_admin = caller.is_admin() || security.admins.has(caller);
    let opened = Opened { db, is_admin };
    if opened.has_rules() && !caller.is_admin() {
        return Err(Error::unauthorized(NO_SERVER_ADMIN));
    }
    if is_admin {
        return Ok(opened);
    }
    if opened.has_users() {
        return own_user(call).map(|()| opened);
    }
    if security.members.is_everybody() || security.members.has(caller) {
        return Ok(opened);
    }
    match caller.name {
        None => Err(Error::unauthorized(
            "You are not authorized to access this db.",
        )),
        Some(_) => Err(Error::forbidden("You are not allowed to access this db.")),
    }
}

/// In `_users`, callers who are not administrators can read and change only their own document.
fn own_user(call: &Call) -> Result<(), Error> {
    let Some(name) = &call.caller().name else {
        return Err(Error::unauthorized(
            "You are not authorized to access this db.",
        ));
    };
    match &call.route {
        Route::Document(_, id) if id.strip_prefix(USER_PREFIX) == Some(name) => Ok(()),
        Route::Document(..) if call.method == Method::GET => Err(Error::not_found("missing")),
        Route::Document(..) => Err(Error::forbidden(
            "You may only update your own user document.",
        )),
        _ => Err(Error::unauthorized(NO_DB_ADMIN)),
    }
}

/// Administrators and members of a database, from its `_security`.
#[derive(Debug, Default)]
pub(crate) struct Security {
    admins: Group,
    members: Group,
}

#[derive(Debug, Default)]
struct Group {
    names: Vec<String>,
    roles: Vec<String>,
}

impl Security {
    /// Shown if `_security` was never set.
    pub(crate) const DEFAULT: &str =
        r#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#;

    /// Parses an object that [`Self::check`] accepted.
    fn read(stored: Option<&str>) -> Self {
        let json = stored.and_then(|stored| Json::parse(stored).ok());
        // If it cannot be parsed, only administrators have access.
        let json = json.filter(|json| json.as_object().is_some());
        let json = json.unwrap_or_else(|| Json::parse(Self::DEFAULT).expect("it is JSON"));
        let group = |name| Group::read(json.get(name).unwrap_or(&Json::Null));
        let mut security = Self {
            admins: group("admins"),
            members: group("members"),
        };
        if json.get("members").is_none() {
            security.members = group("readers");
        }
        security
    }

    /// Validates an object sent by a client.
    pub(crate) fn check(json: &Json) -> Result<(), Error> {
        for group in ["admins", "members", "readers"] {
            let Some(group) = json.get(group) else {
                continue;
            };
            if group.as_object().is_none() {
                return Err(Error::bad_request(
                    "admins and members must be JSON objects",
                ));
            }
            for list in ["names", "roles"] {
                let Some(list_json) = group.get(list) else {
                    continue;
                };
                let texts = |list: &[Json]| list.iter().all(|entry| entry.as_str().is_some());
                if !list_json.as_array().is_some_and(texts) {
                    let reason = format!("{list} must be a JSON list of strings");
                    return Err(Error::bad_request(reason));
                }
            }
        }
        Ok(())
    }
}

impl Group {
    fn read(json: &Json) -> Self {
        let list = |name| {
            let list = json.get(name).and_then(Json::as_array).unwrap_or_default();
            list.iter()
                .filter_map(Json::as_str)
                .map(str::to_owned)
                .collect()
        };
        Self {
            names: list("names"),
            roles: list("roles"),
        }
    }

    fn is_everybody(&self) -> bool {
        self.names.is_empty() && self.roles.is_empty()
    }

    fn has(&self, caller: &Identity) -> bool {
        // The role of server administrators cannot be granted by naming it.
        let role = |role: &String| role != ADMIN_ROLE && self.roles.contains(role);
        caller.roles.iter().any(role)
            || caller
                .name
                .as_ref()
                .is_some_and(|name| self.names.contains(name))
    }
}
