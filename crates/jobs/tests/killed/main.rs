//! The queue under real processes on one directory, which are killed again and again: creators,
//! and processors with all their services. And on a `FoundationDB` whose own processes are killed.
//!
//! A child is this test binary, told by an environment variable to run [`child`].

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and a child talks to its parent"
)]

mod cluster;
mod creator;
mod processor;
mod work;

use std::collections::BTreeSet;
use std::time::Duration;

use jobs::{Check, Clock, Entropy, Jobs, Query, State};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::Store;
use testkit::{Child, kill_cycles};
use tokio_util::sync::CancellationToken;

use work::{config, expected_data, mail, runs_of, runs_wanted};

/// Far longer than the queue takes to drain.
const TIME_LIMIT: Duration = Duration::from_mins(2);

/// The entry point of a child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    match testkit::role().as_deref() {
        Some("creator") => creator::run(&queue(&testkit::child_url()).await).await,
        Some("processor") => {
            let jobs = queue(&testkit::child_url()).await;
            processor::run(jobs, CancellationToken::new(), |id| println!("- did {id}")).await;
        }
        _ => {}
    }
}

async fn queue(url: &str) -> Jobs {
    let store = Store::open(url).await.unwrap();
    Jobs::new(store, Clock::system(), Entropy::from_os())
}

/// Everything the children reported before they were killed.
#[derive(Default)]
struct Reported {
    added: BTreeSet<String>,
    done: BTreeSet<String>,
}

impl Reported {
    fn record(&mut self, lines: Vec<String>) {
        for line in lines {
            match line.split_once(' ') {
                Some(("added", id)) => drop(self.added.insert(id.to_owned())),
                Some(("did", id)) => drop(self.done.insert(id.to_owned())),
                _ => panic!("a child says: {line}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_lose_no_job() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("lmdb:{}", directory.path().display());
    let jobs = queue(&url).await;
    jobs.set_type(&mail(), config()).await.unwrap();
    // Only the children have the store open, so that killing all of them leaves a store to recover.
    drop(jobs);
    let mut rng = SmallRng::seed_from_u64(1);
    let roles = ["creator", "creator", "processor", "processor"];
    let mut children = roles.map(|role| Child::start(role, &url));
    let (mut reported, mut kills) = (Reported::default(), 0);
    for _ in 0..kill_cycles() {
        for child in &mut children {
            child.wait_for_lines(1);
        }
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..60_000))).await;
        let all = rng.random_range(0..5) == 0;
        let one = rng.random_range(0..children.len());
        let victims = (0..children.len()).filter(|n| all || *n == one);
        for victim in victims.clone() {
            children[victim].kill();
            kills += 1;
        }
        for victim in victims {
            reported.record(children[victim].take_lines());
            children[victim] = Child::start(roles[victim], &url);
        }
    }
    for child in &mut children {
        child.kill();
        reported.record(child.take_lines());
    }
    println!(
        "{kills} kills, {} added, {} done before the last one",
        reported.added.len(),
        reported.done.len()
    );
    assert!(reported.added.len() > 100, "{}", reported.added.len());
    assert!(!reported.done.is_empty());
    let jobs = queue(&url).await;
    assert_eq!(
        problems(&jobs).await,
        Vec::<String>::new(),
        "before the rest is done"
    );
    finish_the_rest(&jobs).await;
    check_all_jobs(&jobs, &reported).await;
}

async fn problems(jobs: &Jobs) -> Vec<String> {
    let Check { problems, .. } = jobs.check(&mail()).await.unwrap();
    problems
}

/// One more processor, not killed, until all work is done.
async fn finish_the_rest(jobs: &Jobs) {
    let stop = CancellationToken::new();
    let processing = tokio::spawn(processor::run(jobs.clone(), stop.clone(), |_| {}));
    let all_finished = async {
        loop {
            let counts = jobs.counts(&mail()).await.unwrap();
            if counts.pending + counts.running == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let ended = tokio::time::timeout(TIME_LIMIT, all_finished).await;
    stop.cancel();
    processing.await.unwrap();
    ended.expect("every job finishes");
}

/// Every job in the store has finished with the expected effects; every job that a child reported
/// is in the store.
async fn check_all_jobs(jobs: &Jobs, reported: &Reported) {
    let (query, mut cursor, mut found) = (
        Query {
            data: true,
            ..Query::default()
        },
        None,
        0,
    );
    let (mut added, mut done) = (reported.added.clone(), reported.done.clone());
    loop {
        let page = jobs
            .list(&mail(), &query, cursor.as_ref(), 500)
            .await
            .unwrap();
        for job in page.jobs {
            let id = job.info.id.to_string();
            assert_eq!(job.info.state, State::Finished, "{id}");
            assert!(job.data.unwrap() == expected_data(&id), "data of {id}");
            let runs = runs_of(jobs, &id).await;
            assert_eq!(runs, runs_wanted(&id), "runs of {id} that took effect");
            added.remove(&id);
            done.remove(&id);
            found += 1;
        }
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(added, BTreeSet::new(), "were added and are lost");
    assert_eq!(done, BTreeSet::new(), "were done and are lost");
    assert_eq!(problems(jobs).await, Vec::<String>::new());
    let counts = jobs.counts(&mail()).await.unwrap();
    assert_eq!((counts.finished, counts.created_total), (found, found));
}
