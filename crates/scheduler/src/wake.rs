//! Replications that sleep in the store until a database changes.
//!
//! A sleeping replication has caught up, and no node holds its job: the job is pending, due at a time far away or when its
//! `trigger` says so. A row per sleeper says which database of which server wakes it. The node that follows that server signals
//! the jobs of its rows, and removes the rows in the same transaction; the next sleep writes them again.
//!
//! A row is written while the job is still held, and before the source is asked a last time whether it has more changes.
//! A change that the follower saw before the row was written is therefore seen by that request, and a later one finds the
//! row: no change can fall between.

use std::time::Duration;

use couch::Seq;
use futures::future::try_join_all;
use jobs::{JobId, Op, Signal};
use serde::{Deserialize, Serialize};
use store::{KeyRange, KeyValue, RangeOptions, Transaction};

use crate::data::Wake;
use crate::fault::ServiceError;
use crate::keys;
use crate::remote::jitter_ms;
use crate::service::{PARKED_MS, Replications};
use crate::testing::{self, Bug};

/// Due time of a job that sleeps until it is woken. Different from that of paused jobs.
pub(crate) const ASLEEP_MS: i64 = PARKED_MS - 1;

/// A replication that sleeps until its source changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sleeper {
    pub database: String,
    pub job: JobId,
    /// The last sequence of the source when it fell asleep; `null` if it has changes to copy and is due by itself.
    pub seq: Seq,
    /// Another sequence under which the server lists the database, although it has no later changes.
    pub listed: Option<Seq>,
}

impl Sleeper {
    /// Whether a database that is listed with this sequence has no later changes.
    pub fn is_at(&self, seq: &Seq) -> bool {
        self.seq.is_same(seq) || self.listed.as_ref().is_some_and(|one| one.is_same(seq))
    }
}

/// How a server's databases are followed, as nodes tell each other and users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Following {
    /// The name of the source.
    pub source: String,
    /// `db_updates`, `global_changes` or `dbs_info`.
    pub feed: String,
    /// Since when, in milliseconds.
    pub since_ms: i64,
    /// Why it is not the preferred feed, for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Replications {
    /// Says how a server is followed; with `None`, that it is not: then its sleepers must be woken.
    pub fn follow_in(&self, tx: &Transaction, server: &str, following: Option<&Following>) {
        let key = keys::followed(server);
        match following {
            None => tx.clear(&key),
            Some(following) => {
                let row = serde_json::to_vec(following).expect("a row is JSON");
                tx.set(&key, &row);
            }
        }
    }

    /// How a server is followed. A transaction that lets a replication sleep conflicts with one that ends the following.
    pub async fn following_in(
        &self,
        tx: &Transaction,
        server: &str,
    ) -> Result<Option<Following>, ServiceError> {
        let row = tx.get(&keys::followed(server)).await?;
        let decoded = row.map(|row| serde_json::from_slice(&row)).transpose();
        decoded.map_err(|_| ServiceError::corrupt("the row of a followed server cannot be decoded"))
    }

    /// Whether the changes of a server wake replications.
    pub(crate) async fn is_followed(&self, server: &str) -> bool {
        let followed = (self.0.jobs.store()).transact("look_at_source", |tx| async move {
            self.following_in(&tx, server).await
        });
        matches!(followed.await, Ok(Some(_)))
    }

    /// Wakes up to `max` replications that sleep on these databases of a server, and returns how many. As many as `max`:
    /// there may be more, which another transaction can wake.
    ///
    /// What falls asleep meanwhile does not conflict: it writes its row first, and then looks at its source once more.
    pub async fn wake_in(
        &self,
        tx: &Transaction,
        op: &Op,
        server: &str,
        databases: &[&str],
        max: usize,
    ) -> Result<usize, ServiceError> {
        let ranges = databases.iter().map(|database| {
            let range = keys::wakes(server, Some(database));
            (tx.snapshot().get_range(range, RangeOptions::limit(max))).collect()
        });
        let rows = try_join_all(ranges).await?;
        self.wake_rows_in(tx, op, rows.iter().flatten().take(max))
            .await
    }

    /// Wakes those of these sleepers that still sleep.
    pub async fn wake_these_in(
        &self,
        tx: &Transaction,
        op: &Op,
        server: &str,
        sleepers: &[Sleeper],
    ) -> Result<usize, ServiceError> {
        let rows = sleepers.iter().map(|sleeper| async move {
            let key = keys::wake(server, &sleeper.database, &sleeper.job);
            let value = tx.snapshot().get(&key).await?;
            let key = key.into();
            Ok::<_, ServiceError>(value.map(|value| KeyValue { key, value }))
        });
        let rows = try_join_all(rows).await?;
        self.wake_rows_in(tx, op, rows.iter().flatten()).await
    }

    async fn wake_rows_in(
        &self,
        tx: &Transaction,
        op: &Op,
        rows: impl Iterator<Item = &KeyValue>,
    ) -> Result<usize, ServiceError> {
        let mut signals = Vec::new();
        for row in rows {
            let wake = Wake::decode(&row.value)?;
            let (_, job) = keys::sleeper(&row.key)?;
            let random_delay = Duration::from_millis(wake.random_ms.unsigned_abs());
            let due_ms = op.now_ms.saturating_add(wake.delay_ms);
            let due_ms = due_ms.saturating_add(jitter_ms(op, &job, random_delay));
            signals.push(Signal::new(job).due_ms(due_ms.max(wake.not_before_ms)));
            tx.add_read_conflict_range(KeyRange::key(&row.key));
            tx.clear(&row.key);
        }
        let woken = signals.len();
        if !signals.is_empty() && !testing::has(Bug::MissesChangesWhenIdle) {
            (self.0.jobs)
                .signal_many_in(tx, op, &self.0.ty, &signals)
                .await?;
        }
        Ok(woken)
    }

    /// Replications that sleep on databases of a server, in the order of the databases, after one of them.
    pub async fn sleepers(
        &self,
        server: &str,
        after: Option<&Sleeper>,
        limit: usize,
    ) -> Result<Vec<Sleeper>, ServiceError> {
        (self.0.jobs.store())
            .transact("list_sleepers", |tx| async move {
                let mut range = keys::wakes(server, None);
                if let Some(after) = after {
                    let mut begin = keys::wake(server, &after.database, &after.job);
                    begin.push(0);
                    range.begin = begin.into();
                }
                let rows = tx.snapshot().get_range(range, RangeOptions::limit(limit));
                let mut sleepers = Vec::new();
                for row in rows.collect().await? {
                    let (database, job) = keys::sleeper(&row.key)?;
                    let wake = Wake::decode(&row.value)?;
                    sleepers.push(Sleeper {
                        database,
                        job,
                        seq: Seq::from_value(&wake.seq),
                        listed: wake.listed.as_ref().map(Seq::from_value),
                    });
                }
                Ok::<_, ServiceError>(sleepers)
            })
            .await
    }

    /// Those of these sleepers that have slept ever since.
    pub async fn still_asleep(
        &self,
        server: &str,
        sleepers: &[Sleeper],
    ) -> Result<Vec<Sleeper>, ServiceError> {
        let rows = (self.0.jobs.store()).transact("look_at_sleepers", |tx| async move {
            let rows = sleepers.iter().map(|sleeper| {
                let (tx, key) = (&tx, keys::wake(server, &sleeper.database, &sleeper.job));
                async move { tx.snapshot().get(&key).await }
            });
            Ok::<_, ServiceError>(try_join_all(rows).await?)
        });
        let mut still = Vec::new();
        for (sleeper, row) in sleepers.iter().zip(rows.await?) {
            if let Some(row) = row
                && Seq::from_value(&Wake::decode(&row)?.seq) == sleeper.seq
            {
                still.push(sleeper.clone());
            }
        }
        Ok(still)
    }

    /// Records sequences under which a server lists databases that have not changed, with those of these sleepers that
    /// have slept ever since.
    pub async fn list_sleepers_at(
        &self,
        server: &str,
        sleepers: &[(Sleeper, Seq)],
    ) -> Result<(), ServiceError> {
        (self.0.jobs.store())
            .transact("list_sleepers_at", |tx| async move {
                let tx = &tx;
                let list = sleepers.iter().map(|(sleeper, listed)| async move {
                    let key = keys::wake(server, &sleeper.database, &sleeper.job);
                    let Some(row) = tx.get(&key).await? else {
                        return Ok(());
                    };
                    let mut wake = Wake::decode(&row)?;
                    if Seq::from_value(&wake.seq) == sleeper.seq {
                        wake.listed = serde_json::from_str(listed.as_json()).ok();
                        tx.set(&key, &wake.encode());
                    }
                    Ok::<_, ServiceError>(())
                });
                try_join_all(list).await?;
                Ok(())
            })
            .await
    }
}

/// Milliseconds after a time.
pub(crate) fn after_ms(at_ms: i64, duration: Duration) -> i64 {
    at_ms.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}
