use docstore::{Db, DocStore, EditMode, Rev};
use document::doc::Doc;
use jobs::{Clock, Entropy, Jobs};
use scheduler::Setup;
use seal::Sealer;
use serde_json::{Value, json};
use store::Store;

use super::*;
use crate::deliver::{EventOptions, NoTarget, RuleTargets, Targets as _};
use crate::rule::call::{Call, Sign};
use crate::rule::{Captures, Change, Task};

async fn open(store: &Store, sealer: Sealer) -> Rules {
    let jobs = Jobs::new(
        store.clone(),
        Clock::simulated(1_000_000),
        Entropy::seeded(1),
    );
    let options = docstore::Options {
        kinds: KINDS.map(str::to_owned).to_vec(),
        ..docstore::Options::default()
    };
    let docs = DocStore::new(store.clone(), options);
    let setup = Setup {
        sealer,
        ..Setup::default()
    };
    Rules::new(Replications::open(jobs, docs, setup).await.unwrap())
}

async fn memory() -> (Rules, Db) {
    let rules = open(&Store::open("memory:").await.unwrap(), Sealer::plain()).await;
    let db = rules.0.create_database("shop/_rules").await.unwrap();
    (rules, db)
}

async fn write_as(rules: &Rules, db: &Db, body: &Value, mode: EditMode) -> Result<Rev, String> {
    let text = body.to_string();
    let doc = Doc::parse(&text).unwrap();
    let edit = Edit::new(doc.id.clone().unwrap(), doc).unwrap();
    let edit = rules.prepare(db, edit).map_err(|error| error.to_string())?;
    let hook = rules.hook();
    let put = rules.0.docs().put(db, &edit, mode, &hook);
    put.await.map_err(|error| error.to_string())
}

async fn write(rules: &Rules, db: &Db, body: &Value) -> Result<Rev, String> {
    write_as(rules, db, body, EditMode::NewEdits).await
}

fn on_change(id: &str, url: &str) -> Value {
    json!({"_id": id, "type": "on_change", "url": url})
}

async fn loaded(rules: &Rules) -> Vec<String> {
    let set = rules.load(&Set::default()).await.unwrap();
    let mut found: Vec<_> = set
        .iter()
        .map(|rule| format!("{}/{}", rule.db, rule.id.doc))
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn the_index_follows_the_winning_revision() {
    let (rules, db) = memory().await;
    let first = write(&rules, &db, &on_change("a", "http://h/1"))
        .await
        .unwrap();
    assert_eq!(loaded(&rules).await, ["shop/_rules/a"]);
    let mut next = on_change("a", "http://h/1");
    next["_rev"] = json!(first.to_string());
    next["enabled"] = json!(false);
    let second = write(&rules, &db, &next).await.unwrap();
    assert!(loaded(&rules).await.is_empty());
    // A conflict that wins.
    let mut other = on_change("a", "http://h/2");
    other["_rev"] = json!("3-ffffffffffffffffffffffffffffffff");
    write_as(&rules, &db, &other, EditMode::Replicated)
        .await
        .unwrap();
    assert_eq!(loaded(&rules).await, ["shop/_rules/a"]);
    // Without it the disabled one wins.
    let (docs, rev) = (
        rules.0.docs(),
        "3-ffffffffffffffffffffffffffffffff".parse().unwrap(),
    );
    docs.delete(&db, "a", Some(&rev), &rules.hook())
        .await
        .unwrap();
    assert!(loaded(&rules).await.is_empty());
    docs.delete(&db, "a", Some(&second), &rules.hook())
        .await
        .unwrap();
    assert!(loaded(&rules).await.is_empty());
}

#[tokio::test]
async fn only_valid_rules_are_written() {
    let (rules, db) = memory().await;
    let refused = write(&rules, &db, &on_change("a", "http://${seq}/"))
        .await
        .unwrap_err();
    assert!(
        refused.starts_with("`url`: `${seq}` at character 8"),
        "{refused}"
    );
    let mut replicated = on_change("a", "ftp://h/");
    replicated["_rev"] = json!("1-a");
    assert!(
        write_as(&rules, &db, &replicated, EditMode::Replicated)
            .await
            .is_err()
    );
    let design = json!({"_id": "_design/x", "views": {}});
    let refused = write(&rules, &db, &design).await.unwrap_err();
    assert!(refused.contains("choose an id"), "{refused}");
    let shared = write(&rules, &db, &on_change("a|b", "http://h/")).await;
    assert!(shared.unwrap_err().contains("choose another id"));
    let mut large = on_change("a", "http://h/");
    large["comment"] = json!("x".repeat(RULE_BYTES_MAX));
    assert!(
        write(&rules, &db, &large)
            .await
            .unwrap_err()
            .contains("smaller")
    );
    write(&rules, &db, &json!({"_id": "_local/x", "seq": 1}))
        .await
        .unwrap();
    write(
        &rules,
        &db,
        &json!({"_id": "spiegel_cl_a", "type": "change_listener", "db_name": "a"}),
    )
    .await
    .unwrap();
    assert!(loaded(&rules).await.is_empty());
}

/// As of a version that accepted it.
#[tokio::test]
async fn a_rule_with_a_bar_in_its_id_goes_on_until_it_is_edited() {
    let (rules, db) = memory().await;
    let text = on_change("a|b", "http://h/").to_string();
    let edit = Edit::new("a|b", Doc::parse(&text).unwrap()).unwrap();
    let docs = rules.0.docs();
    docs.put(&db, &edit, EditMode::NewEdits, &rules.hook())
        .await
        .unwrap();
    assert_eq!(loaded(&rules).await, ["shop/_rules/a|b"]);
    for enabled in [false, true] {
        rules.set_enabled(&db, "a|b", enabled).await.unwrap();
        assert_eq!(loaded(&rules).await.len(), usize::from(enabled));
    }
    let rev = rules.named("shop/_rules", "a|b").await.unwrap();
    let rev = rev.unwrap().unwrap().rev;
    let mut next = on_change("a|b", "http://h/2");
    next["_rev"] = json!(rev);
    assert!(write(&rules, &db, &next).await.is_err());
    let gone = json!({"_id": "a|b", "_rev": rev, "_deleted": true});
    write(&rules, &db, &gone).await.unwrap();
    assert!(loaded(&rules).await.is_empty());
}

#[tokio::test]
async fn rules_go_with_their_database() {
    let (rules, db) = memory().await;
    let spiegel = rules.0.create_database("spiegel").await.unwrap();
    write(&rules, &db, &on_change("a", "http://h/1"))
        .await
        .unwrap();
    write(&rules, &spiegel, &on_change("b", "http://h/1"))
        .await
        .unwrap();
    assert_eq!(loaded(&rules).await, ["shop/_rules/a", "spiegel/b"]);
    // As if the process had died before it removed the rows.
    rules.0.docs().delete_database(&db).await.unwrap();
    let again = rules.0.create_database("shop/_rules").await.unwrap();
    assert_eq!(loaded(&rules).await, ["spiegel/b"]);
    write(&rules, &again, &on_change("c", "http://h/1"))
        .await
        .unwrap();
    rules.delete_database(&again).await.unwrap();
    rules.delete_database(&spiegel).await.unwrap();
    assert!(loaded(&rules).await.is_empty());
    let instance = again.instance();
    let rows = |tx: Transaction| async move {
        let read = tx.get_range(keys::rules_of(instance), RangeOptions::default());
        Ok::<_, store::Error>(read.collect().await?.len())
    };
    let store = rules.0.docs().store();
    assert_eq!(store.transact("count", rows).await.unwrap(), 0);
}

#[tokio::test]
async fn many_rules_are_loaded_in_pages_and_kept_while_unchanged() {
    let (rules, db) = memory().await;
    let count = 2 * PAGE + 1;
    for nth in 0..count {
        write(&rules, &db, &on_change(&format!("r{nth:04}"), "http://h/1"))
            .await
            .unwrap();
    }
    let first = rules.load(&Set::default()).await.unwrap();
    assert_eq!(first.len(), count);
    let rev = first
        .iter()
        .find(|rule| rule.id.doc == "r0007")
        .unwrap()
        .rev
        .clone();
    let mut changed = on_change("r0007", "http://h/2");
    changed["_rev"] = json!(rev);
    write(&rules, &db, &changed).await.unwrap();
    let second = rules.load(&first).await.unwrap();
    let kept = second
        .iter()
        .filter(|rule| Arc::ptr_eq(rule, first.get(&rule.id).unwrap()));
    assert_eq!((kept.count(), second.len()), (count - 1, count));
}

#[tokio::test]
async fn credentials_are_sealed_at_rest() {
    let store = Store::open("memory:").await.unwrap();
    let sealer = Sealer::new(vec![("k".to_owned(), [7; 32])]).unwrap();
    let rules = open(&store, sealer).await;
    let db = rules.0.create_database("_rules").await.unwrap();
    let body = json!({
        "_id": "a", "type": "on_change", "url": "https://u:hunter2@h/x?token=hunter3", "headers": {"X": "hunter4"},
        "secret": "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    });
    write(&rules, &db, &body).await.unwrap();
    let replicator = json!({
        "_id": "b", "type": "replicator", "source": "http://u:hunter5@h/a", "target": "http://h/b",
    });
    write(&rules, &db, &replicator).await.unwrap();
    for (id, sent) in [("a", &body), ("b", &replicator)] {
        let stored = rules
            .0
            .docs()
            .get(&db, id, &ReadOptions::default())
            .await
            .unwrap();
        let text = stored.body.clone();
        assert!(
            !text.contains("hunter") && !text.contains("whsec_A"),
            "{text}"
        );
        let reader = strip::Reader {
            name: Some("root"),
            is_admin: true,
        };
        let shown = strip::for_reader(rules.0.sealer(), &db, stored, reader).unwrap();
        let shown: Value = serde_json::from_str(&shown.body).unwrap();
        for (name, value) in shown.as_object().unwrap() {
            assert_eq!(value, &sent[name], "{name}");
        }
    }
    let set = rules.load(&Set::default()).await.unwrap();
    assert_eq!(set.len(), 2);
    assert!(
        set.iter()
            .any(|rule| matches!(rule.rule.task, Task::Call(_)))
    );
}

/// Whatever removed the document, it did not tell the index.
#[tokio::test]
async fn a_row_without_its_rule_costs_others_nothing() {
    let (rules, db) = memory().await;
    for id in ["a", "b"] {
        write(&rules, &db, &on_change(id, "http://h/1"))
            .await
            .unwrap();
    }
    let docs = rules.0.docs();
    let stored = docs.get(&db, "a", &ReadOptions::default()).await.unwrap();
    docs.delete(&db, "a", Some(&stored.rev), &docstore::NoHook)
        .await
        .unwrap();
    assert_eq!(loaded(&rules).await, ["shop/_rules/b"]);
}

#[tokio::test(start_paused = true)]
async fn a_watcher_follows_the_rules() {
    let (rules, db) = memory().await;
    let (watcher, mut seen) = RuleWatcher::new(rules.clone());
    let stop = CancellationToken::new();
    let running = tokio::spawn(watcher.run(stop.clone()));
    seen.changed().await.unwrap();
    assert!(seen.borrow_and_update().is_empty());
    write(&rules, &db, &on_change("a", "http://h/1"))
        .await
        .unwrap();
    seen.wait_for(|set| set.len() == 1).await.unwrap();
    rules.delete_database(&db).await.unwrap();
    seen.wait_for(|set| set.is_empty()).await.unwrap();
    stop.cancel();
    running.await.unwrap();
}

/// Whenever the watcher reports a change, each follower of a source starts its wait for the next look again.
#[tokio::test]
async fn a_watcher_tells_only_of_changes() {
    let (rules, db) = memory().await;
    let (watcher, mut seen) = RuleWatcher::new(rules.clone());
    write(&rules, &db, &on_change("a", "http://h/1"))
        .await
        .unwrap();
    for is_new in [true, false] {
        watcher.reload().await.unwrap();
        assert_eq!(seen.has_changed().unwrap(), is_new);
        seen.mark_unchanged();
    }
    write(&rules, &db, &on_change("b", "http://h/1"))
        .await
        .unwrap();
    watcher.reload().await.unwrap();
    assert!(seen.has_changed().unwrap());
    assert_eq!(seen.borrow().len(), 2);
}

#[tokio::test]
async fn calls_go_where_their_rule_says_now() {
    let (rules, db) = memory().await;
    let events = EventOptions {
        url: "http://u:pw@events/".to_owned(),
        secret: "hook".to_owned(),
        ..EventOptions::default()
    };
    let targets = |set: Set, events: &EventOptions| RuleTargets {
        rules: rules.clone(),
        compiled: watch::channel(Arc::new(set)).1,
        events: events.clone(),
    };
    let empty = targets(Set::default(), &events);
    let change = Change {
        source: "main",
        db: "a",
        captures: &Captures::new(),
        doc_id: "a b",
        rev: "1-a",
        doc: &Json::Null,
        seq: &Json::String("7-x".to_owned()),
    };
    let mut rule = on_change("hook", "http://u:old@h/${db_name}/${change.id}?k=${seq}");
    rule["db_name"] = json!("^a$");
    let rev = write(&rules, &db, &rule).await.unwrap();
    let set = rules.load(&Set::default()).await.unwrap();
    let known = Arc::clone(set.named("shop/_rules", "hook").unwrap());
    let Task::Call(webhook) = &known.rule.task else {
        panic!("a webhook");
    };
    let mut call = webhook.call(&known.db, "hook", &change).unwrap();
    let target = call.target.take().unwrap();
    assert_eq!(target.url.as_str(), "http://u:old@h/a/a%20b?k=7-x");
    assert_eq!(empty.target(&call).await, Ok(target.clone()));
    assert_eq!(targets(set, &events).target(&call).await, Ok(target));

    rule["_rev"] = json!(rev.to_string());
    rule["url"] = json!("http://u:new@h2/${change.rev}");
    let rev = write(&rules, &db, &rule).await.unwrap();
    let target = empty.target(&call).await.unwrap();
    assert_eq!(target.url.as_str(), "http://u:new@h2/1-a");
    let other = Call {
        db: "b".to_owned(),
        ..call.clone()
    };
    let gone = |why: &str| Err(NoTarget::Gone(why.to_owned()));
    let no_longer = gone("its rule does not ask for it any more");
    assert_eq!(empty.target(&other).await, no_longer);

    rule["_rev"] = json!(rev.to_string());
    rule["enabled"] = json!(false);
    let rev = write(&rules, &db, &rule).await.unwrap();
    let paused = Err(NoTarget::Waits("its rule is paused".to_owned()));
    assert_eq!(empty.target(&call).await, paused);
    let hook = rules.hook();
    (rules.0.docs())
        .delete(&db, "hook", Some(&rev), &hook)
        .await
        .unwrap();
    let deleted = gone("its rule was deleted");
    assert_eq!(empty.target(&call).await, deleted);
    rules.delete_database(&db).await.unwrap();
    assert_eq!(empty.target(&call).await, deleted);

    call.rule = "_events".to_owned();
    let target = empty.target(&call).await.unwrap();
    assert_eq!(target.url.as_str(), events.url);
    assert_eq!(target.sign, Some(Sign::SecretRef(events.secret)));
    let unset = targets(Set::default(), &EventOptions::default());
    let unset = unset.target(&call).await;
    assert_eq!(unset, gone("`webhooks.events.url` is not configured"));
}

/// Another version has written it.
#[tokio::test]
async fn calls_of_a_rule_that_cannot_be_read_wait() {
    let (rules, db) = memory().await;
    let mut rule = on_change("hook", "http://h/");
    let rev = write(&rules, &db, &rule).await.unwrap();
    let set = rules.load(&Set::default()).await.unwrap();
    let known = set.named("shop/_rules", "hook").unwrap();
    let Task::Call(webhook) = &known.rule.task else {
        panic!("a webhook");
    };
    let change = Change {
        source: "main",
        db: "a",
        captures: &Captures::new(),
        doc_id: "a",
        rev: "1-a",
        doc: &Json::Null,
        seq: &Json::Null,
    };
    let call = webhook.call(&known.db, "hook", &change).unwrap();
    rule["_rev"] = json!(rev.to_string());
    rule["retry"] = json!({"new": 1});
    let text = rule.to_string();
    let edit = Edit::new("hook".to_owned(), Doc::parse(&text).unwrap()).unwrap();
    let (docs, hook) = (rules.0.docs(), rules.hook());
    (docs.put(&db, &edit, EditMode::NewEdits, &hook).await).unwrap();
    let targets = RuleTargets {
        rules: rules.clone(),
        compiled: watch::channel(Arc::default()).1,
        events: EventOptions::default(),
    };
    let target = targets.target(&call).await;
    let Err(NoTarget::Waits(why)) = target else {
        panic!("{target:?}");
    };
    assert!(
        why.starts_with("cannot read its rule: `retry.new`"),
        "{why}"
    );
}

/// What they tell is not for the receiver of another rule.
#[tokio::test]
async fn calls_of_a_deleted_rule_do_not_go_to_a_new_one() {
    let (rules, mut db) = memory().await;
    let change = Change {
        source: "main",
        db: "a",
        captures: &Captures::new(),
        doc_id: "a",
        rev: "1-a",
        doc: &Json::Null,
        seq: &Json::Null,
    };
    let written = async |db: &Db, url: &str| {
        let rev = write(&rules, db, &on_change("hook", url)).await.unwrap();
        let set = Arc::new(rules.load(&Set::default()).await.unwrap());
        let known = set.named("shop/_rules", "hook").unwrap();
        let Task::Call(webhook) = &known.rule.task else {
            panic!("a webhook");
        };
        let mut call = known.call(webhook, &change).unwrap();
        call.target = None;
        (rev, Arc::clone(&set), call)
    };
    let target = async |set: &Arc<Set>, call: &Call| {
        let targets = RuleTargets {
            rules: rules.clone(),
            compiled: watch::channel(Arc::clone(set)).1,
            events: EventOptions::default(),
        };
        let target = targets.target(call).await;
        target.map(|target| target.url.to_string())
    };
    let gone = Err(NoTarget::Gone("its rule was deleted".to_owned()));
    let (rev, old_set, mut old) = written(&db, "http://old/").await;
    let hook = rules.hook();
    for database_too in [false, true] {
        if database_too {
            rules.delete_database(&db).await.unwrap();
            db = rules.0.create_database("shop/_rules").await.unwrap();
        } else {
            let delete = (rules.0.docs()).delete(&db, "hook", Some(&rev), &hook);
            delete.await.unwrap();
        }
        let (_, set, new) = written(&db, "http://new/").await;
        for set in [&set, &Arc::default()] {
            assert_eq!(target(set, &old).await, gone);
            assert_eq!(target(set, &new).await.as_deref(), Ok("http://new/"));
        }
        // A node has not read the new one yet.
        let found = target(&old_set, &new).await;
        assert_eq!(found.as_deref(), Ok("http://new/"));
        // Of an earlier version.
        let unknown = Call {
            generation: None,
            ..old
        };
        assert_eq!(target(&set, &unknown).await.as_deref(), Ok("http://new/"));
        old = new;
    }
}
