//! An hour of history: every minute each node keeps a row with what it has copied, and with the states of all
//! replications. Rows that are older are removed with the next write.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Call, RangeOptions};

use crate::data::{Census, iso};
use crate::fault::ServiceError;
use crate::keys;
use crate::service::Replications;
use replication::Stats;
use replication::engine::Progress;

pub(crate) const MINUTE_MS: i64 = 60_000;
const KEPT_MINUTES: i64 = 60;

/// What the runs of a node have copied since its last row.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    docs: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Minute {
    docs: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    states: Option<BTreeMap<String, u64>>,
}

/// Counts what one run copies.
#[derive(Debug)]
pub(crate) struct Counting<'a> {
    copied: &'a Copied,
    counted: Mutex<Stats>,
}

impl<'a> Counting<'a> {
    pub(crate) fn new(copied: &'a Copied) -> Self {
        let counted = Mutex::default();
        Self { copied, counted }
    }

    /// Adds what the run has copied since it was last counted.
    pub(crate) fn count(&self, now: &Progress) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = now.own_stats();
        self.copied.add(&stats.since(&counted));
        *counted = stats;
    }
}

impl Copied {
    fn add(&self, stats: &Stats) {
        self.docs.fetch_add(stats.docs_written, Ordering::Relaxed);
        self.bytes.fetch_add(stats.bytes_written, Ordering::Relaxed);
    }
}

impl Replications {
    /// Keeps a row for the minute that contains now.
    pub(crate) async fn keep_minute(
        &self,
        node: &str,
        copied: &Copied,
    ) -> Result<(), ServiceError> {
        let now_ms = self.0.jobs.clock().now_ms();
        let labels = self.0.jobs.counts_by_label(&self.0.ty).await?;
        let states = Census::of(&labels).map(|census| {
            let states = census.by_state().into_iter();
            states.map(|(name, n)| (name.to_owned(), n)).collect()
        });
        let minute = Minute {
            docs: copied.docs.load(Ordering::Relaxed),
            bytes: copied.bytes.load(Ordering::Relaxed),
            states,
        };
        let number = now_ms.div_euclid(MINUTE_MS);
        let row = &serde_json::to_vec(&minute).expect("a minute is JSON");
        (self.0.jobs.store())
            .transact(Call::batch("keep_minute"), |tx| async move {
                tx.clear_range(keys::minutes(i64::MIN, number - KEPT_MINUTES));
                tx.set(&keys::minute(number, node), row);
                Ok::<_, ServiceError>(())
            })
            .await?;
        // What could not be written is part of the next row.
        copied.docs.fetch_sub(minute.docs, Ordering::Relaxed);
        copied.bytes.fetch_sub(minute.bytes, Ordering::Relaxed);
        Ok(())
    }

    /// `GET /_scheduler/history`: the last hour, minute by minute, the oldest first.
    pub async fn history(&self) -> Result<Value, ServiceError> {
        let now = self.0.jobs.clock().now_ms().div_euclid(MINUTE_MS);
        let range = &keys::minutes(now - KEPT_MINUTES, i64::MAX);
        let rows = (self.0.jobs.store())
            .transact("history", |tx| async move {
                let rows = (tx.snapshot()).get_range(range.clone(), RangeOptions::default());
                Ok::<_, ServiceError>(rows.collect().await?)
            })
            .await?;
        let mut minutes: BTreeMap<i64, Minute> = BTreeMap::new();
        for row in rows {
            // One that cannot be read is missing in a chart.
            let Ok(read) = serde_json::from_slice::<Minute>(&row.value) else {
                continue;
            };
            let minute = minutes.entry(keys::minute_of(&row.key)?).or_default();
            minute.docs += read.docs;
            minute.bytes += read.bytes;
            minute.states = read.states.or(minute.states.take());
        }
        let shown = minutes.into_iter().map(|(number, minute)| {
            json!({
                "time": iso(number * MINUTE_MS / 1000),
                "docs_written": minute.docs,
                "bytes_written": minute.bytes,
                "states": minute.states,
            })
        });
        Ok(json!({"minutes": shown.collect::<Vec<_>>()}))
    }
}

#[cfg(test)]
mod tests {
    use docstore::DocStore;
    use jobs::{Clock, Entropy, Jobs};
    use store::Store;

    use super::*;
    use crate::service::Setup;

    #[tokio::test]
    async fn an_hour_is_kept_and_nodes_are_added_up() {
        let store = Store::open("memory:").await.unwrap();
        let clock = Clock::standing(0);
        let jobs = Jobs::new(store.clone(), clock.clone(), Entropy::seeded(1));
        let docs = DocStore::new(store, docstore::Options::default());
        let replications = Replications::open(jobs, docs, Setup::default())
            .await
            .unwrap();
        let copied = Copied::default();
        let two = Stats {
            docs_written: 2,
            bytes_written: 100,
            ..Stats::default()
        };
        for minute in 1_000_000..1_000_070 {
            clock.set_ms(minute * MINUTE_MS);
            for node in ["a", "b"] {
                copied.add(&two);
                replications.keep_minute(node, &copied).await.unwrap();
            }
        }
        let history = replications.history().await.unwrap();
        let minutes = history["minutes"].as_array().unwrap();
        assert_eq!(minutes.len(), 60);
        for minute in minutes {
            assert_eq!(
                (&minute["docs_written"], &minute["bytes_written"]),
                (&json!(4), &json!(200))
            );
            assert_eq!(minute["states"]["running"], 0);
        }
        // And no more is in the store.
        let all = keys::minutes(i64::MIN, i64::MAX);
        let rows = (replications.0.jobs.store())
            .transact("count", |tx| {
                let all = all.clone();
                async move {
                    let rows = tx.get_range(all, RangeOptions::default()).collect().await?;
                    Ok::<_, ServiceError>(rows.len())
                }
            })
            .await;
        assert_eq!(rows.unwrap(), 2 * 60);
    }
}
