//! The queue on a `FoundationDB` of three processes of its own. One after the other dies and comes back, and one after the other is
//! cut off for longer than the rest waits for it. Names begin with `fdb`, as of all tests that need one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use jobs::{Add, Added, Jobs};
use testkit::{FdbCluster, Signal};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::work::{config, mail};
use crate::{
    Reported, TIME_LIMIT, check_all_jobs, creator, finish_the_rest, problems, processor, queue,
};

/// How many jobs have to be done between two events.
const STEP: usize = 150;
/// Longer than the cluster waits for a process that is silent.
const CUT_OFF: Duration = Duration::from_secs(10);

static DONE: AtomicUsize = AtomicUsize::new(0);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fdb_processes_that_die_or_are_cut_off_lose_no_job() {
    let Some(cluster) = FdbCluster::start(3) else {
        return;
    };
    let jobs = queue(&cluster.url()).await;
    jobs.set_type(&mail(), config()).await.unwrap();
    let (stop, full) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let (mut creators, mut processors) = (JoinSet::new(), JoinSet::new());
    for _ in 0..2 {
        creators.spawn(create(queue(&cluster.url()).await, Arc::clone(&full)));
        let count = |_: &str| {
            DONE.fetch_add(1, Ordering::Relaxed);
        };
        processors.spawn(processor::run(jobs.clone(), stop.clone(), count));
    }
    for port in cluster.ports() {
        progress("before a process dies").await;
        block_in_place(|| cluster.kill_one(&port));
        progress("while a process is dead").await;
        block_in_place(|| cluster.restart());
    }
    for port in cluster.ports() {
        progress("before a process is cut off").await;
        cluster.signal(&port, Signal::STOP);
        tokio::join!(progress("while a process is cut off"), sleep(CUT_OFF));
        cluster.signal(&port, Signal::CONT);
    }
    progress("when all is well again").await;
    full.store(true, Ordering::Relaxed);
    let mut reported = Reported::default();
    while let Some(added) = creators.join_next().await {
        reported.added.extend(added.unwrap());
    }
    finish_the_rest(&jobs).await;
    stop.cancel();
    while let Some(ended) = processors.join_next().await {
        ended.unwrap();
    }
    assert_eq!(problems(&jobs).await, Vec::<String>::new());
    check_all_jobs(&jobs, &reported).await;
    println!(
        "{} jobs, {} done",
        reported.added.len(),
        DONE.load(Ordering::Relaxed)
    );
}

async fn progress(when: &str) {
    let wanted = DONE.load(Ordering::Relaxed) + STEP;
    let done = async {
        while DONE.load(Ordering::Relaxed) < wanted {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = timeout(TIME_LIMIT, done).await;
    assert!(ended.is_ok(), "the work stands still {when}");
}

/// Adds jobs until told to stop; returns those of which the store has reported that they are there.
async fn create(jobs: Jobs, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut all = Vec::new();
    for batch in creator::batches(&jobs) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let adds: Vec<Add> = batch.iter().map(|id| creator::add(&jobs, id)).collect();
        for added in add_surely(&jobs, &adds).await {
            assert!(
                matches!(added, Added::Created | Added::Repeated),
                "{added:?}"
            );
        }
        all.extend(batch);
        creator::wait_for_processors(&jobs).await;
    }
    all
}

/// The same call, until the store says that it was done.
async fn add_surely(jobs: &Jobs, adds: &[Add]) -> Vec<Added> {
    let op = &jobs.op();
    loop {
        let added = (jobs.store()).transact("add", |tx| async move {
            jobs.add_many_in(&tx, op, &mail(), adds).await
        });
        match added.await {
            Ok(added) => return added,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
}
