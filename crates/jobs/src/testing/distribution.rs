//! Gerrit's distribution of pushes: remotes whose threads are those of the whole fleet, and two nodes that push.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use store::{Faults, Store};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    Add, Clock, Entropy, Failure, Finish, Holder, JobId, JobType, Jobs, Limit, LimitName, Retry,
    Sharing, Task, Tenant, TypeConfig, Worker, WorkerOptions, encode,
};

const NODES: usize = 2;
const REMOTES: usize = 10;
/// Of each remote, over both nodes.
const THREADS: usize = 8;
/// Targets of each remote that always have something to push.
const TARGETS: usize = 40;
/// How long a push to a remote that is down hangs.
const HANGS: Duration = Duration::from_secs(30);
const NONE_DOWN: usize = REMOTES;

struct Fleet {
    /// Without delays.
    store: Store,
    jobs: Jobs,
    ty: JobType,
    entropy: Entropy,
    down: AtomicUsize,
    pushes: Mutex<Pushes>,
}

#[derive(Default)]
struct Pushes {
    /// By target.
    running: BTreeSet<String>,
    /// By node and remote.
    ended: BTreeMap<(usize, usize), usize>,
    /// Of the target that many events are about.
    hot: usize,
    wrong: BTreeSet<String>,
}

impl Fleet {
    async fn open() -> Arc<Self> {
        let store = Store::open("memory:").await.unwrap();
        let (delayed, _) = store.with_faults(Faults {
            delay: 0.5,
            delay_max: Duration::from_millis(5),
            ..Faults::default()
        });
        let clock = Clock::simulated(1_700_000_000_000);
        let jobs = Jobs::new(delayed, clock, Entropy::seeded(1));
        let ty = JobType::new("push").unwrap();
        let config = TypeConfig {
            sharing: Sharing::On,
            ..TypeConfig::new(60_000)
        };
        jobs.set_type(&ty, config).await.unwrap();
        let threads = Limit::at_once(u32::try_from(THREADS).unwrap());
        for remote in 0..REMOTES {
            let pool = pool_of(remote);
            jobs.set_limit(&ty, &pool, Some(threads)).await.unwrap();
        }
        Arc::new(Self {
            store,
            jobs,
            ty,
            entropy: Entropy::seeded(2),
            down: AtomicUsize::new(NONE_DOWN),
            pushes: Mutex::default(),
        })
    }

    fn work(
        self: &Arc<Self>,
        node: usize,
        stop: &CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let options = WorkerOptions {
            concurrency: REMOTES * THREADS,
            retry: Retry {
                retries_max: None,
                delay: Duration::from_mins(1),
                delay_max: Duration::from_mins(1),
                jitter: 0.2,
            },
            drain: Duration::from_mins(1),
        };
        let holder = Holder::new(&format!("node-{node}")).unwrap();
        let worker = Worker::new(self.jobs.clone(), self.ty.clone(), holder, options);
        let (fleet, stop) = (Arc::clone(self), stop.clone());
        worker.run(stop, move |task: Task<String>| {
            let fleet = Arc::clone(&fleet);
            async move { fleet.push(node, &task.data).await }
        })
    }

    async fn push(&self, node: usize, target: &str) -> Result<Finish, Failure> {
        let (remote, name) = target.split_once('/').unwrap();
        let remote: usize = remote.parse().unwrap();
        self.begin(target, remote);
        let is_down = self.down.load(Ordering::Relaxed) == remote;
        let takes = Duration::from_secs(1) + self.entropy.up_to(Duration::from_secs(4));
        sleep(if is_down { HANGS } else { takes }).await;
        let mut pushes = self.pushes.lock().unwrap();
        pushes.running.remove(target);
        if is_down {
            return Err(Failure::Retry("the remote does not answer".into()));
        }
        if name == "hot" {
            pushes.hot += 1;
            return Ok(Finish::done());
        }
        *pushes.ended.entry((node, remote)).or_default() += 1;
        Ok(Finish::again(0))
    }

    fn begin(&self, target: &str, remote: usize) {
        let mut pushes = self.pushes.lock().unwrap();
        if !pushes.running.insert(target.to_owned()) {
            pushes.wrong.insert(format!("two pushes to {target}"));
        }
        let of_remote = format!("{remote}/");
        let threads = (pushes.running.iter()).filter(|other| other.starts_with(&of_remote));
        let threads = threads.count();
        if threads > THREADS {
            (pushes.wrong).insert(format!("remote {remote} has {threads} threads"));
        }
    }

    /// Pushes of nodes and of remotes in this time.
    async fn pushed(&self, time: Duration) -> ([usize; NODES], [usize; REMOTES]) {
        self.pushes.lock().unwrap().ended.clear();
        sleep(time).await;
        let (mut nodes, mut remotes) = ([0; NODES], [0; REMOTES]);
        for ((node, remote), count) in &self.pushes.lock().unwrap().ended {
            nodes[*node] += count;
            remotes[*remote] += count;
        }
        (nodes, remotes)
    }
}

fn pool_of(remote: usize) -> LimitName {
    LimitName::new(format!("remote|{remote}")).unwrap()
}

fn add(remote: usize, name: &str) -> Add {
    let target = format!("{remote}/{name}");
    let key = LimitName::new(format!("target|{target}")).unwrap();
    let tenant = Tenant::new(format!("remote-{remote}")).unwrap();
    let data = encode(&target).unwrap();
    let add = Add::new(JobId::new(target).unwrap(), data);
    add.key(key).pool(pool_of(remote)).tenant(tenant)
}

/// Each of `counts` is near this one.
fn assert_near(counts: &[usize], expected: usize, part: f64) {
    let expected = f64::from(u32::try_from(expected).unwrap());
    for count in counts {
        let count = f64::from(u32::try_from(*count).unwrap());
        let is_near = (count - expected).abs() <= part * expected;
        assert!(is_near, "{counts:?}, not {expected} within {part}");
    }
}

#[tokio::test(start_paused = true)]
async fn remotes_share_two_nodes() {
    let fleet = Fleet::open().await;
    let names = (0..REMOTES).flat_map(|remote| (0..TARGETS).map(move |nth| (remote, nth)));
    let adds: Vec<Add> = names
        .map(|(remote, nth)| add(remote, &nth.to_string()))
        .collect();
    fleet.jobs.add_many(&fleet.ty, &adds).await.unwrap();
    let stop = CancellationToken::new();
    let mut nodes: JoinSet<()> = (0..NODES).map(|node| fleet.work(node, &stop)).collect();
    // Until both nodes have found all they can do.
    sleep(Duration::from_mins(1)).await;

    // 100 events a second about one target, each to be pushed within 15 seconds or so.
    let (begun, mut next) = (Instant::now(), interval(Duration::from_millis(10)));
    while begun.elapsed() < Duration::from_mins(1) {
        next.tick().await;
        let due_ms = fleet.jobs.clock().now_ms() + 15_000;
        let signal = add(0, "hot").due_ms(due_ms).into();
        fleet.jobs.signal(&fleet.ty, signal).await.unwrap();
    }
    let (of_nodes, before) = fleet.pushed(Duration::from_mins(10)).await;
    let hot = fleet.pushes.lock().unwrap().hot;
    // Others of the remote take their turns, too.
    assert!((2..=6).contains(&hot), "{hot} pushes");
    let all: usize = before.iter().sum();
    assert_near(&of_nodes, all / NODES, 0.2);
    assert_near(&before, all / REMOTES, 0.1);

    let down = REMOTES - 1;
    fleet.down.store(down, Ordering::Relaxed);
    let (_, during) = fleet.pushed(Duration::from_mins(10)).await;
    assert_near(&during[..down], all / REMOTES, 0.1);
    fleet.down.store(NONE_DOWN, Ordering::Relaxed);
    sleep(Duration::from_mins(2)).await;
    let (_, after) = fleet.pushed(Duration::from_mins(10)).await;
    assert_near(&after, all / REMOTES, 0.1);

    stop.cancel();
    while let Some(ended) = nodes.join_next().await {
        ended.unwrap();
    }
    assert_eq!(fleet.pushes.lock().unwrap().wrong, BTreeSet::new());
    let found = fleet.jobs.check(&fleet.ty).await.unwrap();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
}

/// Jobs fall due one by one, and each of the nodes could do them all. Each sees the store through its own delays.
async fn shares_of_scheduled_jobs(delays_ms: &[u64]) -> Vec<usize> {
    const EACH: usize = 500;
    let fleet = Fleet::open().await;
    let clock = fleet.jobs.clock().clone();
    let nodes_jobs = (1..).zip(delays_ms).map(|(seed, delay_ms)| {
        let faults = Faults {
            seed,
            delay: 0.5,
            delay_max: Duration::from_millis(*delay_ms),
            ..Faults::default()
        };
        let (store, _) = fleet.store.with_faults(faults);
        Jobs::new(store, clock.clone(), Entropy::seeded(seed))
    });
    let ran: Arc<Vec<AtomicUsize>> =
        Arc::new(delays_ms.iter().map(|_| AtomicUsize::new(0)).collect());
    let (jobs, ty) = (&fleet.jobs, &fleet.ty);
    let stop = CancellationToken::new();
    let mut nodes = JoinSet::new();
    for (node, jobs) in nodes_jobs.enumerate() {
        let holder = Holder::new(&format!("node-{node}")).unwrap();
        let worker = Worker::new(jobs, ty.clone(), holder, WorkerOptions::default());
        let ran = Arc::clone(&ran);
        nodes.spawn(worker.run(stop.clone(), move |_: Task<String>| {
            ran[node].fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(Finish::done()))
        }));
    }
    let mut next = interval(Duration::from_millis(20));
    for nth in 0..ran.len() * EACH {
        next.tick().await;
        let due_ms = jobs.clock().now_ms() + 500;
        let id = JobId::new(nth.to_string()).unwrap();
        let add = Add::new(id, encode(&"data").unwrap()).due_ms(due_ms);
        jobs.add(ty, add).await.unwrap();
    }
    sleep(Duration::from_secs(10)).await;
    stop.cancel();
    while let Some(ended) = nodes.join_next().await {
        ended.unwrap();
    }
    let ran: Vec<usize> = ran.iter().map(|ran| ran.load(Ordering::Relaxed)).collect();
    assert_eq!(ran.iter().sum::<usize>(), ran.len() * EACH);
    ran
}

#[tokio::test(start_paused = true)]
async fn nodes_share_scheduled_jobs() {
    let ran = shares_of_scheduled_jobs(&[5, 5, 5]).await;
    assert_near(&ran, 500, 0.2);
}

/// Without division, the claims of the slower node nearly always conflict with those of the faster one.
#[tokio::test(start_paused = true)]
async fn a_slower_node_gets_its_share() {
    for delays_ms in [[5, 8], [10, 5]] {
        let ran = shares_of_scheduled_jobs(&delays_ms).await;
        assert_near(&ran, 500, 0.2);
    }
}
