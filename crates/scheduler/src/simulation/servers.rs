//! The two servers: databases that change, and databases that do not.

use std::net::SocketAddr;
use std::sync::Arc;

use couch::{ConnectFn, Transport};
use peer::{Contents, Faults, Options, Peer, compare};
use rand::RngExt;
use rand::rngs::SmallRng;
use testkit::{actor_rng, some_time};
use tokio::time::sleep;
use wire::Io;

use super::plan::{Goal, LIVE, Plan, STILL};

/// Initial documents of a source.
const DOCUMENTS: usize = 40;

/// Source and target.
pub(super) struct Servers {
    pub(super) source: Peer,
    pub(super) target: Peer,
}

impl Servers {
    pub(super) fn start(plan: &Plan) -> Self {
        let start = |host: u8| {
            let options = Options {
                listen: SocketAddr::from(([10, 0, 0, host], 5984)),
                seed: plan.seed,
                ..Options::default()
            };
            Peer::unplugged(options)
        };
        let servers = Self {
            source: start(1),
            target: start(2),
        };
        let mut rng = actor_rng(plan.seed, &[1000]);
        for database in LIVE.into_iter().chain(STILL) {
            servers.source.create_database(database).unwrap();
            let mut writer = Writer {
                database,
                serial: 0,
            };
            for _ in 0..DOCUMENTS {
                writer.write(&servers.source, &mut rng);
            }
        }
        for goal in &plan.goals {
            servers.target.create_database(&goal.target).unwrap();
        }
        for (peer, seed) in [(&servers.source, 1), (&servers.target, 2)] {
            let seed = plan.seed.wrapping_mul(2) + seed;
            peer.set_faults(Faults::seeded(seed, plan.profile.clone()));
        }
        servers
    }

    /// How nodes connect to them.
    pub(super) fn transport(&self) -> Transport {
        let doors = [&self.source, &self.target].map(|peer| (peer.address(), peer.door().unwrap()));
        let connect: Arc<ConnectFn> = Arc::new(move |address: SocketAddr| {
            let door = doors.iter().find(|(known, _)| *known == address);
            let stream = match door {
                Some((_, door)) => door.connect(),
                None => Err(std::io::ErrorKind::HostUnreachable.into()),
            };
            let stream = stream.map(|stream| Box::new(stream) as Box<dyn Io>);
            Box::pin(std::future::ready(stream))
        });
        Transport::Custom(connect)
    }

    /// Ends all faults.
    pub(super) fn heal(&self) {
        for peer in [&self.source, &self.target] {
            peer.set_faults(Faults::none());
        }
    }

    /// Differences between the target of a goal and its source.
    pub(super) fn differences(&self, goal: &Goal) -> Vec<String> {
        let contents = |peer: &Peer, name: &str| peer.contents(name).map(Contents::without_locals);
        let source = contents(&self.source, &goal.source).unwrap();
        let target = contents(&self.target, &goal.target).unwrap();
        let differences = compare(&source, &target);
        differences.iter().map(|one| format!("{one:?}")).collect()
    }
}

/// Writes to the changing databases without end.
pub(super) async fn write_for_ever(servers: Arc<Servers>, plan: Plan) {
    let mut rng = actor_rng(plan.seed, &[1001]);
    let mut writers = LIVE.map(|database| Writer {
        database,
        serial: DOCUMENTS,
    });
    loop {
        sleep(some_time(&mut rng, plan.writes_gap)).await;
        let writer = &mut writers[rng.random_range(0..LIVE.len())];
        for _ in 0..rng.random_range(1..=4) {
            writer.write(&servers.source, &mut rng);
        }
    }
}

struct Writer {
    database: &'static str,
    serial: usize,
}

impl Writer {
    fn write(&mut self, peer: &Peer, rng: &mut SmallRng) {
        let older = rng.random_range(0..=self.serial);
        let id = format!("doc-{older}");
        let now = peer.get(self.database, &id).unwrap();
        let rev = now.as_ref().and_then(|doc| doc["_rev"].as_str());
        let note = rng.random_range(0..u64::MAX);
        let done = match (rng.random_range(0..10), rev) {
            (0, Some(rev)) => {
                let gone = format!(r#"{{"_id":"{id}","_rev":"{rev}","_deleted":true}}"#);
                peer.put(self.database, &gone).map(drop)
            }
            (1, Some(_)) => {
                let conflict = format!(r#"{{"_id":"{id}","_rev":"1-{note:032x}","note":{note}}}"#);
                peer.put_replicas(self.database, [conflict])
            }
            (2, Some(rev)) => {
                let rev = rev.parse().unwrap();
                let data = vec![b'x'; rng.random_range(1..3_000)];
                let kind = ["text/plain", "application/octet-stream"][rng.random_range(0..2)];
                peer.attach(self.database, &id, Some(&rev), "a", kind, data)
                    .map(drop)
            }
            (3..6, Some(rev)) => {
                let edited = format!(r#"{{"_id":"{id}","_rev":"{rev}","note":{note}}}"#);
                peer.put(self.database, &edited).map(drop)
            }
            _ => {
                self.serial += 1;
                let new = format!(r#"{{"_id":"doc-{}","note":{note}}}"#, self.serial);
                peer.put(self.database, &new).map(drop)
            }
        };
        done.unwrap();
    }
}
