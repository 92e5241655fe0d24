//! Very many updates of few databases, each replicated by a run a second after it changed.

use std::time::Duration;

use anyhow::{Context, ensure};
use document::rev::Rev;
use peer::{Options, Peer};
use serde_json::json;
use tokio::time::{Instant, interval, sleep};

use super::use_of_node::{Measured, until};
use super::{Run, database, put_rule};

const SETTLE_MAX: Duration = Duration::from_mins(10);
/// Between two groups of updates.
const TICK: Duration = Duration::from_millis(10);
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// The part of the updates that the feed alone is measured with.
const FEED_PART: usize = 5;

/// A document per database, and its last revision.
struct Documents<'a> {
    server: &'a Peer,
    revs: Vec<Option<Rev>>,
    next: usize,
}

impl Documents<'_> {
    fn update(&mut self) -> anyhow::Result<()> {
        let number = self.next % self.revs.len();
        let mut document = json!({"_id": "document", "number": self.next});
        if let Some(rev) = &self.revs[number] {
            document["_rev"] = rev.to_string().into();
        }
        let rev = self.server.put(&database(number), &document.to_string())?;
        self.revs[number] = Some(rev);
        self.next += 1;
        Ok(())
    }

    /// Whether all are on another server.
    fn are_on(&self, target: &Peer) -> anyhow::Result<bool> {
        for (number, rev) in self.revs.iter().enumerate() {
            let found = target.get(&database(number), "document")?;
            let found = found.and_then(|found| Some(found["_rev"].as_str()?.to_owned()));
            if found != rev.as_ref().map(Rev::to_string) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

pub(super) async fn run(run: &Run<'_>) -> anyhow::Result<()> {
    let count = run.bench.storm_databases;
    let (source, target) = (
        Peer::start(Options::default()).await?,
        Peer::start(Options::default()).await?,
    );
    for name in (0..count).map(database) {
        source.create_database(&name)?;
        // A long history would make updates slow for the server.
        source.set_revs_limit(&name, 10)?;
        target.create_database(&name)?;
    }
    let mut documents = Documents {
        server: &source,
        revs: vec![None; count],
        next: 0,
    };
    let node = run.node(&source, "bench").await?;
    let client = node.client()?;
    until(&client, "davenport_source_followed", 1.0, SETTLE_MAX).await?;

    feed(run, &Measured::begin(run, &node).await?, &source).await?;

    put_rule(&client, (&source, &target), &json!({"delay_sec": 1})).await?;
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    let all = count as f64;
    let slept = "davenport_replicator_jobs_sleeps_total";
    until(&client, slept, all, SETTLE_MAX).await?;

    let measured = Measured::begin(run, &node).await?;
    let rate = updates(run, &mut documents).await?;
    run.report("updates_per_s", rate, "/s");
    let begun = Instant::now();
    while !documents.are_on(&target)? {
        ensure!(begun.elapsed() < SETTLE_MAX, "updates do not arrive");
        sleep(LOOK_PAUSE).await;
    }
    run.report("catch_up_s", begun.elapsed().as_secs_f64(), "s");
    let now = measured.now().await?;
    let runs = measured.grown(&now, "couchdb_couch_replicator_jobs_starts_total");
    run.report("runs_per_database", runs / all, "runs");
    let crashes = measured.grown(&now, "couchdb_couch_replicator_jobs_crashes_total");
    run.report("crashes", crashes, "runs");
    let retries = measured.grown(&now, "davenport_store_retries_total");
    let attempts = measured.grown(&now, "davenport_store_attempts_total");
    run.report("retries_percent", retries / attempts * 100.0, "%");
    measured.report();
    node.stop().await
}

/// The feed alone: databases that are created, which nothing replicates, so that the server reports each.
async fn feed(run: &Run<'_>, measured: &Measured<'_>, server: &Peer) -> anyhow::Result<()> {
    for number in 0..(run.bench.updates / FEED_PART).max(1) {
        server.create_database(&format!("feed{number}"))?;
    }
    let updates = "davenport_source_updates_total";
    let mut last = -1.0;
    loop {
        let read = measured.grown(&measured.now().await?, updates);
        if read > 0.0 && (read - last).abs() < 0.5 {
            break;
        }
        last = read;
        sleep(LOOK_PAUSE * 5).await;
    }
    run.report("feed_rows", last, "rows");
    if let Some(cpu_s) = measured.cpu_s() {
        run.report("feed_rows_per_s", last / cpu_s.max(0.01), "/s per core");
    }
    Ok(())
}

/// Makes all updates evenly, and returns how many per second.
async fn updates(run: &Run<'_>, documents: &mut Documents<'_>) -> anyhow::Result<f64> {
    let (all, began) = (run.bench.updates, Instant::now());
    let duration = Duration::from_secs(run.bench.seconds);
    let first = documents.next;
    let mut ticks = interval(TICK);
    loop {
        ticks.tick().await;
        let part = began.elapsed().div_duration_f64(duration);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of updates"
        )]
        let due = ((all as f64 * part) as usize).min(all);
        while documents.next - first < due {
            documents.update().context("cannot update a database")?;
        }
        if due == all {
            return Ok(crate::per_second(all as u64, began.elapsed()));
        }
    }
}
