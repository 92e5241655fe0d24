//! Jobs that listen to databases of an in-memory server over real connections.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use couch::{EgressOptions, NetworkOptions, RequestOptions};
use docstore::{Db, DocStore, Edit, EditMode, ReadOptions};
use document::doc::Doc;
use jobs::{
    Clock, Entropy, Finish, JobId, JobInfo, Notice, Notifier, NotifierHandle, Options, State,
};
use peer::Peer;
use scheduler::{Replications, Setup};
use serde_json::{Value, json};
use store::{Faults, Store};
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::rule::store::KINDS;

mod answers;
mod edited;
mod rewound;
mod turns;

const PATIENCE: Duration = Duration::from_secs(30);

/// A sender whose calls the test answers.
struct Recorder {
    jobs: Jobs,
    deliveries: JobType,
    sent: mpsc::UnboundedSender<Call>,
    /// Answers to the next calls; then all succeed.
    answers: Arc<Mutex<VecDeque<Answer>>>,
    /// Calls are answered one by one as permits are added.
    gate: Arc<Semaphore>,
    /// How long an answer takes, in milliseconds.
    slowness_ms: Arc<AtomicU64>,
}

impl Sender for Recorder {
    async fn enqueue_in(&self, tx: &Transaction, op: &Op, calls: &[Call]) -> jobs::Result<()> {
        let add = |call: &Call| {
            let id = format!("{}/{}/{}", call.rule, call.doc_id, call.rev);
            Ok(Add::new(JobId::new(id)?, jobs::encode(call)?))
        };
        let adds: Vec<_> = calls.iter().map(add).collect::<jobs::Result<_>>()?;
        self.jobs
            .add_many_in(tx, op, &self.deliveries, &adds)
            .await
            .map(drop)
    }

    async fn send(&self, call: &Call, _: u32) -> Answer {
        self.sent.send(call.clone()).unwrap();
        self.gate.acquire().await.unwrap().forget();
        let slowness_ms = self.slowness_ms.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(slowness_ms)).await;
        let answer = self.answers.lock().unwrap().pop_front();
        answer.unwrap_or_else(delivered)
    }
}

struct Fixture {
    rules: Rules,
    db: Db,
    peer: Peer,
    source: Source,
    sources: watch::Sender<Arc<[Source]>>,
    network: Network,
    set: watch::Receiver<Arc<Set>>,
    follow: NotifierHandle,
    sent: mpsc::UnboundedReceiver<Call>,
    enqueued: mpsc::UnboundedReceiver<Call>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    gate: Arc<Semaphore>,
    slowness_ms: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl Fixture {
    async fn new() -> Self {
        Self::on(Store::open("memory:").await.unwrap()).await
    }

    async fn on(store: Store) -> Self {
        let jobs = Jobs::new(store.clone(), Clock::system(), Entropy::from_os());
        let options = docstore::Options {
            kinds: KINDS.map(str::to_owned).to_vec(),
            ..docstore::Options::default()
        };
        let docs = DocStore::new(store, options);
        let replications = Replications::open(jobs.clone(), docs, Setup::default())
            .await
            .unwrap();
        let rules = Rules::new(replications);
        let db = rules.replications().create_database("_rules").await;
        let db = db.unwrap();
        let listeners = Listeners::open(rules.clone()).await.unwrap();
        let deliveries = JobType::new("deliveries").unwrap();
        jobs.set_type(&deliveries, TypeConfig::new(30_000))
            .await
            .unwrap();
        let peer = Peer::start(peer::Options::default()).await.unwrap();
        peer.create_database("a").unwrap();
        let source = super::super::tests::source(&peer.url());
        let sources = watch::Sender::new(Arc::from([source.clone()]));
        let network = open_network();
        let (notifier, follow) = Notifier::new(
            jobs.clone(),
            listeners.job_type().clone(),
            Options::default(),
        );
        let (watcher, set) = super::super::RuleWatcher::new(rules.clone());
        let (sending, sent) = mpsc::unbounded_channel();
        let (answers, gate) = (Arc::default(), Arc::new(Semaphore::new(1_000)));
        let slowness_ms = Arc::<AtomicU64>::default();
        let listening = Listening {
            listeners,
            rules: set.clone(),
            sources: sources.subscribe(),
            network: network.clone(),
            sender: Recorder {
                jobs: jobs.clone(),
                deliveries: deliveries.clone(),
                sent: sending,
                answers: Arc::clone(&answers),
                gate: Arc::clone(&gate),
                slowness_ms: Arc::clone(&slowness_ms),
            },
        };
        let stop = CancellationToken::new();
        tokio::spawn(notifier.run(stop.clone()));
        tokio::spawn(watcher.run(stop.clone()));
        let holder = Holder::new("node1").unwrap();
        tokio::spawn(listening.run(holder.clone(), 4, stop.clone()));
        let enqueued = deliver(jobs, deliveries, holder, stop.clone());
        Self {
            rules,
            db,
            peer,
            source,
            sources,
            network,
            set,
            follow,
            sent,
            enqueued,
            answers,
            gate,
            slowness_ms,
            stop,
        }
    }

    /// Writes a rule, which all nodes know then.
    async fn rule(&mut self, body: Value) {
        let mut body = body;
        let (docs, id) = (
            self.rules.replications().docs(),
            body["_id"].as_str().unwrap(),
        );
        if let Ok(before) = docs.get(&self.db, id, &ReadOptions::default()).await {
            body["_rev"] = json!(before.rev.to_string());
        }
        let text = body.to_string();
        let is_rule = body["_deleted"] != true && body["type"] != "global";
        let is_active = is_rule && body["enabled"] != false;
        let doc = Doc::parse(&text).unwrap();
        let edit = Edit::new(doc.id.clone().unwrap(), doc).unwrap();
        let edit = self.rules.prepare(&self.db, edit).unwrap();
        let hook = self.rules.hook();
        let rev = docs
            .put(&self.db, &edit, EditMode::NewEdits, &hook)
            .await
            .unwrap();
        let known = |set: &Arc<Set>| {
            let found = set.iter().find(|rule| rule.id.doc == edit.id);
            found.map(|rule| rule.rev.clone()) == is_active.then(|| rev.to_string())
        };
        self.set.wait_for(known).await.unwrap();
    }

    /// What the feed does.
    async fn signal(&self, event: Event, seen: Option<&Seq>) {
        self.signal_in("a", event, seen).await;
    }

    async fn signal_in(&self, db: &str, event: Event, seen: Option<&Seq>) {
        let jobs = self.rules.replications().jobs();
        let ty = JobType::new(JOB_TYPE).unwrap();
        let now_ms = jobs.clock().now_ms();
        let set = Arc::clone(&self.set.borrow());
        let seen = seen.map(|seq| Seen { seq, news_ms: 0 });
        let signals = Listeners::signals(&set, &self.source, db, event, now_ms, seen);
        let signals = signals.into_iter();
        let signals: Vec<_> = signals
            .map(|(_, signal)| Listeners::at_the_newest(signal))
            .collect();
        jobs.signal_many(&ty, &signals).await.unwrap();
    }

    /// Waits until the job of a rule is in a state; `None` if it is gone.
    async fn job(&self, rule: &str, wanted: impl Fn(Option<(&JobInfo, Place)>) -> bool) {
        let id = RuleId {
            instance: self.db.instance(),
            doc: rule.to_owned(),
        };
        let known = self.set.borrow().get(&id).cloned();
        let ended = known.as_ref().and_then(|rule| rule.ended.as_deref());
        let job = id.job(&["main", "a"], ended);
        let wait = async {
            let mut followed = match self.follow.subscribe(&job).await {
                Err(jobs::Error::NotFound) if wanted(None) => return,
                followed => followed.unwrap(),
            };
            let mut notice = Some(followed.now().clone());
            loop {
                let done = match notice.unwrap() {
                    Notice::Job(info, data) => {
                        wanted(Some((&info, serde_json::from_slice(&data).unwrap())))
                    }
                    _ => wanted(None),
                };
                if done {
                    return;
                }
                notice = followed.next().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }

    async fn gone(&self, rule: &str) {
        self.job(rule, |job| job.is_none()).await;
    }

    /// Writes a rule and a first change, and waits for its call.
    async fn called(&mut self, rule: Value) {
        self.rule(rule).await;
        self.put(&["1"]);
        self.signal(Event::Updated, None).await;
        assert_eq!(next(&mut self.sent).await, "1");
    }

    async fn finished(&self, rule: &str) {
        let finished = |job: Option<(&JobInfo, Place)>| {
            job.is_some_and(|(info, _)| info.state == State::Finished)
        };
        self.job(rule, finished).await;
    }

    /// Looks for changes now; the number of databases.
    async fn trigger(&self) -> u64 {
        let listeners = Listeners::open(self.rules.clone()).await.unwrap();
        let rule = RuleId {
            instance: self.db.instance(),
            doc: "r".to_owned(),
        };
        listeners.trigger(&rule).await.unwrap()
    }

    /// How far the rule `r` is.
    async fn shown(&self) -> Progress {
        let listeners = Listeners::open(self.rules.clone()).await.unwrap();
        let rule = RuleId {
            instance: self.db.instance(),
            doc: "r".to_owned(),
        };
        let (mut shown, _) = listeners
            .progress(&rule, &Only::default(), None, 1)
            .await
            .unwrap();
        shown.remove(0)
    }

    fn put(&self, ids: &[&str]) {
        for id in ids {
            let doc = json!({"_id": id, "type": if id.starts_with('m') { "msg" } else { "other" }});
            self.peer.put("a", &doc.to_string()).unwrap();
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Whether a rule has found out where now is.
fn is_there(job: Option<(&JobInfo, Place)>) -> bool {
    job.is_some_and(|(info, place)| {
        info.state == State::Finished && place.since.as_deref() != Some(SINCE_NOW)
    })
}

fn open_network() -> Network {
    let options = NetworkOptions {
        egress: EgressOptions::open(),
        ..NetworkOptions::default()
    };
    Network::new(options, [7; 32]).unwrap()
}

/// Makes the calls that are enqueued.
fn deliver(
    jobs: Jobs,
    ty: JobType,
    holder: Holder,
    stop: CancellationToken,
) -> mpsc::UnboundedReceiver<Call> {
    let (enqueuing, enqueued) = mpsc::unbounded_channel();
    let worker = Worker::new(jobs, ty, holder, WorkerOptions::default());
    tokio::spawn(worker.run(stop, move |task: jobs::Task<Call>| {
        enqueuing.send(task.data).unwrap();
        async { Ok(Finish::done()) }
    }));
    enqueued
}

async fn next(calls: &mut mpsc::UnboundedReceiver<Call>) -> String {
    let call = tokio::time::timeout(PATIENCE, calls.recv()).await;
    let call = call.expect("no call comes").unwrap();
    call.url.trim_start_matches("http://h/").to_owned()
}

fn on_change(members: &Value) -> Value {
    let mut rule = json!({
        "_id": "r", "type": "on_change", "url": "http://h/${change.id}", "retry": {"delay_sec": 0.001},
    });
    let members = members.as_object().unwrap().clone();
    rule.as_object_mut().unwrap().extend(members);
    rule
}

fn made(status: u16, retry_after: Option<Duration>) -> Answer {
    let attempt = Attempt {
        at_ms: 1,
        took_ms: 2,
        status: Some(status),
        error: None,
        body: "text".to_owned(),
    };
    Answer::Made(Outcome::of_status(status, retry_after), attempt)
}

fn delivered() -> Answer {
    made(200, None)
}

fn refused() -> Answer {
    made(500, None)
}

/// SP-T024, SP-T051.
#[tokio::test]
async fn calls_that_block_are_made_in_order_until_each_succeeds() {
    let mut fixture = Fixture::new().await;
    fixture
        .answers
        .lock()
        .unwrap()
        .extend([delivered(), refused(), refused()]);
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.put(&["1", "2", "3"]);
    fixture.signal(Event::Updated, None).await;
    for expected in ["1", "2", "2", "2", "3"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
    fixture.finished("r").await;
    fixture.put(&["4"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "4");
    fixture.finished("r").await;
    assert!(fixture.sent.try_recv().is_err() && fixture.enqueued.try_recv().is_err());
}

/// A page ends with a database of the rule, and the next one begins behind it.
#[tokio::test]
async fn databases_of_a_rule_are_listed_page_by_page() {
    let mut fixture = Fixture::new().await;
    for id in ["other", "r", "s"] {
        fixture.rule(on_change(&json!({"_id": id}))).await;
    }
    for db in ["b", "c"] {
        fixture.peer.create_database(db).unwrap();
    }
    for db in ["a", "b", "c"] {
        fixture.signal_in(db, Event::Updated, None).await;
    }
    let listeners = Listeners::open(fixture.rules.clone()).await.unwrap();
    let rule = RuleId {
        instance: fixture.db.instance(),
        doc: "r".to_owned(),
    };
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = listeners.progress(&rule, &Only::default(), after, 1).await;
        let (found, next) = page.unwrap();
        assert!(found.len() <= 1, "{found:?}");
        names.extend(found.into_iter().map(|progress| progress.database));
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c"]);
}

/// Then all later changes are new.
#[tokio::test]
async fn a_rule_that_has_seen_an_empty_database_skips_no_change() {
    let mut fixture = Fixture::new().await;
    fixture.rule(on_change(&json!({}))).await;
    fixture.signal(Event::Updated, None).await;
    fixture.finished("r").await;
    fixture.put(&["1", "2"]);
    fixture.signal(Event::Updated, None).await;
    for expected in ["1", "2"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
}

/// Defect D1: Spiegel repeated it at once, for ever.
#[tokio::test]
async fn d1_a_call_that_blocks_and_fails_waits() {
    let mut fixture = Fixture::new().await;
    fixture.answers.lock().unwrap().push_back(refused());
    let retry = json!({"delay_sec": 600});
    fixture
        .rule(on_change(&json!({"since": 0, "retry": retry})))
        .await;
    fixture.put(&["1"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "1");
    let now_ms = fixture.rules.replications().jobs().clock().now_ms();
    let waits = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, place)| {
            info.state == State::Pending && place.failures == 1 && info.due_ms > now_ms + 400_000
        })
    };
    fixture.job("r", waits).await;
    assert!(fixture.sent.try_recv().is_err());
}

#[tokio::test]
async fn a_call_that_fails_too_often_becomes_a_delivery() {
    let mut fixture = Fixture::new().await;
    fixture
        .answers
        .lock()
        .unwrap()
        .extend([refused(), refused(), refused()]);
    let retry = json!({"delay_sec": 0.001, "limit": 2});
    fixture
        .rule(on_change(&json!({"since": 0, "retry": retry})))
        .await;
    fixture.put(&["1", "2"]);
    fixture.signal(Event::Updated, None).await;
    for expected in ["1", "1", "1", "2"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
    assert_eq!(next(&mut fixture.enqueued).await, "1");
}

/// SP-T026, SP-T050.
#[tokio::test]
async fn calls_that_do_not_block_are_enqueued_once() {
    let mut fixture = Fixture::new().await;
    fixture
        .rule(on_change(&json!({"since": 0, "block": false})))
        .await;
    let ids: Vec<_> = (0..250).map(|nth| format!("d{nth:03}")).collect();
    fixture.put(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    fixture.signal(Event::Created, None).await;
    let mut found = Vec::new();
    for _ in 0..ids.len() {
        found.push(next(&mut fixture.enqueued).await);
    }
    found.sort();
    assert_eq!(found, ids);
    fixture.finished("r").await;
    fixture.signal(Event::Updated, None).await;
    fixture.put(&["e"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.enqueued).await, "e");
    assert!(fixture.sent.try_recv().is_err());
}

#[tokio::test]
async fn large_documents_are_read_a_few_at_a_time() {
    let mut fixture = Fixture::new().await;
    fixture
        .rule(on_change(&json!({"since": 0, "block": false})))
        .await;
    let text = "x".repeat(1_500_000);
    for nth in 0..7 {
        let doc = json!({"_id": nth.to_string(), "text": text});
        fixture.peer.put("a", &doc.to_string()).unwrap();
    }
    fixture.signal(Event::Created, None).await;
    let mut found = BTreeSet::new();
    while found.len() < 7 {
        found.insert(next(&mut fixture.enqueued).await);
    }
    fixture.finished("r").await;
    assert_eq!(fixture.peer.count("GET", "/a/_changes"), 4);
}

#[tokio::test]
async fn only_the_changes_that_a_rule_is_about_are_called_for() {
    let mut fixture = Fixture::new().await;
    let condition = json!({"type": "^msg$", "_deleted": null});
    let selector = json!({"_id": {"$gt": "m1"}});
    fixture
        .rule(on_change(
            &json!({"since": "0", "if": condition, "selector": selector}),
        ))
        .await;
    fixture.put(&["m1", "m2", "x", "m3"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "m2");
    assert_eq!(next(&mut fixture.sent).await, "m3");
    fixture.finished("r").await;
    assert!(fixture.sent.try_recv().is_err());
}

/// Defect D15: Spiegel began with the first change of all time.
#[tokio::test]
async fn d15_rules_begin_now_unless_they_say_otherwise() {
    let mut fixture = Fixture::new().await;
    fixture.put(&["old1", "old2"]);
    let endpoint = fixture.source.server().database("a").unwrap();
    let database = fixture
        .network
        .database(endpoint, RequestOptions::default());
    let seen = database.await.unwrap().info().await.unwrap().update_seq;
    fixture.rule(on_change(&json!({}))).await;
    fixture.put(&["new"]);
    // The feed has never looked at this database.
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.enqueued).await, "new");
    fixture.finished("r").await;

    // The feed knows where it was before.
    let mut other = on_change(&json!({}));
    other["_id"] = json!("s");
    fixture.rule(other).await;
    fixture.signal(Event::Updated, Some(&seen)).await;
    assert_eq!(next(&mut fixture.sent).await, "new");
    fixture.finished("s").await;
    assert!(fixture.sent.try_recv().is_err());
}

/// The newest change is another one by the time that a call is repeated.
#[tokio::test]
async fn a_rule_that_begins_with_the_newest_change_loses_none_after_it() {
    let mut fixture = Fixture::new().await;
    fixture.gate.forget_permits(1_000);
    fixture.answers.lock().unwrap().push_back(refused());
    fixture.rule(on_change(&json!({}))).await;
    fixture.put(&["1"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.enqueued).await, "1");
    fixture.put(&["2", "3"]);
    fixture.signal(Event::Updated, None).await;
    fixture.gate.add_permits(1_000);
    for expected in ["2", "2", "3"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
}

#[tokio::test]
async fn changes_are_gathered_only_behind_a_known_place() {
    let mut fixture = Fixture::new().await;
    let gathers = json!({"trigger": {"delay_sec": 600}});
    fixture.rule(on_change(&gathers)).await;
    fixture.put(&["1"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.enqueued).await, "1");
    fixture.finished("r").await;

    let mut other = on_change(&gathers);
    other["_id"] = json!("s");
    fixture.rule(other).await;
    let now_ms = fixture.rules.replications().jobs().clock().now_ms();
    fixture.signal(Event::Created, None).await;
    let gathers = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, _)| info.due_ms >= now_ms + 600_000)
    };
    fixture.job("s", gathers).await;
}

#[tokio::test]
async fn a_rule_is_triggered_and_rewound() {
    let mut fixture = Fixture::new().await;
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.put(&["1", "2"]);
    fixture.signal(Event::Updated, None).await;
    for expected in ["1", "2"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
    fixture.finished("r").await;
    let listeners = Listeners::open(fixture.rules.clone()).await.unwrap();
    let rule = RuleId {
        instance: fixture.db.instance(),
        doc: "r".to_owned(),
    };
    let rewind = async |db: &str, to: Rewind| {
        let only = Only {
            database: Some(db.to_owned()),
            ..Only::default()
        };
        listeners.rewind(&rule, &only, &to).await.unwrap()
    };
    assert_eq!(rewind("b", Rewind::Now).await, 0);
    assert_eq!(rewind("a", Rewind::Seq("0".to_owned())).await, 1);
    for expected in ["1", "2"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
    fixture.finished("r").await;

    let only = Only::default();
    let (shown, after) = listeners.progress(&rule, &only, None, 10).await.unwrap();
    assert_eq!((shown.len(), after), (1, None));
    assert_eq!((&*shown[0].source, &*shown[0].database), ("main", "a"));
    assert_eq!(shown[0].failures, 0);
    let since = shown[0].since.as_deref();
    assert!(
        since.is_some_and(|since| since.starts_with("2-")),
        "{since:?}"
    );
    assert!(shown[0].last.as_ref().is_some_and(|run| run.end.is_some()));
    let other = Only {
        database: Some("b".to_owned()),
        ..Only::default()
    };
    let of_other = listeners.progress(&rule, &other, None, 10).await.unwrap();
    assert_eq!(of_other, (Vec::new(), None));

    // The feed has not told yet.
    fixture.put(&["3"]);
    assert_eq!(listeners.trigger(&rule).await.unwrap(), 1);
    assert_eq!(next(&mut fixture.sent).await, "3");
    fixture.finished("r").await;

    fixture.put(&["left out"]);
    assert_eq!(rewind("a", Rewind::Now).await, 1);
    fixture.job("r", is_there).await;
    fixture.put(&["4"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "4");
    let other = RuleId {
        doc: "other".to_owned(),
        ..rule.clone()
    };
    assert_eq!(listeners.trigger(&other).await.unwrap(), 0);
}

/// SP-T022, SP-T142: the place is kept for a while, and a database made anew is read from its beginning.
#[tokio::test]
async fn a_database_may_go_and_come_back() {
    let mut fixture = Fixture::new().await;
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.put(&["1", "2", "3"]);
    fixture.signal(Event::Updated, None).await;
    for expected in ["1", "2", "3"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
    fixture.finished("r").await;
    fixture.peer.delete_database("a").unwrap();
    fixture.signal(Event::Deleted, None).await;
    let missing = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, place)| info.state == State::Pending && place.missing_ms.is_some())
    };
    fixture.job("r", missing).await;
    fixture.peer.create_database("a").unwrap();
    fixture.put(&["4"]);
    fixture.signal(Event::Created, None).await;
    assert_eq!(next(&mut fixture.sent).await, "4");
    let found = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, place)| info.state == State::Finished && place.missing_ms.is_none())
    };
    fixture.job("r", found).await;
}

#[tokio::test]
async fn nothing_is_missed_while_commits_fail_or_have_unknown_outcomes() {
    let faults = Faults {
        seed: 3,
        conflict: 0.1,
        unknown_applied: 0.1,
        unknown_lost: 0.1,
        ..Faults::default()
    };
    let quiet = Store::open("memory:").await.unwrap();
    let mut fixture = Fixture::on(quiet.with_faults(faults).0).await;
    fixture.rule(on_change(&json!({"since": 0}))).await;
    let mut free = on_change(&json!({"since": 0, "block": false}));
    free["_id"] = json!("s");
    fixture.rule(free).await;
    let ids: Vec<_> = (0..30).map(|nth| format!("d{nth:02}")).collect();
    for ids in ids.chunks(10) {
        fixture.put(&ids.iter().map(String::as_str).collect::<Vec<_>>());
        fixture.signal(Event::Updated, None).await;
    }
    // A call may be made again, but none out of order.
    let (mut sent, mut enqueued) = (Vec::new(), BTreeSet::new());
    while sent.last() != ids.last() {
        let call = next(&mut fixture.sent).await;
        assert!(sent.last().is_none_or(|last| *last <= call), "{sent:?}");
        sent.push(call);
    }
    sent.dedup();
    assert_eq!(sent, ids);
    while enqueued.len() < ids.len() {
        enqueued.insert(next(&mut fixture.enqueued).await);
    }
    assert!(enqueued.iter().eq(&ids));
}
