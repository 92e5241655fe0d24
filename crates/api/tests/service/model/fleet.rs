//! Frontends on one store, and the network between them and their clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use jobs::{Clock, Maintenance, Planted};
use rand::RngExt as _;
use rand::rngs::SmallRng;
use scheduler::Setup;
use seal::Sealer;
use serde_json::Value;
use store::{FaultControl, Faults, Store};
use testkit::some_time;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Plan;
use crate::fixture::{Fixture, Setting};

/// A frontend process.
pub(super) struct Frontend {
    fixture: Fixture,
    store: FaultControl,
    /// Stops it in order.
    stop: CancellationToken,
    /// Its connections are gone.
    dead: CancellationToken,
}

pub(super) struct Fleet {
    pub(super) plan: Plan,
    planted: Planted,
    store: Store,
    clock: Clock,
    started: AtomicU64,
    frontends: Mutex<Vec<Arc<Frontend>>>,
    pub(super) healed: CancellationToken,
}

/// A request of a client, which can be repeated.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Value,
    pub(super) key: Option<String>,
}

impl Ask {
    pub(super) fn post(path: impl Into<String>, body: Value) -> Self {
        Self {
            method: Method::POST,
            path: path.into(),
            body,
            key: None,
        }
    }
}

impl Fleet {
    pub(super) async fn start(plan: Plan, planted: Planted) -> Arc<Self> {
        let fleet = Self {
            planted,
            store: Store::open("memory:").await.unwrap(),
            clock: Clock::simulated(1_700_000_000_000),
            started: AtomicU64::default(),
            frontends: Mutex::default(),
            healed: CancellationToken::new(),
            plan,
        };
        for _ in 0..fleet.plan.frontends {
            let frontend = fleet.frontend().await;
            fleet.frontends.lock().unwrap().push(frontend);
        }
        Arc::new(fleet)
    }

    async fn frontend(&self) -> Arc<Frontend> {
        let nth = self.started.fetch_add(1, Ordering::Relaxed);
        let faults = Faults {
            seed: self.plan.seed ^ (nth << 32),
            conflict: 0.02,
            unknown_applied: self.plan.unknown,
            unknown_lost: self.plan.unknown,
            delay: 0.2,
            delay_max: Duration::from_millis(50),
            ..Faults::default()
        };
        let (faulty, control) = self.store.with_faults(faults);
        control.set_quiet(true);
        let setting = Setting {
            replications: Setup {
                sealer: Sealer::new(vec![("k".to_owned(), [7; 32])]).unwrap(),
                ..Setup::default()
            },
            clock: Some(self.clock.clone()),
            store: Some(faulty),
            planted: self.planted,
            seed: self.plan.seed ^ nth,
            ..Setting::default()
        };
        let fixture = Fixture::with(api::Options::default(), setting).await;
        control.set_quiet(self.healed.is_cancelled());
        let (stop, dead) = (CancellationToken::new(), CancellationToken::new());
        let jobs = fixture.replications.jobs().clone();
        let maintenance = Maintenance::new(jobs, jobs::Options::default());
        tokio::spawn(maintenance.serve_prefix(queue::PREFIX).run(stop.clone()));
        tokio::spawn(fixture.queue.clone().run(stop.clone()));
        Arc::new(Frontend {
            fixture,
            store: control,
            stop,
            dead,
        })
    }

    /// Ends frontends and starts others in their place, until the fleet is healed.
    pub(super) async fn kill(&self, mut rng: SmallRng) {
        loop {
            let pause = some_time(&mut rng, self.plan.kill_pause);
            tokio::select! {
                () = self.healed.cancelled() => break,
                () = sleep(pause) => {}
            }
            let nth = rng.random_range(0..self.plan.frontends);
            let old = Arc::clone(&self.frontends.lock().unwrap()[nth]);
            if rng.random() {
                // Nothing of it reaches the store any more, not even claimed jobs that go back.
                old.store.set_outage(true);
            } else {
                old.stop.cancel();
                sleep(some_time(&mut rng, Duration::from_millis(300))).await;
            }
            old.dead.cancel();
            old.stop.cancel();
            let new = self.frontend().await;
            self.frontends.lock().unwrap()[nth] = new;
        }
        for frontend in self.frontends.lock().unwrap().iter() {
            frontend.store.set_quiet(true);
        }
    }

    /// Sends a request to one of the frontends; `None` if there is no answer.
    pub(super) async fn send(&self, rng: &mut SmallRng, ask: &Ask) -> Option<(u16, Value)> {
        let healed = self.healed.is_cancelled();
        if !healed {
            sleep(some_time(rng, Duration::from_millis(20))).await;
        }
        let nth = rng.random_range(0..self.plan.frontends);
        let frontend = Arc::clone(&self.frontends.lock().unwrap()[nth]);
        let user = frontend.fixture.root();
        let user = user.with("content-type", "application/json");
        let user = user.with("idempotency-key", ask.key.as_deref().unwrap_or_default());
        let body = match &ask.body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let patience = if !healed && rng.random_bool(self.plan.broken) {
            some_time(rng, Duration::from_millis(100))
        } else {
            Duration::from_mins(5)
        };
        let answered = tokio::select! {
            biased;
            () = frontend.dead.cancelled() => return None,
            answered = timeout(patience, user.send(ask.method.clone(), &ask.path, body)) => answered.ok()?,
        };
        // Such as 503 of one that stops.
        if answered.status.is_server_error() || (!healed && rng.random_bool(self.plan.lost)) {
            return None;
        }
        Some((answered.status.as_u16(), answered.json()))
    }

    /// The state of the store at the end, by a healthy frontend.
    pub(super) async fn read(&self, rng: &mut SmallRng, path: &str) -> (u16, Value) {
        let ask = Ask {
            method: Method::GET,
            path: path.to_owned(),
            body: Value::Null,
            key: None,
        };
        loop {
            if let Some(answer) = self.send(rng, &ask).await {
                return answer;
            }
        }
    }
}
