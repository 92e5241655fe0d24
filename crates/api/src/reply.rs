use axum::body::Body;
use bytes::Bytes;
use futures::{
    FutureExt as _, StreamExt as _, TryStream, TryStreamExt as _, future, stream as streams,
};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IntoHeaderName, LOCATION};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::Error;

pub(crate) type Reply = Response<Body>;

/// JSON text, with a line break as in CouchDB.
pub(crate) fn text(status: StatusCode, json: impl Into<String>) -> Reply {
    let mut json = json.into();
    json.push('\n');
    body(status, "application/json", Body::from(json))
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    text(
        status,
        serde_json::to_string(value).expect("answers can be written"),
    )
}

pub(crate) fn ok(value: &impl Serialize) -> Reply {
    json(StatusCode::OK, value)
}

pub(crate) fn body(status: StatusCode, content_type: &'static str, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    set(&mut reply, CONTENT_TYPE, content_type);
    set(&mut reply, CACHE_CONTROL, "must-revalidate");
    reply
}

/// 200, with streamed JSON.
pub(crate) fn stream<S>(content_type: &'static str, pieces: S) -> Reply
where
    S: TryStream<Ok = Bytes, Error = Error> + Send + 'static,
{
    body(StatusCode::OK, content_type, Body::from_stream(pieces))
}

/// Where the pieces of a streamed response go.
pub(crate) struct Pieces(mpsc::Sender<Bytes>);

impl Pieces {
    /// Waits until the piece before this one was taken.
    pub(crate) async fn send(&mut self, piece: String) {
        if !piece.is_empty() {
            // Fails only when the response is dropped, and with it the caller.
            let _ = self.0.send(piece.into()).await;
        }
    }
}

/// 200, with JSON that `write` sends in pieces.
pub(crate) async fn json_pieces<F>(write: impl FnOnce(Pieces) -> F) -> Result<Reply, Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    pieces("application/json", write).await
}

/// 200, with a body that `write` sends in pieces. An error before the first piece is returned; a later one breaks off the
/// response.
pub(crate) async fn pieces<F>(
    content_type: &'static str,
    write: impl FnOnce(Pieces) -> F,
) -> Result<Reply, Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let (sender, mut receiver) = mpsc::channel(1);
    let failure = streams::once(write(Pieces(sender)));
    let failure = failure.filter_map(|done| future::ready(done.err().map(Err)));
    let pieces = streams::poll_fn(move |cx| receiver.poll_recv(cx)).map(Ok);
    let mut all = streams::select(pieces, failure).boxed();
    let first = all.try_next().await?.unwrap_or_default();
    Ok(match all.next().now_or_never() {
        Some(None) => body(StatusCode::OK, content_type, Body::from(first)),
        second => {
            let begin = streams::iter([Some(Ok(first)), second.flatten()].into_iter().flatten());
            stream(content_type, begin.chain(all))
        }
    })
}

/// Sets a header. Values that headers cannot contain, such as a name that a client chose, are left out.
pub(crate) fn set(reply: &mut Reply, name: impl IntoHeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}

/// Sets the `ETag` to a revision.
pub(crate) fn with_etag(mut reply: Reply, rev: &str) -> Reply {
    set(&mut reply, ETAG, &format!("\"{rev}\""));
    reply
}

/// Sets `Location`.
pub(crate) fn with_location(mut reply: Reply, url: &str) -> Reply {
    set(&mut reply, LOCATION, url);
    reply
}
