//! Authentication of requests, `_session`, and cookies.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use docstore::ReadOptions;
use futures::StreamExt as _;
use http::header::{CONTENT_ENCODING, LOCATION, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use queue::Token;
use serde_json::json;
use tokio::time::timeout;

use crate::access::USER_PREFIX;
use crate::auth::authenticator::{Method, Proven, User, Users, bearer};
use crate::auth::password::PasswordHash;
use crate::auth::{Identity, WRONG};
use crate::call::Call;
use crate::client::Client;
use crate::endpoints::users;
use crate::reply::{self, Reply};
use crate::route::Route;
use crate::state::Shared;
use crate::{Error, Options, pace};

/// Limits the body of unauthenticated logins.
pub(crate) const LOGIN_BYTES_MAX: usize = 8 * 1024;
/// `CouchDB`'s text.
const CONFLICTED: &str = "User document conflicts must be resolved before the document is used for authentication purposes.";
/// Time limit of reading such a body.
const LOGIN_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Users are documents of `_users`.
pub(crate) struct UserDocuments<'a>(pub(crate) &'a Shared);

impl Users for UserDocuments<'_> {
    type Error = Error;

    async fn find(&self, name: &str) -> Result<Option<User>, Error> {
        let docs = self.0.docs();
        let Ok(users) = docs.name("_users") else {
            return Ok(None);
        };
        let id = format!("{USER_PREFIX}{name}");
        let (users, id) = (&users, id.as_str());
        let options = &ReadOptions {
            conflicts: true,
            ..ReadOptions::default()
        };
        let found = docs
            .store()
            .transact("find_user", |tx| async move {
                let db = docs.open_in(&tx, users).await?;
                docs.get_in(&tx, &db, id, options).await
            })
            .await;
        match found {
            // Which revision wins says nothing about which password and roles are meant.
            Ok(document) if !document.meta.conflicts.is_empty() => {
                Err(Error::unauthorized(CONFLICTED))
            }
            Ok(document) => {
                let body = users::parsed(&document.body).await;
                Ok(body.map(|body| User::from_document(&body)))
            }
            Err(
                docstore::Error::NoDatabase | docstore::Error::Missing | docstore::Error::Deleted,
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn strengthen(&self, name: &str, weak: &PasswordHash, password: &str) {
        match users::strengthen(self.0, name, weak, password).await {
            Ok(true) => tracing::info!(user = name, "replaced a weak password hash"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(user = name, error = %wire::chain(&error), "cannot replace a weak password hash");
            }
        }
    }
}

/// Authenticates the caller by these headers.
pub(crate) async fn prove(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    client: Client,
) -> Result<Proven, Error> {
    let address = shared.proxies.client(headers, client.address.ip());
    let users = UserDocuments(shared);
    let auth = &shared.authenticator;
    if let Some(text) = bearer(headers).filter(|text| Token::is_meant(text)) {
        return prove_token(shared, text).await;
    }
    let Some(upstream) = &shared.upstream else {
        return auth
            .authenticate(headers, address, shared.now_s(), &users)
            .await;
    };
    // Configured administrators work even when the cluster is down.
    match auth.authenticate_admin(headers, address, &users).await? {
        Some(proven) => Ok(proven),
        None => upstream.prove(headers, client).await,
    }
}

async fn prove_token(shared: &Shared, text: &str) -> Result<Proven, Error> {
    let Some(token) = shared.queue.token(text).await? else {
        return Err(Error::unauthorized(
            "The API token is not valid: it was revoked, has expired or is incomplete. Ask an administrator for another.",
        ));
    };
    let identity = Identity {
        name: Some(format!("token:{}", token.name)),
        roles: Vec::new(),
    };
    Ok(Proven {
        scope: Some(token.scope),
        ..Proven::by(Method::ApiToken, identity)
    })
}

/// Whether a request is a login, here or at the cluster.
pub(crate) fn is_login(parts: &Parts) -> bool {
    parts.method == http::Method::POST
        && matches!(Route::parse(parts.uri.path()), Ok(Route::Session))
}

/// Reads the body of a login. It is read before the request gets a permit: otherwise anyone could hold all of them by
/// sending bodies slowly.
pub(crate) async fn login_body(body: Body) -> Result<Body, Error> {
    let whole = async {
        let (mut whole, mut pieces) = (Vec::<u8>::new(), body.into_data_stream());
        while let Some(piece) = pieces.next().await {
            whole.extend_from_slice(&piece.map_err(pace::refusal)?);
        }
        Ok::<_, Error>(Body::from(whole))
    };
    let read = timeout(LOGIN_TIME_LIMIT, whole).await;
    read.unwrap_or_else(|_| {
        let reason = "Timed out reading the request body.";
        Err(Error::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason))
    })
}

pub(crate) async fn session(call: &mut Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD,POST,DELETE")?;
    match call.method {
        http::Method::POST => log_in(call).await,
        http::Method::DELETE => {
            let mut reply = reply::ok(&json!({"ok": true}));
            set_cookie(call, &mut reply, "");
            Ok(reply)
        }
        _ => show(call),
    }
}

fn show(call: &Call) -> Result<Reply, Error> {
    let caller = call.caller();
    if caller.name.is_none() && call.query.get("basic") == Some("true") {
        return Err(Error::unauthorized("Please login."));
    }
    let mut handlers = vec!["cookie", "default"];
    if !call.shared.authenticator.jwt.is_empty() {
        handlers.push("jwt");
    }
    if !call.shared.authenticator.proxy_secrets.is_empty() {
        handlers.push("proxy");
    }
    let mut info = json!({"authentication_handlers": handlers});
    if let Some(proof) = call.proven.method.name() {
        info["authenticated"] = json!(proof);
    }
    Ok(reply::ok(&json!({
        "ok": true,
        "userCtx": {"name": caller.name, "roles": caller.roles},
        "info": info,
    })))
}

async fn log_in(call: &mut Call) -> Result<Reply, Error> {
    let (name, password) = credentials(call).await?;
    let shared = Arc::clone(&call.shared);
    let address = shared
        .proxies
        .client(&call.headers, call.client.address.ip());
    let (auth, users) = (&shared.authenticator, UserDocuments(&shared));
    let identity = match auth.login(&name, &password, address, &users).await {
        Ok(identity) => identity,
        Err(refused) => {
            let mut reply = refused.into_response();
            set_cookie(call, &mut reply, "");
            return Ok(reply);
        }
    };
    let cookie = auth.issue_cookie(&name, shared.now_s(), &users).await?;
    let cookie = cookie.ok_or_else(|| Error::from(WRONG))?;
    let done = json!({"ok": true, "name": identity.name, "roles": identity.roles});
    let mut reply = reply::ok(&done);
    if let Some(next) = call.query.get("next").filter(|next| is_local(next)) {
        let next = call.absolute(next);
        *reply.status_mut() = StatusCode::FOUND;
        reply::set(&mut reply, LOCATION, &next);
    }
    set_cookie(call, &mut reply, &cookie);
    Ok(reply)
}

/// Name and password from a form or JSON.
async fn credentials(call: &mut Call) -> Result<(String, String), Error> {
    let is_json = call.content_type().eq_ignore_ascii_case("application/json");
    if call
        .header(&CONTENT_ENCODING)
        .is_some_and(|encoding| encoding != "identity")
    {
        // It could decompress to any size.
        let reason = "A login must not be compressed.";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Error::new(status, "bad_content_type", reason));
    }
    let text = call.text().await?;
    let (name, password) = if is_json {
        let body: serde_json::Value = serde_json::from_str(&text).map_err(|_| Error::not_json())?;
        if !body.is_object() {
            return Err(Error::not_object());
        }
        let text = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| body.get(name)?.as_str());
            found.unwrap_or_default().to_owned()
        };
        (text(["name", "username"]), text(["password", "password"]))
    } else {
        let form = crate::query::Query::parse(&text);
        let field = |name| form.get(name).unwrap_or_default().to_owned();
        (field("name"), field("password"))
    };
    Ok((name, password))
}

/// Whether a redirect target stays on this service, however a browser parses it.
fn is_local(path: &str) -> bool {
    path.starts_with('/')
        && !path.starts_with("//")
        && path
            .bytes()
            .all(|byte| byte > b' ' && byte != b'\\' && byte < 0x7f)
}

/// Sets the renewed cookie, unless the response sets one itself.
pub(crate) fn renew(call: &Call, reply: &mut Reply, cookie: &str) {
    if !reply.headers().contains_key(SET_COOKIE) {
        set_cookie(call, reply, cookie);
    }
}

fn set_cookie(call: &Call, reply: &mut Reply, value: &str) {
    let timeout_s = call.shared.authenticator.sessions.timeout().as_secs();
    let options: &Options = call.options();
    let age = if value.is_empty() { 0 } else { timeout_s };
    let secure = if call.client.tls || options.secure_cookies {
        "; Secure"
    } else {
        ""
    };
    let same_site = options.same_site.name();
    let now_s = i64::try_from(call.shared.now_s()).unwrap_or_default();
    let expires = now_s.saturating_add(i64::try_from(age).unwrap_or_default());
    let expires = jiff::Timestamp::from_second(expires).unwrap_or_default();
    // Some clients know only `Expires`, and only in this form.
    let expires = expires.strftime("%a, %d-%b-%Y %H:%M:%S GMT");
    let cookie = format!(
        "AuthSession={value}; Version=1; Expires={expires}; Max-Age={age}; Path=/; HttpOnly; \
         SameSite={same_site}{secure}"
    );
    reply::set(reply, SET_COOKIE, &cookie);
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn redirects_stay_here() {
        assert!(is_local("/_utils") && is_local("/a?b=c#d"));
        for elsewhere in [
            "",
            "x",
            "//evil.example",
            "/\\evil.example",
            "http://evil",
            "/\t/evil",
            "/a\r\nb",
        ] {
            assert!(!is_local(elsewhere), "{elsewhere:?}");
        }
    }
}
