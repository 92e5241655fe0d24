//! Spans that a node sends to a collector.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use e2e::{ADMIN, Start};
use peer::{Options, Peer};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// The spans that a collector received.
#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<Value>>>);

impl Collected {
    /// A collector that nodes can send to.
    async fn listen(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let take = async |State(this): State<Self>, body: Bytes| this.take(&body);
        let router = Router::new().route("/v1/traces", post(take));
        let router = router.with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    fn take(&self, body: &[u8]) -> &'static str {
        let body = serde_json::from_slice(body).unwrap();
        self.0.lock().unwrap().push(body);
        "{}"
    }

    fn spans(&self) -> Vec<Value> {
        fn each<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
            value[name].as_array().into_iter().flatten()
        }
        let sent = self.0.lock().unwrap();
        let resources = sent.iter().flat_map(|sent| each(sent, "resourceSpans"));
        let scopes = resources.flat_map(|resource| each(resource, "scopeSpans"));
        scopes
            .flat_map(|scope| each(scope, "spans"))
            .cloned()
            .collect()
    }
}

/// A request, the run of its job and that run's requests are one trace: the caller's.
#[tokio::test]
async fn spans_lead_from_a_request_to_the_engine() {
    let (directory, collected) = (tempfile::tempdir().unwrap(), Collected::default());
    let (source, target) = tokio::join!(
        Peer::start(Options::default()),
        Peer::start(Options::default())
    );
    let (source, target) = (source.unwrap(), target.unwrap());
    source.create_database("db").unwrap();
    source.put_all("db", [r#"{"_id":"a"}"#]).unwrap();
    source.set_admin("anna", "s3cr3t-of-anna");
    let collector = format!("log.otlp_url={}", collected.listen().await);
    let start = Start::node("davenport", directory.path()).admin();
    let node = start.args(&["--set", &collector]).start().await.unwrap();
    let from = source.database_url("db");
    let document = json!({
        "source": from.replace("http://", "http://anna:s3cr3t-of-anna@"),
        "target": target.database_url("copy"), "create_target": true,
    });
    let root = node.root();
    root.put("/_replicator", &json!({})).await.unwrap();
    let written = Client::new()
        .put(format!("{}/_replicator/one", node.url))
        .header("traceparent", format!("00-{TRACE}-{CALLER}-01"))
        .basic_auth(ADMIN.0, Some(ADMIN.1))
        .json(&document);
    assert_eq!(written.send().await.unwrap().status(), 201);
    let path = "/_scheduler/docs/_replicator/one";
    (root.until(path, |row| row["state"] == "completed"))
        .await
        .unwrap();
    let (status, log) = node.stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{log}");

    let spans = collected.spans();
    let ours: Vec<_> = spans
        .iter()
        .filter(|span| span["traceId"] == TRACE)
        .collect();
    let named = |name| *ours.iter().find(|span| span["name"] == name).expect(name);
    let (request, run, open) = (named("request"), named("run"), named("open"));
    assert_eq!(request["parentSpanId"], CALLER);
    assert_eq!(run["parentSpanId"], request["spanId"]);
    assert_eq!(open["parentSpanId"], run["spanId"]);
    let attributes = request["attributes"].as_array().unwrap();
    let path = json!({"key": "path", "value": {"stringValue": "/_replicator/one"}});
    assert!(attributes.contains(&path), "{request:#}");
    assert!(!json!(spans).to_string().contains("s3cr3t"), "{spans:#?}");
    assert!(!log.contains("s3cr3t"), "{log}");
}

/// A node works and stops without a collector.
#[tokio::test]
async fn a_collector_that_is_not_there_does_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let start = Start::node("davenport", directory.path()).admin();
    let start = start.args(&["--set", "log.otlp_url=http://127.0.0.1:9"]);
    let node = start.start().await.unwrap();
    assert_eq!(node.root().get("/_all_dbs").await.unwrap().0, 200);
    let (status, log) = node.stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
}
