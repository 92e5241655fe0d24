use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use http::header::HOST;
use http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Answer, HEAD_BYTES_MAX, Options, Protocol, Slots, converse, serve};

#[derive(Clone)]
struct Path;

impl Answer for Path {
    async fn answer(&self, request: Request<Body>, _: SocketAddr) -> Response<Body> {
        Response::new(Body::from(request.uri().to_string()))
    }
}

async fn start(options: Options) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
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
async fn routers_see_the_host_of_http2() {
    let host = async |headers: http::HeaderMap| headers[HOST].to_str().unwrap().to_owned();
    let router = axum::Router::new().route("/", axum::routing::get(host));
    for (address, header, seen) in [
        ("http://a/", None, "a"),
        ("/", Some("b"), "b"),
        ("http://a/", Some("b"), "b"),
    ] {
        let mut request = Request::get(address);
        if let Some(host) = header {
            request = request.header(HOST, host);
        }
        let request = request.body(Body::empty()).unwrap();
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        let response = router.answer(request, from).await;
        let body = axum::body::to_bytes(response.into_body(), 100).await;
        assert_eq!(body.unwrap(), seen);
    }
}

#[tokio::test]
async fn answers_and_stops() {
    let (address, stop, served) = start(Options::default()).await;
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
    async fn answer(&self, _: Request<Body>, _: SocketAddr) -> Response<Body> {
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
    let options = Options {
        write_timeout: Duration::from_millis(50),
        stop_timeout: Duration::ZERO,
        ..Options::default()
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
    let options = Options {
        head_timeout: Duration::from_millis(50),
        ..Options::default()
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
    let (address, stop, served) = start(Options::default()).await;
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
    let options = Options {
        connections_max: 3,
        head_timeout: Duration::from_mins(10),
        ..Options::default()
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
    let options = Options {
        head_timeout: Duration::from_millis(50),
        ..Options::default()
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

/// Never answers `/held`, and reads no body.
#[derive(Clone)]
struct Held;

impl Answer for Held {
    async fn answer(&self, request: Request<Body>, _: SocketAddr) -> Response<Body> {
        if request.uri().path() == "/held" {
            std::future::pending::<()>().await;
        }
        Response::new(Body::from("refused"))
    }
}

/// Serves the other end of this stream. Time passes only while all wait.
async fn serve_stream(options: Options) -> (DuplexStream, tokio::task::JoinHandle<()>) {
    let (client, server) = tokio::io::duplex(1024);
    let (from, stop) = (
        SocketAddr::from(([127, 0, 0, 1], 1)),
        CancellationToken::new(),
    );
    let slot = Slots::new(1).take().await.unwrap();
    let conversation = converse(server, Protocol::Http1, from, options, Held, stop, slot);
    (client, tokio::spawn(conversation))
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_a_body_nobody_reads_gets_the_response() {
    let (mut client, served) = serve_stream(Options::default()).await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 300000\r\n\r\n";
    client.write_all(head).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"refused") {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
    }
    // A connection that is closed breaks this.
    client.write_all(&vec![b'x'; 300_000]).await.unwrap();
    assert_eq!(client.read_buf(&mut answer).await.unwrap(), 0);
    drop(client);
    served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_for_ever_is_cut_off() {
    let (mut client, served) = serve_stream(Options::default()).await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    client.write_all(head).await.unwrap();
    while client.write_all(b"1\r\nx\r\n").await.is_ok() {}
    served.await.unwrap();
    // Or keeps the connection, and sends nothing.
    let (mut client, served) = serve_stream(Options::default()).await;
    client.write_all(head).await.unwrap();
    served.await.unwrap();
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn requests_have_a_time_limit_if_one_is_set() {
    let options = Options {
        head_timeout: Duration::from_mins(1),
        request_timeout: Some(Duration::from_mins(3)),
        ..Options::default()
    };
    let (mut client, served) = serve_stream(options).await;
    let (started, mut answer) = (Instant::now(), Vec::new());
    for _ in 0..8 {
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        answer.clear();
        while !answer.ends_with(b"refused") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    client
        .write_all(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    served.await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 8 * 30 + 3 * 60);
}
