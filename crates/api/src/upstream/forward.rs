//! Requests that pass through: nothing of them is held, and nothing changed but what a proxy has to.
//!
//! Both bodies stream. A client that goes away ends the request to the cluster, and the other way round. There is no limit
//! to how long the cluster may think, since only it knows what a view costs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use tokio::time::timeout;

use super::Upstream;
use crate::reply::Reply;
use crate::service::Client;
use crate::{Error, metrics};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");

/// What concerns one connection and not the request, beside what `Connection` names.
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

/// Marks answers of the cluster, which are sent as they came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untouched;

impl Upstream {
    /// Sends a request on, and its answer back. `patience` is for a client that stops sending in the middle.
    pub(crate) async fn forward(
        &self,
        parts: Parts,
        body: Body,
        client: Client,
        id: &str,
        patience: Duration,
    ) -> Result<Reply, Error> {
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = (self.uri(path)).ok_or_else(|| Error::bad_request("the path is not one"))?;
        let silent = Arc::new(AtomicBool::new(false));
        let has_body = !body.is_end_stream();
        let body = if has_body {
            Body::from_stream(watched(body, patience, Arc::clone(&silent)))
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
            Err(_) if silent.load(Ordering::Relaxed) => {
                let reason = "The request's body does not come.";
                Err(Error::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason))
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a request. One without a body that only reads is sent again if a kept connection turns out to be closed.
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
        let client = &self.0.client;
        let answer = match (client.request(request).await, again) {
            (Err(error), Some(again)) if !error.is_connect() => client.request(again).await,
            (answer, _) => answer,
        };
        metrics::upstream_asked(answer.is_ok());
        answer.map_err(Error::bad_gateway)
    }

    /// The headers of a request on its way to the cluster.
    fn headers(
        &self,
        mut headers: HeaderMap,
        asked_host: Option<&str>,
        client: Client,
    ) -> HeaderMap {
        drop_hop_by_hop(&mut headers);
        // Bodies begin at once, whether the cluster wants them or not: it is answered for by its answer.
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

/// Says for whom a request is sent.
pub(super) fn forwarded(headers: &mut HeaderMap, asked: Option<&HeaderValue>, client: Client) {
    let address = client.address.ip().to_canonical().to_string();
    let before: Vec<&str> = (headers.get_all(FORWARDED_FOR).iter())
        .filter_map(|value| value.to_str().ok())
        .collect();
    let chain = before.into_iter().chain([address.as_str()]);
    if let Ok(chain) = HeaderValue::from_str(&chain.collect::<Vec<_>>().join(", ")) {
        headers.insert(FORWARDED_FOR, chain);
    }
    // What a proxy before this one said is nearer to the truth.
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

/// HTTP/2 may send one cookie a header, which HTTP/1.1 does not know.
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

/// The body, given up when nothing of it comes for so long.
fn watched(
    body: Body,
    patience: Duration,
    silent: Arc<AtomicBool>,
) -> impl Stream<Item = io::Result<Bytes>> {
    let pieces = body.into_data_stream();
    stream::unfold(Some((pieces, silent)), move |state| async move {
        let (mut pieces, silent) = state?;
        match timeout(patience, pieces.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some((pieces, silent)))),
            Ok(Some(Err(error))) => Some((Err(io::Error::other(error)), None)),
            Err(_) => {
                silent.store(true, Ordering::Relaxed);
                Some((Err(io::ErrorKind::TimedOut.into()), None))
            }
        }
    })
}
