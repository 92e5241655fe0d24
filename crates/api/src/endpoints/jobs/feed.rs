//! `_feed`: changes of jobs as server-sent events.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, SelectAll};
use futures::{StreamExt as _, future};
use http::header::CACHE_CONTROL;
use queue::{Following, Right, Type};

use super::reading::Change;
use crate::Error;
use crate::call::Call;
use crate::endpoints::session;
use crate::reply::{self, Reply};

const JOBS_MAX: usize = 100;
/// Between two changes, so that proxies keep the connection. The caller's access is checked as often.
const HEARTBEAT: Duration = Duration::from_secs(20);

pub(super) async fn feed(call: &Call, ty: &Type) -> Result<Reply, Error> {
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
    let (mut first, mut all) = (String::new(), SelectAll::new());
    for id in ids {
        let following = call.shared.queue.follow(ty, id).await?;
        let (info, envelope) = following.now()?;
        first.push_str(&event(&Change::new(&info, envelope))?);
        all.push(Box::pin(changes(following, id.to_owned())));
    }
    let (shared, headers, client) = (call.shared.clone(), call.headers.clone(), call.client);
    let (stop, ty) = (shared.stop.clone(), ty.clone());
    let beats = stream::unfold((), move |()| {
        let (shared, headers, ty) = (shared.clone(), headers.clone(), ty.clone());
        async move {
            tokio::time::sleep(HEARTBEAT).await;
            let proven = session::prove(&shared, &headers, client).await.ok()?;
            let caller = proven.identity;
            let ty = shared.queue.find(&ty.name).await.ok()?;
            let may = caller.is_admin() || ty.settings.roles.allow(Right::Read, &caller.roles);
            may.then(|| (Some(Ok(Bytes::from_static(b":\n\n"))), ()))
        }
    });
    // Ends with the first part that ends: all jobs are over, or the caller lost its right.
    let ends = |part: stream::BoxStream<'static, _>| part.chain(stream::once(future::ready(None)));
    let all = ends(all.map(Some).boxed());
    let beats = ends(beats.boxed());
    let rest = stream::select(all, beats).map(|piece: Option<Result<Bytes, Error>>| piece);
    let rest = rest
        .take_while(|piece| future::ready(piece.is_some()))
        .filter_map(future::ready);
    let rest = rest.take_until(async move { stop.cancelled().await });
    let first = stream::once(future::ready(Ok(Bytes::from(first))));
    let mut reply = reply::stream("text/event-stream", first.chain(rest).boxed());
    reply::set(&mut reply, CACHE_CONTROL, "no-cache");
    Ok(reply)
}

fn changes(following: Following, id: String) -> impl futures::Stream<Item = Result<Bytes, Error>> {
    stream::unfold(Some((following, id)), |following| async move {
        let (mut following, id) = following?;
        match following.next().await? {
            Ok((info, envelope)) => {
                let event = event(&Change::new(&info, envelope)).map(Bytes::from);
                Some((event, Some((following, id))))
            }
            Err(queue::Error::NoJob) => {
                let gone = serde_json::json!({"id": id, "state": "removed"});
                Some((event(&gone).map(Bytes::from), None))
            }
            // The service stops.
            Err(_) => None,
        }
    })
}

fn event(change: &impl serde::Serialize) -> Result<String, Error> {
    let json = serde_json::to_string(change).map_err(Error::internal)?;
    // Progress may have line breaks, between its tokens only.
    let json = json.replace(['\r', '\n'], " ");
    Ok(format!("data: {json}\n\n"))
}
