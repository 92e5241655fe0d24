//! A service on a store in memory, and clients of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use api::auth::authenticator::Authenticator;
use api::auth::cookie::Sessions;
use api::auth::jwt::Jwt;
use api::auth::password::PasswordHash;
use api::auth::throttle::Throttle;
use api::auth::verifier::Verifier;
use api::{Client, Metrics, Options, Service, Setup, Upstream, UpstreamOptions};
use axum::body::{Body, to_bytes};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use docstore::DocStore;
use http::{HeaderMap, Method, Request, StatusCode};
use jobs::{Clock, Entropy, Jobs, Notifier, Planted};
use queue::Queue;
use rules::deliver::Deliveries;
use rules::rule::{Listeners, Rules};
use scheduler::{Replications, ServiceError};
use serde_json::{Value, json};
use store::Store;

/// The time the service lives at: clocks stand still.
const NOW_MS: i64 = 1_700_000_000_000;

/// A service, and what it was made of.
pub(crate) struct Fixture {
    pub(crate) service: Service,
    pub(crate) replications: Replications,
    pub(crate) queue: Queue,
    pub(crate) deliveries: Deliveries,
    pub(crate) clock: Clock,
    /// Follows jobs once it is run.
    pub(crate) notifier: Option<Notifier>,
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    /// The text of a header, empty when there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// The cookie that it sets, as a browser sends it back.
    pub(crate) fn cookie(&self) -> &str {
        let set = self.header("set-cookie");
        set.split_once(';').map_or(set, |(cookie, _)| cookie)
    }

    /// The body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {:?}", self.text))
    }

    /// Makes sure of status, error and reason; there may be a hint.
    #[track_caller]
    pub(crate) fn refuses(&self, status: u16, error: &str, reason: &str) {
        let expected = json!({"error": error, "reason": reason});
        let mut json = self.json();
        json.as_object_mut().map(|members| members.remove("hint"));
        assert_eq!((self.status.as_u16(), json), (status, expected));
    }

    /// Makes sure of the status, and returns the JSON.
    #[track_caller]
    pub(crate) fn gives(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self.json()
    }
}

/// A client.
#[derive(Clone)]
pub(crate) struct User<'a> {
    fixture: &'a Fixture,
    headers: Vec<(&'static str, String)>,
}

async fn register(deliveries: &Deliveries) {
    let options = rules::deliver::Options::default();
    deliveries.register(&options).await.unwrap();
}

async fn listeners(replications: &Replications) -> Listeners {
    let listeners = Listeners::open(Rules::new(replications.clone()));
    listeners.await.unwrap()
}

fn authenticator(
    jwt_keys: &BTreeMap<String, String>,
    proxy_secrets: Vec<Vec<u8>>,
    upgrade_hashes: bool,
) -> Authenticator {
    Authenticator {
        admins: BTreeMap::from([("root".to_owned(), PasswordHash::make("s3cret", [1; 16], 10))])
            .into(),
        sessions: Sessions::new(
            vec![b"a secret for cookies".to_vec()],
            Duration::from_mins(10),
        ),
        jwt: Jwt::new(jwt_keys, vec![("exp".to_owned(), None)], "_couchdb\\.roles").unwrap(),
        proxy_secrets,
        verifier: Verifier::new([9; 32]),
        throttle: Throttle::new([8; 32]),
        upgrade_hashes,
    }
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(Options::default(), Setting::default()).await
    }

    pub(crate) async fn with(options: Options, setting: Setting) -> Self {
        let store = match setting.store {
            Some(store) => store,
            None => Store::open("memory:").await.unwrap(),
        };
        let clock = setting.clock.unwrap_or_else(|| Clock::simulated(NOW_MS));
        let entropy = Entropy::seeded(setting.seed.wrapping_add(7));
        let jobs = Jobs::planted_with(store.clone(), clock.clone(), entropy, setting.planted);
        let docs = docstore::Options {
            kinds: ["_replicator", "_users", "_rules", "spiegel"]
                .map(str::to_owned)
                .to_vec(),
            ..docstore::Options::default()
        };
        let docs = DocStore::new(store, docs);
        let replications = Replications::open(jobs, docs, setting.replications)
            .await
            .unwrap();
        for name in ["_replicator", "_users"] {
            match replications.create_database(name).await {
                Ok(_) | Err(ServiceError::Docs(docstore::Error::DatabaseExists)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let (notifier, follow) = Notifier::new(
            replications.jobs().clone(),
            replications.job_type().clone(),
            jobs::Options::default(),
        );
        let deliveries = Deliveries::new(replications.jobs().clone());
        register(&deliveries).await;
        let (jobs, sealer) = (replications.jobs().clone(), replications.sealer().clone());
        let queue = Queue::new(jobs, jobs::Options::default(), sealer);
        let service = Service::new(Setup {
            replications: replications.clone(),
            queue: queue.clone(),
            deliveries: Some(deliveries.clone()),
            listeners: Some(listeners(&replications).await),
            authenticator: authenticator(
                &setting.jwt_keys,
                setting.proxy_secrets,
                setting.upgrade_hashes,
            ),
            follow: Some(follow),
            metrics: Some(Metrics::new(|| "measured 1\n".to_owned())),
            upstream: setting.upstream.and_then(|url| {
                let options = UpstreamOptions {
                    url,
                    ..UpstreamOptions::default()
                };
                Upstream::new(options, None, [5; 32]).unwrap()
            }),
            options,
        });
        Self {
            service: service.unwrap(),
            replications,
            queue,
            deliveries,
            clock,
            notifier: Some(notifier),
        }
    }

    /// An anonymous client.
    pub(crate) fn anonymous(&self) -> User<'_> {
        User {
            fixture: self,
            headers: vec![("host", "here.example".to_owned())],
        }
    }

    /// The server's administrator.
    pub(crate) fn root(&self) -> User<'_> {
        self.user("root", "s3cret")
    }

    /// A client with name and password.
    pub(crate) fn user(&self, name: &str, password: &str) -> User<'_> {
        let pair = BASE64_STANDARD.encode(format!("{name}:{password}"));
        self.anonymous()
            .with("authorization", &format!("Basic {pair}"))
    }

    /// Makes a user whose password hashes fast.
    pub(crate) async fn add_user(&self, name: &str, password: &str, roles: &[&str]) {
        let hash = PasswordHash::make(password, [3; 16], 10).to_config();
        let mut parts = hash.strip_prefix("-pbkdf2:sha256-").unwrap().split(',');
        let (key, salt) = (parts.next().unwrap(), parts.next().unwrap());
        let body = json!({
            "type": "user", "name": name, "roles": roles, "password_scheme": "pbkdf2",
            "pbkdf2_prf": "sha256", "iterations": 10, "salt": salt, "derived_key": key,
        });
        let docs = self.replications.docs();
        let db = docs.open(&docs.name("_users").unwrap()).await.unwrap();
        let body = body.to_string();
        let doc = document::doc::Doc::parse(&body).unwrap();
        let edit = docstore::Edit::new(format!("org.couchdb.user:{name}"), doc).unwrap();
        docs.put(&db, &edit, docstore::EditMode::NewEdits, &docstore::NoHook)
            .await
            .unwrap();
    }

    /// Makes joe and eve members of `_replicator`, and ada its administrator, each with the password `password`.
    pub(crate) async fn share(&self) {
        for name in ["joe", "eve", "ada"] {
            self.add_user(name, "password", &[]).await;
        }
        let security = json!({"members": {"names": ["joe", "eve"]}, "admins": {"names": ["ada"]}});
        let put = self.root();
        let put = put.put("/_replicator/_security", &security);
        put.await.gives(200);
    }
}

/// What a fixture may have beside the usual.
#[derive(Default)]
pub(crate) struct Setting {
    pub(crate) replications: scheduler::Setup,
    pub(crate) proxy_secrets: Vec<Vec<u8>>,
    pub(crate) jwt_keys: BTreeMap<String, String>,
    pub(crate) upgrade_hashes: bool,
    /// The cluster in front of which the service stands.
    pub(crate) upstream: Option<String>,
    /// Without one, time stands still.
    pub(crate) clock: Option<Clock>,
    /// Without one, a new one in memory.
    pub(crate) store: Option<Store>,
    pub(crate) planted: Planted,
    pub(crate) seed: u64,
}

impl User<'_> {
    /// The same with another header.
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(given, _)| *given != name);
        if !value.is_empty() {
            self.headers.push((name, value.to_owned()));
        }
        self
    }

    /// Sends a request with any body.
    pub(crate) async fn send(&self, method: Method, path: &str, body: impl Into<Body>) -> Answer {
        let response = self.open(method, path, body).await;
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// Sends a request and reads the answer to its end, whatever it is.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Body>,
    ) -> StatusCode {
        let response = self.open(method, path, body).await;
        let (parts, body) = response.into_parts();
        to_bytes(body, usize::MAX).await.unwrap();
        parts.status
    }

    /// Sends a request, and leaves its answer to be read.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Body>,
    ) -> http::Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let client = Client {
            address: SocketAddr::from(([10, 0, 0, 1], 40_000)),
            tls: false,
        };
        let request = request.body(body.into()).unwrap();
        self.fixture.service.handle(request, client).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, Body::empty()).await
    }

    pub(crate) async fn head(&self, path: &str) -> Answer {
        self.send(Method::HEAD, path, Body::empty()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, Body::empty()).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        let json = self.clone().with("content-type", "application/json");
        json.send(Method::PUT, path, body.to_string()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let json = self.clone().with("content-type", "application/json");
        json.send(Method::POST, path, body.to_string()).await
    }
}

/// A replication that no node runs.
pub(crate) fn replication() -> Value {
    json!({"source": "http://src.example/a", "target": "http://tgt.example/b"})
}
