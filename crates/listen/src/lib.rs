//! Serves HTTP/1 and HTTP/2 to clients that may be hostile, with or without TLS, and shuts down gracefully. Every
//! connection is bounded in the time for a head and between requests, in the size of heads, and in number. A slow client
//! costs one file descriptor for a while, and loses it when another client needs one.
//!
//! It knows nothing of what is served: an [`Answer`] responds to requests, such as an [`axum::Router`]. [`Bodies`] reads
//! bodies that are needed as a whole. [`Secret`] is for services whose clients know one, and [`not_from_a_page`] for those
//! without authentication. [`Refusal`] is an error response.
//!
//! Start reading at [`serve`], then `idle.rs` and `targets.rs`.

mod bodies;
mod idle;
mod linger;
mod pages;
mod refusal;
mod secret;
mod targets;
mod timeouts;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::header::{HOST, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

pub use bodies::{Bodies, BodyError};
pub use pages::{FromPage, not_from_a_page};
pub use refusal::Refusal;
pub use secret::{Proof, ProofHeaders, Secret, ShortSecret, Signature};

use idle::{Slot, Slots};
use linger::{Linger, Unread};
use targets::Escaped;
use timeouts::WriteTimeout;

/// Maximum size of a request head. The HTTP library looks only when it has read what it has room for, up to twice as much.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 100;
/// How HTTP/2 begins. No request of HTTP/1 does.
const PREFACE: &[u8] = b"PRI ";
/// Time limit of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time for a connection to close after it was told to.
const GOODBYE: Duration = Duration::from_secs(1);
/// Pause after a failed accept: file descriptors may be used up.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits on connections.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Maximum number of connections. Beyond it, connections without a request are closed.
    pub connections_max: usize,
    /// Time limit for a request head, and for a connection without a request.
    pub head_timeout: Duration,
    /// How long a client may stop reading a response.
    pub write_timeout: Duration,
    /// Time limit of a request with its response, or of several that overlap on a connection; `None` if responses may be
    /// endless.
    pub request_timeout: Option<Duration>,
    /// How long running requests may take to finish on shutdown.
    pub stop_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            head_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_mins(1),
            request_timeout: None,
            stop_timeout: Duration::from_secs(10),
        }
    }
}

/// What responds to requests.
pub trait Answer: Clone + Send + Sync + 'static {
    /// Never fails: errors are responses, too.
    fn answer(
        &self,
        request: Request<Body>,
        from: SocketAddr,
    ) -> impl Future<Output = Response<Body>> + Send;
}

impl Answer for Router {
    async fn answer(&self, mut request: Request<Body>, _: SocketAddr) -> Response<Body> {
        // HTTP/2 sends the host as `:authority`, but handlers check the header `Host`.
        if !request.headers().contains_key(HOST)
            && let Some(authority) = request.uri().authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            request.headers_mut().insert(HOST, host);
        }
        let Ok(response) = self.clone().oneshot(request).await;
        response
    }
}

/// Serves `listener` until `stop`, then lets running requests finish.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    options: Options,
    answer: impl Answer,
    stop: CancellationToken,
) {
    let tracker = TaskTracker::new();
    let slots = Slots::new(options.connections_max);
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let Some((stream, from, slot)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (tls, answer, stop) = (tls.clone(), answer.clone(), stop.clone());
        tracker.spawn(async move {
            let _ = stream.set_nodelay(true);
            // Boxed, so that a plain connection costs nothing of a TLS one, and an open one nothing of its beginning.
            let Some(tls) = tls else {
                let begun = tokio::select! {
                    begun = Protocol::begun(&stream) => begun,
                    () = stop.cancelled() => return,
                    () = slot.evicted.cancelled() => return,
                    () = slot.idle_for(options.head_timeout) => return,
                };
                let Some(protocol) = begun else { return };
                let conversation = converse(stream, protocol, from, options, answer, stop, slot);
                return Box::pin(conversation).await;
            };
            let shaken = tokio::select! {
                shaken = timeout(HANDSHAKE, tls.accept(stream)) => shaken,
                () = slot.evicted.cancelled() => return,
            };
            match shaken {
                Ok(Ok(stream)) => {
                    let protocol = Protocol::agreed(stream.get_ref().1.alpn_protocol());
                    let conversation =
                        converse(stream, protocol, from, options, answer, stop, slot);
                    Box::pin(conversation).await;
                }
                Ok(Err(error)) => tracing::debug!(%from, %error, "no TLS handshake"),
                Err(_) => tracing::debug!(%from, "the TLS handshake took too long"),
            }
        });
    }
    drop(listener);
    tracker.close();
    if timeout(options.stop_timeout, tracker.wait()).await.is_err() {
        tracing::warn!(
            connections = tracker.len(),
            "requests were cut off by the shutdown"
        );
    }
}

/// What a client speaks. The HTTP library can find out by itself, but then reads the first bytes separately, and its buffer
/// grows to twice its size for as long as the connection lasts, which is a third of what a waiting claim would cost.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    Http1,
    Http2,
    Unknown,
}

impl Protocol {
    /// Waits for the first bytes; `None` if there will be none.
    async fn begun(stream: &TcpStream) -> Option<Self> {
        let mut first = [0; PREFACE.len()];
        let length = stream.peek(&mut first).await.ok().filter(|n| *n > 0)?;
        Some(match PREFACE.strip_prefix(&first[..length]) {
            Some([]) => Self::Http2,
            Some(_) => Self::Unknown,
            None => Self::Http1,
        })
    }

    /// By the TLS handshake.
    fn agreed(name: Option<&[u8]>) -> Self {
        match name {
            Some(b"h2") => Self::Http2,
            Some(b"http/1.1") => Self::Http1,
            _ => Self::Unknown,
        }
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Slots>,
) -> Option<(TcpStream, SocketAddr, Arc<Slot>)> {
    match listener.accept().await {
        Ok((stream, from)) => Some((stream, from, slots.take().await?)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            None
        }
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    protocol: Protocol,
    from: SocketAddr,
    options: Options,
    answer: impl Answer,
    stop: CancellationToken,
    slot: Arc<Slot>,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(options.head_timeout)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_concurrent_streams(256);
    let builder = match protocol {
        Protocol::Http1 => builder.http1_only(),
        Protocol::Http2 => builder.http2_only(),
        Protocol::Unknown => builder,
    };
    let unread = Unread::default();
    let service = service_fn(|request: Request<Incoming>| {
        let (answer, open) = (answer.clone(), slot.open());
        let request = request.map(|body| unread.watch(body));
        async move {
            let answered = answer.answer(request, from).await;
            Ok::<_, std::convert::Infallible>(answered.map(|body| open.until_sent(body)))
        }
    });
    let (read, write) = tokio::io::split(stream);
    let write = WriteTimeout::new(write, options.write_timeout);
    let stream = tokio::io::join(Escaped::new(read), write);
    let stream = TokioIo::new(Linger::new(stream, unread.clone()));
    let connection = builder.serve_connection(stream, service);
    tokio::pin!(connection);
    let conversation = async {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = stop.cancelled() => {}
            () = slot.evicted.cancelled() => {
                if !slot.is_open() {
                    return Ok(());
                }
            }
            () = slot.idle_for(options.head_timeout) => {
                connection.as_mut().graceful_shutdown();
                return tokio::select! {
                    ended = connection => ended,
                    () = slot.idle_for(GOODBYE) => Ok(()),
                };
            }
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    tokio::select! {
        ended = conversation => {
            if let Err(error) = ended {
                tracing::debug!(%from, %error, "the connection failed");
            }
        }
        () = slot.busy_for(options.request_timeout) => {
            tracing::debug!(%from, "a request took too long");
        }
    }
}

#[cfg(test)]
mod tests;
