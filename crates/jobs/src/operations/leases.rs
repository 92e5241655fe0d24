//! Leases on partitions: which node sweeps which buckets of a type, so that nodes do not meet.
//!
//! A lease is a row (owner, generation, clock, versionstamp) that its owner rewrites at every turn. It has
//! expired for whoever has seen the same row for long enough by its own monotonic clock. A sweep
//! reads the row in its transaction, and ends when somebody else is the owner. Two that sweep the same
//! job all the same conflict over the job: a lease that was lost costs a retry, never a mistake.
//!
//! The owners' clocks are there for retention, which lasts for longer than any of them runs: its time is the median of
//! the clocks, so that one that is fast forgets nothing early. Of two, that is the slower.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use store::{RangeOptions, Transaction};
use tokio::time::Instant;

use crate::model::clock::millis;
use crate::model::header::Order;
use crate::model::ids::BUCKETS;
use crate::model::keys::{Keys, after_stamp, stamp_template};
use crate::{Error, JobType, Jobs, Result, telemetry};

/// How many leases a type has: the most nodes that share its sweeps.
pub(crate) const PARTITIONS: u16 = 8;

/// The buckets of a partition.
pub(crate) fn buckets(partition: u16) -> impl Iterator<Item = u16> {
    (partition..BUCKETS).step_by(usize::from(PARTITIONS))
}

/// A lease that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) partition: u16,
    pub(crate) owner: u128,
    pub(crate) generation: u64,
}

/// The leases of one type, as one node sees them.
#[derive(Debug)]
pub(crate) struct Leases {
    owner: u128,
    held: Vec<Lease>,
    /// Rows of others, and since when each is the same.
    seen: BTreeMap<u16, (Bytes, Instant)>,
}

impl Leases {
    pub(crate) fn new(owner: u128) -> Self {
        Self {
            owner,
            held: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn held(&self) -> &[Lease] {
        &self.held
    }

    /// Renews the leases this node has and takes its share of the others. Rows that have stayed the
    /// same for `expiry` are free. Returns the version at which it looked.
    pub(crate) async fn turn(
        &mut self,
        jobs: &Jobs,
        ty: &JobType,
        expiry: Duration,
    ) -> Result<Order> {
        let (now, now_ms) = (Instant::now(), jobs.clock().now_ms());
        let (this, incarnation) = (&*self, jobs.store().incarnation());
        let (rows, held, version) = (jobs.store())
            .transact("lease", |tx| async move {
                let range = jobs.keys().leases(ty);
                let rows = tx.get_range(range.clone(), RangeOptions::default());
                let mut leases = BTreeMap::new();
                for row in rows.collect().await? {
                    let partition = Keys::number(&range, &row.key)
                        .and_then(|n| {
                            u16::try_from(n).map_err(|_| Error::corrupt("a lease on no partition"))
                        })
                        .and_then(|partition| parse(&row.value).map(|_| partition))
                        .inspect_err(|error| telemetry::undecodable(ty, &row.key, error));
                    // A lease that cannot be decoded is nobody's.
                    if let Ok(partition) = partition {
                        leases.insert(partition, row.value);
                    }
                }
                let held = this.share(&leases, now, expiry)?;
                for lease in &held {
                    let mut rest = [0; 32];
                    rest[..16].copy_from_slice(&lease.owner.to_be_bytes());
                    rest[16..24].copy_from_slice(&lease.generation.to_be_bytes());
                    rest[24..].copy_from_slice(&now_ms.to_be_bytes());
                    let key = jobs.keys().lease(ty, lease.partition);
                    tx.set_versionstamped_value(&key, &stamp_template(incarnation, &rest));
                }
                Ok::<_, Error>((leases, held, tx.read_version().await?))
            })
            .await?;
        self.held = held;
        self.observe(rows, now);
        Ok(Order {
            incarnation,
            version,
        })
    }

    fn observe(&mut self, rows: BTreeMap<u16, Bytes>, now: Instant) {
        self.seen = (rows.into_iter())
            .map(|(partition, value)| {
                let since = match self.seen.get(&partition) {
                    Some((same, since)) if *same == value => *since,
                    _ => now,
                };
                (partition, (value, since))
            })
            .collect();
    }

    /// How far this node's clock is ahead of the median of the owners' clocks.
    pub(crate) fn ahead_ms(&self, now_ms: i64) -> i64 {
        let others = self.seen.values().filter_map(|(value, since)| {
            let (owner, _, at_ms) = parse(value).ok()?;
            (owner != self.owner).then(|| (owner, at_ms.saturating_add(millis(since.elapsed()))))
        });
        let clocks: BTreeMap<u128, i64> = others.chain([(self.owner, now_ms)]).collect();
        let mut clocks: Vec<i64> = clocks.into_values().collect();
        clocks.sort_unstable();
        now_ms.saturating_sub(clocks[(clocks.len() - 1) / 2])
    }

    /// The leases this node is to have now.
    fn share(
        &self,
        rows: &BTreeMap<u16, Bytes>,
        now: Instant,
        expiry: Duration,
    ) -> Result<Vec<Lease>> {
        let (mut mine, mut free) = (Vec::new(), Vec::new());
        let mut others: BTreeMap<u128, Vec<Lease>> = BTreeMap::new();
        for partition in 0..PARTITIONS {
            let Some(value) = rows.get(&partition) else {
                free.push((partition, 1));
                continue;
            };
            let (owner, generation, _) = parse(value)?;
            let expired = (self.seen.get(&partition))
                .is_some_and(|(same, since)| same == value && now - *since >= expiry);
            let lease = Lease {
                partition,
                owner,
                generation,
            };
            if owner == self.owner {
                mine.push(lease);
            } else if expired {
                free.push((partition, generation + 1));
            } else {
                others.entry(owner).or_default().push(lease);
            }
        }
        let (all, owners) = (usize::from(PARTITIONS), others.len() + 1);
        let missing = all.div_ceil(owners).saturating_sub(mine.len());
        let mut taken: Vec<(u16, u64)> = free.into_iter().take(missing).collect();
        if mine.len() + taken.len() < all / owners {
            // Someone has more than a fair share: take one from the richest, one at each turn.
            let richest = others.into_values().max_by_key(Vec::len);
            let lease = richest.into_iter().flatten().next();
            taken.extend(lease.map(|lease| (lease.partition, lease.generation + 1)));
        }
        mine.extend(taken.into_iter().map(|(partition, generation)| Lease {
            partition,
            owner: self.owner,
            generation,
        }));
        Ok(mine)
    }
}

impl Lease {
    /// Whether the lease is still held. By a snapshot read: it may be lost before the transaction is
    /// committed, and what is swept twice at the same moment conflicts over the jobs themselves.
    pub(crate) async fn holds(&self, jobs: &Jobs, tx: &Transaction, ty: &JobType) -> Result<bool> {
        let key = jobs.keys().lease(ty, self.partition);
        let value = tx.snapshot().get(&key).await?;
        let parsed = value.as_ref().map(parse).transpose()?;
        let parsed = parsed.map(|(owner, generation, _)| (owner, generation));
        Ok(parsed == Some((self.owner, self.generation)))
    }
}

/// Owner, generation and clock.
fn parse(value: &Bytes) -> Result<(u128, u64, i64)> {
    let rest = after_stamp(value);
    let parts = rest.split_first_chunk().and_then(|(owner, rest)| {
        let (generation, clock) = rest.split_first_chunk()?;
        Some((
            u128::from_be_bytes(*owner),
            u64::from_be_bytes(*generation),
            i64::from_be_bytes(clock.try_into().ok()?),
        ))
    });
    parts.ok_or_else(|| Error::corrupt("a lease cannot be decoded"))
}
