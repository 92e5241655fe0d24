//! Leases on partitions: they assign buckets of a type to the nodes that sweep them, to avoid conflicts.
//!
//! A lease is a row (owner, generation, clock, versionstamp) that its owner rewrites at every turn. For a node it has
//! expired when the row has not changed for long enough by that node's monotonic clock. A sweep reads the row in its
//! transaction, and ends when the owner is another. Two nodes that still sweep the same job conflict on the job: a
//! lost lease costs a retry, never consistency.
//!
//! The owners' clocks are for retention, which outlasts their processes: it uses the median of the clocks, so that one
//! fast clock expires nothing early. Of two clocks, that is the slower.

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

/// Leases per type: the maximum number of nodes that share its sweeps.
pub(crate) const PARTITIONS: u16 = 8;

/// The buckets of a partition.
pub(crate) fn buckets(partition: u16) -> impl Iterator<Item = u16> {
    (partition..BUCKETS).step_by(usize::from(PARTITIONS))
}

/// A held lease.
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
    /// Rows of other owners, and since when each is unchanged.
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

    /// Renews this node's leases and takes its share of the others. Rows that have not changed for `expiry` are free.
    /// Returns the version read.
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
                            u16::try_from(n)
                                .map_err(|_| Error::corrupt("invalid partition of a lease"))
                        })
                        .and_then(|partition| parse(&row.value).map(|_| partition))
                        .inspect_err(|error| telemetry::undecodable(ty, &row.key, error));
                    // An undecodable lease has no owner.
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

    /// The leases that this node should have now.
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
            // An owner has more than a fair share: take one lease from the richest at each turn.
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
    /// Whether the lease is still held, by a snapshot read: it may be lost before the transaction commits, and
    /// concurrent sweeps conflict on the jobs themselves.
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
