//! A fleet of processes that runs many replications of all kinds, while nodes, frontends and servers are killed, paused,
//! stopped and started at random: afterwards all targets equal their sources, and no credential has leaked.
//!
//! By default it is small. `TORTURE_REPLICATIONS` and `TORTURE_SECONDS` make it larger, `TORTURE_SEED` sets its seed.
//! PouchDB Server takes part when `TEST_POUCHDB_SERVER` names its script, Apache CouchDB when `TEST_COUCHDB_URL` names it;
//! with `TEST_FDB_CLUSTER_FILE` it also runs on FoundationDB.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and tells what it did"
)]

mod blows;
mod fleet;
mod servers;
mod verdict;
mod work;

use std::time::Duration;

use e2e::PATIENCE;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tokio::time::timeout;

use blows::Blows;
use fleet::Fleet;
use servers::Servers;
use verdict::Judge;
use work::Work;

/// The size of a run.
#[derive(Clone, Copy, Debug)]
struct Scale {
    seed: u64,
    replications: usize,
    duration: Duration,
}

impl Scale {
    fn from_environment() -> Self {
        let number = |name: &str, default: u64| {
            let given = std::env::var(name).ok();
            given.map_or(default, |text| text.parse().expect("a number"))
        };
        Self {
            seed: number("TORTURE_SEED", 7),
            replications: usize::try_from(number("TORTURE_REPLICATIONS", 40)).unwrap(),
            duration: Duration::from_secs(number("TORTURE_SECONDS", 15)),
        }
    }
}

/// One run on one store.
async fn torture(scale: Scale, store: Option<&str>) {
    println!("{scale:?}");
    let servers = Servers::start().await.unwrap();
    let mut fleet = Fleet::start(store).await.unwrap();
    let client = fleet.client(servers.secrets());
    let work = Work::draw(scale, &servers);
    work.prepare(&servers).await;
    client.create("/_replicator").await;
    let mut blows = Blows::new(SmallRng::seed_from_u64(scale.seed), scale.duration);
    let urls = servers.urls();
    let asked = work.ask(&client, &urls);
    let written = work.write_more(&urls, scale);
    let processes = servers.processes();
    let struck = blows.strike(&mut fleet, &processes);
    let all = async { tokio::join!(asked, written, struck) };
    let patience = scale.duration + PATIENCE * 2;
    timeout(patience, all).await.expect("it ends");
    fleet.heal().await.unwrap();
    servers.heal().await;
    println!("{blows}");
    let transient = work.ask_once(&client, &urls).await;
    let judge = Judge {
        work: &work,
        servers: &servers,
        client: &client,
        transient,
    };
    judge.settled().await;
    judge.equal().await;
    judge.terminal_states().await;
    let logs = fleet.stop().await.unwrap();
    verdict::no_secret(&logs, &servers.secrets(), fleet.directory());
    assert_eq!(client.leaks(), Vec::<String>::new());
    work.forget(&servers).await;
}

#[tokio::test]
async fn everything_is_equal_in_the_end() {
    Box::pin(torture(Scale::from_environment(), None)).await;
}

#[tokio::test]
async fn everything_is_equal_in_the_end_on_foundationdb() {
    if let Some(store) = e2e::fdb_url() {
        Box::pin(torture(Scale::from_environment(), Some(&store))).await;
    }
}
