use couch::{EgressOptions, NetworkOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;

/// Longer than anything takes unless it hangs.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server that tells no sequences, and whose feed breaks when the test says so.
#[derive(Default)]
struct Fake {
    /// When the feed was opened.
    opened: watch::Sender<Vec<Instant>>,
    breaks: Notify,
}

impl Fake {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut answers = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let this = Arc::clone(&self);
            answers.spawn(async move { this.answer(stream).await });
        }
    }

    /// Answers one request.
    async fn answer(&self, mut stream: TcpStream) {
        let mut bytes = [0; 4096];
        let mut head = String::new();
        while !head.contains("\r\n\r\n") {
            let read = stream.read(&mut bytes).await.unwrap();
            head += std::str::from_utf8(&bytes[..read]).unwrap();
        }
        let is_feed = head.contains("feed=continuous");
        let (status, body) = if head.starts_with("POST") {
            ("403 Forbidden", r#"{"error":"forbidden"}"#)
        } else if is_feed {
            ("200 OK", "{\"db_name\":7}\n")
        } else {
            ("200 OK", r#"{"results":[],"last_seq":"1-x"}"#)
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        if is_feed {
            (self.opened).send_modify(|opened| opened.push(Instant::now()));
            self.breaks.notified().await;
        }
        stream.write_all(body.as_bytes()).await.unwrap();
        // The client closes the connection.
        while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
    }
}

/// A change may have come before, and no sequence tells. The feed is opened again after ten minutes, so listeners are not
/// woken more often.
#[tokio::test]
async fn a_feed_that_breaks_at_first_wakes_listeners_once_in_ten_minutes() {
    let fake = Arc::<Fake>::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/db", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&fake).serve(listener));
    let (endpoint, _) = Endpoint::from_url(&url).unwrap().server().unwrap();
    let options = NetworkOptions {
        egress: EgressOptions::open(),
        ..NetworkOptions::default()
    };
    let network = Network::new(options, [7; 32]).unwrap();
    let source = Arc::new(Source::new(endpoint));
    let first = source.listener("db").unwrap();
    tasks.spawn(Arc::clone(&source).serve(network));
    assert!(timeout(TIMEOUT, first.armed()).await.unwrap());
    assert!(!first.changed.is_cancelled());
    fake.breaks.notify_one();
    timeout(TIMEOUT, first.changed()).await.unwrap();
    let second = source.listener("db").unwrap();
    tokio::time::pause();
    let mut opened = fake.opened.subscribe();
    let again = opened.wait_for(|opened| opened.len() == 2).await;
    let opened = again.unwrap().clone();
    assert!(opened[1] - opened[0] >= REFUSED_PAUSE, "{opened:?}");
    assert!(!second.changed.is_cancelled());
}
