//! Classes of priority, one step at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use store::Store;

use crate::{
    Add, Class, Clock, Entropy, Finish, Holder, JobId, JobType, Jobs, Lane, Limit, LimitName,
    State, TypeConfig,
};

struct World {
    jobs: Jobs,
    ty: JobType,
    me: Holder,
}

impl World {
    async fn new() -> Self {
        let store = Store::open("memory:").await.unwrap();
        let clock = Clock::simulated(1_700_000_000_000);
        let jobs = Jobs::new(store, clock, Entropy::seeded(1));
        let ty = JobType::new("push").unwrap();
        jobs.set_type(&ty, TypeConfig::new(30_000)).await.unwrap();
        let me = Holder::new("me").unwrap();
        Self { jobs, ty, me }
    }

    async fn add(&self, id: &str, class: Class, change: impl FnOnce(Add) -> Add) {
        let add = Add::new(id.try_into().unwrap(), "").class(class);
        self.jobs.add(&self.ty, change(add)).await.unwrap();
        self.check().await;
    }

    /// The classes of the jobs that a claim takes.
    async fn claim(&self, count: usize) -> Vec<Class> {
        let claimed = self.jobs.accept(&self.ty, &self.me, count).await.unwrap();
        self.check().await;
        let mut classes = Vec::new();
        for accepted in claimed.jobs {
            classes.push(self.class(&accepted.job.id).await);
        }
        classes
    }

    async fn class(&self, id: &JobId) -> Class {
        let info = self.jobs.info(&self.ty, id).await.unwrap();
        info.unwrap().class
    }

    async fn check(&self) {
        let check = self.jobs.check(&self.ty).await.unwrap();
        assert!(check.problems.is_empty(), "{:?}", check.problems);
    }
}

const RANKS: [Class; 3] = Class::ALL;

/// Many jobs of each class, ready, scheduled or in lanes: claims take all of one class before those of the next.
#[tokio::test(start_paused = true)]
async fn classes_are_taken_one_after_another() {
    let due_ms = |number: usize| i64::try_from(number).unwrap() % 2;
    for (lanes, count) in [(0, 7), (3, 7), (3, 400), (0, 1)] {
        let world = World::new().await;
        for number in 0..90 {
            let class = RANKS[number % 3];
            world
                .add(&format!("{number}"), class, |add| {
                    let add = add.due_ms(due_ms(number / 3));
                    if number / 3 % 4 < lanes {
                        add.lane(Lane::of(&[u8::try_from(number).unwrap() % 7]))
                    } else {
                        add
                    }
                })
                .await;
        }
        // A scheduled job that is not due delays nothing.
        world
            .add("later", Class::Urgent, |add| add.due_ms(i64::MAX))
            .await;
        let mut taken = Vec::new();
        loop {
            let classes = world.claim(count).await;
            if classes.is_empty() {
                break;
            }
            taken.extend(classes);
        }
        assert_eq!(taken.len(), 90);
        assert!(taken.is_sorted(), "{taken:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_due_job_of_any_class_is_known() {
    let world = World::new().await;
    let now_ms = world.jobs.clock().now_ms();
    world
        .add("bulk", Class::Bulk, |add| add.due_ms(now_ms + 10))
        .await;
    let claimed = world.jobs.accept(&world.ty, &world.me, 1).await.unwrap();
    assert_eq!(claimed.next_due_ms, Some(now_ms + 10));
    world
        .add("urgent", Class::Urgent, |add| add.due_ms(now_ms + 5))
        .await;
    let claimed = world.jobs.accept(&world.ty, &world.me, 1).await.unwrap();
    assert_eq!(claimed.next_due_ms, Some(now_ms + 5));
}

/// Adding a job again, a retry and a requested run leave it in its class; another class moves it.
#[tokio::test(start_paused = true)]
async fn a_job_stays_in_its_class() {
    let world = World::new().await;
    let id: JobId = "job".try_into().unwrap();
    world.add("job", Class::Bulk, |add| add).await;
    let ends = [
        Finish::again(0),
        Finish::again(1),
        Finish::dead("no"),
        Finish::done(),
    ];
    for finish in ends {
        let claimed = world.jobs.accept(&world.ty, &world.me, 1).await.unwrap();
        let _ = (world.jobs.finish(&claimed.jobs[0].job, finish).await).unwrap();
        world.check().await;
        assert_eq!(world.class(&id).await, Class::Bulk);
        world.jobs.retry(&world.ty, &id).await.unwrap();
        let asked = world.jobs.resubmit(&world.ty, &id, Some(0), None).await;
        asked.unwrap();
        world.check().await;
        assert_eq!(world.class(&id).await, Class::Bulk);
    }
    for class in RANKS {
        world.add("job", class, |add| add).await;
        assert_eq!(world.class(&id).await, class);
        let counts = world.jobs.counts_by_class(&world.ty).await.unwrap();
        assert_eq!(counts, BTreeMap::from([((State::Pending, class), 1)]));
    }
}

/// A freed slot goes to the first class, and a job that waits for one lets others of its class start before those of the next.
#[tokio::test(start_paused = true)]
async fn a_freed_slot_goes_to_the_first_class() {
    for max in [1, 2] {
        let world = World::new().await;
        let name = LimitName::new("pool").unwrap();
        let limit = Some(Limit::at_once(max));
        let set = world.jobs.set_limit(&world.ty, &name, limit).await;
        set.unwrap();
        let pool = |add: Add| add.pool(name.clone());
        for number in 0..max {
            world
                .add(&format!("holder-{number}"), Class::Normal, pool)
                .await;
        }
        let holders = world
            .jobs
            .accept(&world.ty, &world.me, 9)
            .await
            .unwrap()
            .jobs;
        assert_eq!(holders.len(), max as usize);
        for (number, class) in [Class::Bulk, Class::Normal, Class::Urgent, Class::Normal]
            .into_iter()
            .enumerate()
        {
            world.add(&format!("{number}"), class, pool).await;
            assert!(world.claim(9).await.is_empty());
        }
        world.add("other", Class::Bulk, |add| add).await;
        let mut taken = Vec::new();
        let mut running = holders;
        while !running.is_empty() {
            let end = running.remove(0);
            let _ = (world.jobs.finish(&end.job, Finish::done()).await).unwrap();
            world.check().await;
            let next = world.jobs.accept(&world.ty, &world.me, 9).await.unwrap();
            for accepted in &next.jobs {
                if *accepted.job.id.as_bytes() != *b"other" {
                    taken.push(world.class(&accepted.job.id).await);
                }
            }
            running.extend(next.jobs);
        }
        assert_eq!(
            taken,
            [Class::Urgent, Class::Normal, Class::Normal, Class::Bulk]
        );
    }
}

/// Otherwise a job of a later class would keep its slot while earlier classes keep all holders busy.
#[tokio::test(start_paused = true)]
async fn an_earlier_class_gets_the_slot_of_a_job_that_has_not_started() {
    for (max, of_key) in [(1, true), (1, false), (3, false)] {
        let world = World::new().await;
        let name = LimitName::new("limit").unwrap();
        let limit = Some(Limit::at_once(max));
        let set = world.jobs.set_limit(&world.ty, &name, limit).await;
        set.unwrap();
        let limited = |add: Add| {
            if of_key {
                add.key(name.clone())
            } else {
                add.pool(name.clone())
            }
        };
        for number in 0..max {
            let id = format!("first-{number}");
            world.add(&id, Class::Bulk, limited).await;
        }
        let first = world.jobs.accept(&world.ty, &world.me, 9).await.unwrap();
        for number in 0..max {
            let id = format!("second-{number}");
            world.add(&id, Class::Bulk, limited).await;
        }
        assert_eq!(world.claim(9).await, []);
        for run in first.jobs {
            let _ = (world.jobs.finish(&run.job, Finish::done()).await).unwrap();
            world.check().await;
        }
        for (id, class) in [("normal", Class::Normal), ("urgent", Class::Urgent)] {
            world.add(id, class, limited).await;
        }
        let mut taken = Vec::new();
        let mut rounds = 0;
        while taken.len() < max as usize + 2 {
            rounds += 1;
            assert!(rounds < 20, "{taken:?}");
            let claimed = world.jobs.accept(&world.ty, &world.me, 1).await.unwrap();
            world.check().await;
            for accepted in claimed.jobs {
                taken.push(world.class(&accepted.job.id).await);
                let _ = (world.jobs.finish(&accepted.job, Finish::done()).await).unwrap();
                world.check().await;
            }
        }
        assert!(taken.is_sorted(), "{taken:?}");
    }
}

/// A job has its key and waits for its pool, which others keep busy.
#[tokio::test(start_paused = true)]
async fn an_earlier_class_gets_the_key_of_a_job_that_waits_for_its_pool() {
    let world = World::new().await;
    let [key, pool] = ["key", "pool"].map(|name| LimitName::new(name).unwrap());
    world
        .add("busy", Class::Normal, |add| add.pool(pool.clone()))
        .await;
    let busy = world.jobs.accept(&world.ty, &world.me, 1).await.unwrap();
    let both = |add: Add| add.key(key.clone()).pool(pool.clone());
    world.add("bulk", Class::Bulk, both).await;
    assert_eq!(world.claim(1).await, []);
    let id = "bulk".try_into().unwrap();
    let info = world.jobs.info(&world.ty, &id).await.unwrap().unwrap();
    assert_eq!(info.waits_for, Some(pool.clone()));
    world
        .add("urgent", Class::Urgent, |add| add.key(key.clone()))
        .await;
    assert_eq!(world.claim(1).await, []);
    assert_eq!(world.claim(1).await, [Class::Urgent]);
    let _ = (world.jobs.finish(&busy.jobs[0].job, Finish::done()).await).unwrap();
    world.check().await;
    assert_eq!(world.claim(9).await, []);
}

/// However many jobs of an earlier class wait for a limit, with or without lanes, none of a later class starts before the one
/// among them that can.
#[tokio::test(start_paused = true)]
async fn jobs_behind_a_limit_do_not_hide_others_of_their_class() {
    for (count, lanes, later) in [
        (300, false, Class::Normal),
        (20, true, Class::Normal),
        (300, false, Class::Bulk),
    ] {
        let earlier = if later == Class::Normal {
            Class::Urgent
        } else {
            Class::Normal
        };
        let world = World::new().await;
        let key = LimitName::new("k").unwrap();
        world
            .add("first", earlier, |add| add.key(key.clone()))
            .await;
        assert_eq!(world.claim(1).await, [earlier]);
        let in_lane = |add: Add, number| {
            if lanes {
                add.lane(Lane::of(&[number]))
            } else {
                add
            }
        };
        let adds = (0..count).map(|number| {
            let id = format!("{number}").as_str().try_into().unwrap();
            let add = Add::new(id, "").class(earlier).key(key.clone());
            in_lane(add, u8::try_from(number % 7).unwrap())
        });
        let mut adds: Vec<_> = adds.collect();
        let other = Add::new("other".try_into().unwrap(), "").class(earlier);
        adds.push(in_lane(other, 7));
        for number in 0..50 {
            let id = format!("later-{number}").as_str().try_into().unwrap();
            adds.push(Add::new(id, "").class(later));
        }
        world.jobs.add_many(&world.ty, &adds).await.unwrap();
        let mut claims = 0;
        loop {
            let classes = world.claim(1).await;
            if !classes.is_empty() {
                assert_eq!(classes, [earlier], "after {claims} claims");
                break;
            }
            claims += 1;
            assert!(claims < 40);
        }
    }
}

/// A waiting job that is added again in an earlier class needs the slot as much as a new one.
#[tokio::test(start_paused = true)]
async fn a_waiting_job_of_an_earlier_class_gets_the_slot() {
    for class in [Class::Urgent, Class::Normal] {
        let world = World::new().await;
        let key = LimitName::new("k").unwrap();
        let limited = |add: Add| add.key(key.clone());
        world.add("first", Class::Bulk, limited).await;
        let first = world.jobs.accept(&world.ty, &world.me, 1).await.unwrap();
        world.add("second", Class::Bulk, limited).await;
        assert_eq!(world.claim(1).await, []);
        world.add("third", Class::Bulk, limited).await;
        assert_eq!(world.claim(1).await, []);
        let _ = (world.jobs.finish(&first.jobs[0].job, Finish::done()).await).unwrap();
        world.check().await;
        world.add("third", class, limited).await;
        assert_eq!(world.claim(1).await, []);
        assert_eq!(world.claim(1).await, [class]);
    }
}

/// A job that has its key and a later start of its pool gives both to a job of an earlier class.
#[tokio::test(start_paused = true)]
async fn an_earlier_class_gets_the_slots_of_a_job_that_starts_later() {
    for of_key in [true, false] {
        let world = World::new().await;
        let [key, pool] = ["key", "pool"].map(|name| LimitName::new(name).unwrap());
        let hour = Duration::from_hours(1);
        let rate = Limit::per(1, u64::try_from(hour.as_millis()).unwrap());
        let set = world.jobs.set_limit(&world.ty, &pool, Some(rate)).await;
        set.unwrap();
        world
            .add("first", Class::Normal, |add| add.pool(pool.clone()))
            .await;
        assert_eq!(world.claim(1).await, [Class::Normal]);
        let both = |add: Add| add.key(key.clone()).pool(pool.clone());
        world.add("bulk", Class::Bulk, both).await;
        assert_eq!(world.claim(1).await, []);
        let of_one = |add: Add| {
            if of_key {
                add.key(key.clone())
            } else {
                add.pool(pool.clone())
            }
        };
        world.add("urgent", Class::Urgent, of_one).await;
        assert_eq!(world.claim(1).await, []);
        if of_key {
            assert_eq!(world.claim(1).await, [Class::Urgent]);
            tokio::time::advance(hour).await;
            let urgent = "urgent".try_into().unwrap();
            world.jobs.remove(&world.ty, &urgent).await.unwrap();
        } else {
            assert_eq!(world.claim(1).await, []);
            tokio::time::advance(hour).await;
            assert_eq!(world.claim(9).await, [Class::Urgent]);
            tokio::time::advance(hour).await;
        }
        let mut last = world.claim(9).await;
        last.extend(world.claim(9).await);
        assert_eq!(last, [Class::Bulk]);
    }
}
