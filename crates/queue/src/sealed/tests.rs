//! Sealed types on nodes with different keys.

use std::sync::Arc;
use std::time::Duration;

use jobs::{Clock, Entropy, JobId, Jobs, Options, State};
use seal::{Sealer, Unreadable, keys_in_use};
use store::{KeyRange, RangeOptions, Store, Transaction};

use crate::{
    Claim, Ended, EndedStatus, Error, NewJob, Queue, Result, Schedule, Settings, Shown, Type,
    TypeName, schedules_type,
};

const SECRET: &[u8] = b"hunter2";

fn node(store: &Store, keys: &str) -> Queue {
    let keys = keys
        .chars()
        .map(|key| (key.to_string(), [key as u8; 32]))
        .collect();
    let jobs = Jobs::new(
        store.clone(),
        Clock::simulated(1_000_000),
        Entropy::seeded(1),
    );
    Queue::new(jobs, Options::default(), Sealer::new(keys).unwrap())
}

async fn ty(queue: &Queue, sealed: bool) -> Arc<Type> {
    let settings = format!(r#"{{"sealed":{sealed},"retry":{{"limit":0}}}}"#);
    let settings: Settings = serde_json::from_str(&settings).unwrap();
    let name = TypeName::new("mail").unwrap();
    queue.put_type(&name, &settings).await.unwrap();
    queue.find(&name).await.unwrap()
}

async fn add(queue: &Queue, ty: &Type, id: &str) {
    let job = format!(r#"{{"id":"{id}","data":{{"password":"hunter2"}}}}"#);
    let job: NewJob = serde_json::from_str(&job).unwrap();
    let added = queue.add(ty, vec![Ok(job)], None).await.unwrap();
    assert!(added[0].is_ok());
}

/// All rows of the store.
async fn rows(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let read = |tx: Transaction| async move {
        let rows = tx.get_range(KeyRange::new("", &b"\xff"[..]), RangeOptions::default());
        rows.collect().await
    };
    let rows = store.transact("dump", read).await.unwrap();
    rows.into_iter()
        .map(|row| (row.key.to_vec(), row.value.to_vec()))
        .collect()
}

async fn shows_secret(store: &Store) -> bool {
    let has = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|part| part == SECRET);
    let rows = rows(store).await;
    rows.iter().any(|(key, value)| has(key) || has(value))
}

async fn data(queue: &Queue, ty: &Type, id: &str) -> Result<String> {
    let envelope = queue.show(ty, id).await?.envelope.unwrap()?;
    Ok(serde_json::to_string(&envelope.data).unwrap())
}

#[tokio::test]
async fn a_type_needs_a_key_to_be_sealed() {
    let store = Store::open("memory:").await.unwrap();
    let queue = node(&store, "");
    let name = TypeName::new("mail").unwrap();
    let settings = Settings {
        sealed: true,
        ..Settings::default()
    };
    let refused = queue.put_type(&name, &settings).await.unwrap_err();
    assert!(refused.to_string().contains("keys.file"), "{refused}");
    assert!(matches!(queue.find(&name).await, Err(Error::NoType(_))));
}

#[tokio::test]
async fn a_node_without_the_key_shows_nothing_and_names_it() {
    let store = Store::open("memory:").await.unwrap();
    let a = node(&store, "a");
    let mail = ty(&a, true).await;
    add(&a, &mail, "1").await;
    assert!(!shows_secret(&store).await);
    assert_eq!(keys_in_use(&store).await.unwrap().used, ["a"]);
    assert_eq!(
        data(&a, &mail, "1").await.unwrap(),
        r#"{"password":"hunter2"}"#
    );
    for keys in ["", "b"] {
        let b = node(&store, keys);
        let error = data(&b, &mail, "1").await.unwrap_err();
        assert!(
            matches!(&error, Error::Unreadable(Unreadable::NoKey(key)) if key == "a"),
            "{error}"
        );
        assert!(error.to_string().contains("`a`"), "{error}");
        let listed = b.list(&mail, None, true, None, 10).await.unwrap();
        assert!(matches!(listed.jobs[0].1, Some(Err(Error::Unreadable(_)))));
        let listed = b.list(&mail, None, false, None, 10).await.unwrap();
        assert!(listed.jobs.len() == 1 && listed.jobs[0].1.is_none());
        // It can be followed, for its state.
        b.wait(&mail, "1", Duration::from_millis(1)).await.unwrap();
        let mut followed = b.follow(&mail, "1").await.unwrap();
        assert!(followed.first().unwrap().1.is_err());
    }
    // Nor does one with another key of that name.
    let other = Queue::new(
        a.jobs().clone(),
        Options::default(),
        Sealer::new(vec![("a".into(), [0; 32])]).unwrap(),
    );
    let error = data(&other, &mail, "1").await.unwrap_err();
    assert!(
        matches!(error, Error::Unreadable(Unreadable::Changed)),
        "{error}"
    );
}

fn claim(count: usize) -> Claim {
    Claim::new("w", count, Duration::ZERO).unwrap()
}

async fn claimed(queue: &Queue, ty: &Type, count: usize) -> Vec<String> {
    let claimed = queue.claim(ty, &claim(count)).await.unwrap();
    let ids = claimed.jobs.iter().map(|given| given.id.clone()).collect();
    claimed.sent();
    ids
}

/// A job once its run has ended, which happens in the background.
async fn ended(queue: &Queue, ty: &Type, id: &str) -> Shown {
    loop {
        let shown = queue.show(ty, id).await.unwrap();
        if shown.runs.last().is_some_and(|run| run.end_ms.is_some()) {
            return shown;
        }
        tokio::task::yield_now().await;
    }
}

/// Alters a byte of a job's data in the store.
async fn damage(queue: &Queue, ty: &Type, id: &str) {
    let (jobs, id) = (queue.jobs(), &JobId::try_from(id).unwrap());
    let (_, data) = jobs.get(&ty.ty, id).await.unwrap().unwrap();
    let mut data = data.to_vec();
    *data.last_mut().unwrap() ^= 1;
    jobs.resubmit(&ty.ty, id, None, Some(data.into()))
        .await
        .unwrap();
}

/// It goes back for others, and the jobs behind it run.
#[tokio::test]
async fn a_job_whose_key_a_node_lacks_is_left_to_others() {
    let store = Store::open("memory:").await.unwrap();
    let (a, b) = (node(&store, "a"), node(&store, "b"));
    let mail = ty(&a, true).await;
    add(&a, &mail, "1").await;
    add(&b, &mail, "2").await;
    assert_eq!(claimed(&b, &mail, 1).await, ["2"]);
    assert!(claimed(&b, &mail, 1).await.is_empty());
    let away = ended(&b, &mail, "1").await;
    assert_eq!((away.info.state, away.info.stalls), (State::Pending, 0));
    assert!(away.info.due_ms > b.jobs().clock().now_ms());
    let run = &away.runs[0];
    assert_eq!(run.outcome, Some("returned"));
    let reason = run.reason.as_deref().unwrap();
    assert!(reason.contains("`a`"), "{reason}");
    // Once its time has come, a node with the key runs it.
    let again = a.jobs().resubmit(&mail.ty, &away.info.id, Some(0), None);
    again.await.unwrap();
    assert_eq!(claimed(&a, &mail, 2).await, ["1"]);
}

/// No node can read it. It is dead until it is repaired and retried, and the jobs behind it run.
#[tokio::test]
async fn a_damaged_job_is_dead_and_says_why() {
    let store = Store::open("memory:").await.unwrap();
    let queue = node(&store, "a");
    let mail = ty(&queue, true).await;
    for id in ["1", "2"] {
        add(&queue, &mail, id).await;
    }
    damage(&queue, &mail, "1").await;
    assert_eq!(claimed(&queue, &mail, 1).await, ["2"]);
    assert!(claimed(&queue, &mail, 1).await.is_empty());
    let dead = ended(&queue, &mail, "1").await;
    assert_eq!(dead.info.state, State::Dead);
    let reason = dead.runs[0].reason.clone().unwrap();
    assert!(reason.contains("a sealed text was changed"), "{reason}");
    let failures = queue.failures(&mail, State::Dead).await.unwrap();
    assert_eq!(failures.groups[0].reason.as_ref(), Some(&reason));
    damage(&queue, &mail, "1").await;
    assert_eq!(claimed(&queue, &mail, 1).await, ["1"]);
}

/// A worker that ends runs and claims in one request gets past it, too.
#[tokio::test]
async fn a_run_ends_although_the_next_job_cannot_be_read() {
    let store = Store::open("memory:").await.unwrap();
    let queue = node(&store, "a");
    let mail = ty(&queue, true).await;
    add(&queue, &mail, "1").await;
    let first = queue.claim(&mail, &claim(1)).await.unwrap();
    let lock = first.jobs[0].lock.clone();
    first.sent();
    for id in ["2", "3"] {
        add(&queue, &mail, id).await;
    }
    damage(&queue, &mail, "2").await;
    let end = format!(r#"{{"id":"1","lock":"{lock}","outcome":"done"}}"#);
    let ends = vec![serde_json::from_str(&end).unwrap()];
    let (statuses, next) = queue.finish(&mail, ends, Some(&claim(1))).await.unwrap();
    assert_eq!(statuses, [EndedStatus::Ok]);
    let ids: Vec<_> = next.jobs.iter().map(|given| given.id.as_str()).collect();
    assert_eq!(ids, ["3"]);
    next.sent();
    assert!(claimed(&queue, &mail, 1).await.is_empty());
    assert_eq!(ended(&queue, &mail, "2").await.info.state, State::Dead);
}

/// Claimed jobs, and how they end.
async fn ends(queue: &Queue, ty: &Type, count: usize, end: &str) -> Vec<Ended> {
    let claimed = queue.claim(ty, &claim(count)).await.unwrap();
    let ended = claimed.jobs.iter().map(|given| {
        let (id, lock) = (&given.id, &given.lock);
        let ended = format!(r#"{{"id":"{id}","lock":"{lock}",{end}}}"#);
        serde_json::from_str(&ended).unwrap()
    });
    let ended = ended.collect();
    claimed.sent();
    ended
}

/// Without any key, or with an older one.
#[tokio::test]
async fn a_run_that_a_node_cannot_seal_ends_on_another() {
    for keys in ["", "b"] {
        let store = Store::open("memory:").await.unwrap();
        let (with, without) = (node(&store, "ab"), node(&store, keys));
        let plain = ty(&with, false).await;
        for id in ["1", "2"] {
            add(&with, &plain, id).await;
        }
        let mail = ty(&with, true).await;
        if !keys.is_empty() {
            add(&with, &mail, "1").await;
        }
        let mut ended = ends(&with, &mail, 2, r#""outcome":"done","result":1"#).await;
        ended.sort_by(|a, b| a.id.cmp(&b.id));
        if keys.is_empty() {
            ended[1].result = None;
        }
        add(&with, &mail, "3").await;
        let refused = without.finish(&mail, ended.clone(), Some(&claim(1))).await;
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, Error::NoKeys | Error::Unreadable(_)),
            "{refused}"
        );
        let state = async |id| with.show(&mail, id).await.unwrap().info.state;
        assert_eq!(state("1").await, State::Running);
        assert_eq!(state("2").await, State::Finished, "others end nevertheless");
        assert_eq!(state("3").await, State::Pending);
        let (statuses, next) = with.finish(&mail, ended, Some(&claim(1))).await.unwrap();
        assert_eq!(statuses, [EndedStatus::Ok, EndedStatus::Repeated]);
        assert_eq!(next.jobs.len(), 1);
    }
}

/// The worker asks another node because it got no answer, or too late.
#[tokio::test]
async fn a_run_that_is_over_needs_no_key() {
    for keys in ["", "b"] {
        let store = Store::open("memory:").await.unwrap();
        let (with, without) = (node(&store, "a"), node(&store, keys));
        let mail = ty(&with, true).await;
        add(&with, &mail, "1").await;
        let error = r#""outcome":"again","error":1"#;
        let ended = ends(&with, &mail, 1, error).await;
        with.finish(&mail, ended.clone(), None).await.unwrap();
        let (statuses, _) = without.finish(&mail, ended.clone(), None).await.unwrap();
        assert_eq!(statuses, [EndedStatus::Repeated]);
        let next = ends(&with, &mail, 1, error).await;
        let lost = Ended {
            lock: next[0].lock.clone(),
            ..ended[0].clone()
        };
        with.remove(&mail, "1").await.unwrap();
        add(&with, &mail, "1").await;
        let (statuses, _) = without.finish(&mail, vec![lost], None).await.unwrap();
        assert_eq!(statuses, [EndedStatus::Halt]);
    }
}

#[tokio::test]
async fn a_node_without_keys_adds_no_job_of_a_sealed_type() {
    let store = Store::open("memory:").await.unwrap();
    let mail = ty(&node(&store, "a"), true).await;
    let job: NewJob = serde_json::from_str(r#"{"id":"1","data":1}"#).unwrap();
    let added = node(&store, "").add(&mail, vec![Ok(job)], None).await;
    assert!(matches!(added, Err(Error::NoKeys)));
}

/// Repeating an add with the same data changes no row, although the data is encrypted.
#[tokio::test]
async fn the_same_data_is_no_change() {
    let store = Store::open("memory:").await.unwrap();
    let queue = node(&store, "a");
    let mail = ty(&queue, true).await;
    add(&queue, &mail, "1").await;
    let before = rows(&store).await;
    add(&queue, &mail, "1").await;
    assert_eq!(rows(&store).await, before);
}

#[tokio::test]
async fn both_forms_are_read_when_the_setting_changes() {
    let store = Store::open("memory:").await.unwrap();
    let queue = node(&store, "a");
    let plain = ty(&queue, false).await;
    add(&queue, &plain, "1").await;
    assert!(shows_secret(&store).await);
    let sealed = ty(&queue, true).await;
    assert_eq!(
        data(&queue, &sealed, "1").await.unwrap(),
        r#"{"password":"hunter2"}"#
    );
    // Written again, it is sealed.
    add(&queue, &sealed, "1").await;
    assert!(!shows_secret(&store).await);
    let plain = ty(&queue, false).await;
    assert_eq!(
        data(&queue, &plain, "1").await.unwrap(),
        r#"{"password":"hunter2"}"#
    );
    add(&queue, &plain, "2").await;
    assert!(shows_secret(&store).await);
}

#[tokio::test]
async fn all_that_a_worker_writes_is_sealed() {
    let store = Store::open("memory:").await.unwrap();
    let queue = node(&store, "a");
    let mail = ty(&queue, true).await;
    for id in ["1", "2"] {
        add(&queue, &mail, id).await;
    }
    let claim = Claim::new("w", 2, Duration::ZERO).unwrap();
    let claimed = queue.claim(&mail, &claim).await.unwrap();
    let locks: Vec<_> = (claimed.jobs.iter())
        .map(|given| (given.id.clone(), given.lock.clone()))
        .collect();
    claimed.sent();
    let beats: Vec<_> = (locks.iter())
        .map(|(id, lock)| format!(r#"{{"id":"{id}","lock":"{lock}","progress":"hunter2"}}"#))
        .map(|beat| serde_json::from_str(&beat).unwrap())
        .collect();
    queue.beat(&mail, &beats).await.unwrap();
    assert!(!shows_secret(&store).await);
    let ends = [
        r#""outcome":"failed","error":{"message":"hunter2"}"#,
        r#""outcome":"done","result":"hunter2""#,
    ];
    let ends: Vec<Ended> = (locks.iter().zip(ends))
        .map(|((id, lock), end)| format!(r#"{{"id":"{id}","lock":"{lock}",{end}}}"#))
        .map(|end| serde_json::from_str(&end).unwrap())
        .collect();
    let (statuses, _) = queue
        .finish(&mail, ends.clone(), Some(&claim))
        .await
        .unwrap();
    assert_eq!(statuses, [EndedStatus::Ok; 2]);
    let (statuses, _) = queue.finish(&mail, ends, None).await.unwrap();
    assert_eq!(statuses, [EndedStatus::Repeated; 2]);
    assert!(!shows_secret(&store).await);
    // Readers see it, and operators see what failed.
    let dead = queue.show(&mail, &locks[0].0).await.unwrap();
    assert_eq!(dead.runs[0].reason.as_deref(), Some("sealed"));
    let failures = queue.failures(&mail, State::Dead).await.unwrap();
    assert_eq!(failures.groups[0].reason.as_deref(), Some("hunter2"));
    for (error, count) in [("other", 0), ("hunter2", 1)] {
        let retried = queue.retry_all(&mail, Some(error.into())).await.unwrap();
        assert_eq!(retried.count, count, "{error}");
    }
}

#[tokio::test]
async fn the_data_of_a_schedule_is_sealed() {
    let store = Store::open("memory:").await.unwrap();
    let queue = node(&store, "a");
    let mail = ty(&queue, true).await;
    let schedule: Schedule = serde_json::from_str(
        r#"{"type":"mail","every_sec":60,"job":{"id":"1","data":{"password":"hunter2"}}}"#,
    )
    .unwrap();
    queue.put_schedule("nightly", &schedule).await.unwrap();
    assert_eq!(queue.run_schedule("nightly", None).await.unwrap(), "1");
    assert!(!shows_secret(&store).await);
    assert_eq!(
        data(&queue, &mail, "1").await.unwrap(),
        r#"{"password":"hunter2"}"#
    );
    assert_eq!(queue.schedule("nightly").await.unwrap().schedule, schedule);
    let (all, more) = queue.schedules(None, 1).await.unwrap();
    assert!(all[0].schedule == schedule && !more);
    let before = rows(&store).await.len();
    queue.remove_schedule("nightly").await.unwrap();
    // The row, its sealed data, and its job.
    assert!(rows(&store).await.len() + 3 <= before);
    let plain = ty(&queue, false).await;
    queue.put_schedule("nightly", &schedule).await.unwrap();
    assert!(shows_secret(&store).await && !plain.settings.sealed);
    ty(&queue, true).await;
    queue.remove(&mail, "1").await.unwrap();
    let holder = jobs::Holder::new("scheduler").unwrap();
    let claim = (queue.jobs()).claim_by(&schedules_type(), &holder, 1, i64::MAX);
    let due = queue.jobs().accept_claim(&claim).await.unwrap().jobs;
    let clock = queue.jobs().clock();
    clock.set_skew_ms(90_000);
    queue.fire(&due[0].job).await.unwrap();
    assert!(!shows_secret(&store).await, "the type is sealed again");
}

/// The type was sealed by a node that has the key, after the schedule was put.
#[tokio::test]
async fn an_occurrence_waits_for_a_node_that_has_the_key() {
    let store = Store::open("memory:").await.unwrap();
    let (with, without) = (node(&store, "a"), node(&store, ""));
    ty(&without, false).await;
    let schedule = r#"{"type":"mail","every_sec":60,"job":{"id":"1","data":1}}"#;
    let schedule: Schedule = serde_json::from_str(schedule).unwrap();
    without.put_schedule("nightly", &schedule).await.unwrap();
    let mail = ty(&with, true).await;
    let holder = jobs::Holder::new("scheduler").unwrap();
    let claim = (without.jobs()).claim_by(&schedules_type(), &holder, 1, i64::MAX);
    let due = without.jobs().accept_claim(&claim).await.unwrap().jobs;
    for queue in [&without, &with] {
        queue.jobs().clock().set_skew_ms(90_000);
    }
    let refused = without.fire(&due[0].job).await.unwrap_err();
    assert!(matches!(refused, Error::NoKeys), "{refused}");
    with.fire(&due[0].job).await.unwrap();
    assert_eq!(data(&with, &mail, "1").await.unwrap(), "1");
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_is_shown_and_replaced() {
    let store = Store::open("memory:").await.unwrap();
    let (a, b) = (node(&store, "a"), node(&store, "b"));
    let schedule: Schedule = serde_json::from_str(
        r#"{"type":"mail","every_sec":60,"job":{"id":"1","data":{"password":"hunter2"}}}"#,
    )
    .unwrap();
    ty(&a, false).await;
    a.put_schedule("plain", &schedule).await.unwrap();
    let mail = ty(&a, true).await;
    a.put_schedule("nightly", &schedule).await.unwrap();
    let (all, _) = b.schedules(None, 10).await.unwrap();
    let unreadable: Vec<_> = all.into_iter().map(|found| found.unreadable).collect();
    let error = Unreadable::NoKey("a".into());
    assert_eq!(unreadable, [Some(error.clone()), None]);
    let shown = b.schedule("nightly").await.unwrap();
    assert_eq!(shown.unreadable, Some(error));
    // Without the data there is no job to add, and the data stays as it is.
    let refused = b.run_schedule("nightly", None).await.unwrap_err();
    assert!(matches!(refused, Error::Unreadable(_)), "{refused}");
    let holder = jobs::Holder::new("scheduler").unwrap();
    let claim = (b.jobs()).claim_by(&schedules_type(), &holder, 2, i64::MAX);
    let due = b.jobs().accept_claim(&claim).await.unwrap().jobs;
    let nightly = due.iter().find(|due| due.job.id.as_bytes() == b"nightly");
    let refused = b.fire(&nightly.unwrap().job).await.unwrap_err();
    assert!(matches!(refused, Error::Unreadable(_)), "{refused}");
    assert_eq!(a.schedule("nightly").await.unwrap().schedule, schedule);
    b.put_schedule("nightly", &schedule).await.unwrap();
    assert_eq!(b.run_schedule("nightly", None).await.unwrap(), "1");
    assert_eq!(
        data(&b, &mail, "1").await.unwrap(),
        r#"{"password":"hunter2"}"#
    );
}
