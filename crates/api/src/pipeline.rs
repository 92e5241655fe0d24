//! From a request to its response. The outermost layer is what every response needs: a request id, a line in the access
//! log, metrics, and a response even after a panic. Next is what needs no caller, then authentication, the check for
//! forged requests, the request limit, access control, and the handler.

mod cors;
mod finish;
mod forgery;
mod permits;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::{ALLOW, SET_COOKIE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use scheduler::traces;
use tokio::time::{Instant, timeout};
use tracing::Instrument as _;

use crate::auth::authenticator::Proven;
use crate::call::Call;
use crate::client::Client;
use crate::endpoints::{self, jobs, session};
use crate::reply::Reply;
use crate::route::Route;
use crate::state::Shared;
use crate::upstream::{self, Untouched, Upstream};
use crate::{Error, access, metrics, pace};

pub(crate) use permits::{exchange_to_wait, refused};

/// Supported methods.
const METHODS: &str = "DELETE,GET,HEAD,OPTIONS,POST,PUT";
/// Maximum length of a path with its query.
const URI_BYTES_MAX: usize = 32 * 1024;

pub(crate) async fn answer(
    shared: &Arc<Shared>,
    request: Request<Body>,
    client: Client,
) -> Response<Body> {
    let began = Instant::now();
    let (parts, body) = request.into_parts();
    let id = finish::request_id(&parts.headers, shared.bits());
    // Without the query, which may contain a password.
    let span = tracing::info_span!(
        "request",
        request.id = %id,
        method = %parts.method,
        path = parts.uri.path(),
    );
    if let Some(Ok(parent)) = parts.headers.get("traceparent").map(HeaderValue::to_str) {
        traces::follow(&span, parent);
    }
    let seen = finish::Seen::of(&parts, client, id);
    let mut user = None;
    let outcome = respond(shared, parts, body, client, &seen.id, &mut user);
    let caught = AssertUnwindSafe(outcome)
        .catch_unwind()
        .instrument(span.clone());
    let outcome = caught.await.unwrap_or_else(|_| {
        metrics::panicked();
        let reason = "Internal error; see the log of this service.";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Err(Error::new(status, "internal_server_error", reason))
    });
    let _entered = span.enter();
    let reply = outcome.unwrap_or_else(Error::into_response);
    let reply = if reply.extensions().get::<Untouched>().is_some() {
        reply
    } else {
        finish::finish(shared, &seen, reply)
    };
    let took = began.elapsed();
    metrics::answered(&seen.method, reply.status(), took);
    finish::log(&seen, user.as_deref(), &reply, took);
    reply
}

async fn respond(
    shared: &Arc<Shared>,
    parts: Parts,
    body: Body,
    client: Client,
    id: &str,
    user: &mut Option<String>,
) -> Result<Reply, Error> {
    let uri_bytes = parts
        .uri
        .path_and_query()
        .map_or(0, |uri| uri.as_str().len());
    if uri_bytes > URI_BYTES_MAX {
        let reason = "The URL is too long.";
        return Err(Error::new(StatusCode::URI_TOO_LONG, "too_long", reason));
    }
    if let Some(reply) = no_path(&parts) {
        return reply;
    }
    let rate = shared.options.body_bytes_per_sec_min;
    let body = if session::is_login(&parts) {
        session::login_body(pace::paced(body, rate, session::LOGIN_BYTES_MAX)).await?
    } else {
        pace::paced(body, rate, usize::MAX)
    };
    if let Some(upstream) = &shared.upstream
        && !upstream::is_answered_here(parts.uri.path())
    {
        return Box::pin(pass_through(shared, upstream, parts, body, client, id)).await;
    }
    if parts.method == Method::OPTIONS
        && let Some(reply) = cors::preflight(&shared.options.cors, &parts.headers)
    {
        return Ok(reply);
    }
    let route = Route::parse(parts.uri.path())?;
    // Health checks need no login, and callers with a wrong password or an expired cookie must still get the login
    // page.
    let proven = match route {
        Route::Up | Route::Dashboard(_) => Proven::anonymous(),
        _ => Box::pin(session::prove(shared, &parts.headers, client)).await?,
    };
    user.clone_from(&proven.identity.name);
    let call = Call::new(Arc::clone(shared), client, route, proven, parts, body);
    Box::pin(authenticated(Box::new(call))).await
}

/// The rest of the way. It has a future of its own, since the one before is large, and requests that wait are many.
async fn authenticated(mut call: Box<Call>) -> Result<Reply, Error> {
    forgery::check(&call)?;
    call.permit = permits::acquire(&call).await?;
    let proven = &mut call.proven;
    let (cookie, set_cookies) = (
        proven.cookie.take(),
        std::mem::take(&mut proven.set_cookies),
    );
    let mut reply = match within(&mut call).await {
        Ok(reply) => reply,
        Err(error) => error.into_response(),
    };
    if let Some(cookie) = cookie {
        session::renew(&call, &mut reply, &cookie);
    }
    if !reply.headers().contains_key(SET_COOKIE) {
        for cookie in set_cookies {
            reply.headers_mut().append(SET_COOKIE, cookie);
        }
    }
    Ok(permits::hold(call.permit.take(), reply))
}

/// Responds to requests that have no path: `OPTIONS *` and `CONNECT`.
fn no_path(parts: &Parts) -> Option<Result<Reply, Error>> {
    if parts.method == Method::CONNECT {
        return Some(Err(Error::method_not_allowed(METHODS)));
    }
    if parts.uri.path().starts_with('/') {
        return None;
    }
    if parts.method != Method::OPTIONS {
        let reason = "The request names no path.";
        return Some(Err(Error::bad_request(reason)));
    }
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = StatusCode::NO_CONTENT;
    reply
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(METHODS));
    Some(Ok(reply))
}

/// Forwarded requests cost little here and have no time limit.
async fn pass_through(
    shared: &Arc<Shared>,
    upstream: &Upstream,
    parts: Parts,
    body: Body,
    client: Client,
    id: &str,
) -> Result<Reply, Error> {
    let permit = permits::acquire_to_forward(shared)?;
    let time_limit = Duration::from_secs(shared.options.body_timeout_sec);
    let reply = upstream
        .forward(parts, body, client, id, time_limit)
        .await?;
    Ok(permits::hold(Some(permit), reply))
}

/// Applies the time limit.
async fn within(call: &mut Call) -> Result<Reply, Error> {
    let waits = match &call.route {
        Route::Replicate | Route::RemoteStart => true,
        Route::Queue(route) => route.waits(),
        _ => false,
    };
    if waits {
        return permitted(call).await;
    }
    let time_limit = Duration::from_secs(call.options().request_timeout_sec);
    match timeout(time_limit, permitted(call)).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::busy("The request timed out; try again.")),
    }
}

async fn permitted(call: &mut Call) -> Result<Reply, Error> {
    // Futures are large, and waiting requests need little of that: what is over, and other handlers, cost them nothing.
    let opened = Box::pin(access::admit(call)).await?;
    let answer: BoxFuture<'_, _> = match call.route.clone() {
        Route::Queue(route) => jobs::answer(call, route),
        _ => Box::pin(endpoints::answer(call, opened)),
    };
    answer.await
}
