//! A store with deliveries, and nodes that make them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use couch::{EgressOptions, Network, NetworkOptions};
use futures::future::BoxFuture;
use jobs::{Acceptor, Clock, Entropy, Holder, Jobs, Maintenance, State, TypeConfig};
use rules::deliver::{Calls, Deliveries, NoTarget, Options, Server, ServerSetup, Shown, Targets};
use rules::rule::call::{Call, Retry, Sign, Target};
use scheduler::PasswordCell;
use store::Store;
use testkit::{Backend, Place};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Fixture {
    pub(crate) jobs: Jobs,
    pub(crate) deliveries: Deliveries,
    pub(crate) options: Options,
    pub(crate) passwords: PasswordCell,
    targets: Arc<Written>,
    pub(crate) secrets: scheduler::Secrets,
    pub(crate) egress: EgressOptions,
    _place: Place,
}

/// Targets in place of rules, by message.
#[derive(Default)]
pub(crate) struct Written(Mutex<HashMap<[String; 3], Target>>);

impl Written {
    fn key(call: &Call) -> [String; 3] {
        [&call.rule, &call.doc_id, &call.url].map(String::clone)
    }
}

impl Targets for Written {
    fn target<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Target, NoTarget>> {
        let target = self.0.lock().unwrap().get(&Self::key(call)).cloned();
        let target = target.unwrap_or_else(|| Target {
            sign: (call.rule == "_events").then(|| Sign::SecretRef("events".into())),
            ..Target::new(call.url.parse().unwrap())
        });
        let found = match &*call.rule {
            "deleted" => Err(NoTarget::Gone("deleted".into())),
            "paused" => Err(NoTarget::Waits("paused".into())),
            _ => Ok(target),
        };
        Box::pin(std::future::ready(found))
    }
}

/// A node; killed when dropped.
pub(crate) struct Node {
    /// For rules that block.
    pub(crate) calls: Calls,
    server: JoinSet<()>,
    inner: JoinSet<()>,
    stop: CancellationToken,
    stop_inner: CancellationToken,
}

impl Fixture {
    pub(crate) async fn open(backend: Backend) -> Option<Self> {
        let place = backend.place()?;
        let store = Store::open(&place.url).await.unwrap();
        let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
        let options = Options::default();
        let deliveries = Deliveries::new(jobs.clone());
        deliveries.register(&options).await.unwrap();
        Some(Self {
            deliveries,
            jobs,
            options,
            passwords: PasswordCell::default(),
            targets: Arc::default(),
            secrets: scheduler::Secrets::new(),
            egress: EgressOptions::default(),
            _place: place,
        })
    }

    /// Starts a node.
    pub(crate) fn node(&self) -> Node {
        let ty = self.deliveries.job_type().clone();
        let (acceptor, handle) =
            Acceptor::new(self.jobs.clone(), ty.clone(), Holder::new("node").unwrap());
        let network = NetworkOptions {
            egress: self.egress.clone(),
            ..NetworkOptions::default()
        };
        let setup = ServerSetup {
            network: Network::new(network, [1; 32]).unwrap(),
            options: self.options.clone(),
            targets: Arc::clone(&self.targets) as Arc<dyn Targets>,
            passwords: self.passwords.clone(),
            secrets: self.secrets.clone(),
        };
        let server = Server::new(self.deliveries.clone(), handle, setup).unwrap();
        let options = jobs::Options {
            activity_monitor_max_jitter_msec: 100,
            ..jobs::Options::default()
        };
        let maintenance = Maintenance::new(self.jobs.clone(), options).serve(ty);
        let (stop, stop_inner) = (CancellationToken::new(), CancellationToken::new());
        let mut node = Node {
            calls: server.calls(),
            server: JoinSet::new(),
            inner: JoinSet::new(),
            stop,
            stop_inner,
        };
        node.server.spawn(server.run(node.stop.clone()));
        node.inner.spawn(acceptor.run(node.stop_inner.clone()));
        node.inner.spawn(maintenance.run(node.stop_inner.clone()));
        node
    }

    /// From now on, jobs of silent nodes are recovered soon.
    pub(crate) async fn recover_soon(&self) {
        let config = TypeConfig::new(2_000);
        self.jobs
            .set_type(self.deliveries.job_type(), config)
            .await
            .unwrap();
    }

    pub(crate) async fn enqueue(&self, calls: &[Call]) {
        for call in calls {
            let mut targets = self.targets.0.lock().unwrap();
            targets.insert(Written::key(call), call.target.clone().unwrap());
        }
        for calls in calls.chunks(200) {
            let op = self.jobs.op();
            (self.jobs.store())
                .transact("enqueue", |tx| async move {
                    self.deliveries.enqueue_many_in(&tx, &op, calls).await
                })
                .await
                .unwrap();
        }
    }

    pub(crate) async fn all(&self) -> Vec<Shown> {
        let filter = rules::deliver::Filter::default();
        let page = self.deliveries.list(&filter, None, 1_000).await.unwrap();
        assert!(page.cursor.is_none());
        page.deliveries
    }

    /// The only delivery, once it is in a state after this many calls.
    pub(crate) async fn only(&self, state: State, attempts: u32) -> Shown {
        self.settled(|all| all.len() == 1 && all[0].state == state && all[0].attempts == attempts)
            .await
            .remove(0)
    }

    /// All deliveries, once they are as wanted.
    pub(crate) async fn settled(&self, wanted: impl Fn(&[Shown]) -> bool) -> Vec<Shown> {
        let mut all = Vec::new();
        let wait = async {
            loop {
                all = self.all().await;
                if wanted(&all) {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, wait).await.is_ok();
        assert!(in_time, "{all:#?}");
        all
    }
}

impl Node {
    /// Stops in order.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while self.server.join_next().await.is_some() {}
        self.stop_inner.cancel();
        while self.inner.join_next().await.is_some() {}
    }
}

/// The nth change, for a URL.
pub(crate) fn call(url: &str, nth: usize) -> Call {
    let target = Target::new(url.parse().unwrap());
    Call {
        rule: "rule".into(),
        rules: "_rules".into(),
        method: "POST".into(),
        url: target.shown(),
        query: None,
        body: Some(r#"{"a":1}"#.into()),
        source: "upstream".into(),
        db: "shop/eu".into(),
        doc_id: format!("doc {nth}"),
        rev: "1-a".into(),
        seq: format!("{nth}-x"),
        retry: Retry {
            delay_sec: 0.01,
            ..Retry::default()
        },
        timeout_sec: None,
        debounce: false,
        hops: 0,
        left_out: 0,
        generation: None,
        target: Some(target),
    }
}
