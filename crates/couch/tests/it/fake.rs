//! A server that says exactly the bytes a test wants, however wrong.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use couch::{
    Database, EgressOptions, Endpoint, Network, NetworkOptions, RequestOptions, Schemes, Server,
};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// What a fake does with a request.
pub(crate) enum Step {
    Send(Vec<u8>),
    /// Sends them one by one.
    Drip(Vec<u8>),
    /// Sends bytes over and over, for as long as they are taken.
    Endless(Vec<u8>),
    /// Waits until the test says so.
    Wait(Arc<Notify>),
    Close,
    /// Says and takes nothing any more.
    Stall,
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Which connection it came on.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

type Handler = dyn Fn(&Seen) -> Vec<Step> + Send + Sync;

/// A scripted server; it ends when dropped.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    handler: Box<Handler>,
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    open: AtomicUsize,
    busy: AtomicUsize,
    busy_max: AtomicUsize,
    closed: Notify,
    reads_bodies: bool,
}

impl Fake {
    pub(crate) async fn new(handler: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start(handler, true).await
    }

    /// One that answers before it has read the body.
    pub(crate) async fn hasty(
        handler: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::start(handler, false).await
    }

    async fn start(
        handler: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
        reads_bodies: bool,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            seen: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            busy_max: AtomicUsize::new(0),
            closed: Notify::new(),
            reads_bodies,
        });
        let accepting = Arc::clone(&shared);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = Arc::clone(&accepting);
                connections.spawn(async move { shared.serve(stream).await });
            }
        });
        Self {
            address,
            shared,
            _tasks: tasks,
        }
    }

    /// One that answers by path, `404` for all others.
    pub(crate) async fn answering(answers: &[(&str, Vec<u8>)]) -> Self {
        let owned = |(path, answer): &(&str, Vec<u8>)| ((*path).to_owned(), answer.clone());
        let answers: HashMap<String, Vec<u8>> = answers.iter().map(owned).collect();
        Self::new(move |seen| {
            let missing = || json(404, r#"{"error":"not_found","reason":"missing"}"#);
            vec![Step::Send(
                answers.get(seen.path()).cloned().unwrap_or_else(missing),
            )]
        })
        .await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The only request so far.
    pub(crate) fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.into_iter().next().unwrap()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Requests that were answered at the same time, at most.
    pub(crate) fn busy_max(&self) -> usize {
        self.shared.busy_max.load(Ordering::SeqCst)
    }

    /// Waits until all connections are closed.
    pub(crate) async fn all_closed(&self) {
        loop {
            let closed = self.shared.closed.notified();
            if self.shared.open.load(Ordering::SeqCst) == 0 {
                return;
            }
            closed.await;
        }
    }
}

impl Shared {
    pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(self: Arc<Self>, mut stream: S) {
        let connection = self.connections.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        while let Some(seen) = read_request(&mut stream, connection, self.reads_bodies).await {
            self.seen.lock().unwrap().push(seen.clone());
            let busy = self.busy.fetch_add(1, Ordering::SeqCst) + 1;
            self.busy_max.fetch_max(busy, Ordering::SeqCst);
            let goes_on = play(&mut stream, (self.handler)(&seen)).await;
            self.busy.fetch_sub(1, Ordering::SeqCst);
            if !goes_on {
                break;
            }
        }
        drop(stream);
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.closed.notify_waiters();
    }
}

async fn play<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, steps: Vec<Step>) -> bool {
    for step in steps {
        let sent = match step {
            Step::Send(bytes) => stream.write_all(&bytes).await,
            Step::Drip(bytes) => {
                let mut sent = Ok(());
                for byte in bytes {
                    sent = sent.and(stream.write_all(&[byte]).await);
                    tokio::task::yield_now().await;
                }
                sent
            }
            Step::Endless(bytes) => loop {
                if let Err(error) = stream.write_all(&bytes).await {
                    break Err(error);
                }
            },
            Step::Wait(notify) => {
                notify.notified().await;
                Ok(())
            }
            Step::Close => return false,
            Step::Stall => {
                std::future::pending::<()>().await;
                Ok(())
            }
        };
        if sent.is_err() || stream.flush().await.is_err() {
            return false;
        }
    }
    true
}

/// Reads a request with a body of a known length; `None` at the end of the connection.
pub(crate) async fn read_request<S: AsyncRead + Unpin>(
    stream: &mut S,
    connection: usize,
    with_body: bool,
) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.split("\r\n");
    let mut request = lines.next()?.split(' ');
    let (method, target) = (request.next()?.to_owned(), request.next()?.to_owned());
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut seen = Seen {
        method,
        target,
        headers,
        body: Vec::new(),
        connection,
    };
    assert_eq!(
        seen.header("transfer-encoding"),
        None,
        "bodies have a length"
    );
    if let Some(length) = seen.header("content-length").filter(|_| with_body) {
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.ok()?;
        seen.body = body;
    }
    Some(seen)
}

/// An answer with a JSON body.
pub(crate) fn json(status: u16, body: impl AsRef<str>) -> Vec<u8> {
    answer(
        status,
        &[("Content-Type", "application/json")],
        body.as_ref().as_bytes(),
    )
}

/// An answer with headers and a body of the right length.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = head(status, headers);
    bytes.truncate(bytes.len() - 2);
    bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The head of an answer whose body has no end but that of the connection, unless a header says so.
pub(crate) fn head(status: u16, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} Status\r\n");
    for (name, value) in headers {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// The head of an answer in chunks.
pub(crate) fn chunked_head(content_type: &str) -> Vec<u8> {
    head(
        200,
        &[
            ("Content-Type", content_type),
            ("Transfer-Encoding", "chunked"),
        ],
    )
}

pub(crate) fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// The end of an answer in chunks.
pub(crate) fn last_chunk() -> Vec<u8> {
    b"0\r\n\r\n".to_vec()
}

/// A network that may go anywhere and needs no login.
pub(crate) fn network() -> Network {
    network_with(|_| {})
}

pub(crate) fn network_with(change: impl FnOnce(&mut NetworkOptions)) -> Network {
    let mut options = NetworkOptions {
        egress: EgressOptions::open(),
        auth_session: false,
        ..NetworkOptions::default()
    };
    change(&mut options);
    Network::new(options, [7; 32]).unwrap()
}

/// Options that give up at once.
pub(crate) fn impatient() -> RequestOptions {
    RequestOptions {
        retries: 0,
        ..RequestOptions::default()
    }
}

pub(crate) fn endpoint(value: impl Into<Value>) -> Endpoint {
    Endpoint::parse(&value.into(), None, &Schemes::default()).unwrap()
}

/// A database at a fake, opened without retries.
pub(crate) async fn open(fake: &Fake) -> Database {
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    network().database(endpoint, impatient()).await.unwrap()
}

pub(crate) async fn open_server(fake: &Fake) -> Server {
    let endpoint = Endpoint::from_url(&fake.url("/")).unwrap();
    network().server(endpoint, impatient()).await.unwrap()
}
