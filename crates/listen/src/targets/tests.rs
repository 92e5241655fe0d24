use std::convert::Infallible;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;

use super::*;

/// A conversation passed through in pieces of this size.
fn through(text: &str, size: usize) -> String {
    let mut state = State::start();
    let pieces = text.as_bytes().chunks(size);
    let passed = pieces.flat_map(|piece| state.pass(piece).unwrap_or_else(|| piece.to_vec()));
    String::from_utf8(passed.collect()).unwrap()
}

#[track_caller]
fn check(text: &str, expected: &str) {
    for size in [1, 2, 3, 7, 64, 10_000] {
        assert_eq!(through(text, size), expected, "in pieces of {size}");
    }
}

#[track_caller]
fn same(text: &str) {
    check(text, text);
}

#[test]
fn targets_are_escaped_and_nothing_else() {
    check(
        "GET /a?b=\"c\"<d> HTTP/1.1\r\nx: \"<>\"\r\nhost: a\r\n\r\n\r\nGET /\"e HTTP/1.1\r\n\r\n",
        "GET /a?b=%22c%22%3Cd%3E HTTP/1.1\r\nx: \"<>\"\r\nhost: a\r\n\r\n\r\nGET /%22e HTTP/1.1\r\n\r\n",
    );
    check("GET /\"a\" HTTP/1.0\n\n", "GET /%22a%22 HTTP/1.0\n\n");
}

#[test]
fn bodies_stay_as_they_are() {
    let body = "GET /\"x\" HTTP/1.1\r\n\r\n";
    let post = |target: &str| {
        let length = body.len();
        format!("POST {target} HTTP/1.1\r\nContent-LENGTH:  {length} \r\n\r\n{body}")
    };
    let quoted = format!("{0}{0}GET /\" HTTP/1.1\r\n\r\n", post("/\""));
    let escaped = format!("{0}{0}GET /%22 HTTP/1.1\r\n\r\n", post("/%22"));
    check(&quoted, &escaped);
}

#[test]
fn only_a_plain_length_is_followed() {
    let bait = "GET /\"x\" HTTP/1.1\r\n\r\n";
    for headers in [
        "Content-Length: 0000000000000000000000000000000000000021".to_owned(),
        "Content-Length: 00000000000000000021".to_owned(),
        format!("Content-Length:{}21", " ".repeat(40)),
        "Content-Length:\r\n 21".to_owned(),
        "Content-Length: 21\r\nContent-Length: 21".to_owned(),
        "Content-Length: 21, 21".to_owned(),
        "Content-Length: +21".to_owned(),
        "Content-Length: 0x15".to_owned(),
        "Content-Length: ".to_owned(),
        "Content-Length : 21".to_owned(),
        "x: y\r\n z".to_owned(),
        format!("tRaNsFeR-EnCoDiNg:{}chunked", " ".repeat(40)),
        "Transfer-Encoding : chunked".to_owned(),
        "Content-Length: 21\r\nTransfer-Encoding: chunked".to_owned(),
    ] {
        same(&format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n{bait}{bait}"));
    }
}

#[test]
fn what_has_no_length_is_left_alone() {
    same("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nGET /\"x\" HTTP/1.1\r\n\r\n");
    same("POST / HTTP/1.1\r\ncontent-length: many\r\n\r\nGET /\"x\" HTTP/1.1\r\n\r\n");
    same("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET /\"x\" HTTP/1.1\r\n\r\n");
    same("nonsense\nGET /\"x\" HTTP/1.1\r\n\r\n");
    same("GET /a\nGET /\"x\" HTTP/1.1\r\n\r\n");
}

/// Method, target and body of every request that the HTTP library finds in these bytes.
async fn requests(bytes: impl AsyncRead + Send + Unpin + 'static) -> Vec<(String, Bytes)> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let found = Arc::clone(&found);
        async move {
            let (parts, body) = request.into_parts();
            let line = format!("{} {}", parts.method, parts.uri);
            let body = axum::body::to_bytes(Body::new(body), usize::MAX).await;
            found.lock().unwrap().push((line, body.unwrap_or_default()));
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let stream = TokioIo::new(tokio::io::join(bytes, tokio::io::sink()));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // What follows a body is read although the client sends no more.
    builder.http1().half_close(true);
    let _ = builder.http1_only().serve_connection(stream, service).await;
    found.lock().unwrap().clone()
}

/// A body that becomes longer by exactly the length of the request at its end if it is taken for a request line.
fn bait() -> String {
    let hidden = "GET /hidden HTTP/1.1\r\nhost: hh\r\n\r\n";
    assert_eq!(hidden.len() % 2, 0);
    format!("X /{} {hidden}", "\"".repeat(hidden.len() / 2))
}

/// Lines about the length of a body, which is `n`, and others.
fn headers(n: usize) -> Vec<String> {
    let pad = " ".repeat(40);
    vec![
        String::new(),
        format!("Content-Length: {n}"),
        format!("content-length:{n}"),
        format!("cOnTeNt-LeNgTh:\t {n}\t"),
        format!("Content-Length: {n:019}"),
        format!("Content-Length: {n:020}"),
        format!("Content-Length: {n:040}"),
        format!("Content-Length:{pad}{n}"),
        format!("Content-Length:{}{n}", "\t".repeat(20)),
        format!("Content-Length: {n}{pad}"),
        format!("Content-Length: {n}, {n}"),
        format!("Content-Length: +{n}"),
        format!("Content-Length: {n}\r\n "),
        format!("Content-Length:\r\n {n}"),
        format!("Content-Length : {n}"),
        format!(" Content-Length: {n}"),
        format!("x: y\r\n Content-Length: {n}"),
        "Content-Length: 0".to_owned(),
        "Content-Length: 4".to_owned(),
        "Content-Length:".to_owned(),
        "Content-Length: 18446744073709551616".to_owned(),
        "Transfer-Encoding: chunked".to_owned(),
        "tRaNsFeR-eNcOdInG:chunked".to_owned(),
        format!("Transfer-Encoding:{pad}chunked"),
        "Transfer-Encoding: gzip, chunked".to_owned(),
        "Transfer-Encoding: chunked, gzip".to_owned(),
        "Transfer-Encoding: identity".to_owned(),
        "Transfer-Encoding : chunked".to_owned(),
        "Transfer-Encoding:\r\n chunked".to_owned(),
        format!("x: {}\r\nContent-Length: {n}", "y".repeat(100)),
        "Content-Length-X: 4".to_owned(),
        "Connection: keep-alive".to_owned(),
        "Expect: 100-continue".to_owned(),
        "Upgrade: websocket\r\nConnection: upgrade".to_owned(),
    ]
}

#[tokio::test]
async fn the_http_library_finds_the_same_requests() {
    let bait = bait();
    let n = bait.len();
    let chunked = format!(
        "4;a=\"b\"\r\n{}\r\n{:X};c\r\n{}\r\n0\r\nt: \"<>\"\r\n\r\n",
        &bait[..4],
        n - 4,
        &bait[4..],
    );
    let lines = headers(n);
    let pairs = lines.iter().flat_map(|a| lines.iter().map(move |b| (a, b)));
    let mut followed = 0;
    for (first, second) in pairs {
        let given = [first, second].into_iter().filter(|line| !line.is_empty());
        let given: Vec<&str> = given.map(String::as_str).collect();
        let forms = [
            ("\r\n", "POST", "1.1"),
            ("\n", "POST", "1.1"),
            ("\r\n", "GET", "1.0"),
        ];
        let forms = &forms[..if given.len() > 1 { 1 } else { 3 }];
        for (body, (end, method, version)) in [&bait, &chunked]
            .into_iter()
            .flat_map(|body| forms.iter().map(move |form| (body, form)))
        {
            let mut head = format!("{method} /first HTTP/{version}{end}host: a{end}");
            for line in &given {
                head.push_str(line);
                head.push_str(end);
            }
            let all = format!("{head}{end}{body}GET /last HTTP/1.1\r\nhost: a\r\n\r\n");
            let plain = requests(Cursor::new(all.clone())).await;
            let escaped = requests(Escaped::new(Cursor::new(all.clone()))).await;
            assert_eq!(escaped, plain, "{all}");
            followed += usize::from(plain.len() == 2);
        }
    }
    assert!(followed > 0);
}
