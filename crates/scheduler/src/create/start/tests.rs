//! Starting the replications of a remote, and waiting for their runs. Each test is the holder of its jobs.

use std::time::Duration;

use docstore::{Db, DocStore};
use document::json::Json;
use jobs::{Accepted, Clock, Entropy, Finish, Holder, JobInfo, Jobs, Maintenance, Outcome};
use serde_json::{Value, json};
use store::{Faults, Store};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::create::Ruled;
use crate::data::{Asleep, Remote, RemoteId, Wake};
use crate::service::Setup;
use crate::wake::ASLEEP_MS;

const DELAY_MS: i64 = 15_000;
const RETRY_MS: i64 = 60_000;
const REV: &str = "1-a";

struct World {
    replications: Replications,
    db: Db,
    holder: Holder,
}

impl World {
    async fn new(store: &Store) -> Self {
        let (clock, entropy) = (Clock::simulated(1_000_000), Entropy::seeded(1));
        let jobs = Jobs::new(store.clone(), clock, entropy);
        let docs = DocStore::new(store.clone(), docstore::Options::default());
        let setup = Setup::default();
        let replications = Replications::open(jobs, docs, setup).await.unwrap();
        let db = replications.create_database("_replicator").await.unwrap();
        let holder = Holder::new("node").unwrap();
        Self {
            replications,
            db,
            holder,
        }
    }

    /// A world whose remote has one database.
    async fn with_one() -> Self {
        let world = Self::new(&Store::open("memory:").await.unwrap()).await;
        world.ask(0..1).await;
        world
    }

    fn of(&self, rev: &'static str) -> RemoteId<'static> {
        RemoteId {
            instance: self.db.instance(),
            doc_id: "eu",
            rev,
        }
    }

    /// The remote `eu` has these databases.
    async fn ask(&self, databases: std::ops::Range<usize>) {
        let ruled: Vec<_> = databases.map(|nth| self.ruled(nth)).collect();
        for ruled in ruled.chunks(100) {
            let all: Vec<_> = ruled.iter().collect();
            let (replications, op, all) = (&self.replications, self.jobs().op(), &all);
            let ask = |tx| async move { replications.rule_in(&tx, &op, all).await };
            let asked = self.jobs().store().transact("rules", ask).await;
            assert_eq!(asked.unwrap(), ruled.len());
        }
    }

    fn ruled(&self, nth: usize) -> Ruled {
        let body = json!({
            "source": format!("http://s/app-{nth}"), "target": format!("http://t/app-{nth}"),
            "trigger": {"delay_sec": 15, "random_delay_sec": 0},
        });
        Ruled {
            db: "_replicator".to_owned(),
            instance: self.db.instance(),
            doc_id: "eu".to_owned(),
            rev: REV.to_owned(),
            database: Some(format!("app-{nth}")),
            remote: Some(Remote {
                name: "eu".to_owned(),
                url: "t".to_owned(),
                retry_ms: RETRY_MS.unsigned_abs(),
                retries_max: 0,
                copy_security: false,
            }),
            is_bulk: false,
            body: Json::from(&body),
        }
    }

    fn jobs(&self) -> &Jobs {
        self.replications.jobs()
    }

    async fn start(&self, now: bool) -> Vec<Asked> {
        self.start_version(REV, now).await
    }

    async fn start_version(&self, rev: &'static str, now: bool) -> Vec<Asked> {
        let started = self.replications.start_remote(self.of(rev), |_| true, now);
        started.await.unwrap()
    }

    async fn info(&self) -> JobInfo {
        let (job, ty) = (self.ruled(0).job(), self.replications.job_type());
        self.jobs().info(ty, &job).await.unwrap().unwrap()
    }

    /// The only job, when it is due.
    async fn claim(&self) -> Accepted {
        let ty = self.replications.job_type();
        loop {
            let claimed = self.jobs().accept(ty, &self.holder, 1).await.unwrap();
            if let Some(accepted) = claimed.jobs.into_iter().next() {
                return accepted;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Ends a run in this state, and lets it run again at a time.
    async fn end(&self, accepted: &Accepted, state: JobState, due_ms: i64) {
        let mut data = JobData::decode(&accepted.data).unwrap();
        (data.state, data.asleep) = (state, None);
        if due_ms == ASLEEP_MS {
            data.asleep = Some(asleep());
        }
        let finish = Finish::again(due_ms).data(data.encode());
        let _ = self.jobs().finish(&accepted.job, finish).await.unwrap();
    }

    /// How the runs have ended after a while, and how many have not.
    async fn ended(&self, asked: &mut Vec<Asked>) -> (u64, u64, usize) {
        let mut ended = Ended::default();
        let waiting = self.replications.wait_for_runs(asked, &mut ended);
        let _ = timeout(Duration::from_secs(2), waiting).await;
        (ended.completed, ended.failed, asked.len())
    }

    /// The next run copies everything, which is what is waited for.
    async fn completes(&self, asked: &mut Vec<Asked>) {
        let run = self.claim().await;
        self.end(&run, JobState::Running, ASLEEP_MS).await;
        assert_eq!(self.ended(asked).await, (1, 0, 0));
    }

    /// The job of a later version of the remote, which has one database.
    async fn edit(&self, rev: &str) {
        let edited = Ruled {
            rev: rev.to_owned(),
            ..self.ruled(0)
        };
        let (replications, op, edited) = (&self.replications, self.jobs().op(), &edited);
        let ask = |tx| async move { replications.rule_in(&tx, &op, &[edited]).await };
        let created = self.jobs().store().transact("rule", ask).await.unwrap();
        assert_eq!(created, 1);
    }

    async fn waiting(&self) -> Value {
        let counts = self.replications.remote_counts(self.of(REV)).await.unwrap();
        counts["states"]["waiting"].clone()
    }
}

fn asleep() -> Asleep {
    Asleep {
        watches: None,
        polls: false,
        seq: json!("1-a"),
        wake: Wake {
            seq: json!("1-a"),
            listed: None,
            delay_ms: DELAY_MS,
            random_ms: 0,
            not_before_ms: 0,
        },
    }
}

#[tokio::test(start_paused = true)]
async fn runs_that_copied_nothing_have_not_completed() {
    let world = World::with_one().await;
    let mut asked = world.start(true).await;
    assert_eq!(world.ended(&mut asked).await, (0, 0, 1));
    // Its node stops, or it gets the limits that it lacks.
    let run = world.claim().await;
    assert_eq!(world.ended(&mut asked).await, (0, 0, 1));
    world.end(&run, JobState::Pending, 0).await;
    assert_eq!(world.ended(&mut asked).await, (0, 0, 1));
    // Its node gives it back.
    let run = world.claim().await;
    let returned = Finish::returned(0);
    let _ = world.jobs().finish(&run.job, returned).await.unwrap();
    assert_eq!(world.ended(&mut asked).await, (0, 0, 1));
    world.completes(&mut asked).await;

    let mut asked = world.start(true).await;
    let run = world.claim().await;
    world.end(&run, JobState::Crashing, 2_000_000).await;
    assert_eq!(world.ended(&mut asked).await, (0, 1, 0));
}

/// What its data says of an earlier run means nothing.
#[tokio::test(start_paused = true)]
async fn a_run_whose_node_is_killed_has_not_ended() {
    let world = World::with_one().await;
    let run = world.claim().await;
    world.end(&run, JobState::Crashing, ASLEEP_MS - 1).await;
    let mut asked = world.start(true).await;
    let run = world.claim().await;
    let mut data = JobData::decode(&run.data).unwrap();
    (data.state, data.asleep) = (JobState::Running, Some(asleep()));
    let copies = Some(data.encode().into());
    let _ = world.jobs().update(&run.job, copies).await.unwrap();
    let stop = CancellationToken::new();
    let maintenance = Maintenance::new(world.jobs().clone(), jobs::Options::default());
    let maintenance = maintenance.serve(world.replications.job_type().clone());
    let maintenance = tokio::spawn(maintenance.run(stop.clone()));
    while world.info().await.state == State::Running {
        sleep(Duration::from_secs(1)).await;
    }
    let end = world.info().await.last.and_then(|last| last.end);
    assert_eq!(end.map(|end| end.outcome), Some(Outcome::Stalled));
    let counts = world.replications.remote_counts(world.of(REV)).await;
    assert_eq!(counts.unwrap()["states"]["retrying"], 1);
    assert_eq!(world.ended(&mut asked).await, (0, 0, 1));
    world.completes(&mut asked).await;
    stop.cancel();
    maintenance.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_runs_is_waited_for_once_more() {
    let world = World::with_one().await;
    let run = world.claim().await;
    let mut asked = world.start(true).await;
    world.end(&run, JobState::Running, ASLEEP_MS).await;
    assert_eq!(world.ended(&mut asked).await, (0, 0, 1));
    world.completes(&mut asked).await;
}

/// An edit of the remote replaces its jobs, whose runs count from one.
#[tokio::test(start_paused = true)]
async fn the_job_of_an_edited_remote_is_waited_for() {
    let world = World::with_one().await;
    for _ in 0..3 {
        let run = world.claim().await;
        world.end(&run, JobState::Running, 0).await;
    }
    let mut asked = world.start(true).await;
    world.edit("2-b").await;
    assert_eq!(world.ended(&mut asked).await, (0, 0, 1));
    world.completes(&mut asked).await;
}

/// A job of an earlier version of the remote does not run again.
#[tokio::test(start_paused = true)]
async fn only_the_latest_version_of_a_remote_is_started() {
    let world = World::new(&Store::open("memory:").await.unwrap()).await;
    world.ask(0..2).await;
    world.edit("2-b").await;
    let job = |asked: Vec<Asked>| asked.into_iter().map(|asked| asked.job).collect::<Vec<_>>();
    let started = job(world.start_version("2-b", true).await);
    assert_eq!(started, [world.ruled(0).job()]);
    assert_eq!(job(world.start_version("3-c", true).await), []);
}

/// The job that it has found is replaced before it is started.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_during_an_edit_runs_the_newest_version_once() {
    for was_asleep in [true, false] {
        let world = World::with_one().await;
        if was_asleep {
            world.start(true).await;
            let run = world.claim().await;
            world.end(&run, JobState::Running, ASLEEP_MS).await;
        }
        let edited = |_: Candidate<'_>| {
            let runtime = tokio::runtime::Handle::current();
            tokio::task::block_in_place(|| runtime.block_on(world.edit("2-b")));
            true
        };
        let started = world.replications.start_remote(world.of(REV), edited, true);
        let mut asked = started.await.unwrap();
        assert_eq!((asked.len(), world.info().await.due_ms), (1, 0));
        let run = world.claim().await;
        let data = JobData::decode(&run.data).unwrap();
        assert!(data.is_current_of(world.of("2-b")), "{data:?}");
        world.end(&run, JobState::Running, ASLEEP_MS).await;
        assert_eq!(world.ended(&mut asked).await, (1, 0, 0));
        let info = world.info().await;
        assert_eq!((info.attempts, info.due_ms), (1, ASLEEP_MS));
    }
}

/// However the first of them is doing.
#[tokio::test(start_paused = true)]
async fn runs_are_counted_as_they_end() {
    let world = World::new(&Store::open("memory:").await.unwrap()).await;
    world.ask(0..3).await;
    let mut asked = world.start(true).await;
    let mut ended = Vec::new();
    for _ in 0..2 {
        let run = world.claim().await;
        world.end(&run, JobState::Running, ASLEEP_MS).await;
        ended.push(run.job.id);
    }
    asked.sort_by_key(|one| ended.contains(&one.job));
    let first = asked[0].job.clone();
    assert_eq!(world.ended(&mut asked).await, (2, 0, 1));
    assert_eq!(asked[0].job, first);
}

/// It is due because its source changed during its last run.
#[tokio::test(start_paused = true)]
async fn one_that_has_changes_to_copy_keeps_its_place() {
    let world = World::with_one().await;
    let run = world.claim().await;
    let mut data = JobData::decode(&run.data).unwrap();
    let mut behind = asleep();
    behind.wake.seq = Value::Null;
    (data.state, data.asleep) = (JobState::Running, Some(behind));
    let due_ms = world.jobs().clock().now_ms() + 1_000;
    let finish = Finish::again(due_ms).data(data.encode());
    let _ = world.jobs().finish(&run.job, finish).await.unwrap();
    let mut asked = world.start(false).await;
    let info = world.info().await;
    assert_eq!((info.due_ms, info.class), (due_ms, Class::Normal));
    world.completes(&mut asked).await;
}

/// The run that was asked for never begins, as no try follows the last one.
#[tokio::test(start_paused = true)]
async fn one_that_gives_up_is_not_waited_for() {
    let world = World::with_one().await;
    let run = world.claim().await;
    let mut asked = world.start(true).await;
    let mut data = JobData::decode(&run.data).unwrap();
    data.state = JobState::Failed;
    let finish = Finish::dead("db_not_found").data(data.encode());
    let _ = world.jobs().finish(&run.job, finish).await.unwrap();
    assert_eq!(world.info().await.state, State::Dead);
    assert_eq!(world.ended(&mut asked).await, (0, 1, 0));
    let mut asked = world.start(true).await;
    world.completes(&mut asked).await;
}

/// Only `now` runs one that waits after a failure before its next try.
#[tokio::test(start_paused = true)]
async fn a_start_shortens_a_back_off_only_if_it_says_so() {
    let world = World::with_one().await;
    let run = world.claim().await;
    let due_ms = world.jobs().clock().now_ms() + RETRY_MS;
    world.end(&run, JobState::Crashing, due_ms).await;
    let mut asked = world.start(false).await;
    assert_eq!(asked.len(), 1);
    assert_eq!(world.info().await.due_ms, due_ms);
    assert_eq!(world.ended(&mut asked).await, (0, 0, 1));
    world.start(true).await;
    assert_eq!(world.info().await.due_ms, 0);
    world.completes(&mut asked).await;
}

#[tokio::test(start_paused = true)]
async fn many_are_started_in_few_transactions() {
    let quiet = Store::open("memory:").await.unwrap();
    World::new(&quiet).await.ask(0..250).await;
    let faults = Faults {
        conflict: 0.2,
        unknown_applied: 0.2,
        unknown_lost: 0.1,
        ..Faults::default()
    };
    let (faulty, _) = quiet.with_faults(faults);
    let world = World::new(&faulty).await;
    let mut started = world.start(true).await;
    let calls = world.jobs().store().stats()["start_remote"].calls;
    assert!(calls <= 10, "{calls} transactions");
    assert_eq!(started.len(), 250);
    started.sort_by(|a, b| a.job.cmp(&b.job));
    assert!(started.iter().all(|asked| asked.run == 1));
    let ty = world.replications.job_type();
    let found = world.jobs().check(ty).await.unwrap();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
}

/// All who ask within a short time get the numbers of one reading, unless something was changed here.
#[tokio::test(start_paused = true)]
async fn the_numbers_of_a_remote_are_read_once_for_all() {
    let store = Store::open("memory:").await.unwrap();
    let (world, other) = (World::new(&store).await, World::new(&store).await);
    world.ask(0..1).await;
    let reads = || world.jobs().store().stats()["list"].calls;
    assert_eq!(world.waiting().await, 1);
    let before = reads();
    other.ask(1..3).await;
    let asked = tokio::join!(world.waiting(), world.waiting());
    assert_eq!((asked.0, asked.1, reads()), (json!(1), json!(1), before));
    tokio::time::advance(Duration::from_millis(1_001)).await;
    let asked = tokio::join!(world.waiting(), world.waiting());
    assert_eq!(
        (asked.0, asked.1, reads()),
        (json!(3), json!(3), before + 1)
    );
    other.ask(3..4).await;
    world.start(true).await;
    assert_eq!(world.waiting().await, 4);
}
