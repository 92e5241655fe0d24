//! The order in which tenants are served: new tenants, tenants behind limits, and classes.

use super::{CYCLE_MS, START, World, add, names};
use crate::{Add, Class, Finish, JobId, LimitName};

/// A new tenant does not wait until the others have used as much as one that is served in another class.
#[tokio::test]
async fn a_tenant_starts_among_those_of_its_class() {
    for class in [Class::Normal, Class::Bulk] {
        let mut world = World::new().await;
        world.add_as("a", 50, |add| add.class(class)).await;
        for _ in 0..5 {
            world.add_as("u", 1, |add| add.class(Class::Urgent)).await;
            let run = world.claim(1).await;
            assert_eq!(names(&run), ["u"]);
            world.pass(60_000);
            world.end(&run, Finish::done()).await;
        }
        world.add_as("b", 1, |add| add.class(class)).await;
        let next = [world.claim(1).await, world.claim(1).await].concat();
        assert!(names(&next).contains(&"b".to_owned()), "{:?}", names(&next));
        world.check().await;
    }
}

/// The first job of a tenant in an idle class does not put its other jobs behind those of their class.
#[tokio::test]
async fn a_tenant_keeps_its_turn_when_it_uses_another_class() {
    let mut world = World::new().await;
    world.add("a", 50).await;
    world.add("b", 50).await;
    for _ in 0..5 {
        world.add_as("u", 1, |add| add.class(Class::Urgent)).await;
        let run = world.claim(1).await;
        world.pass(60_000);
        world.end(&run, Finish::done()).await;
    }
    let bulk = |add: Add| Add {
        id: JobId::new("b/bulk").unwrap(),
        ..add.class(Class::Bulk)
    };
    world.add_as("b", 1, bulk).await;
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.extend(names(&world.claim(1).await));
    }
    taken.sort();
    assert_eq!(taken, ["a", "a", "b", "b"]);
    world.check().await;
}

/// However many are served in other classes.
#[tokio::test]
async fn a_tenant_keeps_its_turn_beside_many_of_an_earlier_class() {
    let mut world = World::new().await;
    world.add("a", 50).await;
    world.add("b", 50).await;
    let runs = world.claim(2).await;
    world.end(&runs, Finish::again(0)).await;
    for n in 0..17 {
        let name = format!("u{n}");
        let urgent = |add: Add| add.class(Class::Urgent);
        world.add_as(&name, 10, urgent).await;
    }
    for _ in 0..5 {
        let runs = world.claim(17).await;
        world.pass(60_000);
        world.end(&runs, Finish::again(0)).await;
    }
    let used = world.uses().await["b"].vtime;
    let bulk = |add: Add| Add {
        id: JobId::new("b/bulk").unwrap(),
        ..add.class(Class::Bulk)
    };
    world.add_as("b", 1, bulk).await;
    assert_eq!(world.uses().await["b"].vtime, used);
    world.check().await;
}

/// What a tenant has used is not forgotten while tenants of a class that is served less could be overtaken.
#[tokio::test]
async fn a_tenant_is_remembered_while_others_have_used_less() {
    let mut world = World::new().await;
    world.add("a", 500).await;
    for name in ["b", "u"] {
        let class = Class::Urgent;
        world.add_as(name, 1, |add| add.class(class)).await;
        let run = world.claim(1).await;
        assert_eq!(names(&run), [name]);
        for _ in 0..if name == "b" { 4 } else { 20 } {
            world.pass(600_000);
            let op = world.jobs.op();
            let (jobs, job) = (&world.jobs, &run[0].job);
            let kept =
                jobs.store().transact(
                    "keep",
                    |tx| async move { jobs.keep_in(&tx, &op, job).await },
                );
            let _held = kept.await.unwrap();
        }
        world.end(&run, Finish::done()).await;
    }
    // The urgent one is seen to be served, and the turns of both are removed.
    world.add_as("u", 2, |add| add.class(Class::Urgent)).await;
    for _ in 0..4 {
        world.pass(31_000);
        let run = world.claim(1).await;
        world.end(&run, Finish::done()).await;
    }
    let used = world.uses().await["b"].vtime;
    world.jobs.forget_tenants(&world.ty, None).await.unwrap();
    world.add("b", 1).await;
    assert_eq!(world.uses().await["b"].vtime, used);
    world.check().await;
}

/// A new tenant gets no more than its part, also if the turns of the others lag behind because claims look at all of them.
#[tokio::test]
async fn a_new_tenant_gets_no_more_than_its_part() {
    for (tenants, seats) in [(1, 1), (18, 10), (40, 4)] {
        let mut world = World::new().await;
        for n in 0..tenants {
            world.add(&format!("t{n}"), 20).await;
        }
        for _ in 0..40 {
            let held = world.claim(seats).await;
            world.pass(CYCLE_MS);
            world.end(&held, Finish::again(0)).await;
        }
        world.add("new", 50).await;
        let mut taken = 0;
        let cycles = 2 * (tenants + 1);
        for _ in 0..cycles {
            let held = world.claim(seats).await;
            taken += names(&held).iter().filter(|name| *name == "new").count();
            world.pass(CYCLE_MS);
            world.end(&held, Finish::again(0)).await;
        }
        let part = cycles * seats / (tenants + 1);
        assert!(
            taken <= part + seats + 1,
            "{taken} of {tenants}, not {part}"
        );
        assert!(taken >= part / 2, "{taken} of {tenants}, not {part}");
        world.check().await;
    }
}

/// However many jobs of one tenant wait for a limit, those of another start.
#[tokio::test]
async fn jobs_behind_a_key_do_not_delay_other_tenants() {
    // More data than one claim returns.
    for size in [0, 200_000] {
        let world = World::new().await;
        let key = LimitName::new("k").unwrap();
        let limited = |add: Add| Add {
            data: vec![7; size].into(),
            ..add.key(key.clone())
        };
        world.add_as("a", 1, limited).await;
        assert_eq!(names(&world.claim(1).await), ["a"]);
        world.add("b", 5).await;
        assert_eq!(world.claim(5).await.len(), 5);
        for from in (0..200).step_by(20) {
            let numbered = |add: Add| Add {
                id: JobId::new(format!("{}-{from}", add.id)).unwrap(),
                ..limited(add)
            };
            world.add_as("a", 20, numbered).await;
        }
        world.add("b", 6).await;
        assert_eq!(names(&world.claim(1).await), ["b"], "{size}");
        world.check().await;
    }
}

/// Neither do those of many tenants.
#[tokio::test]
async fn tenants_behind_their_keys_do_not_delay_others() {
    let mut world = World::new().await;
    let tenants = (0..20).map(|n| format!("a{n}"));
    let tenants: Vec<_> = tenants
        .map(|name| (name.clone(), LimitName::new(name).unwrap()))
        .collect();
    for (name, key) in &tenants {
        world.add_as(name, 1, |add| add.key(key.clone())).await;
        assert_eq!(names(&world.claim(1).await), [name.as_str()]);
    }
    world.add("b", 1).await;
    let run = world.claim(1).await;
    world.pass(60_000);
    world.end(&run, Finish::done()).await;
    // Their turns are removed.
    for _ in 0..4 {
        world.pass(31_000);
        assert!(world.claim(1).await.is_empty());
    }
    for (name, key) in &tenants {
        world.add_as(name, 101, |add| add.key(key.clone())).await;
    }
    world.add("b", 1).await;
    assert_eq!(names(&world.claim(1).await), ["b"]);
    world.check().await;
}

/// A claim looks at about as many jobs that cannot start however many tenants have them.
#[tokio::test]
async fn a_claim_holds_few_jobs_of_many_tenants() {
    for (tenants, wanted) in [(64, 64), (10, 60)] {
        let world = World::new().await;
        let key = LimitName::new("k").unwrap();
        world.add_as("first", 1, |add| add.key(key.clone())).await;
        assert_eq!(names(&world.claim(1).await), ["first"]);
        for n in 0..tenants {
            let name = format!("t{n}");
            world.add_as(&name, 100, |add| add.key(key.clone())).await;
        }
        assert!(world.claim(wanted).await.is_empty());
        let held = world.jobs.limit_use(&world.ty, &key).await.unwrap().waiting;
        assert!((65..=192).contains(&held), "{held} of {tenants}");
        world.check().await;
    }
}

/// The same while some of its own can start.
#[tokio::test]
async fn jobs_behind_a_key_do_not_hide_others_of_their_tenant() {
    let world = World::new().await;
    let key = LimitName::new("k").unwrap();
    world.add_as("a", 1, |add| add.key(key.clone())).await;
    assert_eq!(names(&world.claim(1).await), ["a"]);
    let blocked = |add: Add| Add {
        id: JobId::new(format!("a/blocked-{}", add.id)).unwrap(),
        ..add.key(key.clone())
    };
    world.add_as("a", 200, blocked).await;
    let free = |add: Add| Add {
        id: JobId::new("a/free").unwrap(),
        ..add
    };
    world.add_as("a", 1, free).await;
    world.add("b", 50).await;
    let mut claims = 0;
    loop {
        claims += 1;
        let run = world.claim(1).await;
        if names(&run) == ["a"] {
            break;
        }
        assert_eq!(names(&run), ["b"]);
        assert!(claims < 6, "a/free waits for {claims} claims");
    }
    world.check().await;
}

/// No job of a later class starts while tenants have more of an earlier one that were not looked at.
#[tokio::test]
async fn jobs_behind_a_key_do_not_hide_those_of_their_class() {
    let world = World::new().await;
    let key = LimitName::new("k").unwrap();
    let urgent = |add: Add| add.class(Class::Urgent);
    world
        .add_as("a", 1, |add| urgent(add).key(key.clone()))
        .await;
    assert_eq!(names(&world.claim(1).await), ["a"]);
    world
        .add_as("a", 301, |add| urgent(add).key(key.clone()))
        .await;
    let free = |add: Add| Add {
        id: JobId::new("free/urgent").unwrap(),
        ..urgent(add)
    };
    world.add_as("a", 1, free).await;
    world.add("b", 50).await;
    let mut claims = 0;
    loop {
        claims += 1;
        let run = world.claim(1).await;
        if !run.is_empty() {
            assert_eq!(names(&run), ["free"]);
            break;
        }
        assert!(claims < 40);
    }
    world.check().await;
}

/// A scheduled job that has just become due does not take the slot that an urgent one needs.
#[tokio::test]
async fn a_due_job_starts_after_those_of_earlier_classes() {
    let mut world = World::new().await;
    assert!(world.claim(1).await.is_empty());
    let key = LimitName::new("k").unwrap();
    let due_ms = START + 5;
    world
        .add_as("n", 1, |add| add.key(key.clone()).due_ms(due_ms))
        .await;
    world
        .add_as("u", 1, |add| add.key(key.clone()).class(Class::Urgent))
        .await;
    world.pass(10);
    assert_eq!(names(&world.claim(2).await), ["u"]);
    world.check().await;
}

/// A tenant gets its turns in two classes from two transactions, each of which finds it without any.
#[tokio::test]
async fn a_tenant_that_starts_in_two_classes_at_once_starts_among_the_others() {
    let mut world = World::new().await;
    world.add("a", 50).await;
    for _ in 0..20 {
        let run = world.claim(1).await;
        world.pass(60_000);
        world.end(&run, Finish::again(0)).await;
    }
    let used = world.uses().await["a"].vtime;
    let (jobs, ty, op) = (&world.jobs, &world.ty, &world.jobs.op());
    let urgent = &[add("n", 0).class(Class::Urgent)];
    let added = jobs.store().transact("add", |tx| async move {
        jobs.add_many_in(&tx, op, ty, urgent).await?;
        if tx.attempt() == 1 {
            jobs.add(ty, add("n", 1)).await?;
        }
        Ok::<_, crate::Error>(())
    });
    added.await.unwrap();
    assert!(world.uses().await["n"].vtime <= used);
    assert_eq!(names(&world.claim(1).await), ["n"]);
    world.check().await;
}
