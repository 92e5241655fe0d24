//! Limits that are lowered or removed while more jobs run than they allow from then on.

use super::{World, key, limit_name, pool};
use crate::{Finish, Limit};

/// The stored setting: the maximum, and up to which number slots may be taken.
async fn stored(world: &World, name: &str) -> Option<(u32, u32, bool)> {
    let (jobs, ty) = (&world.jobs, &world.ty);
    let rules = (jobs.store())
        .transact("look", |tx| async move { jobs.limit_rules(&tx, ty).await })
        .await
        .unwrap();
    let rule = rules.by_name.get(name.as_bytes());
    rule.map(|rule| (rule.limit.max, rule.over, rule.removed))
}

#[tokio::test(start_paused = true)]
async fn removing_a_setting_admits_no_more_than_one() {
    let world = World::new().await;
    world.set("k", Limit::at_once(3)).await;
    for id in ["a", "b", "c", "d"] {
        world.add(id, key("k")).await;
    }
    let runs = world.claim().await;
    assert_eq!(runs.len(), 3);
    let (jobs, ty) = (&world.jobs, &world.ty);
    jobs.set_limit(ty, &limit_name("k"), None).await.unwrap();
    world.check().await;
    assert!(jobs.limits(ty).await.unwrap().is_empty());
    assert_eq!(stored(&world, "k").await, Some((1, 3, true)));

    for run in &runs[..2] {
        world.finish(run, Finish::done()).await;
        jobs.relax_limits(ty).await.unwrap();
        world.check().await;
        assert!(world.claim().await.is_empty());
    }
    world.finish(&runs[2], Finish::done()).await;
    assert_eq!(world.claim().await.len(), 1);
    jobs.relax_limits(ty).await.unwrap();
    world.check().await;
    assert_eq!(stored(&world, "k").await, None);
    world.add("e", key("k")).await;
    assert!(world.claim().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lowered_limit_forgets_what_it_was() {
    let world = World::new().await;
    world.set("pool", Limit::at_once(3)).await;
    for id in ["a", "b", "c"] {
        world.add(id, pool("pool|x")).await;
    }
    let runs = world.claim().await;
    world.set("pool", Limit::at_once(1)).await;
    let (jobs, ty) = (&world.jobs, &world.ty);
    jobs.relax_limits(ty).await.unwrap();
    assert_eq!(stored(&world, "pool").await, Some((1, 3, false)));
    for run in &runs {
        world.finish(run, Finish::done()).await;
    }
    jobs.relax_limits(ty).await.unwrap();
    assert_eq!(stored(&world, "pool").await, Some((1, 0, false)));
    world.check().await;
}
