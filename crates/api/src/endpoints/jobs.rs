//! `/_jobs`: jobs of users.

mod claimed;
mod feed;
mod reading;
pub(super) mod schedules;
pub(super) mod tokens;
mod types;
mod working;

use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use http::{HeaderName, Method};
use jiff::Timestamp;
use queue::{Raw, Type, TypeName};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::call::{Call, check_object};
use crate::reply::{self, Reply};
use crate::route::{JobPart, QueueRoute, TypePart};
use crate::{Error, parse};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const KEY_BYTES_MAX: usize = 256;

/// Ten thousand claims may wait, so each has a future of its own size.
pub(crate) fn answer(call: &mut Call, route: QueueRoute) -> BoxFuture<'_, Result<Reply, Error>> {
    if let Some(known) = parameters(&route, &call.method)
        && let Err(error) = call.query.only(known)
    {
        return Box::pin(ready(Err(error)));
    }
    match route {
        QueueRoute::Part(ty, TypePart::Claim) => {
            Box::pin(async move { working::claim(call, &*find(call, &ty).await?).await })
        }
        QueueRoute::Part(ty, TypePart::Finish) => {
            Box::pin(async move { working::finish(call, &*find(call, &ty).await?).await })
        }
        route => Box::pin(async move { others(call, &route).await }),
    }
}

/// The parameters of a request; `None` if it may have any.
fn parameters(route: &QueueRoute, method: &Method) -> Option<&'static [&'static str]> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let known: &[&str] = match route {
        QueueRoute::Types if reads => &["q", "limit", "after"],
        QueueRoute::Type(_) if reads => &["state", "limit", "after", "data"],
        QueueRoute::Part(_, TypePart::Failures) => &["state"],
        // Replacements of a browser's `EventSource` add some.
        QueueRoute::Part(_, TypePart::Feed) => return None,
        QueueRoute::JobPart(_, _, JobPart::Wait) => &["timeout_sec"],
        _ => &[],
    };
    Some(known)
}

async fn others(call: &mut Call, route: &QueueRoute) -> Result<Reply, Error> {
    match route {
        QueueRoute::Types => types::list(call).await,
        QueueRoute::Type(ty) if matches!(call.method, Method::GET | Method::HEAD) => {
            reading::list(call, &*find_any(call, ty).await?).await
        }
        QueueRoute::Type(ty) => types::of_type(call, &name(ty)?).await,
        QueueRoute::Part(ty, part) => {
            let ty = match part {
                TypePart::Info | TypePart::Failures => find_any(call, ty).await?,
                _ => find(call, ty).await?,
            };
            match part {
                TypePart::Info => types::info(call, &ty).await,
                TypePart::Failures => reading::failures(call, &ty).await,
                TypePart::Beat => working::beat(call, &ty).await,
                TypePart::Claim | TypePart::Finish => Err(Error::not_found("missing")),
                TypePart::Retry => types::retry(call, &ty).await,
                TypePart::Pause => types::pause(call, &ty, true).await,
                TypePart::Resume => types::pause(call, &ty, false).await,
                TypePart::Feed => feed::feed(call, &ty).await,
            }
        }
        QueueRoute::Job(ty, id) if call.method == Method::DELETE => {
            reading::remove(call, &*find(call, ty).await?, id).await
        }
        QueueRoute::Job(ty, id) => reading::job(call, &*find_any(call, ty).await?, id).await,
        QueueRoute::JobPart(ty, id, JobPart::Wait) => {
            reading::wait(call, &*find(call, ty).await?, id).await
        }
        QueueRoute::JobPart(ty, id, JobPart::Retry) => {
            call.allow("POST")?;
            call.no_members().await?;
            call.shared.queue.retry(&*find(call, ty).await?, id).await?;
            Ok(reply::ok(&json!({"ok": true})))
        }
    }
}

fn name(ty: &str) -> Result<TypeName, Error> {
    Ok(TypeName::new(ty)?)
}

async fn find(call: &Call, ty: &str) -> Result<Arc<Type>, Error> {
    Ok(call.shared.queue.find(&name(ty)?).await?)
}

/// Also one of the service itself, whose jobs administrators may read.
async fn find_any(call: &Call, ty: &str) -> Result<Arc<Type>, Error> {
    let missing = match find(call, ty).await {
        Err(error) if call.caller().is_admin() => error,
        found => return found,
    };
    let own = call.shared.queue.own_types().await?;
    let found = own.into_iter().find(|own| own.name.as_str() == ty);
    found.map(Arc::new).ok_or(missing)
}

/// The key of a request that may be repeated. Another caller's key is another key.
fn repeat_key(call: &Call) -> Result<Option<String>, Error> {
    let Some(key) = call.headers.get(&IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    // One that is not ASCII is refused like one that is empty.
    let key = key.to_str().unwrap_or_default();
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Err(Error::bad_request(format!(
            "`Idempotency-Key` must have from 1 to {KEY_BYTES_MAX} ASCII characters"
        )));
    }
    let caller = call.caller().name.as_deref().unwrap_or_default();
    Ok(Some(format!("{caller}\0{key}")))
}

/// Reads the JSON of the body; what is unknown in it is named.
async fn body<T: DeserializeOwned + Send + 'static>(call: &mut Call) -> Result<T, Error> {
    call.check_json()?;
    Box::pin(call.parse(object)).await
}

fn object<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    if text.trim().is_empty() {
        return Err(Error::not_object());
    }
    check_object(text)?;
    Ok(parse::read(text)?)
}

/// `limit` of a listing.
fn page_limit(call: &Call, usual: usize, max: usize) -> Result<usize, Error> {
    let limit = call.query.number("limit")?;
    let limit = limit.map_or(usual, |limit| usize::try_from(limit).unwrap_or(max));
    Ok(limit.min(max))
}

fn time(ms: i64) -> String {
    let time = Timestamp::from_millisecond(ms).unwrap_or_default();
    format!("{time:.3}")
}

/// For `Option<Raw>` members: `null` if there is none.
fn or_null(raw: Option<Raw>) -> Raw {
    raw.unwrap_or_default()
}
