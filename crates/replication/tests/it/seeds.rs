//! Random histories, random faults, random ends of runs: the target always ends equal to the source.
//!
//! `TEST_SEEDS=from..to` runs other seeds than the few of every day. A seed that fails is printed and runs alone by
//! `TEST_SEEDS=n..n+1`.

use std::fmt::Write as _;
use std::time::Duration;

use peer::{Faults, Options, Profile, SeqForm};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use replication::Stats;
use replication::engine::Gate;
use serde_json::{Value, json};

use crate::fixture::{Running, World};

fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(wanted) = std::env::var("TEST_SEEDS") else {
        return usual;
    };
    let (from, to) = wanted.split_once("..").expect("TEST_SEEDS=from..to");
    from.parse().unwrap()..to.parse().unwrap()
}

#[tokio::test]
async fn bad_networks() {
    for seed in seeds(0..6) {
        history(seed, &Profile::network()).await;
    }
}

#[tokio::test]
async fn busy_servers() {
    for seed in seeds(100..104) {
        history(seed, &Profile::overload()).await;
    }
}

#[tokio::test]
async fn chaos() {
    for seed in seeds(200..206) {
        history(seed, &Profile::chaos()).await;
    }
}

async fn history(seed: u64, profile: &Profile) {
    let mut chance = StdRng::seed_from_u64(seed);
    let seqs = [SeqForm::Opaque, SeqForm::Number, SeqForm::Array][chance.random_range(0..3)];
    let options = || Options {
        seqs,
        seed,
        ..Options::default()
    };
    let mut world = World::apart(options(), options()).await;
    world.settings.stop_grace = Duration::from_millis(chance.random_range(0..200));
    let batch = [1, 7, 50, 500][chance.random_range(0..4)];
    let replication = json!({
        "worker_batch_size": batch,
        "worker_processes": chance.random_range(1..5),
        "http_connections": chance.random_range(1..10),
        "use_bulk_get": chance.random_bool(0.8),
        "checkpoint_interval": if chance.random_bool(0.5) { 30_000 } else { chance.random_range(10..200) },
        "connection_timeout": 1500,
        "retries_per_request": 1,
        "continuous": chance.random_bool(0.5),
    });
    let mut log = format!("seed {seed}: {replication}\n");
    let mut kept = None;
    for round in 0..5 {
        edit(&world, &mut chance);
        mishap(&world, &mut chance);
        let profile = Profile {
            faults_max: 25,
            ..profile.clone()
        };
        world
            .source
            .set_faults(Faults::seeded(chance.random(), profile.clone()));
        world
            .target()
            .set_faults(Faults::seeded(chance.random(), profile));
        let mut prepared = world.prepare(&replication, Stats::default()).await.unwrap();
        // Now and then an old one, as when a node was killed.
        prepared.resume.clone_from(&kept);
        let running = Running::of(prepared, Gate::open());
        let patience = Duration::from_millis(chance.random_range(20..1500));
        tokio::time::sleep(patience).await;
        match chance.random_range(0..4) {
            0 => running.control.stop(),
            1 | 2 => running.control.rest(),
            _ => running.control.abort(),
        }
        let ended = running.end().await;
        if let Ok(outcome) = &ended {
            kept.clone_from(&outcome.progress.resume);
        }
        let _ = writeln!(
            log,
            "round {round}: {}",
            match ended {
                Ok(outcome) => format!("{:?} {:?}", outcome.ending, outcome.progress.stats),
                Err(error) => error.to_info().to_string(),
            }
        );
    }
    world.source.set_faults(Faults::none());
    world.target().set_faults(Faults::none());
    let mut last = replication.clone();
    // The same checkpoints, so a position that is ahead of the documents would show now.
    last["continuous"] = json!(false);
    world.replicate(last).await;
    let differences = world.differences();
    assert!(differences.is_empty(), "{log}\n{differences:?}");
}

impl World {
    /// Whether the source has the document, deleted or not.
    fn has_had(&self, id: &str) -> bool {
        self.source
            .contents("a")
            .unwrap()
            .documents
            .contains_key(id)
    }
}

/// Sometimes the target, or a checkpoint, is deleted.
fn mishap(world: &World, chance: &mut StdRng) {
    match chance.random_range(0..10) {
        0 => {
            world.target().delete_database("b").unwrap();
            world.target().create_database("b").unwrap();
        }
        1 => {
            let (peer, side) =
                [(&world.source, "a"), (world.target(), "b")][chance.random_range(0..2)];
            for id in peer.contents(side).unwrap().locals.keys() {
                let rev = &peer.get(side, id).unwrap().unwrap()["_rev"];
                let gone = json!({"_id": id, "_rev": rev, "_deleted": true});
                peer.put(side, &gone.to_string()).unwrap();
            }
        }
        _ => {}
    }
}

/// Some edits of the source, of every kind.
pub(crate) fn edit(world: &World, chance: &mut StdRng) {
    for _ in 0..chance.random_range(5..60) {
        let id = id(chance);
        let current = world.source.get("a", &id).unwrap();
        let rev = current
            .as_ref()
            .map(|doc| doc["_rev"].as_str().unwrap().to_owned());
        match (chance.random_range(0..10), rev) {
            (0, Some(rev)) => write(world, &json!({"_id": id, "_rev": rev, "_deleted": true})),
            // The attachment of a recreated document gets generation 1, as in CouchDB. A target that has the deleted one
            // then takes its attachment of that name for the new one.
            (1..3, rev) if rev.is_some() || !world.has_had(&id) => {
                attach(world, chance, &id, rev.as_deref());
            }
            (3..5, _) => conflict(world, chance, &id),
            (_, rev) => {
                let mut doc = current.unwrap_or_else(|| json!({"_id": id}));
                doc["value"] = value(chance);
                if let Some(rev) = rev {
                    doc["_rev"] = json!(rev);
                }
                write(world, &doc);
            }
        }
    }
}

fn write(world: &World, doc: &Value) {
    world.source.put("a", &doc.to_string()).unwrap();
}

fn id(chance: &mut StdRng) -> String {
    let n = chance.random_range(0..40);
    match chance.random_range(0..12) {
        0 => format!("_design/d{}", n % 3),
        1 => format!("é/ü {n}"),
        2 => format!("a+b%2F&=?#{n}"),
        3 => format!("\u{1F600}\"\\{n}"),
        _ => format!("doc{n}"),
    }
}

fn value(chance: &mut StdRng) -> Value {
    match chance.random_range(0..6) {
        0 => json!({"z": 1, "a": [null, true, {"b": {}}]}),
        // More than this JavaScript does not keep.
        1 => json!(chance.random_range(-(1_i64 << 53)..1 << 53)),
        2 => json!(chance.random::<f64>() * 1e300),
        3 => json!("\u{0} \u{1F600} é \" \\ /"),
        4 => json!("x".repeat(chance.random_range(0..20_000))),
        _ => json!([chance.random::<u8>(), 1.5, -0.25]),
    }
}

fn attach(world: &World, chance: &mut StdRng, id: &str, rev: Option<&str>) {
    let length = [0, 1, 500, 30_000, 200_000][chance.random_range(0..5)];
    let data: Vec<u8> = (0..length).map(|_| chance.random::<u8>() % 64).collect();
    let kind = [
        "text/plain",
        "application/octet-stream",
        "image/png; x=\"1\"",
    ][chance.random_range(0..3)];
    let name = ["a", "b.txt", "c/d é"][chance.random_range(0..3)];
    let rev = rev.map(|rev| rev.parse().unwrap());
    world
        .source
        .attach("a", id, rev.as_ref(), name, kind, data)
        .unwrap();
}

/// A leaf from another writer, sometimes with ancestors that exist here.
fn conflict(world: &World, chance: &mut StdRng, id: &str) {
    let known = world
        .source
        .contents("a")
        .unwrap()
        .documents
        .get(id)
        .and_then(|leaves| {
            let (rev, leaf) = leaves.first_key_value()?;
            Some(leaf.ancestors.first().unwrap_or(rev).to_string())
        });
    let base = known
        .filter(|_| chance.random_bool(0.7))
        .unwrap_or_else(|| format!("1-{:032x}", chance.random::<u128>()));
    let (generation, hash) = base.split_once('-').unwrap();
    let generation: u64 = generation.parse().unwrap();
    let ids = [format!("{:032x}", chance.random::<u128>()), hash.to_owned()];
    let doc = json!({
        "_id": id, "_rev": format!("{}-{}", generation + 1, ids[0]),
        "_revisions": {"start": generation + 1, "ids": ids},
        "_deleted": chance.random_bool(0.2), "other": value(chance),
    });
    world.source.put_replicas("a", [doc.to_string()]).unwrap();
}
