//! Apache CouchDB as a source, when `TEST_COUCHDB_URL` names it with an administrator's name and password.

use reqwest::Method;
use rules::source::SourceOptions;
use serde_json::{Value, json};
use testkit::CouchDb;

use crate::fixture::World;

const DB: &str = "davenport_sources";
const USER: &str = "davenport_sources";
const PASSWORD: &str = "not-an-administrator";

struct Source {
    couchdb: CouchDb,
    client: reqwest::Client,
    world: World,
    docs: u64,
}

impl Source {
    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> u16 {
        let request = (self.client).request(method, format!("{}/{path}", self.couchdb.url));
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        request.send().await.unwrap().status().as_u16()
    }

    /// Makes sure that a database is there, or that it is not.
    async fn database(&self, name: &str, exists: bool) {
        let method = if exists { Method::PUT } else { Method::DELETE };
        let status = self.call(method, name, None).await;
        assert!(matches!(status, 200..=202 | 404 | 412), "{name}: {status}");
    }

    /// Who is in the URL of the source.
    fn options(&self, user: &str, password: &str) -> SourceOptions {
        let host = self.couchdb.plain_url.strip_prefix("http://").unwrap();
        SourceOptions {
            url: format!("http://{user}:{password}@{host}"),
            poll_sec: 1,
            ..SourceOptions::default()
        }
    }

    fn as_admin(&self) -> SourceOptions {
        let (name, password) = &self.couchdb.admin;
        self.options(name, password)
    }

    /// Writes a document at the source and waits for its copy.
    async fn change(&mut self, id: &str) {
        let status = self
            .call(Method::PUT, &format!("{DB}/{id}"), Some(json!({})))
            .await;
        assert!(matches!(status, 201 | 202), "{id}: {status}");
        self.docs += 1;
        self.world.until_copied(id).await;
    }

    /// What sleeps is woken by a change, and falls asleep again.
    async fn wakes(&mut self, id: &str) {
        self.world.until_asleep(self.docs).await;
        self.change(id).await;
        self.world.until_asleep(self.docs).await;
    }

    /// Access rights count in sequences of the database, and are no changes.
    async fn counts_rights_as_no_changes(&self) {
        let before = self.world.source().await;
        let rights = json!({"members": {"names": [USER]}});
        let path = format!("{DB}/_security");
        assert_eq!(self.call(Method::PUT, &path, Some(rights)).await, 200);
        let server = before["server"].as_str().unwrap();
        let is_compared = async || {
            let sleepers = self.world.replications.sleepers(server, None, 2).await;
            sleepers.unwrap().iter().any(|one| one.listed.is_some())
        };
        self.world.until(is_compared).await;
        let after = self.world.source().await;
        for shown in ["feed", "missed", "woken"] {
            assert_eq!(after[shown], before[shown], "{after:#}");
        }
    }

    async fn admits_users_to_lists(&self, admits: bool) {
        let setting = "_node/_local/_config/chttpd/admin_only_all_dbs";
        let value = json!((!admits).to_string());
        assert_eq!(self.call(Method::PUT, setting, Some(value)).await, 200);
    }
}

/// With `_global_changes` its feed is read. Without it, and for users who may not read it, sequences are compared; where
/// that is forbidden, too, nothing sleeps.
#[tokio::test]
async fn couchdb_is_followed_as_it_allows() {
    let Some(couchdb) = CouchDb::find() else {
        return;
    };
    let mut source = Source {
        couchdb,
        client: reqwest::Client::new(),
        world: World::new().await,
        docs: 0,
    };
    for (name, exists) in [(DB, false), (DB, true), ("_global_changes", true)] {
        source.database(name, exists).await;
    }

    let node = source.world.node(source.as_admin()).await;
    source.world.until_followed("db_updates").await;
    let body = json!({
        "source": format!("{}/{DB}", source.couchdb.url),
        "target": source.world.peer.database_url("b"),
        "continuous": true,
    });
    source.world.replicate(&body).await;
    source.change("present").await;
    source.wakes("present-again").await;
    node.stop().await;

    let often = SourceOptions {
        sweep_sec: 1,
        ..source.as_admin()
    };
    let node = source.world.node(often).await;
    // What this node wakes, it has begun to follow.
    source.wakes("often").await;
    source.counts_rights_as_no_changes().await;
    source.wakes("with-rights").await;
    node.stop().await;

    source.database("_global_changes", false).await;
    let node = source.world.node(source.as_admin()).await;
    source.world.until_followed("dbs_info").await;
    source.wakes("missing").await;
    node.stop().await;

    source.database("_global_changes", true).await;
    let user = json!({"name": USER, "password": PASSWORD, "roles": [], "type": "user"});
    let path = format!("_users/org.couchdb.user:{USER}");
    source.call(Method::PUT, &path, Some(user)).await;
    source.admits_users_to_lists(true).await;
    let node = source.world.node(source.options(USER, PASSWORD)).await;
    source.world.until_followed("dbs_info").await;
    source.wakes("forbidden").await;
    node.stop().await;

    source.admits_users_to_lists(false).await;
    let node = source.world.node(source.options(USER, PASSWORD)).await;
    let is_refused = async || source.world.source().await["feed"] == Value::Null;
    source.world.until(is_refused).await;
    source.change("all-forbidden").await;
    let row = source.world.row().await;
    assert_eq!(row["info"].get("asleep"), None, "{row:#}");
    node.stop().await;
    source.database(DB, false).await;
}
