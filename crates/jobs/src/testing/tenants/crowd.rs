//! Many tenants.

use std::collections::{BTreeMap, BTreeSet};

use super::{CYCLE_MS, World, names, of};
use crate::{Add, Class, Finish, JobId};

/// Tenants without jobs lose their turns, and are forgotten once they have gained nothing.
#[tokio::test]
async fn many_tenants_come_and_go() {
    let mut world = World::new().await;
    let mut expected = BTreeSet::new();
    for n in 0..2_000 {
        let name = format!("t{n}");
        world.add(&name, 1).await;
        expected.insert(name);
    }
    world.check().await;
    let mut taken = BTreeSet::new();
    for _ in 0..200 {
        let held = world.claim(20).await;
        taken.extend(names(&held));
        world.pass(10);
        world.end(&held, Finish::done()).await;
    }
    assert_eq!(taken, expected);
    world.check().await;
    for _ in 0..200 {
        world.pass(1_000);
        assert!(world.claim(1).await.is_empty());
    }
    assert_eq!(world.turns().await, 0);
    world.add("late", 1).await;
    for _ in 0..12 {
        let held = world.claim(1).await;
        world.pass(CYCLE_MS);
        world.end(&held, Finish::again(0)).await;
    }
    let mut from = None;
    loop {
        from = (world.jobs.forget_tenants(&world.ty, from.as_ref()).await).unwrap();
        if from.is_none() {
            break;
        }
    }
    let left: Vec<String> = world.uses().await.into_keys().collect();
    assert_eq!(left, ["late"]);
    world.check().await;
}

#[tokio::test]
async fn a_check_compares_any_number_of_turns() {
    let world = World::new().await;
    let (jobs, ty) = (&world.jobs, &world.ty);
    let tenant = |number: u32| (Class::Normal, number.to_string().into());
    let numbers: Vec<u32> = (0..110_000).collect();
    for numbers in numbers.chunks(10_000) {
        let written = jobs.store().transact("test", |tx| async move {
            for number in numbers {
                let tenant = tenant(*number);
                tx.set(&jobs.keys().there(ty, &tenant), &[]);
                tx.set(&jobs.keys().turn(ty, &tenant, (*number).into()), &[0; 8]);
            }
            Ok::<_, crate::Error>(())
        });
        written.await.unwrap();
    }
    assert_eq!(jobs.check(ty).await.unwrap().problems, [""; 0]);
    let changed = jobs.store().transact("test", |tx| async move {
        tx.clear(&jobs.keys().turn(ty, &tenant(105_000), 105_000));
        tx.set(&jobs.keys().turn(ty, &tenant(7), 200_000), &[0; 8]);
        tx.clear(&jobs.keys().there(ty, &tenant(50_000)));
        Ok::<_, crate::Error>(())
    });
    changed.await.unwrap();
    let problems = jobs.check(ty).await.unwrap().problems;
    let expected = [("105000", 0, 1), ("50000", 1, 0), ("7", 2, 1)].map(|(name, turns, known)| {
        format!("tenant \"{name}\" has {turns} turns in class Normal, and {known} are known")
    });
    assert_eq!(problems, expected);
}

/// No later claim has to pass their turns.
#[tokio::test]
async fn a_claim_that_empties_many_tenants_removes_their_turns() {
    let world = World::new().await;
    for n in 0..40 {
        world.add(&format!("t{n}"), 2).await;
    }
    assert_eq!((world.claim(40).await.len(), world.turns().await), (40, 40));
    assert_eq!((world.claim(40).await.len(), world.turns().await), (40, 0));
    world.check().await;
    world
        .add_as("t7", 1, |add| Add {
            id: JobId::new("third").unwrap(),
            ..add
        })
        .await;
    assert_eq!(names(&world.claim(1).await), ["third"]);
    world.check().await;
}

/// Claims among many tenants begin where the last one did, but find who returns before.
#[tokio::test]
async fn who_returns_among_many_tenants_is_found() {
    let world = World::new().await;
    for n in 0..60 {
        world.add(&format!("t{n}"), 5).await;
    }
    assert_eq!(world.claim(2).await.len(), 2);
    world.add_as("b", 1, |add| add.class(Class::Urgent)).await;
    assert_eq!(names(&world.claim(1).await), ["b"]);
    world.add("a", 1).await;
    let mut claims = 0;
    while names(&world.claim(1).await) != ["a"] {
        claims += 1;
        assert!(claims < 40, "it was not found in {claims} claims");
    }
    world.check().await;
}

/// Tenants beyond those that a claim looks at get their turn, too.
#[tokio::test]
async fn many_tenants_get_equal_parts() {
    let mut world = World::new().await;
    for n in 0..60 {
        world.add(&format!("t{n}"), 10).await;
    }
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..1_200 {
        let held = world.claim(1).await;
        *runs.entry(of(&held[0])).or_default() += 1;
        world.pass(1_000);
        world.end(&held, Finish::again(0)).await;
    }
    let (least, most) = (runs.values().min(), runs.values().max());
    assert!(
        (runs.len(), least >= Some(&18), most <= Some(&22)) == (60, true, true),
        "{runs:?}"
    );
    world.check().await;
}
