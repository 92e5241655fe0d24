//! Rules of a node, and the calls they ask for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use e2e::{Node, Start, User};
use peer::{Options, Peer};
use serde_json::{Value, json};

/// What a receiver was sent: path, and the headers `authorization` and `x-key`.
type Received = (String, String, String);

/// A server that fails until it is told to succeed.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<(bool, Vec<Received>)>>);

impl Receiver {
    /// Its address.
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let router = Router::new().fallback(receive).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    fn succeed(&self, yes: bool) {
        self.0.lock().unwrap().0 = yes;
    }

    /// How many calls there were.
    fn count(&self) -> usize {
        self.0.lock().unwrap().1.len()
    }

    /// Whether there was a call with this header since so many.
    fn was_sent(&self, authorization: &str, since: usize) -> bool {
        let state = self.0.lock().unwrap();
        state.1[since..].iter().any(|call| call.1 == authorization)
    }

    fn last(&self) -> Received {
        self.0.lock().unwrap().1.last().unwrap().clone()
    }
}

async fn receive(State(receiver): State<Receiver>, request: Request) -> StatusCode {
    let header = |name| {
        let value = request.headers().get(name);
        value.map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
    };
    let received = (
        request.uri().to_string(),
        header("authorization"),
        header("x-key"),
    );
    let mut state = receiver.0.lock().unwrap();
    state.1.push(received);
    if state.0 {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    }
}

/// Writes the configuration of a node that follows a peer, with more of it.
fn configure(peer: &Peer, directory: &Path, more: &str) -> PathBuf {
    let file = directory.join("davenport.toml");
    let url = peer.url();
    std::fs::write(&file, format!("[sources.couch]\nurl = \"{url}\"\n{more}")).unwrap();
    file
}

/// A node that follows a peer, with more of a configuration.
async fn node(peer: &Peer, directory: &Path, more: &str) -> Node {
    let file = configure(peer, directory, more);
    let start = Start::node("davenport", directory).admin();
    let start = start.args(&["--config", &file.display().to_string()]);
    start.start().await.unwrap()
}

/// The deliveries, once they are as wanted.
async fn deliveries(root: &User, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let rows = |all: &Value| all["deliveries"].as_array().cloned().unwrap_or_default();
    let all = root.until("/_deliveries", |all| wanted(&rows(all))).await;
    rows(&all.unwrap())
}

fn contains(directory: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(directory).unwrap();
    files.into_iter().any(|file| {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        memchr::memmem::find(&bytes, text.as_bytes()).is_some()
    })
}

#[tokio::test]
async fn credentials_of_rules_are_not_in_the_store_while_calls_wait() {
    const SIGNING: &str = "whsec_czNjcjN0LXMzY3IzdC1zM2NyM3QtczNjcjN0LXMz";
    let directory = tempfile::tempdir().unwrap();
    let peer = Peer::start(Options::default()).await.unwrap();
    peer.create_database("shop").unwrap();
    peer.put("shop", r#"{"_id":"one"}"#).unwrap();
    let receiver = Receiver::default();
    let address = receiver.start().await;
    let node = node(&peer, directory.path(), "").await;
    let root = node.root();
    root.put("/_rules", &json!({})).await.unwrap();
    let mut rule = json!({
        "type": "on_change", "block": false, "since": 0, "method": "POST", "params": {"id": "$change.id"},
        "url": format!("http://bob:s3cr3t@{address}/${{change.id}}?token=s3cr3t&db=${{db_name}}"),
        "headers": {"X-Key": "s3cr3t"}, "secret": SIGNING,
        "retry": {"delay_sec": 0.01, "multiplier": 1},
    });
    let (status, answer) = root.put("/_rules/hook", &rule).await.unwrap();
    assert_eq!(status, 201, "{answer}");
    let failed = |all: &[Value]| all.len() == 1 && all[0]["failures"].as_u64() > Some(0);
    let waiting = deliveries(&root, failed).await.remove(0);
    assert_eq!(waiting["url"], format!("http://{address}/one"));
    let (path, basic, key) = receiver.last();
    assert_eq!(path, "/one?token=s3cr3t&db=shop");
    assert_eq!((&*basic, &*key), ("Basic Ym9iOnMzY3IzdA==", "s3cr3t"));

    let data = directory.path().join("data");
    let stored = || {
        ["s3cr3t", SIGNING]
            .iter()
            .any(|secret| contains(&data, secret))
    };
    assert!(!stored(), "the store has a secret");

    // What the rule says now applies to calls that wait.
    rule["_rev"] = answer["rev"].clone();
    rule["headers"]["X-Key"] = json!("s3cr3t-of-today");
    let (status, answer) = root.put("/_rules/hook", &rule).await.unwrap();
    assert_eq!(status, 201, "{answer}");
    e2e::until("the new header", || receiver.last().2 == "s3cr3t-of-today")
        .await
        .unwrap();
    receiver.succeed(true);
    deliveries(&root, |all| all[0]["state"] == "delivered").await;

    // A call whose rule is gone cannot be made.
    receiver.succeed(false);
    peer.put("shop", r#"{"_id":"two"}"#).unwrap();
    deliveries(&root, |all| {
        all.iter()
            .any(|row| row["doc_id"] == "two" && row["failures"].as_u64() > Some(0))
    })
    .await;
    let gone = json!({"_deleted": true, "_rev": answer["rev"]});
    root.put("/_rules/hook", &gone).await.unwrap();
    let dead = |row: &Value| row["state"] == "dead";
    let all = deliveries(&root, |all| all.iter().any(dead)).await;
    let dead = all.into_iter().find(dead).unwrap();
    assert_eq!(dead["reason"], "its rule was deleted");
    let (_, shown) = root
        .get(&format!("/_deliveries/{}", dead["id"].as_str().unwrap()))
        .await
        .unwrap();
    assert!(!shown.to_string().contains("s3cr3t"), "{shown}");

    let (_, log) = node.stop().await.unwrap();
    assert!(!log.contains("s3cr3t") && !log.contains(SIGNING), "{log}");
    assert!(!stored(), "the store has had a secret");
}

#[tokio::test]
async fn sighup_reads_the_passwords_file_again() {
    const FIRST: &str = "Basic Ym9iOmZpcnN0";
    const SECOND: &str = "Basic Ym9iOnNlY29uZA==";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("passwords.json");
    let write = |host: &str, password: &str| {
        let all = json!({host: {"bob": password, "eve": "no"}, "elsewhere": {"bob": "no"}});
        std::fs::write(&file, all.to_string()).unwrap();
    };
    let peer = Peer::start(Options::default()).await.unwrap();
    peer.create_database("shop").unwrap();
    peer.put("shop", r#"{"_id":"one"}"#).unwrap();
    let receiver = Receiver::default();
    let address = receiver.start().await;
    write("127.0.0.1", "first");
    let more = format!("[rules]\npasswords_file = \"{}\"\n", file.display());
    let node = node(&peer, directory.path(), &more).await;
    let root = node.root();
    root.put("/_rules", &json!({})).await.unwrap();
    let rule = json!({
        "type": "on_change", "block": false, "since": 0, "url": format!("http://bob@{address}/"),
        "retry": {"delay_sec": 0.01, "multiplier": 1},
    });
    let (status, answer) = root.put("/_rules/hook", &rule).await.unwrap();
    assert_eq!(status, 201, "{answer}");
    let sent = async |authorization: &str| {
        let before = receiver.count();
        let what = format!("a call with {authorization}");
        let sent = e2e::until(&what, || receiver.was_sent(authorization, before));
        sent.await.unwrap();
    };
    sent(FIRST).await;
    // A password for the port takes precedence.
    write(&address, "second");
    node.signal(e2e::Signal::HUP).unwrap();
    sent(SECOND).await;
    // A file that is not valid changes nothing, and neither does the configuration that names it.
    std::fs::write(&file, "{").unwrap();
    let fewer = format!("{more}[replicator]\nmax_jobs = 7\n");
    configure(&peer, directory.path(), &fewer);
    node.signal(e2e::Signal::HUP).unwrap();
    let refused = || node.log().contains("configuration not reloaded");
    e2e::until("the log reports it", refused).await.unwrap();
    sent(SECOND).await;
    let option = root.get("/_node/_local/_config/replicator/max_jobs");
    assert_eq!(option.await.unwrap().1, json!("500"));
    receiver.succeed(true);
    deliveries(&root, |all| all[0]["state"] == "delivered").await;
    let (_, log) = node.stop().await.unwrap();
    assert!(log.contains("are not of the form"), "{log}");
    assert!(!log.contains("first") && !log.contains("second"), "{log}");
}
