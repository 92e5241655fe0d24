//! Schedules on nodes that are killed and whose clocks differ, on a store that fails.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobs::{Clock, Counts, Entropy, Finish, Holder, Jobs, Maintenance, Options};
use store::{FaultControl, Faults, Store};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{CatchUp, Schedule, Scheduled, schedules_type};
use crate::{Queue, Settings, Type, TypeName};

/// 2026-11-23T00:00:00Z
const START_MS: i64 = 1_795_392_000_000;
const EVERY_MS: i64 = 7_000;
const KILLS: u64 = 100;

fn queue(store: Store, clock: Clock, seed: u64) -> Queue {
    let jobs = Jobs::new(store, clock, Entropy::seeded(seed));
    Queue::new(jobs, Options::default(), seal::Sealer::plain())
}

async fn mail(queue: &Queue) -> Arc<Type> {
    let name = TypeName::new("mail").unwrap();
    queue.put_type(&name, &Settings::default()).await.unwrap();
    queue.find(&name).await.unwrap()
}

fn schedule(text: &str) -> Schedule {
    serde_json::from_str(text).unwrap()
}

/// A frontend that can be killed.
struct Node {
    queue: Queue,
    control: FaultControl,
    running: JoinHandle<()>,
    stop: CancellationToken,
}

impl Node {
    fn start(store: &Store, skew_ms: i64, seed: u64) -> Self {
        let faults = Faults {
            seed,
            conflict: 0.1,
            unknown_applied: 0.1,
            unknown_lost: 0.1,
            delay: 0.3,
            delay_max: Duration::from_secs(2),
            ..Faults::default()
        };
        let (store, control) = store.with_faults(faults);
        let clock = Clock::simulated(START_MS);
        clock.set_skew_ms(skew_ms);
        let queue = queue(store, clock, seed);
        let stop = CancellationToken::new();
        Self {
            running: tokio::spawn(Self::run(queue.clone(), stop.clone())),
            queue,
            control,
            stop,
        }
    }

    async fn run(queue: Queue, stop: CancellationToken) {
        let jobs = queue.jobs().clone();
        let maintenance = Maintenance::new(jobs, Options::default()).serve(schedules_type());
        tokio::join!(maintenance.run(stop.clone()), queue.run_schedules(stop));
    }

    /// Whatever it is in the middle of.
    async fn kill_and_start(&mut self) {
        self.running.abort();
        let _ = (&mut self.running).await;
        self.running = tokio::spawn(Self::run(self.queue.clone(), self.stop.clone()));
    }
}

/// Runs all jobs at once, so that one which is added again runs again.
async fn work(queue: Queue, ty: Arc<Type>) {
    let me = Holder::new("worker").unwrap();
    loop {
        for accepted in queue.jobs().accept(&ty.ty, &me, 100).await.unwrap().jobs {
            let _ = queue
                .jobs()
                .finish(&accepted.job, Finish::done())
                .await
                .unwrap();
        }
        sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_occurrence_has_one_job_whatever_is_killed() {
    let store = Store::open("memory:").await.unwrap();
    let clock = Clock::simulated(START_MS);
    let calm = queue(store.clone(), clock.clone(), 1);
    let ty = mail(&calm).await;
    let tick = schedule(
        r#"{"type":"mail","job":{"data":1},"every_sec":7,"overlap":"queue","catch_up":"all"}"#,
    );
    calm.put_schedule("tick", &tick).await.unwrap();
    let working = tokio::spawn(work(calm.clone(), ty.clone()));
    let minutes = |n: i64| n * 60_000;
    let mut nodes =
        [(-3, 2), (0, 3), (3, 4)].map(|(skew, seed)| Node::start(&store, minutes(skew), seed));
    for kill in 0..KILLS {
        let nth = usize::try_from(calm.jobs().entropy().bits() % 3).unwrap();
        sleep(calm.jobs().entropy().up_to(Duration::from_secs(40))).await;
        nodes[nth].kill_and_start().await;
        if kill % 10 == 0 {
            // A time without any node.
            for node in &mut nodes {
                node.running.abort();
            }
            sleep(Duration::from_mins(2)).await;
            for node in &mut nodes {
                node.kill_and_start().await;
            }
        }
    }
    for node in &nodes {
        node.control.set_quiet(true);
    }
    sleep(Duration::from_mins(5)).await;
    working.abort();
    let expected = (clock.now_ms() - START_MS) / EVERY_MS;
    let found = calm.schedule("tick").await.unwrap();
    let count = (found.next_ms - START_MS) / EVERY_MS - 1;
    assert!(count >= expected, "{count} of {expected} occurrences");
    assert_eq!((found.next_ms - START_MS) % EVERY_MS, 0);
    let Counts {
        created_total,
        accepted_total,
        ..
    } = calm.jobs().counts(&ty.ty).await.unwrap();
    let count = u64::try_from(count).unwrap();
    // The last ones may not have run.
    assert_eq!(created_total, count);
    assert!(
        accepted_total <= count && accepted_total + 10 > count,
        "{accepted_total} of {count}"
    );
    for nth in 1..=count {
        let at =
            jiff::Timestamp::from_millisecond(START_MS + EVERY_MS * i64::try_from(nth).unwrap());
        let shown = calm
            .show(&ty, &format!("tick@{}", at.unwrap()))
            .await
            .unwrap();
        assert!(shown.info.attempts <= 1, "{shown:?}");
    }
}

fn scheduled(catch_up: CatchUp, next_ms: i64) -> Scheduled {
    Scheduled {
        sealed: false,
        name: "a".into(),
        schedule: Schedule {
            catch_up,
            ..schedule(r#"{"type":"mail","job":{"data":1},"cron":"0 * * * *"}"#)
        },
        anchor_ms: 0,
        next_ms,
        last: None,
        skipped: 0,
        unreadable: None,
    }
}

#[test]
fn missed_occurrences_are_made_up_for() {
    const HOUR: i64 = 3_600_000;
    let at = |n: i64| START_MS + n * HOUR;
    let now_ms = at(5) + HOUR / 2;
    for (catch_up, due) in [
        (CatchUp::One, vec![at(5)]),
        (CatchUp::All, (0..6).map(at).collect()),
        (CatchUp::None, vec![]),
    ] {
        let missed = scheduled(catch_up, START_MS);
        assert_eq!(missed.due(now_ms).unwrap(), (due, at(6)), "{catch_up:?}");
        assert_eq!(missed.due(START_MS - 1).unwrap(), (vec![], START_MS));
        assert_eq!(missed.due(START_MS + 5).unwrap(), (vec![START_MS], at(1)));
    }
    let many = scheduled(CatchUp::All, at(-1_000)).due(START_MS).unwrap();
    assert_eq!((many.0.len(), many.1), (super::OCCURRENCES_MAX, at(-900)));
    // As many as fit into a transaction.
    let mut large = scheduled(CatchUp::All, at(-1_000));
    large.schedule.job.data = serde_json::from_str(&format!("\"{}\"", "x".repeat(97_000))).unwrap();
    let some = large.due(START_MS).unwrap();
    assert_eq!((some.0.len(), some.1), (10, at(-990)));
}

#[tokio::test]
async fn the_largest_schedule_that_is_accepted_occurs() {
    let store = Store::open("memory:").await.unwrap();
    let clock = Clock::standing(START_MS);
    let queue = queue(store, clock.clone(), 1);
    mail(&queue).await;
    let of = |bytes: usize| {
        let data = "x".repeat(bytes);
        schedule(&format!(
            r#"{{"type":"mail","job":{{"data":"{data}"}},"every_sec":5}}"#
        ))
    };
    let (mut fits, mut refused) = (1_000, 101_000);
    while refused - fits > 1 {
        let bytes = usize::midpoint(fits, refused);
        match queue.put_schedule("a", &of(bytes)).await {
            Ok(_) => fits = bytes,
            Err(crate::Error::TooLarge(_)) => refused = bytes,
            Err(error) => panic!("{error}"),
        }
    }
    queue.put_schedule("a", &of(fits)).await.unwrap();
    fire(&queue, &clock, START_MS + 5_000).await;
    let shown = queue.schedule("a").await.unwrap();
    assert!(shown.last.is_some_and(|last| last.id.is_some()), "{fits}");
}

/// Claims the schedule's job at a time, and handles it.
async fn fire(queue: &Queue, clock: &Clock, at_ms: i64) {
    clock.set_ms(at_ms);
    let me = Holder::new("node").unwrap();
    for accepted in queue
        .jobs()
        .accept(&schedules_type(), &me, 1)
        .await
        .unwrap()
        .jobs
    {
        queue.fire(&accepted.job).await.unwrap();
        // A request whose answer was lost.
        queue.fire(&accepted.job).await.unwrap();
    }
}

#[tokio::test]
async fn occurrences_are_skipped_while_their_job_is_not_finished() {
    let store = Store::open("memory:").await.unwrap();
    let clock = Clock::standing(START_MS);
    let queue = queue(store, clock.clone(), 1);
    let ty = mail(&queue).await;
    let minute = |n: i64| START_MS + n * 60_000;
    let mut every = schedule(r#"{"type":"mail","job":{"data":1},"cron":"* * * * *"}"#);
    let put = queue.put_schedule("a", &every).await.unwrap();
    assert_eq!(put, (true, minute(1)));
    fire(&queue, &clock, minute(1) - 1).await;
    assert_eq!(queue.schedule("a").await.unwrap().last, None);
    for n in 1..4 {
        fire(&queue, &clock, minute(n)).await;
    }
    let found = queue.schedule("a").await.unwrap();
    assert_eq!((found.skipped, found.next_ms), (2, minute(4)));
    assert_eq!(found.last.unwrap().id.unwrap(), "a@2026-11-23T00:01:00Z");
    every.overlap = super::Overlap::Queue;
    assert_eq!(
        queue.put_schedule("a", &every).await.unwrap(),
        (false, minute(4))
    );
    fire(&queue, &clock, minute(4)).await;
    assert_eq!(queue.jobs().counts(&ty.ty).await.unwrap().pending, 2);
    assert_eq!(
        queue.run_schedule("a", None).await.unwrap(),
        "a@now-2026-11-23T00:04:00Z"
    );
    assert_eq!(queue.schedule("a").await.unwrap().next_ms, minute(5));
    every.cron = Some("30 * * * *".into());
    assert_eq!(
        queue.put_schedule("a", &every).await.unwrap(),
        (false, minute(30))
    );
    fire(&queue, &clock, minute(5)).await;
    assert_eq!(queue.jobs().counts(&ty.ty).await.unwrap().pending, 3);
    queue.remove_schedule("a").await.unwrap();
    fire(&queue, &clock, minute(30)).await;
    assert_eq!(queue.jobs().counts(&ty.ty).await.unwrap().pending, 3);
    assert!(queue.schedule("a").await.is_err() && queue.remove_schedule("a").await.is_err());
}

#[tokio::test]
async fn wrong_schedules_are_refused() {
    let queue = queue(
        Store::open("memory:").await.unwrap(),
        Clock::standing(START_MS),
        1,
    );
    mail(&queue).await;
    for (name, text, reason) in [
        (
            "A",
            r#"{"type":"mail","job":{"data":1},"every_sec":5}"#,
            "a schedule is named",
        ),
        (
            "a",
            r#"{"type":"none","job":{"data":1},"every_sec":5}"#,
            "PUT /_jobs/none",
        ),
        (
            "a",
            r#"{"type":"mail","job":{"data":1}}"#,
            "either `cron` or `every_sec`",
        ),
        (
            "a",
            r#"{"type":"mail","job":{"data":1},"cron":"* * * * *","every_sec":5}"#,
            "either",
        ),
        (
            "a",
            r#"{"type":"mail","job":{"data":1},"every_sec":5,"zone":"UTC"}"#,
            "`zone` applies only to `cron`",
        ),
        (
            "a",
            r#"{"type":"mail","job":{"data":1},"every_sec":0.5}"#,
            "at least 1",
        ),
        (
            "a",
            r#"{"type":"mail","job":{"data":1,"due":"2030-01-01T00:00:00Z"},"every_sec":5}"#,
            "no `due`",
        ),
        (
            "a",
            r#"{"type":"mail","job":{"data":1,"id":"_a"},"every_sec":5}"#,
            "`id`",
        ),
        (
            "a",
            r#"{"type":"mail","job":{"data":1,"id":"."},"every_sec":5}"#,
            "`id`",
        ),
    ] {
        let told = queue
            .put_schedule(name, &schedule(text))
            .await
            .unwrap_err()
            .to_string();
        assert!(told.contains(reason), "{text}: {told}");
    }
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_says_why_a_schedule_adds_no_jobs() {
    let store = Store::open("memory:").await.unwrap();
    let queue = queue(store.clone(), Clock::simulated(START_MS), 1);
    mail(&queue).await;
    let often = schedule(r#"{"type":"mail","job":{"data":1},"every_sec":1}"#);
    queue.put_schedule("often", &often).await.unwrap();
    (store.transact("damage", |tx| async move {
        tx.set(&crate::keys::schedule("often"), b"?");
        Ok::<_, store::Error>(())
    }))
    .await
    .unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    let _logging = tracing::subscriber::set_default(subscriber.finish());
    let stop = CancellationToken::new();
    let running = tokio::spawn(queue.clone().run(stop.clone()));
    let told = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    while !told().contains("cannot add the jobs of a schedule") {
        sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
    running.await.unwrap();
    assert!(
        told().contains("the schedule often is in an unknown format"),
        "{}",
        told()
    );
}
