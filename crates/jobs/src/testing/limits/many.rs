//! Types with many limits.

use std::time::Duration;

use super::{World, ids, job_id, key, limit_name};
use crate::{Add, Limit, LimitName, Maintenance, Options};

impl World {
    /// Adds jobs, each with a limit of its own in a group.
    async fn add_to_group(&self, group: &str, count: usize) {
        let adds = (0..count).map(|n| {
            let name = LimitName::new(format!("{group}|{n}")).unwrap();
            Add::new(job_id(&format!("{group}-{n}")), "data").key(name)
        });
        let adds: Vec<Add> = adds.collect();
        for adds in adds.chunks(300) {
            self.jobs.add_many(&self.ty, adds).await.unwrap();
        }
    }

    /// The number of transactions so far.
    fn transactions(&self) -> u64 {
        let stats = self.jobs.store().stats();
        stats.values().map(|stats| stats.calls).sum()
    }
}

/// A change of one limit costs nothing for the others.
#[tokio::test(start_paused = true)]
async fn a_change_looks_only_at_limits_of_its_name() {
    let world = World::new().await;
    world.add_to_group("other", 300).await;
    let started = world.jobs.accept(&world.ty, &world.me, 400).await.unwrap();
    assert_eq!(started.jobs.len(), 300);
    for id in ["a", "b"] {
        world.add(id, key("x|y")).await;
        world.claim().await;
    }
    let before = world.transactions();
    let (name, limit) = (limit_name("x"), Some(Limit::at_once(2)));
    let set = world.jobs.set_limit(&world.ty, &name, limit).await;
    set.unwrap();
    assert!(world.transactions() - before < 10);
    assert_eq!(world.claim().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn maintenance_clears_as_many_rows_of_rates_as_there_are() {
    let world = World::new().await;
    world.set("api", Limit::per(1, 10_000)).await;
    world.add_to_group("api", 2_200).await;
    let mut started = 0;
    while started < 2_200 {
        let claimed = world.jobs.accept(&world.ty, &world.me, 500).await;
        started += claimed.unwrap().jobs.len();
    }
    let service = Maintenance::new(world.jobs.clone(), Options::default());
    let stop = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn(service.serve(world.ty.clone()).run(stop.clone()));
    tokio::time::sleep(Duration::from_mins(11)).await;
    let slots = world.jobs.keys().all_slots(&world.ty);
    assert!(world.jobs.rows(slots).await.is_empty());
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_nearest_group_counts() {
    let world = World::new().await;
    world.set("a", Limit::at_once(1)).await;
    world.set("a|b", Limit::at_once(2)).await;
    for n in 0..3 {
        world.add(&format!("near-{n}"), key("a|b|c")).await;
        world.add(&format!("wide-{n}"), key("a|x|c")).await;
    }
    let runs = ids(&world.claim().await);
    let near = runs.iter().filter(|id| id.starts_with("near"));
    assert_eq!((runs.len(), near.count()), (3, 2));
    world.set("a|b", Limit::at_once(3)).await;
    assert_eq!(world.claim().await.len(), 1);
}
