//! A cluster that dies and comes back, under load: a throw-away FoundationDB of our own, killed with
//! SIGKILL. Runs when fdbserver is on the PATH; `TEST_FDB_REQUIRED` makes its absence a failure.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and says what it did"
)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store::{Call, Error, KeyRange, RangeOptions, Store, Transaction, Watch};
use testkit::FdbCluster;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Longer than a cluster on a busy machine needs to come back.
const PATIENCE: Duration = Duration::from_mins(2);

fn patient(name: &'static str) -> Call {
    Call::new(name).deadline(PATIENCE).retries_max(u32::MAX)
}

async fn read_all(store: &Store, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let read = store.transact(patient("read"), |tx: Transaction| async move {
        let range = KeyRange::prefix(prefix);
        tx.get_range(range, RangeOptions::default()).collect().await
    });
    (read.await.unwrap().into_iter())
        .map(|row| (row.key.to_vec(), row.value.to_vec()))
        .collect()
}

async fn watch(store: &Store, key: &[u8]) -> Watch {
    let body = |tx: Transaction| async move { tx.watch(key).await };
    store.transact(patient("watch"), body).await.unwrap()
}

async fn set(store: &Store, key: &[u8], value: &[u8]) {
    let body = |tx: Transaction| async move {
        tx.set(key, value);
        Ok::<_, Error>(())
    };
    store.transact(patient("set"), body).await.unwrap();
}

fn number(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().unwrap())
}

const ACCOUNTS: u8 = 10;

/// Moves one from an account to another, once: the token says that it was done.
async fn transfer(store: &Store, from: u8, to: u8, token: &[u8]) -> Result<(), Error> {
    let (from, to) = ([b'a', from], [b'a', to]);
    let body = |tx: Transaction| async move {
        if tx.get(token).await?.is_some() {
            return Ok(());
        }
        let left = tx.get(&from).await?.map_or(0, |value| number(&value));
        tx.set(&from, &(left - 1).to_le_bytes());
        tx.add(&to, 1);
        tx.add(b"count", 1);
        tx.set(token, b"");
        Ok(())
    };
    store.transact(patient("transfer"), body).await
}

/// Transfers until told to stop. Returns the tokens that were acknowledged.
async fn work(
    store: Store,
    worker: u8,
    stop: Arc<AtomicBool>,
    done: Arc<Semaphore>,
) -> Vec<Vec<u8>> {
    let mut acknowledged = Vec::new();
    for n in 0_u32.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let token = [&[b't', worker][..], &n.to_be_bytes()].concat();
        let attempt = n.to_le_bytes()[0];
        let from = worker.wrapping_add(attempt) % ACCOUNTS;
        let to = worker.wrapping_mul(3).wrapping_add(attempt) % ACCOUNTS;
        transfer(&store, from, to, &token).await.unwrap();
        acknowledged.push(token);
        done.add_permits(1);
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_cluster_is_killed() {
    let Some(cluster) = FdbCluster::start(1) else {
        return;
    };
    let store = Store::open(&cluster.url()).await.unwrap();
    let survives = watch(&store, b"watched").await;
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Semaphore::new(0)),
    );
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
        workers.spawn(work(store.clone(), worker, stop, done));
    }
    for _ in 0..3 {
        // In the middle of the work, and again when it goes on.
        let progress = timeout(PATIENCE, done.acquire_many(200)).await;
        progress.expect("the work stands still").unwrap().forget();
        tokio::task::block_in_place(|| {
            cluster.kill();
            cluster.restart();
        });
    }
    let progress = timeout(PATIENCE, done.acquire_many(200)).await;
    progress.expect("the work stands still").unwrap().forget();
    stop.store(true, Ordering::Relaxed);
    let acknowledged: BTreeSet<Vec<u8>> = workers.join_all().await.into_iter().flatten().collect();

    let tokens: BTreeSet<Vec<u8>> = (read_all(&store, b"t").await.into_iter())
        .map(|row| row.0)
        .collect();
    assert_eq!(tokens, acknowledged, "all workers heard of all they did");
    let count = number(&read_all(&store, b"count").await[0].1);
    assert_eq!(
        count,
        i64::try_from(tokens.len()).unwrap(),
        "each was done once"
    );
    let accounts = read_all(&store, b"a").await;
    let sum: i64 = accounts.iter().map(|(_, value)| number(value)).sum();
    assert_eq!(sum, 0);

    set(&store, b"watched", b"now").await;
    timeout(PATIENCE, survives.changed())
        .await
        .expect("a watch is lost with the cluster")
        .unwrap();
    println!(
        "{} transfers, {:?}",
        tokens.len(),
        store.stats()["transfer"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_told_in_time() {
    let Some(cluster) = FdbCluster::start(1) else {
        return;
    };
    let store = Store::open(&cluster.url()).await.unwrap();
    set(&store, b"a", b"before").await;
    tokio::task::block_in_place(|| cluster.kill());

    let read = |tx: Transaction| async move { tx.get(b"a").await.map(drop) };
    let write = |tx: Transaction| async move {
        tx.set(b"a", b"lost");
        Ok::<_, Error>(())
    };
    let call = |name| Call::new(name).deadline(Duration::from_secs(8));
    let from = Instant::now();
    let (read, write) = tokio::join!(
        store.transact(call("read"), read),
        store.transact(call("write"), write)
    );
    assert!(from.elapsed() < Duration::from_secs(20));
    for error in [read.unwrap_err(), write.unwrap_err()] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(
            error.to_string().contains("does not answer: fdbcli"),
            "{error}"
        );
    }
    let from = Instant::now();
    let error = Store::open(&cluster.url()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(from.elapsed() < Duration::from_secs(20));

    tokio::task::block_in_place(|| cluster.restart());
    let get = |tx: Transaction| async move { tx.get(b"a").await };
    let value = store.transact(patient("get"), get).await.unwrap();
    assert_eq!(value.as_deref(), Some(&b"before"[..]));
    set(&store, b"a", b"after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_several_processes() {
    let Some(cluster) = FdbCluster::start(3) else {
        return;
    };
    let configuration = cluster.ask("status");
    let survives = configuration.contains("Redundancy mode        - double")
        && configuration.contains("Coordinators           - 3");
    assert!(survives, "{configuration}");
    let store = Store::open(&cluster.url()).await.unwrap();
    set(&store, b"a", b"1").await;
    tokio::task::block_in_place(|| {
        cluster.kill();
        cluster.restart();
    });
    assert_eq!(
        read_all(&store, b"a").await,
        [(b"a".to_vec(), b"1".to_vec())]
    );
}
