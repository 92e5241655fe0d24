//! The embedded store under several processes: killed, stopped, cut short of room.
//!
//! A child is this test binary again, told by an environment variable to run [`child`].

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and a child talks to its parent"
)]

mod processes {
    pub(crate) mod puppet;
    pub(crate) mod transfers;
}

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::{Error, Store, Transaction};
use tempfile::TempDir;
use testkit::{Child, Signal, kill_cycles, role};
use tokio::time::Instant;

use processes::transfers::{ACCOUNTS, TOTAL, account, done_key};

/// How long killing one process may hold up another: a fraction of it on an idle machine.
const STALL_MAX: Duration = Duration::from_secs(4);

/// What runs in a child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    match role().as_deref() {
        Some("puppet") => processes::puppet::run().await,
        Some("transfers") => processes::transfers::run().await,
        _ => {}
    }
}

fn url(directory: &TempDir) -> String {
    format!("lmdb:{}", directory.path().display())
}

/// A child that executes one command per line.
fn puppet(directory: &TempDir) -> Child {
    ready(Child::start("puppet", &url(directory)))
}

fn ready(mut puppet: Child) -> Child {
    assert_eq!(puppet.line(), "ready");
    puppet
}

/// A child that moves money between accounts until it is killed.
fn transfers(directory: &TempDir) -> Child {
    Child::start("transfers", &url(directory))
}

/// The ids of the transfers that a killed child was told are committed.
fn acknowledged_by(child: &mut Child) -> impl Iterator<Item = String> {
    let lines = child.take_lines().into_iter();
    lines.map(|line| match line.strip_prefix("ack ") {
        Some(id) => id.to_owned(),
        None => panic!("the child says: {line}"),
    })
}

async fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    let body = |tx: Transaction| async move { tx.get(key).await };
    store.transact("get", body).await.unwrap().map(Vec::from)
}

async fn set(store: &Store, key: &[u8], value: &[u8]) {
    let body = |tx: Transaction| async move {
        tx.set(key, value);
        Ok::<_, Error>(())
    };
    store.transact("set", body).await.unwrap();
}

async fn sum(store: &Store) -> u64 {
    let body = |tx: Transaction| async move {
        let mut sum = 0;
        for number in 0..ACCOUNTS {
            let balance = tx.get(&account(number)).await?.unwrap();
            sum += u64::from_le_bytes(balance[..].try_into().unwrap());
        }
        Ok::<_, Error>(sum)
    };
    store.transact("sum", body).await.unwrap()
}

#[tokio::test]
async fn what_one_process_commits_the_other_sees() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&url(&directory)).await.unwrap();
    let mut puppet = puppet(&directory);
    for number in 0..50 {
        let value = format!("{number}");
        if number % 2 == 0 {
            set(&store, b"k", value.as_bytes()).await;
        } else {
            assert_eq!(puppet.ask(&format!("set k {value}")), "done");
        }
        assert_eq!(puppet.ask("get k"), value);
        assert_eq!(get(&store, b"k").await.unwrap(), value.as_bytes());
    }
    // A read in one process conflicts with a write in the other.
    assert_eq!(puppet.ask("begin k"), "began");
    set(&store, b"k", b"other").await;
    assert_eq!(
        puppet.ask("end"),
        "another transaction changed what this one read"
    );
}

#[tokio::test]
async fn a_watch_fires_across_processes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&url(&directory)).await.unwrap();
    let mut puppet = puppet(&directory);
    for number in 0..10 {
        assert_eq!(puppet.ask("watch k"), "armed");
        set(&store, b"k", format!("{number}").as_bytes()).await;
        assert_eq!(puppet.line(), "fired");
    }
    assert_eq!(puppet.ask("watch k"), "armed");
    let clear = |tx: Transaction| async move {
        tx.clear_range(("a", "z"));
        Ok::<_, Error>(())
    };
    store.transact("clear", clear).await.unwrap();
    assert_eq!(puppet.line(), "fired");
}

/// A process that sleeps while the log is used again: its transaction is refused, and it goes on
/// with what is there.
#[tokio::test]
async fn a_stopped_process_starts_over() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&url(&directory)).await.unwrap();
    set(&store, b"k", b"old").await;
    let mut puppet = puppet(&directory);
    assert_eq!(puppet.ask("begin k"), "began");
    assert_eq!(puppet.ask("watch k"), "armed");
    puppet.signal(Signal::STOP);
    let first = directory.path().join("redo-0000000000000002");
    let value = vec![7; 90_000];
    let mut number = 0_u32;
    while number < 700 || first.exists() {
        set(
            &store,
            format!("row{:03}", number % 1000).as_bytes(),
            &value,
        )
        .await;
        number += 1;
        assert!(number < 20_000, "the log is never used again");
    }
    set(&store, b"k", b"new").await;
    puppet.signal(Signal::CONT);
    assert_eq!(puppet.line(), "fired");
    let refused = puppet.ask("end");
    assert_eq!(refused, "the transaction outlived its 5 second snapshot");
    assert_eq!(puppet.ask("get k"), "new");
    assert_eq!(puppet.ask("set k newer"), "done");
    assert_eq!(get(&store, b"k").await.unwrap(), b"newer");
}

/// A process that may not write files beyond a size: what does not fit is refused, what was
/// acknowledged is there, and with room all goes on.
#[tokio::test]
async fn a_full_disk_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut puppet = ready(Child::start_with_file_size_max(
        "puppet",
        &url(&directory),
        4 << 20,
    ));
    let mut acknowledged = 0;
    let refused = loop {
        match &*puppet.ask(&format!("fill row{acknowledged:04} 50000")) {
            "done" => acknowledged += 1,
            other => break other.to_owned(),
        }
        assert!(acknowledged < 1000, "the disk is never full");
    };
    assert!(
        refused.starts_with("the store is full: there is no space left on the disk"),
        "{refused}"
    );
    assert!(acknowledged > 10, "{acknowledged}");
    assert_eq!(
        puppet.ask(&format!("get row{:04}", acknowledged - 1)).len(),
        50_000
    );
    puppet.kill();
    let store = Store::open(&url(&directory)).await.unwrap();
    for number in 0..acknowledged {
        let row = get(&store, format!("row{number:04}").as_bytes()).await;
        assert_eq!(row.map(|row| row.len()), Some(50_000), "row {number}");
    }
    set(&store, b"more", b"room").await;
    assert_eq!(get(&store, b"more").await.unwrap(), b"room");
}

/// Two processes move money between accounts while one or both are killed, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_lose_nothing_and_stop_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&url(&directory)).await.unwrap();
    let setup = |tx: Transaction| async move {
        for number in 0..ACCOUNTS {
            tx.set(&account(number), &(TOTAL / ACCOUNTS).to_le_bytes());
        }
        Ok::<_, Error>(())
    };
    store.transact("setup", setup).await.unwrap();
    // The parent only looks in at the end, so that killing both leaves a store to be recovered.
    drop(store);
    let mut rng = SmallRng::seed_from_u64(1);
    let mut children = [transfers(&directory), transfers(&directory)];
    let mut acknowledged = BTreeSet::new();
    let (mut stall_max, mut kills) = (Duration::ZERO, 0);
    for _ in 0..kill_cycles() {
        let victims = match rng.random_range(0..5) {
            0..4 => vec![rng.random_range(0..2)],
            _ => vec![0, 1],
        };
        for child in &mut children {
            child.wait_for_lines(1);
        }
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..60_000))).await;
        let killed = Instant::now();
        for &victim in &victims {
            children[victim].kill();
            kills += 1;
        }
        if let [victim] = victims[..] {
            // The first ones may have been acknowledged before.
            children[1 - victim].wait_for_lines(0);
            children[1 - victim].wait_for_lines(4);
            stall_max = stall_max.max(killed.elapsed());
        }
        for victim in victims {
            acknowledged.extend(acknowledged_by(&mut children[victim]));
            children[victim] = transfers(&directory);
        }
    }
    for child in &mut children {
        child.kill();
        acknowledged.extend(acknowledged_by(child));
    }
    let store = Store::open(&url(&directory)).await.unwrap();
    println!(
        "{kills} kills, {} acknowledged, longest stall {stall_max:?}",
        acknowledged.len()
    );
    assert_eq!(sum(&store).await, TOTAL);
    for id in &acknowledged {
        assert!(
            get(&store, &done_key(id)).await.is_some(),
            "{id} was acknowledged"
        );
    }
    assert!(acknowledged.len() > 100, "{}", acknowledged.len());
    assert!(stall_max < STALL_MAX, "{stall_max:?}");
}
