//! Accepting and serving connections, and graceful shutdown. Every connection is bounded in the time for a head and
//! between requests, in the size of heads, and in number. A slow client costs one file descriptor for a while, and
//! loses it when another client needs one.

mod idle;
mod targets;
mod timeouts;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
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

use idle::{Slot, Slots};
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
pub struct ListenOptions {
    /// Maximum number of connections. Beyond it, connections without a request are closed.
    pub connections_max: usize,
    /// Time limit for a request head, and for a connection without a request.
    pub head_timeout: Duration,
    /// How long a client may stop reading a response.
    pub write_timeout: Duration,
    /// How long running requests may take to finish on shutdown.
    pub stop_timeout: Duration,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            head_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_mins(1),
            stop_timeout: Duration::from_secs(10),
        }
    }
}

pub trait Answer: Clone + Send + Sync + 'static {
    /// Never fails: errors are responses, too.
    fn answer(
        &self,
        request: Request<Incoming>,
        from: SocketAddr,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// Serves `listener` until `stop`, then lets running requests finish.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    options: ListenOptions,
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
    options: ListenOptions,
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
    let service = service_fn(|request| {
        let (answer, open) = (answer.clone(), slot.open());
        async move {
            let answered = answer.answer(request, from).await;
            Ok::<_, std::convert::Infallible>(answered.map(|body| open.until_sent(body)))
        }
    });
    let (read, write) = tokio::io::split(stream);
    let write = WriteTimeout::new(write, options.write_timeout);
    let stream = tokio::io::join(Escaped::new(read), write);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = slot.evicted.cancelled() => {
            if !slot.is_open() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = slot.idle_for(options.head_timeout) => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = slot.idle_for(GOODBYE) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%from, %error, "the connection failed");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use axum::body::Body;
    use http::{Request, Response};
    use hyper::body::Incoming;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    use super::{Answer, HEAD_BYTES_MAX, ListenOptions, serve};

    #[derive(Clone)]
    struct Path;

    impl Answer for Path {
        async fn answer(&self, request: Request<Incoming>, _: SocketAddr) -> Response<Body> {
            Response::new(Body::from(request.uri().to_string()))
        }
    }

    async fn start(
        options: ListenOptions,
    ) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let served = tokio::spawn(serve(listener, None, options, Path, stop.clone()));
        (address, stop, served)
    }

    async fn talk(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn answers_and_stops() {
        let (address, stop, served) = start(ListenOptions::default()).await;
        let answer = talk(
            address,
            b"GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("/a"),
            "{answer}"
        );
        // As people type it.
        let answer = talk(
            address,
            b"GET /a?startkey=\"b\" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert!(answer.ends_with("/a?startkey=%22b%22"), "{answer}");
        // An idle connection does not delay the shutdown.
        let idle = TcpStream::connect(address).await.unwrap();
        stop.cancel();
        served.await.unwrap();
        drop(idle);
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// An endless response that reports when the client stops reading.
    #[derive(Clone)]
    struct Endless(tokio::sync::mpsc::Sender<()>);

    impl Answer for Endless {
        async fn answer(&self, _: Request<Incoming>, _: SocketAddr) -> Response<Body> {
            let told = self.0.clone();
            let pieces = futures::stream::repeat_with(move || {
                let _ = &told;
                Ok::<_, std::io::Error>(vec![b'x'; 1 << 16])
            });
            Response::new(Body::from_stream(pieces))
        }
    }

    #[tokio::test]
    async fn who_reads_nothing_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let (sender, mut ended) = tokio::sync::mpsc::channel(1);
        let options = ListenOptions {
            write_timeout: Duration::from_millis(50),
            stop_timeout: Duration::ZERO,
            ..ListenOptions::default()
        };
        let answer = Endless(sender);
        let served = tokio::spawn(serve(listener, None, options, answer, stop.clone()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        // The listener keeps a sender until it stops; the response's is dropped when the connection is cut.
        let mut got = vec![0; 1024];
        stream.read_exact(&mut got).await.unwrap();
        stop.cancel();
        served.await.unwrap();
        assert_eq!(ended.recv().await, None);
        drop(stream);
    }

    /// Frames of HTTP/2: length, type, flags, stream, payload.
    async fn frame(stream: &mut TcpStream) -> Option<(u8, u8, Vec<u8>)> {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.ok()?;
        Some((head[3], head[4], payload))
    }

    #[tokio::test]
    async fn connections_that_ask_nothing_are_closed() {
        const PING: u8 = 6;
        const GOAWAY: u8 = 7;
        let options = ListenOptions {
            head_timeout: Duration::from_millis(50),
            ..ListenOptions::default()
        };
        let (address, stop, served) = start(options).await;
        // Sends nothing.
        assert_eq!(talk(address, b"").await, "");
        // Speaks HTTP/2 and answers pings, but makes no request.
        let mut stream = TcpStream::connect(address).await.unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        stream.write_all(&settings).await.unwrap();
        let mut said_goodbye = false;
        while let Some((kind, flags, payload)) = frame(&mut stream).await {
            said_goodbye |= kind == GOAWAY;
            if kind == PING && flags == 0 {
                let mut pong = vec![0, 0, 8, PING, 1, 0, 0, 0, 0];
                pong.extend(payload);
                let _ = stream.write_all(&pong).await;
            }
        }
        assert!(said_goodbye);
        stop.cancel();
        served.await.unwrap();
    }

    #[tokio::test]
    async fn the_protocol_shows_in_the_first_bytes() {
        let (address, stop, served) = start(ListenOptions::default()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        // It could become the beginning of HTTP/2.
        stream.write_all(b"P").await.unwrap();
        let answered = talk(
            address,
            b"PUT /b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        );
        assert!(answered.await.ends_with("/b"));
        stream
            .write_all(b"UT /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("/a"), "{answer}");
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let executor = TokioExecutor::new();
        let shaken = hyper::client::conn::http2::handshake::<_, _, Body>(executor, io);
        let (mut client, connection) = shaken.await.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::get("http://a/c").body(Body::empty()).unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.version(), http::Version::HTTP_2);
        drop((client, response));
        stop.cancel();
        let _ = connection.await.unwrap();
        served.await.unwrap();
    }

    #[tokio::test]
    async fn idle_connections_make_way() {
        let options = ListenOptions {
            connections_max: 3,
            head_timeout: Duration::from_mins(10),
            ..ListenOptions::default()
        };
        let (address, stop, served) = start(options).await;
        let mut idle = Vec::new();
        for _ in 0..20 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let request = b"GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        assert!(talk(address, request).await.ends_with("/a"));
        stop.cancel();
        served.await.unwrap();
    }

    #[tokio::test]
    async fn dawdlers_and_huge_heads_are_cut_off() {
        let options = ListenOptions {
            head_timeout: Duration::from_millis(50),
            ..ListenOptions::default()
        };
        let (address, stop, served) = start(options).await;
        assert!(
            !talk(address, b"GET /a HTTP/1.1\r\nhost:")
                .await
                .starts_with("HTTP/1.1 200")
        );
        let huge = format!(
            "GET / HTTP/1.1\r\nx: {}\r\n\r\n",
            "y".repeat(2 * HEAD_BYTES_MAX)
        );
        assert!(
            talk(address, huge.as_bytes())
                .await
                .starts_with("HTTP/1.1 431")
        );
        stop.cancel();
        served.await.unwrap();
    }
}
