//! Rules and sources that change while they are followed, and changes that a rule cannot be applied to.

use peer::{Fault, Faults, On};

use super::*;
use crate::keys;

#[tokio::test]
async fn an_edited_rule_applies_from_the_next_change_on() {
    let mut fixture = Fixture::new().await;
    fixture.gate.forget_permits(1_000);
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.put(&["1", "2", "3"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "1");
    fixture
        .rule(on_change(
            &json!({"since": 0, "url": "http://h/new/${change.id}"}),
        ))
        .await;
    fixture.gate.add_permits(1);
    assert_eq!(next(&mut fixture.sent).await, "new/2");
    let mut gone = on_change(&json!({}));
    gone["_deleted"] = json!(true);
    fixture.rule(gone).await;
    fixture.gate.add_permits(1_000);
    fixture.gone("r").await;
    assert!(fixture.sent.try_recv().is_err());
}

#[tokio::test]
async fn a_paused_rule_keeps_its_place() {
    let mut fixture = Fixture::new().await;
    fixture.gate.forget_permits(1_000);
    fixture
        .answers
        .lock()
        .unwrap()
        .extend([delivered(), refused()]);
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.put(&["1", "2"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "1");
    fixture.gate.add_permits(1);
    assert_eq!(next(&mut fixture.sent).await, "2");
    let paused = json!({"since": 0, "enabled": false});
    fixture.rule(on_change(&paused)).await;
    fixture.gate.add_permits(1_000);
    fixture.finished("r").await;
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "2");
    fixture.finished("r").await;
    assert!(fixture.sent.try_recv().is_err());
}

/// It was resumed between the two looks of a run that found it paused.
#[tokio::test]
async fn a_rule_that_is_resumed_at_once_keeps_its_place() {
    let mut fixture = Fixture::new().await;
    fixture.called(on_change(&json!({"since": 0}))).await;
    fixture.finished("r").await;
    let store = fixture.rules.replications().jobs().store().clone();
    let key = &keys::rule(fixture.db.instance(), "r");
    let take = |tx: Transaction| async move {
        let row = tx.get(key).await?;
        tx.clear(key);
        Ok::<_, store::Error>(row.unwrap())
    };
    let row = &store.transact("take_rule", take).await.unwrap();
    fixture.put(&["2"]);
    fixture.signal(Event::Updated, None).await;
    let waits = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, _)| info.attempts >= 2 && info.state == State::Pending)
    };
    fixture.job("r", waits).await;
    let put_back = |tx: Transaction| async move {
        tx.set(key, row);
        Ok::<_, store::Error>(())
    };
    store.transact("put_rule", put_back).await.unwrap();
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "2");
}

/// How long the read takes, which the edit must not exceed: longer and longer, if a test can tell that it did.
const READS_MS: [u64; 3] = [1_000, 5_000, 20_000];

/// The first run of a rule is reading two changes when the rule is edited.
async fn edit_while_it_reads(before: &Value, after: Value, ms: u64) -> Fixture {
    let mut fixture = Fixture::new().await;
    let late = (On::any("*/_changes").first(1), Fault::Latency { ms });
    fixture.peer.set_faults(Faults::script([late]));
    fixture.rule(on_change(before)).await;
    fixture.put(&["1", "m2"]);
    fixture.signal(Event::Updated, None).await;
    while fixture.peer.injected().is_empty() {
        tokio::task::yield_now().await;
    }
    fixture.rule(after).await;
    fixture
}

/// What is called about if the rule makes its calls in any order.
async fn edited_while_it_reads(before: &Value, after: &Value) -> BTreeSet<String> {
    let mut fixture = edit_while_it_reads(before, on_change(after), READS_MS[0]).await;
    let mut called = BTreeSet::new();
    for _ in 0..2 {
        called.insert(next(&mut fixture.enqueued).await);
    }
    called
}

#[tokio::test]
async fn an_edit_while_changes_are_read_loses_none() {
    let before = json!({"since": 0, "block": false});
    let mut after = before.clone();
    after["url"] = json!("http://h/new/${change.id}");
    let called = edited_while_it_reads(&before, &after).await;
    assert_eq!(called, ["new/1", "new/m2"].map(str::to_owned).into());
}

#[tokio::test]
async fn an_edited_rule_is_about_changes_that_were_just_read() {
    let before = json!({"since": 0, "block": false, "if": {"type": "^msg$"}});
    let after = json!({"since": 0, "block": false});
    let called = edited_while_it_reads(&before, &after).await;
    assert_eq!(called, ["1", "m2"].map(str::to_owned).into());
}

/// The first of them, which it was not about before, is not skipped.
#[tokio::test]
async fn an_edited_rule_that_blocks_is_about_changes_that_were_just_read() {
    let before = json!({"since": 0, "if": {"type": "^msg$"}});
    let mut called = Vec::new();
    for ms in READS_MS {
        let after = on_change(&json!({"since": 0}));
        let mut fixture = edit_while_it_reads(&before, after, ms).await;
        called.push(next(&mut fixture.sent).await);
        if called.ends_with(&["1".to_owned()]) {
            assert_eq!(next(&mut fixture.sent).await, "m2");
            return;
        }
    }
    panic!("{called:?}");
}

#[tokio::test]
async fn a_rule_that_ends_while_changes_are_read_makes_no_call() {
    let before = json!({"since": 0});
    let mut deleted = on_change(&before);
    deleted["_deleted"] = json!(true);
    let paused = on_change(&json!({"since": 0, "enabled": false}));
    for (after, is_deleted) in [(deleted, true), (paused, false)] {
        let mut calls = 0;
        for ms in READS_MS {
            let mut fixture = edit_while_it_reads(&before, after.clone(), ms).await;
            if is_deleted {
                fixture.gone("r").await;
            } else {
                fixture.finished("r").await;
            }
            if fixture.sent.try_recv().is_err() {
                break;
            }
            calls += 1;
        }
        assert!(calls < READS_MS.len(), "{after}");
    }
}

#[tokio::test]
async fn a_node_that_does_not_know_a_source_keeps_the_place() {
    let mut fixture = Fixture::new().await;
    fixture.called(on_change(&json!({"since": 0}))).await;
    fixture.finished("r").await;
    fixture.sources.send_replace(Arc::from([]));
    fixture.put(&["2"]);
    fixture.signal(Event::Updated, None).await;
    let waits = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, place)| info.state == State::Pending && place.unknown_ms.is_some())
    };
    fixture.job("r", waits).await;
    fixture
        .sources
        .send_replace(Arc::from([fixture.source.clone()]));
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "2");
}

/// The five minutes start over while nodes differ in their configuration.
#[tokio::test]
async fn a_node_that_knows_a_source_says_so_although_the_rule_rests() {
    let mut fixture = Fixture::new().await;
    let later = Answer::Later(Duration::from_mins(10), "busy".to_owned());
    fixture.answers.lock().unwrap().push_back(later);
    fixture.called(on_change(&json!({"since": 0}))).await;
    let waits = |is_known: bool| {
        move |job: Option<(&JobInfo, Place)>| {
            job.is_some_and(|(info, place)| {
                let rests = info.state == State::Pending && place.rests_ms > 0;
                rests && place.unknown_ms.is_none() == is_known
            })
        }
    };
    fixture.job("r", waits(true)).await;
    fixture.sources.send_replace(Arc::from([]));
    fixture.signal(Event::Updated, None).await;
    fixture.job("r", waits(false)).await;
    let known = Arc::from([fixture.source.clone()]);
    fixture.sources.send_replace(known);
    fixture.signal(Event::Updated, None).await;
    fixture.job("r", waits(true)).await;
}

/// Another version has written it.
#[tokio::test]
async fn a_node_that_cannot_read_a_rule_keeps_the_place() {
    let mut fixture = Fixture::new().await;
    let rule = on_change(&json!({"since": 0}));
    fixture.called(rule.clone()).await;
    fixture.finished("r").await;
    let (docs, hook) = (fixture.rules.replications().docs(), fixture.rules.hook());
    let before = docs.get(&fixture.db, "r", &ReadOptions::default()).await;
    let newer = &json!({
        "_id": "r", "_rev": before.unwrap().rev.to_string(), "type": "on_change", "url": "http://h/",
        "retry": {"new": 1},
    })
    .to_string();
    let doc = Doc::parse(newer).unwrap();
    let edit = Edit::new(doc.id.clone().unwrap(), doc).unwrap();
    (docs
        .put(&fixture.db, &edit, EditMode::NewEdits, &hook)
        .await)
        .unwrap();
    fixture.put(&["2"]);
    let ty = JobType::new(JOB_TYPE).unwrap();
    let jobs = fixture.rules.replications().jobs();
    let listeners = Listeners::open(fixture.rules.clone()).await.unwrap();
    let job = JobId::new(ids(&listeners).await.remove(0)).unwrap();
    jobs.signal_many(&ty, &[Signal::new(job)]).await.unwrap();
    let waits = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, _)| info.attempts >= 2 && info.state == State::Pending)
    };
    fixture.job("r", waits).await;
    let end = fixture.shown().await.last.unwrap().end.unwrap();
    let reason = end.reason.unwrap();
    assert!(reason.contains("`retry.new`"), "{reason}");
    fixture.rule(rule).await;
    fixture.trigger().await;
    assert_eq!(next(&mut fixture.sent).await, "2");
}

#[tokio::test]
async fn a_document_that_takes_too_long_to_match_stops_no_other() {
    let mut fixture = Fixture::new().await;
    let slow = json!({"since": 0, "if": {"x": r"^((a+)+)+\1\2$"}});
    fixture.rule(on_change(&slow)).await;
    let hard = json!({"_id": "hard", "x": format!("{}c", "a".repeat(200))});
    fixture.peer.put("a", &hard.to_string()).unwrap();
    let easy = json!({"_id": "easy", "x": "aaa"});
    fixture.peer.put("a", &easy.to_string()).unwrap();
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "easy");
}

/// Also where the first one's job is still there, as nothing has signalled it since.
#[tokio::test]
async fn a_rule_made_anew_begins_anew() {
    let mut fixture = Fixture::new().await;
    let rule = on_change(&json!({"since": 0}));
    fixture.called(rule.clone()).await;
    fixture.finished("r").await;
    let mut gone = rule.clone();
    gone["_deleted"] = json!(true);
    for _ in 0..2 {
        fixture.rule(gone.clone()).await;
        fixture.rule(rule.clone()).await;
        fixture.signal(Event::Updated, None).await;
        assert_eq!(next(&mut fixture.sent).await, "1");
        fixture.finished("r").await;
    }
    // Pausing it is not deleting it.
    let paused = on_change(&json!({"since": 0, "enabled": false}));
    fixture.rule(paused).await;
    fixture.rule(rule).await;
    fixture.put(&["2"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "2");
}

#[tokio::test]
async fn jobs_of_deleted_rules_are_removed() {
    let mut fixture = Fixture::new().await;
    let rule = |id: &str| on_change(&json!({"since": 0, "_id": id}));
    for id in ["r", "kept", "again"] {
        fixture.rule(rule(id)).await;
    }
    fixture.put(&["1"]);
    fixture.signal(Event::Updated, None).await;
    for id in ["r", "kept", "again"] {
        fixture.finished(id).await;
    }
    for id in ["r", "again"] {
        let mut gone = rule(id);
        gone["_deleted"] = json!(true);
        fixture.rule(gone).await;
    }
    fixture.rule(rule("again")).await;
    fixture.signal(Event::Updated, None).await;
    fixture.finished("again").await;
    let listeners = Listeners::open(fixture.rules.clone()).await.unwrap();
    assert_eq!(ids(&listeners).await.len(), 4);
    for _ in 0..2 {
        listeners.remove_left().await.unwrap();
        let left = ids(&listeners).await;
        assert!(
            left.len() == 2 && left.iter().any(|id| id.ends_with("|kept")),
            "{left:?}"
        );
        fixture.finished("again").await;
    }
    fixture.rules.delete_database(&fixture.db).await.unwrap();
    listeners.remove_left().await.unwrap();
    assert_eq!(ids(&listeners).await, [""; 0]);
}

/// Jobs are removed one at a time, and the second rule may have jobs before the last one of the first is removed.
#[tokio::test]
async fn jobs_of_a_rule_deleted_twice_are_not_removed_with_those_of_the_first() {
    let mut fixture = Fixture::new().await;
    let rule = on_change(&json!({"since": 0}));
    let mut gone = rule.clone();
    gone["_deleted"] = json!(true);
    let listeners = Listeners::open(fixture.rules.clone()).await.unwrap();
    fixture.put(&["1"]);
    fixture.rule(rule.clone()).await;
    fixture.rule(gone.clone()).await;
    let left = listeners.left().await.unwrap();
    fixture.rule(rule.clone()).await;
    fixture.rule(gone).await;
    fixture.rule(rule).await;
    fixture.signal(Event::Updated, None).await;
    fixture.finished("r").await;
    listeners.remove_of(&left).await.unwrap();
    assert_eq!(ids(&listeners).await.len(), 1);
    listeners.remove_left().await.unwrap();
    assert_eq!(ids(&listeners).await.len(), 1);
}

/// As if it had been deleted.
#[tokio::test]
async fn a_rule_that_calls_no_longer_leaves_no_jobs() {
    let mut fixture = Fixture::new().await;
    let listeners = Listeners::open(fixture.rules.clone()).await.unwrap();
    let calls = on_change(&json!({"since": 0}));
    let copies =
        json!({"_id": "r", "type": "replicator", "source": "http://h/a", "target": "http://h/b"});
    fixture.put(&["1"]);
    for _ in 0..2 {
        fixture.rule(calls.clone()).await;
        fixture.signal(Event::Updated, None).await;
        assert_eq!(next(&mut fixture.sent).await, "1");
        fixture.finished("r").await;
        fixture.rule(copies.clone()).await;
    }
    assert_eq!(ids(&listeners).await.len(), 2);
    listeners.remove_left().await.unwrap();
    assert_eq!(ids(&listeners).await, [""; 0]);
}

/// Their runs end, and those that have failed go, too.
#[tokio::test]
async fn rules_that_copied_leave_no_jobs() {
    let mut fixture = Fixture::new().await;
    let listeners = Listeners::open(fixture.rules.clone()).await.unwrap();
    let replications = fixture.rules.replications().clone();
    let (jobs, ty) = (replications.jobs(), replications.job_type());
    let copies = |id: &str| {
        json!({
            "_id": id, "type": "remote", "source": format!("{}/${{name}}", fixture.peer.url()),
            "url": [format!("http://{id}1/${{name}}"), format!("http://{id}2/${{name}}")],
            "databases": ["a"], "replication_delay_sec": 0, "random_delay_sec": 0,
        })
    };
    let (deleted, kept) = (copies("r"), copies("kept"));
    fixture.rule(deleted.clone()).await;
    fixture.rule(kept).await;
    ask(&fixture, "r").await;
    let holder = Holder::new("node2").unwrap();
    let runs = jobs.accept(ty, &holder, 2).await.unwrap().jobs;
    assert_eq!(runs.len(), 2);
    let _ = (jobs.finish(&runs[0].job, Finish::dead("db_not_found")))
        .await
        .unwrap();
    ask(&fixture, "kept").await;
    let mut gone = deleted;
    gone["_deleted"] = json!(true);
    fixture.rule(gone).await;
    let count = async || {
        let page = jobs.list(ty, &jobs::Query::default(), None, 100).await;
        page.unwrap().jobs.len()
    };
    assert_eq!(count().await, 4);
    listeners.remove_left().await.unwrap();
    assert_eq!(count().await, 2);
    let beat = jobs.update(&runs[1].job, None).await;
    assert!(matches!(beat, Err(jobs::Error::Halt)), "{beat:?}");
    fixture.rules.delete_database(&fixture.db).await.unwrap();
    listeners.remove_left().await.unwrap();
    assert_eq!(count().await, 0);
}

/// Spiegel's other documents may stand in the same database.
#[tokio::test]
async fn a_document_that_is_no_rule_any_more_leaves_no_jobs() {
    let mut fixture = Fixture::new().await;
    let listeners = Listeners::open(fixture.rules.clone()).await.unwrap();
    let replications = fixture.rules.replications().clone();
    let (jobs, ty) = (replications.jobs(), replications.job_type());
    let copies = json!({
        "_id": "r", "type": "remote", "source": format!("{}/${{name}}", fixture.peer.url()),
        "url": ["http://r1/${name}", "http://r2/${name}"], "databases": ["a"],
    });
    fixture.rule(copies).await;
    ask(&fixture, "r").await;
    fixture.rule(json!({"_id": "r", "type": "global"})).await;
    let count = async || {
        let page = jobs.list(ty, &jobs::Query::default(), None, 100).await;
        page.unwrap().jobs.len()
    };
    assert_eq!(count().await, 2);
    listeners.remove_left().await.unwrap();
    assert_eq!(count().await, 0);
}

/// Creates the jobs of a remote.
async fn ask(fixture: &Fixture, id: &str) {
    let set = Arc::clone(&fixture.set.borrow());
    let rule = RuleId {
        instance: fixture.db.instance(),
        doc: id.to_owned(),
    };
    let captures = crate::rule::remote::captures("a");
    let ruled = set.get(&rule).unwrap().replications("a", &captures);
    let ruled: Vec<_> = ruled.into_iter().map(Result::unwrap).collect();
    let (replications, ruled) = (fixture.rules.replications(), &ruled);
    let op = replications.jobs().op();
    let ask = |tx: Transaction| async move {
        let ruled: Vec<_> = ruled.iter().collect();
        replications.rule_in(&tx, &op, &ruled).await
    };
    let store = replications.jobs().store();
    assert_eq!(store.transact("rules", ask).await.unwrap(), 2);
}

/// Those of all jobs.
async fn ids(listeners: &Listeners) -> Vec<String> {
    let (query, jobs) = (jobs::Query::default(), listeners.jobs());
    let page = jobs.list(listeners.job_type(), &query, None, 100).await;
    let ids = page.unwrap().jobs.into_iter();
    ids.map(|listed| listed.info.id.to_string()).collect()
}
