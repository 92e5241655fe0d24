//! A separate queue for each case.

use std::time::Duration;

use bytes::Bytes;
use jobs::{
    Accepted, Acceptor, AcceptorHandle, Add, Clock, Counts, Entropy, Holder, Job, JobId, JobType,
    Jobs, Maintenance, Notifier, NotifierHandle, Options, State, TypeConfig,
};
use store::{FaultControl, Faults, Store};
use testkit::{Backend, Place};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// The store of a queue.
#[allow(non_camel_case_types, reason = "they are the names of test modules")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    memory,
    faulty,
    lmdb,
    fdb,
}

/// A private queue with one type, and the services of one node.
pub(crate) struct Queue {
    pub(crate) jobs: Jobs,
    pub(crate) ty: JobType,
    pub(crate) me: Holder,
    pub(crate) kind: Kind,
    /// The same rows, without faults and with separate statistics.
    pub(crate) store: Store,
    pub(crate) faults: Option<FaultControl>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    _place: Place,
}

impl Queue {
    /// `None` if the store needs a server that is not available.
    pub(crate) async fn open(kind: Kind) -> Option<Self> {
        let backend = match kind {
            Kind::memory | Kind::faulty => Backend::Memory,
            Kind::lmdb => Backend::Lmdb,
            Kind::fdb => Backend::Fdb,
        };
        let place = backend.place()?;
        let store = Store::open(&place.url).await.unwrap();
        let (clock, entropy) = match kind {
            Kind::memory | Kind::faulty => (Clock::simulated(1_000_000), Entropy::seeded(1)),
            Kind::lmdb | Kind::fdb => (Clock::system(), Entropy::from_os()),
        };
        let (own, faults) = match kind {
            Kind::faulty => {
                let (own, control) = store.with_faults(faults());
                (own, Some(control))
            }
            _ => (store.clone(), None),
        };
        let queue = Self {
            jobs: Jobs::new(own, clock, entropy),
            ty: JobType::new("t1").unwrap(),
            me: Holder::new("me").unwrap(),
            kind,
            store,
            faults,
            tasks: JoinSet::new(),
            stop: CancellationToken::new(),
            _place: place,
        };
        let config = queue.config();
        queue.jobs.set_type(&queue.ty, config).await.unwrap();
        Some(queue)
    }

    /// True if the clock is paused.
    pub(crate) fn paused(&self) -> bool {
        matches!(self.kind, Kind::memory | Kind::faulty)
    }

    /// True without random faults, so that costs are exact.
    pub(crate) fn exact(&self) -> bool {
        self.kind != Kind::faulty
    }

    /// The timeout of the type, and the unit of all times.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(if self.paused() { 2_000 } else { 300 })
    }

    pub(crate) fn config(&self) -> TypeConfig {
        TypeConfig::new(u64::try_from(self.timeout().as_millis()).unwrap())
    }

    #[expect(clippy::unused_self, reason = "reads like the others")]
    pub(crate) fn id(&self, name: &str) -> JobId {
        JobId::try_from(name).unwrap()
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            type_check_period_msec: u64::try_from(self.timeout().as_millis()).unwrap(),
            type_check_max_jitter_msec: 1,
            ..Options::default()
        }
    }

    pub(crate) async fn add(&self, name: &str, data: &str, due_ms: i64) {
        let add = Add::new(self.id(name), data.to_owned()).due_ms(due_ms);
        self.jobs.add(&self.ty, add).await.unwrap();
    }

    pub(crate) async fn accept(&self) -> Option<Accepted> {
        let claimed = self.jobs.accept(&self.ty, &self.me, 1).await.unwrap();
        claimed.jobs.into_iter().next()
    }

    /// Claims the one due job.
    pub(crate) async fn accept_one(&self) -> Job {
        self.accept().await.expect("a job is due").job
    }

    pub(crate) async fn state(&self, name: &str) -> Option<State> {
        let info = self.jobs.info(&self.ty, &self.id(name)).await.unwrap();
        info.map(|info| info.state)
    }

    pub(crate) async fn due_ms(&self, name: &str) -> i64 {
        let info = self.jobs.info(&self.ty, &self.id(name)).await.unwrap();
        info.expect("there is such a job").due_ms
    }

    pub(crate) async fn data(&self, name: &str) -> Bytes {
        let got = self.jobs.get(&self.ty, &self.id(name)).await.unwrap();
        got.expect("there is such a job").1
    }

    pub(crate) async fn counts(&self) -> Counts {
        self.jobs.counts(&self.ty).await.unwrap()
    }

    /// Index rows, counters and headers agree.
    pub(crate) async fn check(&self) {
        let jobs = Jobs::new(
            self.store.clone(),
            self.jobs.clock().clone(),
            Entropy::seeded(0),
        );
        let report = jobs.check(&self.ty).await.unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }

    /// A token that ends with the case, for a service that the case runs.
    pub(crate) fn token(&self) -> CancellationToken {
        self.stop.child_token()
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    pub(crate) fn maintain(&mut self) {
        let service = Maintenance::new(self.jobs.clone(), self.options());
        let service = service.serve(self.ty.clone());
        let token = self.token();
        self.spawn(service.run(token));
    }

    pub(crate) fn acceptor(&mut self) -> AcceptorHandle {
        self.acceptor_of(self.jobs.clone())
    }

    pub(crate) fn acceptor_of(&mut self, jobs: Jobs) -> AcceptorHandle {
        let (service, handle) = Acceptor::new(jobs, self.ty.clone(), self.me.clone());
        let token = self.token();
        self.spawn(service.run(token));
        handle
    }

    pub(crate) fn notifier(&mut self) -> NotifierHandle {
        let (service, handle) = Notifier::new(self.jobs.clone(), self.ty.clone(), self.options());
        let token = self.token();
        self.spawn(service.run(token));
        handle
    }

    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }

    /// Waits until a condition holds, for up to this many timeouts.
    pub(crate) async fn until(&self, timeouts: u32, what: &str, so: impl AsyncFn() -> bool) {
        // On a real clock, a machine busy with other tests gets more time.
        let time_limit = if self.paused() { 1 } else { 10 };
        let deadline = Instant::now() + self.timeout() * timeouts * time_limit;
        while !so().await {
            assert!(Instant::now() < deadline, "timed out: {what}");
            sleep(self.timeout() / 50).await;
        }
    }
}

/// Frequent faults, with which everything still completes.
fn faults() -> Faults {
    Faults {
        seed: 7,
        conflict: 0.2,
        unknown_applied: 0.1,
        unknown_lost: 0.1,
        too_old: 0.000_5,
        unavailable: 0.0,
        delay: 0.1,
        delay_max: Duration::from_millis(5),
        watch_lost: 0.5,
        watch_spurious: 0.2,
        ..Faults::default()
    }
}
