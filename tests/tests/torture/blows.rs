//! Faults of the processes, drawn from a seed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use e2e::Signal;
use peer::Faults;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use tokio::time::{Instant, sleep, sleep_until};

use crate::fleet::{Fleet, JOB_TIMEOUT_S};
use crate::servers::{Process, some_faults};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blow {
    KillNode,
    PauseNode,
    StopNode,
    KillFrontend,
    StopFrontend,
    HitServer,
}

const BLOWS: [Blow; 10] = [
    Blow::KillNode,
    Blow::KillNode,
    Blow::PauseNode,
    Blow::PauseNode,
    Blow::StopNode,
    Blow::KillFrontend,
    Blow::StopFrontend,
    Blow::HitServer,
    Blow::HitServer,
    Blow::HitServer,
];

pub(crate) struct Blows {
    rng: SmallRng,
    duration: Duration,
    struck: BTreeMap<Blow, usize>,
}

impl fmt::Display for Blows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.struck)
    }
}

impl Blows {
    pub(crate) fn new(rng: SmallRng, duration: Duration) -> Self {
        Self {
            rng,
            duration,
            struck: BTreeMap::new(),
        }
    }

    fn pause(&mut self, ms: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.random_range(ms))
    }

    /// Injects faults until the time is over. Processes that are down then stay down.
    pub(crate) async fn strike(&mut self, fleet: &mut Fleet, servers: &[&Process]) {
        let until = Instant::now() + self.duration;
        while Instant::now() < until {
            let pause = self.pause(200..1_500);
            sleep_until((Instant::now() + pause).min(until)).await;
            let blow = BLOWS[self.rng.random_range(0..BLOWS.len())];
            *self.struck.entry(blow).or_default() += 1;
            match blow {
                Blow::HitServer => self.hit_server(servers).await,
                blow => self.hit_fleet(blow, fleet).await,
            }
        }
    }

    async fn hit_fleet(&mut self, blow: Blow, fleet: &mut Fleet) {
        let at = self.rng.random_range(0..fleet.size());
        let down = self.pause(0..2_000);
        match blow {
            Blow::KillNode => {
                fleet.kill_node(at).await.unwrap();
                sleep(down).await;
                fleet.start_node(at).await.unwrap();
            }
            Blow::StopNode => {
                fleet.stop_node(at).await.unwrap();
                sleep(down).await;
                fleet.start_node(at).await.unwrap();
            }
            Blow::PauseNode => {
                // Half of the pauses are longer than a node may be silent.
                let pause = self.pause(100..JOB_TIMEOUT_S * 2_000);
                fleet.pause_node(at, pause).unwrap();
            }
            Blow::KillFrontend => {
                fleet.kill_frontend().await.unwrap();
                fleet.start_frontend().await.unwrap();
            }
            Blow::StopFrontend => {
                fleet.stop_frontend().await.unwrap();
                fleet.start_frontend().await.unwrap();
            }
            Blow::HitServer => {}
        }
    }

    async fn hit_server(&mut self, servers: &[&Process]) {
        let at = self.rng.random_range(0..servers.len());
        let (down, kind, seed) = (
            self.pause(100..3_000),
            self.rng.random_range(0..3),
            self.rng.random(),
        );
        match servers[at] {
            Process::Peer(peer) if kind == 0 => peer.restart(down / 3).await,
            // Until something else happens to it.
            Process::Peer(peer) if kind == 1 => peer.set_faults(some_faults(seed)),
            Process::Peer(peer) => peer.set_faults(Faults::none()),
            Process::PouchDb(server) if kind == 0 => server.signal(Signal::KILL),
            Process::PouchDb(server) => server.pause(down),
            Process::External => {}
        }
    }
}
