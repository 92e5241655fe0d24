//! Limits on concurrent requests.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use futures::StreamExt as _;
use tokio::time::timeout;

use crate::auth::authenticator::Method;
use crate::call::Call;
use crate::reply::Reply;
use crate::route::{DbPart, QueueRoute, Route, TypePart};
use crate::state::Shared;
use crate::waits::Permit;
use crate::{Error, metrics};

/// How long a request may wait for a permit.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Acquires a permit. Requests that wait for changes or jobs have a separate, larger limit; anonymous callers have a
/// smaller one, so that they cannot use up the permits of others.
pub(super) async fn acquire(call: &Call) -> Result<Option<Permit>, Error> {
    let shared = &call.shared;
    if matches!(call.route, Route::Up | Route::Dashboard(_)) {
        return Ok(None);
    }
    let is_anonymous = call.proven.method == Method::None;
    if waits(call) && !is_anonymous {
        let permit = shared.waiting.acquire(&call.proven);
        return permit.map(Some).ok_or_else(refused);
    }
    let permits = if is_anonymous {
        &shared.anonymous
    } else {
        &shared.permits
    };
    let permit = timeout(TIME_LIMIT, Arc::clone(permits).acquire_owned()).await;
    match permit {
        Ok(Ok(permit)) => Ok(Some(permit.into())),
        Ok(Err(_)) | Err(_) => Err(refused()),
    }
}

/// Exchanges the permit of a request that is going to wait. False if too many requests wait already.
pub(crate) fn exchange_to_wait(call: &mut Call) -> bool {
    match call.shared.waiting.acquire(&call.proven) {
        Some(permit) => {
            call.permit = Some(permit);
            true
        }
        None => false,
    }
}

/// Acquires a permit for a request to the cluster. Their number is limited apart from that of requests that wait here,
/// since anyone may send them.
pub(super) fn acquire_to_forward(shared: &Shared) -> Result<Permit, Error> {
    let permit = Arc::clone(&shared.forwarded).try_acquire_owned();
    permit.map(Permit::from).map_err(|_| refused())
}

pub(crate) fn refused() -> Error {
    metrics::turned_away();
    Error::busy("Too many requests at a time.")
}

fn waits(call: &Call) -> bool {
    match call.route {
        Route::Replicate | Route::RemoteStart => true,
        // Whether they wait is in their bodies: those exchange their permits.
        Route::Queue(QueueRoute::Part(_, TypePart::Claim | TypePart::Finish)) => false,
        Route::Queue(ref route) => route.waits(),
        Route::DbPart(_, DbPart::Changes) => {
            (call.query.get("feed")).is_some_and(|feed| feed != "normal")
        }
        _ => false,
    }
}

/// Keeps a permit until a streamed response is read.
pub(super) fn hold(permit: Option<Permit>, reply: Reply) -> Reply {
    if reply.body().size_hint().exact().is_some() {
        return reply;
    }
    reply.map(|body| {
        let held = body.into_data_stream().map(move |piece| {
            let _ = &permit;
            piece
        });
        Body::from_stream(held)
    })
}
