//! Forwarded requests: streamed, and changed only as a proxy must. A client that disconnects ends the request to the
//! cluster, and vice versa. The cluster has unlimited time to respond, since only it knows what a view costs.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::header::{
    CONNECTION, COOKIE, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as ClientError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Upstream;
use crate::client::Client;
use crate::forwarded::{FORWARDED_FOR, FORWARDED_HOST};
use crate::reply::Reply;
use crate::{Error, metrics, pace};

/// Limit of interim responses (1xx) to one request.
const INTERIM_MAX: u32 = 64;
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");

/// Hop-by-hop headers, in addition to those listed in `Connection`.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Marks responses of the cluster, which are sent unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untouched;

impl Upstream {
    /// Forwards a request and returns the response. `time_limit` applies to a client that stops sending.
    pub(crate) async fn forward(
        &self,
        parts: Parts,
        body: Body,
        client: Client,
        id: &str,
        time_limit: Duration,
    ) -> Result<Reply, Error> {
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = (self.uri(path)).ok_or_else(|| Error::bad_request("invalid path"))?;
        let given_up = Arc::new(OnceLock::new());
        let has_body = !body.is_end_stream();
        let body = if has_body {
            Body::from_stream(watched(body, time_limit, Arc::clone(&given_up)))
        } else {
            Body::empty()
        };
        let mut request = Request::new(body);
        *request.uri_mut() = uri;
        *request.method_mut() = parts.method;
        *request.version_mut() = Version::HTTP_11;
        let asked_host = parts.uri.authority().map(Authority::as_str);
        *request.headers_mut() = self.headers(parts.headers, asked_host, client);
        if !request.headers().contains_key(REQUEST_ID)
            && let Ok(id) = HeaderValue::from_str(id)
        {
            request.headers_mut().insert(REQUEST_ID, id);
        }
        match self.send(request, has_body).await {
            Ok(answer) => Ok(untouched(answer)),
            Err(error) => Err(given_up.get().cloned().unwrap_or(error)),
        }
    }

    /// Sends a request. A read without a body is repeated if a pooled connection turns out to be closed.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
        has_body: bool,
    ) -> Result<Response<Incoming>, Error> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let again = (reads && !has_body).then(|| {
            let mut again = Request::new(Body::empty());
            (*again.method_mut(), *again.uri_mut()) =
                (request.method().clone(), request.uri().clone());
            *again.headers_mut() = request.headers().clone();
            again
        });
        let answer = match (self.send_once(request).await, again) {
            (Err(Some(error)), Some(again)) if !error.is_connect() => self.send_once(again).await,
            (answer, _) => answer,
        };
        metrics::upstream_asked(answer.is_ok());
        answer.map_err(|failed| match failed {
            Some(error) => Error::bad_gateway(error),
            None => Error::bad_gateway(io::Error::other("too many interim responses")),
        })
    }

    /// Sends a request; `Err(None)` if there is no final response after many interim ones.
    async fn send_once(
        &self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, Option<ClientError>> {
        let (count, too_many) = (AtomicU32::new(0), CancellationToken::new());
        let stop = too_many.clone();
        hyper::ext::on_informational(&mut request, move |_| {
            if count.fetch_add(1, Ordering::Relaxed) >= INTERIM_MAX {
                stop.cancel();
            }
        });
        tokio::select! {
            answer = self.0.client.request(request) => answer.map_err(Some),
            () = too_many.cancelled() => Err(None),
        }
    }

    /// The headers to send to the cluster.
    fn headers(
        &self,
        mut headers: HeaderMap,
        asked_host: Option<&str>,
        client: Client,
    ) -> HeaderMap {
        drop_hop_by_hop(&mut headers);
        // Bodies are sent at once, without waiting for `100 Continue`.
        headers.remove(EXPECT);
        join_cookies(&mut headers);
        let asked = headers.get(HOST).cloned().or_else(|| {
            // HTTP/2 has it elsewhere.
            HeaderValue::from_str(asked_host?).ok()
        });
        forwarded(&mut headers, asked.as_ref(), client);
        let own = || HeaderValue::from_str(&self.0.authority).ok();
        let host = asked.filter(|_| self.0.options.preserve_host).or_else(own);
        if let Some(host) = host {
            headers.insert(HOST, host);
        }
        headers
    }
}

/// Adds `X-Forwarded-For` and the like.
pub(super) fn forwarded(headers: &mut HeaderMap, asked: Option<&HeaderValue>, client: Client) {
    let address = client.address.ip().to_canonical().to_string();
    let before: Vec<&str> = (headers.get_all(FORWARDED_FOR).iter())
        .filter_map(|value| value.to_str().ok())
        .collect();
    let chain = before.into_iter().chain([address.as_str()]);
    if let Ok(chain) = HeaderValue::from_str(&chain.collect::<Vec<_>>().join(", ")) {
        headers.insert(FORWARDED_FOR, chain);
    }
    // Values from a proxy before this one are more accurate.
    let proto = if client.tls { "https" } else { "http" };
    headers
        .entry(FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static(proto));
    if let Some(asked) = asked {
        headers
            .entry(FORWARDED_HOST)
            .or_insert_with(|| asked.clone());
    }
}

fn untouched(answer: Response<Incoming>) -> Reply {
    let mut reply = answer.map(Body::new);
    if reply.status() == StatusCode::NOT_MODIFIED {
        // hyper drops the length of a response without a body; of this one it does not know that.
        *reply.body_mut() = Body::from_stream(stream::empty::<io::Result<Bytes>>());
    }
    drop_hop_by_hop(reply.headers_mut());
    *reply.version_mut() = Version::HTTP_11;
    reply.extensions_mut().clear();
    reply.extensions_mut().insert(Untouched);
    reply
}

fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = (headers.get_all(CONNECTION).iter())
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// HTTP/2 may split cookies over several headers; HTTP/1.1 may not.
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = (headers.get_all(COOKIE).iter())
        .map(HeaderValue::as_bytes)
        .collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// The body; fails if it stalls, or is too slow or too large.
fn watched(
    body: Body,
    time_limit: Duration,
    given_up: Arc<OnceLock<Error>>,
) -> impl Stream<Item = io::Result<Bytes>> {
    let pieces = body.into_data_stream();
    stream::unfold(Some((pieces, given_up)), move |state| async move {
        let (mut pieces, given_up) = state?;
        let refused = match timeout(time_limit, pieces.next()).await {
            Ok(None) => return None,
            Ok(Some(Ok(piece))) => return Some((Ok(piece), Some((pieces, given_up)))),
            Ok(Some(Err(error))) => pace::refusal(error),
            Err(_) => {
                let reason = "Timed out reading the request body.";
                Error::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason)
            }
        };
        let error = io::Error::other(refused.to_string());
        let _ = given_up.set(refused);
        Some((Err(error), None))
    })
}
