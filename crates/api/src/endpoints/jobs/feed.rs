//! `_feed`: changes of jobs as server-sent events.
//!
//! A browser connects again whenever a feed ends, and sends the id of the last event. Only the event after which all jobs
//! are over has an id. It stands for how they ended, so that a browser that has seen this is told to stop.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream::{self, BoxStream, SelectAll};
use futures::{StreamExt as _, future};
use http::header::CACHE_CONTROL;
use http::{HeaderName, Response, StatusCode};
use jobs::{JobInfo, State};
use queue::{Following, Type};

use super::reading::Change;
use crate::call::Call;
use crate::endpoints::session;
use crate::reply::{self, Reply};
use crate::state::Shared;
use crate::{Error, access};

const JOBS_MAX: usize = 100;
/// How much of the jobs' first states is kept to be sent at once. The others are read when the client has read these.
const FIRST_BYTES_MAX: usize = 1_000_000;
/// Between two changes, so that proxies keep the connection. The caller's access is checked as often.
const HEARTBEAT: Duration = Duration::from_secs(20);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// How each of the jobs has ended; `None` while it has not.
struct Ends(Vec<Option<String>>);

/// An event on one of the jobs.
struct Event {
    nth: usize,
    /// How the job has ended.
    end: Option<String>,
    data: String,
}

pub(super) async fn feed(call: &Call, ty: &Arc<Type>) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let ids: Vec<&str> = (call.query.iter())
        .filter(|(name, _)| *name == "ids")
        .flat_map(|(_, ids)| ids.split(','))
        .filter(|id| !id.is_empty())
        .collect();
    if !(1..=JOBS_MAX).contains(&ids.len()) {
        return Err(Error::query(format!(
            "`ids` must name 1 to {JOBS_MAX} jobs, separated by commas or as several `ids`"
        )));
    }
    let none = || Ends(vec![None; ids.len()]);
    let (mut now, mut ends, mut first) = (none(), none(), String::new());
    let (mut later, mut all) = (Vec::new(), SelectAll::new());
    for (nth, id) in ids.into_iter().enumerate() {
        let event = match followed(call, ty, id).await {
            Ok((following, info, change)) => {
                all.push(Box::pin(changes(following, nth, id.to_owned())));
                Event::new(nth, &info, &change)?
            }
            // It may have existed when a browser that reconnects first connected.
            Err(queue::Error::NoJob) => Event::removed(nth, id),
            Err(error) => return Err(error.into()),
        };
        now.0[nth].clone_from(&event.end);
        if later.is_empty() && first.len() + event.data.len() <= FIRST_BYTES_MAX {
            first.push_str(&ends.told(event));
        } else {
            later.push((nth, id.to_owned()));
        }
    }
    if let (Some(id), Some(seen)) = (now.id(), call.header(&LAST_EVENT_ID))
        && id == seen
    {
        let mut over = Response::new(Body::empty());
        *over.status_mut() = StatusCode::NO_CONTENT;
        return Ok(over);
    }
    if all.is_empty() {
        return Err(queue::Error::NoJob.into());
    }
    let (shared, of) = (call.shared.clone(), Arc::clone(ty));
    let later = stream::iter(later).then(move |(nth, id)| {
        let (shared, of) = (shared.clone(), Arc::clone(&of));
        async move { Event::of(&shared, &of, nth, &id).await }
    });
    let changes = later.chain(all).map(move |event: Result<Event, Error>| {
        let text = event.map(|event| ends.told(event));
        Some(text.map(Bytes::from))
    });
    // Ends with the first part that ends: all jobs are over, or the caller lost its right.
    let ends = |part: BoxStream<'static, _>| part.chain(stream::once(future::ready(None)));
    let rest = stream::select(ends(changes.boxed()), ends(beats(call, ty)));
    let rest = rest
        .take_while(|piece| future::ready(piece.is_some()))
        .filter_map(future::ready);
    let stop = call.shared.stop.clone();
    let rest = rest.take_until(async move { stop.cancelled().await });
    let first = stream::once(future::ready(Ok(Bytes::from(first))));
    let mut reply = reply::stream("text/event-stream", first.chain(rest).boxed());
    reply::set(&mut reply, CACHE_CONTROL, "no-cache");
    Ok(reply)
}

/// Follows a job, from its present state on.
async fn followed(
    call: &Call,
    ty: &Type,
    id: &str,
) -> queue::Result<(Following, Arc<JobInfo>, Change)> {
    let mut following = call.shared.queue.follow(ty, id).await?;
    let (info, envelope) = following.first()?;
    let change = Change::new(&info, envelope);
    Ok((following, info, change))
}

/// Comments, as long as the caller may read jobs of the type.
fn beats(call: &Call, ty: &Type) -> BoxStream<'static, Option<Result<Bytes, Error>>> {
    let (shared, headers, client) = (call.shared.clone(), call.headers.clone(), call.client);
    let name = ty.name.clone();
    let beats = stream::unfold((), move |()| {
        let (shared, headers, name) = (shared.clone(), headers.clone(), name.clone());
        async move {
            tokio::time::sleep(HEARTBEAT).await;
            let proven = session::prove(&shared, &headers, client).await.ok()?;
            let ty = shared.queue.find(&name).await.ok()?;
            let may = access::reads(&proven, &ty);
            may.then(|| (Some(Ok(Bytes::from_static(b":\n\n"))), ()))
        }
    });
    beats.boxed()
}

fn changes(
    following: Following,
    nth: usize,
    id: String,
) -> impl futures::Stream<Item = Result<Event, Error>> {
    stream::unfold(Some((following, id)), move |following| async move {
        let (mut following, id) = following?;
        match following.next().await? {
            Ok((info, envelope)) => {
                let event = Event::new(nth, &info, &Change::new(&info, envelope));
                Some((event, Some((following, id))))
            }
            Err(queue::Error::NoJob) => Some((Ok(Event::removed(nth, &id)), None)),
            // The service stops.
            Err(_) => None,
        }
    })
}

impl Event {
    fn new(nth: usize, info: &JobInfo, change: &Change) -> Result<Self, Error> {
        let json = serde_json::to_string(change).map_err(Error::internal)?;
        let is_over = matches!(info.state, State::Finished | State::Dead);
        Ok(Self {
            nth,
            end: is_over.then(|| format!("{:?} {:?}", info.attempts, info.finished_ms)),
            // Progress may have line breaks, between its tokens only.
            data: json.replace(['\r', '\n'], " "),
        })
    }

    /// The current state of a job.
    async fn of(shared: &Shared, ty: &Type, nth: usize, id: &str) -> Result<Self, Error> {
        match shared.queue.get(ty, id).await {
            Ok((info, envelope)) => Self::new(nth, &info, &Change::new(&info, envelope)),
            Err(queue::Error::NoJob) => Ok(Self::removed(nth, id)),
            Err(error) => Err(error.into()),
        }
    }

    fn removed(nth: usize, id: &str) -> Self {
        Self {
            nth,
            end: Some("removed".to_owned()),
            data: serde_json::json!({"id": id, "state": "removed"}).to_string(),
        }
    }
}

impl Ends {
    /// The text of an event.
    fn told(&mut self, event: Event) -> String {
        let Event { nth, end, data } = event;
        self.0[nth] = end;
        match self.id() {
            Some(id) => format!("id: {id}\ndata: {data}\n\n"),
            None => format!("data: {data}\n\n"),
        }
    }

    /// The id of the last event.
    fn id(&self) -> Option<String> {
        if self.0.iter().any(Option::is_none) {
            return None;
        }
        let mut hash = DefaultHasher::new();
        self.0.hash(&mut hash);
        Some(format!("{:016x}", hash.finish()))
    }
}
