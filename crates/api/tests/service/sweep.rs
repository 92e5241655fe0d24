//! Secrets, planted wherever they can be, and looked for wherever something comes out.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::{Arc, Mutex};

use api::Options;
use http::Method;
use scheduler::Setup;
use seal::Sealer;
use serde_json::{Value, json};
use store::KeyRange;
use tracing_subscriber::fmt::MakeWriter;

use crate::fixture::{Fixture, Setting, User};

/// Lines of a log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// All begin with this, whatever place they were planted in.
const SECRET: &str = "Zq7secret";

fn endpoint(name: &str) -> Value {
    json!({
        "url": format!("http://user:{SECRET}-{name}-url@{name}.example/db?token={SECRET}-{name}-query#{SECRET}"),
        "headers": {"Authorization": format!("Bearer {SECRET}-{name}-header"),
            "Cookie": format!("{SECRET}-{name}-cookie")},
        "auth": {"basic": {"username": "user", "password": format!("{SECRET}-{name}-auth")},
            "other": {"token": format!("{SECRET}-{name}-other")}},
    })
}

fn planted() -> Vec<Value> {
    let text = |at: &str| format!("https://user:{SECRET}@{at}-@x@{at}.example/db");
    vec![
        json!({"source": endpoint("src"), "target": endpoint("tgt"), "continuous": true}),
        json!({"source": text("src"), "target": text("tgt"),
            "proxy": format!("http://p:{SECRET}@proxy.example:8080")}),
        json!({"source": format!("http://src.example/db?{SECRET}"), "target": format!("http://t.example/b#{SECRET}"),
            "proxy": format!("http://proxy.example:8080?token={SECRET}")}),
        json!({"source": text("a"), "target": "http://t.example/b",
            "source_proxy": format!("socks5://p:{SECRET}@proxy.example"),
            "target_proxy": format!("http://p:{SECRET}@proxy.example")}),
    ]
}

/// What may make no document, and is quoted in no answer.
fn refused() -> Vec<Value> {
    let url = format!("http://user:{SECRET}@src.example/db");
    let good = "http://t.example/b";
    vec![
        json!({"source": format!("ftp://user:{SECRET}@src.example"), "target": good}),
        json!({"source": format!("user:{SECRET}@src.example"), "target": good}),
        json!({"source": {"url": format!("http://user:{SECRET}@")}, "target": good}),
        json!({"source": {"url": url, "auth": SECRET}, "target": good}),
        json!({"source": {"url": url, "headers": [SECRET]}, "target": good}),
        json!({"source": {"url": url, "headers": {SECRET: 7}}, "target": good}),
        json!({"source": url, "target": good, "proxy": format!("ftp://p:{SECRET}@proxy")}),
        json!({"source": format!("ftp://src.example/?{SECRET}"), "target": good}),
        json!({"source": {"url": format!("http://src.example:x/?{SECRET}")}, "target": good}),
        json!({"source": url, "target": good, "filter": 7}),
        json!({"source": url, "target": good, "continuous": SECRET}),
    ]
}

async fn fixture() -> Fixture {
    let setting = Setting {
        replications: Setup {
            sealer: Sealer::new(vec![("k1".to_owned(), [7; 32])]).unwrap(),
            ..Setup::default()
        },
        ..Setting::default()
    };
    let fixture = Fixture::with(Options::default(), setting).await;
    fixture.share().await;
    fixture
}

/// Every way to ask for something, and the texts of the answers.
async fn everything(user: &User<'_>, ids: &[String]) -> String {
    let mut texts = String::new();
    let mut gets = vec![
        "/".to_owned(),
        "/_session".to_owned(),
        "/_all_dbs".to_owned(),
        "/_dbs_info".to_owned(),
        "/_active_tasks".to_owned(),
        "/_metrics".to_owned(),
        "/_openapi.json".to_owned(),
        "/_node/_local/_config".to_owned(),
        "/_scheduler/jobs".to_owned(),
        "/_scheduler/docs".to_owned(),
        "/_replicator".to_owned(),
        "/_replicator/_security".to_owned(),
        "/_replicator/_all_docs?include_docs=true&conflicts=true".to_owned(),
        "/_replicator/_changes?include_docs=true&style=all_docs".to_owned(),
        "/_replicator/_changes?include_docs=true&feed=longpoll".to_owned(),
        "/_replicator/_changes?include_docs=true&feed=continuous&timeout=1".to_owned(),
        "/_replicator/_changes?include_docs=true&feed=eventsource&timeout=1".to_owned(),
    ];
    for id in ids {
        for query in [
            "",
            "?meta=true&revs=true",
            "?open_revs=all",
            "?latest=true&open_revs=all",
        ] {
            gets.push(format!("/_replicator/{id}{query}"));
        }
        gets.push(format!("/_scheduler/docs/_replicator/{id}"));
    }
    for path in gets {
        let answer = user.get(&path).await;
        let _ = writeln!(texts, "{path} {:?} {}", answer.headers, answer.text);
    }
    let docs: Vec<_> = ids.iter().map(|id| json!({"id": id})).collect();
    let keys = json!({"keys": ids, "include_docs": true});
    let any = json!({"selector": {"_id": {"$gt": null}}});
    let planted = json!({"selector": {"source.auth.basic.password": {"$regex": SECRET}}});
    for (path, body) in [
        ("/_replicator/_bulk_get?revs=true", json!({"docs": docs})),
        ("/_replicator/_all_docs", keys),
        ("/_replicator/_find", any.clone()),
        ("/_replicator/_explain", any),
        ("/_replicator/_find", planted),
    ] {
        let answer = user.post(path, &body).await;
        let _ = writeln!(texts, "{path} {}", answer.text);
    }
    texts
}

async fn plant(user: &User<'_>, admin: &User<'_>) -> Vec<String> {
    let mut ids = Vec::new();
    for (index, doc) in planted().into_iter().enumerate() {
        let id = format!("doc{index}");
        let answer = user.put(&format!("/_replicator/{id}"), &doc).await;
        assert!(!answer.text.contains(SECRET));
        let rev = answer.gives(201)["rev"].clone();
        let mut leaf = doc.clone();
        leaf["_id"] = json!(id);
        leaf["_rev"] = json!("1-0");
        leaf["owner"] = json!("joe");
        let pushed = json!({"docs": [leaf], "new_edits": false});
        let rows = admin.post("/_replicator/_bulk_docs", &pushed).await;
        assert_eq!(rows.gives(201), json!([]));
        assert!(rev.is_string());
        ids.push(id);
    }
    for doc in refused() {
        let answer = user.put("/_replicator/refused", &doc).await;
        assert!(!answer.text.contains(SECRET), "{}", answer.text);
        let mut row = doc.clone();
        row["_id"] = json!("refused");
        let answer = user
            .post("/_replicator/_bulk_docs", &json!({"docs": [row]}))
            .await;
        assert!(!answer.text.contains(SECRET), "{}", answer.text);
        let started = user.post("/_replicate", &doc).await;
        assert!(!started.text.contains(SECRET), "{}", started.text);
    }
    ids
}

#[tokio::test]
async fn no_secret_comes_out_anywhere() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let fixture = fixture().await;
    // A test on another thread may have reached a log line before this subscriber existed, and cached it as disabled.
    tracing::callsite::rebuild_interest_cache();
    let (joe, eve) = (
        fixture.user("joe", "password"),
        fixture.user("eve", "password"),
    );
    let ids = plant(&joe, &fixture.user("ada", "password")).await;
    // A member who is not the owner sees the documents, and nothing secret.
    let seen = everything(&eve, &ids).await;
    assert!(seen.contains("src.example"));
    assert!(!seen.contains(SECRET), "{}", excerpt(&seen));
    // The owner sees the own secrets, in documents only.
    assert!(joe.get("/_replicator/doc0").await.text.contains(SECRET));
    for path in [
        "/_scheduler/jobs",
        "/_scheduler/docs",
        "/_active_tasks",
        "/_metrics",
    ] {
        let shown = fixture.root().get(path).await.text;
        assert!(!shown.contains(SECRET), "{path} {}", excerpt(&shown));
    }
    let guessed = fixture.user("joe", SECRET);
    assert_eq!(
        guessed
            .get(&format!("/_session?password={SECRET}"))
            .await
            .status,
        401
    );
    let login = json!({"name": "joe", "password": SECRET});
    assert!(
        !fixture
            .anonymous()
            .post("/_session", &login)
            .await
            .text
            .contains(SECRET)
    );
    let odd = joe
        .send(
            Method::PUT,
            "/_replicator/x",
            format!("{{\"source\":\"{SECRET}"),
        )
        .await;
    assert!(!odd.text.contains(SECRET));
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("request"), "there is a log at all");
    assert!(!logged.contains(SECRET), "{}", excerpt(&logged));
    assert!(!logged.contains("s3cret") && !logged.contains("AuthSession="));
    // Nor does it lie in the store: it is sealed there.
    let store = fixture.replications.docs().store();
    let mut scan = store.scan(KeyRange::all());
    while let Some(page) = scan.next_page().await.unwrap() {
        for row in page {
            let value = String::from_utf8_lossy(&row.value);
            assert!(!value.contains(SECRET), "{:?} {}", row.key, excerpt(&value));
        }
    }
}

/// What stands around a secret that came out.
fn excerpt(text: &str) -> String {
    let at = text.find(SECRET).unwrap_or_default();
    text.chars()
        .skip(at.saturating_sub(200))
        .take(400)
        .collect()
}
