//! What is sent to a cluster, byte by byte, and how streams begin and end.

use std::time::Duration;

use axum::body::Body;
use futures::StreamExt as _;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::fixture::{Fixture, Setting};
use crate::world::World;

const PATIENCE: Duration = Duration::from_secs(30);

/// A service in front of what this listener answers.
async fn in_front() -> (Fixture, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let setting = Setting {
        upstream: Some(format!("http://{}", listener.local_addr().unwrap())),
        ..Setting::default()
    };
    let fixture = Fixture::with(api::Options::default(), setting).await;
    (fixture, listener)
}

/// Reads until what was read ends so.
async fn read_to(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        while !read.ends_with(end.as_bytes()) {
            read.push(stream.read_u8().await.unwrap());
        }
    };
    timeout(PATIENCE, reading).await.expect("it does not come");
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn headers_change_as_little_as_a_proxy_has_to() {
    let (fixture, listener) = in_front().await;
    let user = fixture
        .anonymous()
        .with("connection", "close, x-mine")
        .with("x-mine", "1")
        .with("te", "trailers")
        .with("x-theirs", "2")
        .with("x-forwarded-for", "192.0.2.7")
        .with("x-forwarded-proto", "https")
        .with("content-type", "text/plain");
    let answered = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = read_to(&mut stream, "hello\r\n0\r\n\r\n").await;
        let answer = "HTTP/1.1 299 Odd\r\nconnection: x-hop\r\nx-hop: 1\r\nserver: Couch\r\n\
                      set-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 3\r\n\r\nabc";
        stream.write_all(answer.as_bytes()).await.unwrap();
        (stream, request)
    };
    let body = futures::stream::iter([Ok::<_, std::io::Error>("hello")]);
    let asked = user.send(Method::POST, "/db/_x?y=%41", Body::from_stream(body));
    let (answer, (_stream, request)) = tokio::join!(asked, answered);
    assert!(
        request.starts_with("POST /db/_x?y=%41 HTTP/1.1\r\n"),
        "{request}"
    );
    for line in [
        "host: here.example",
        "x-theirs: 2",
        "x-forwarded-for: 192.0.2.7, 10.0.0.1",
        "x-forwarded-proto: https",
        "x-forwarded-host: here.example",
        "content-type: text/plain",
        "transfer-encoding: chunked",
    ] {
        assert!(
            request.contains(&format!("\r\n{line}\r\n")),
            "{line}: {request}"
        );
    }
    for dropped in ["x-mine", "\r\nte:", "connection"] {
        assert!(!request.contains(dropped), "{dropped}: {request}");
    }
    assert!(request.contains("\r\nx-couch-request-id: "), "{request}");
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (299, "abc"));
    assert_eq!(answer.header("server"), "Couch");
    let cookies: Vec<_> = answer.headers.get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["a=1", "b=2"]);
    for dropped in ["x-hop", "connection", "x-content-type-options"] {
        assert!(!answer.headers.contains_key(dropped), "{dropped}");
    }
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_request_to_the_cluster() {
    let (fixture, cluster) = in_front().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let served = tokio::spawn(fixture.service.clone().run(listener, stop.clone()));
    for begun in [false, true] {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = "GET /db/_changes?feed=continuous HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let (mut stream, _) = cluster.accept().await.unwrap();
        read_to(&mut stream, "\r\n\r\n").await;
        if begun {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            // Each line is there before the next is made.
            for line in ["6\r\nline1\n\r\n", "6\r\nline2\n\r\n"] {
                stream.write_all(line.as_bytes()).await.unwrap();
                read_to(&mut client, line).await;
            }
        }
        drop(client);
        let mut rest = Vec::new();
        let ended = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "the request goes on");
    }
    stop.cancel();
    served.await.unwrap();
}

#[tokio::test]
async fn what_a_cluster_cuts_off_is_cut_off_here() {
    let (fixture, cluster) = in_front().await;
    let user = fixture.anonymous();
    let answered = async {
        let (mut stream, _) = cluster.accept().await.unwrap();
        read_to(&mut stream, "\r\n\r\n").await;
        let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
        stream.write_all(half.as_bytes()).await.unwrap();
    };
    let (answer, ()) = tokio::join!(user.open(Method::GET, "/db/x", ""), answered);
    let pieces: Vec<_> = answer.into_body().into_data_stream().collect().await;
    assert!(pieces.last().unwrap().is_err(), "{pieces:?}");
}

#[tokio::test]
async fn a_kept_connection_that_turns_out_closed_costs_nothing() {
    let (fixture, cluster) = in_front().await;
    let user = fixture.anonymous();
    for again in [false, true] {
        let answered = async {
            let (mut stream, _) = cluster.accept().await.unwrap();
            read_to(&mut stream, "\r\n\r\n").await;
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer.as_bytes()).await.unwrap();
            // The next request finds it closed.
        };
        let (answer, ()) = tokio::join!(user.get("/db/x"), answered);
        assert_eq!(answer.text, "ok", "{again}");
    }
}

/// A real `CouchDB` behind: its own answers, its own users, a feed, and a replication between two of its databases.
#[tokio::test]
async fn in_front_of_couchdb() {
    let Some(couch) = testkit::CouchDb::find() else {
        return;
    };
    let (name, password) = (&*couch.admin.0, &*couch.admin.1);
    let world = World::in_front_of(&couch.plain_url).await;
    let admin = world.fixture.user(name, password);
    let (a, b) = ("/upstream-test-a", "/upstream-test-b");
    for db in [a, b] {
        admin.delete(db).await;
    }
    admin.send(Method::PUT, a, "").await.gives(201);
    let welcome = admin.get("/").await;
    assert_eq!(
        welcome.json()["vendor"]["name"],
        "The Apache Software Foundation"
    );
    assert_eq!(admin.get("/_session").await.json()["userCtx"]["name"], name);
    let feed = format!("{a}/_changes?feed=continuous&heartbeat=1000");
    let feed = admin.open(Method::GET, &feed, "").await;
    let mut feed = feed.into_body().into_data_stream();
    let put = admin.put(&format!("{a}/doc"), &json!({"x": 1})).await;
    let location = put.header("location").to_owned();
    put.gives(201);
    assert!(location.starts_with("http://here.example/"), "{location}");
    let told = async {
        loop {
            let piece = feed.next().await.unwrap().unwrap();
            if let Ok(row) = serde_json::from_slice::<Value>(&piece) {
                return row;
            }
        }
    };
    let row = timeout(PATIENCE, told).await.expect("no change comes");
    assert_eq!(row["id"], "doc");
    drop(feed);
    let names = json!({"source": &a[1..], "target": &b[1..], "create_target": true});
    let done = admin.post("/_replicate", &names).await;
    assert_eq!(done.gives(200)["history"][0]["docs_written"], 1);
    assert_eq!(admin.get(&format!("{b}/doc")).await.json()["x"], 1);
    assert!(admin.get("/_active_tasks").await.gives(200).is_array());
    let wrong = world
        .fixture
        .user("nobody-here", "x")
        .get("/_scheduler/jobs")
        .await;
    wrong.refuses(401, "unauthorized", "Name or password is incorrect.");
    for db in [a, b] {
        admin.delete(db).await.gives(200);
    }
}

#[tokio::test]
async fn a_request_for_the_server_as_a_whole_is_answered_here() {
    let (fixture, _listener) = in_front().await;
    let star = fixture.anonymous();
    let answer = star.send(Method::OPTIONS, "*", Body::empty()).await;
    assert_eq!(answer.status.as_u16(), 204, "{}", answer.text);
    assert_eq!(answer.header("allow"), "DELETE,GET,HEAD,OPTIONS,POST,PUT");
    let other = star.send(Method::GET, "*", Body::empty()).await;
    assert_eq!(other.status.as_u16(), 400);
    let tunnel = star.send(Method::CONNECT, "db.example:443", Body::empty());
    assert_eq!(tunnel.await.status.as_u16(), 405);
}

#[tokio::test]
async fn interim_answers_without_an_end_are_cut_off() {
    let (fixture, listener) = in_front().await;
    let endless = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_to(&mut stream, "\r\n\r\n").await;
        let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100);
        while stream.write_all(hints.as_bytes()).await.is_ok() {}
    };
    let user = fixture.anonymous();
    let asked = timeout(PATIENCE, user.send(Method::POST, "/db/_x", Body::from("x")));
    let (answer, ()) = tokio::join!(asked, endless);
    let answer = answer.expect("it never ends");
    assert_eq!(answer.status.as_u16(), 502, "{}", answer.text);
}

#[tokio::test]
async fn an_answer_without_a_body_keeps_its_length() {
    let (fixture, cluster) = in_front().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let served = tokio::spawn(fixture.service.clone().run(listener, stop.clone()));
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = "GET /db/doc HTTP/1.1\r\nhost: a\r\nif-none-match: \"1-a\"\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    let (mut stream, _) = cluster.accept().await.unwrap();
    read_to(&mut stream, "\r\n\r\n").await;
    let head = "HTTP/1.1 304 Not Modified\r\ncontent-length: 0\r\netag: \"1-a\"\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_to(&mut client, "\r\n\r\n").await;
    assert!(answer.contains("\r\ncontent-length: 0\r\n"), "{answer}");
    // The connection is good for another request.
    client.write_all(request.as_bytes()).await.unwrap();
    read_to(&mut stream, "\r\n\r\n").await;
    stream.write_all(head.as_bytes()).await.unwrap();
    read_to(&mut client, "\r\n\r\n").await;
    stop.cancel();
    served.await.unwrap();
}
