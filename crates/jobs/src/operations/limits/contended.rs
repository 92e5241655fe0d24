//! The limits that a transaction changes: slots that it frees, and jobs that begin to wait.
//!
//! Most limits hold no job back. So a transaction that frees a slot looks for waiting jobs only if a row says that there
//! may be some. The first job that waits leaves the row, in the transaction in which it finds no slot; the transaction
//! that frees a slot and finds no waiting job clears it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use store::Transaction;

use crate::model::limits::{Rules, Slot, Taken};
use crate::operations::effects::Effects;
use crate::testing::planted::Bug;
use crate::{Error, JobType, Jobs, Op, Result};

/// A slot that is not in use any more.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) ty: JobType,
    pub(crate) slot: Taken,
    /// When it is free; `None` as its row says.
    pub(crate) free_ms: Option<i64>,
}

/// A limit of a type.
type Named = (JobType, Bytes);

/// What a transaction knows of limits.
#[derive(Debug, Default)]
pub(crate) struct Contended {
    rules: BTreeMap<JobType, Arc<Rules>>,
    /// Whether jobs may wait.
    waited: BTreeMap<Named, bool>,
    /// Limits that jobs begin to wait for, and slots that are freed.
    waits: BTreeSet<Named>,
    freed: Vec<Freed>,
}

impl Contended {
    pub(crate) fn wait(&mut self, ty: &JobType, limit: &Bytes) {
        self.waits.insert((ty.clone(), limit.clone()));
    }

    pub(crate) fn free(&mut self, freed: Freed) {
        self.freed.push(freed);
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.waits.is_empty() && self.freed.is_empty()
    }

    /// The settings of a type's limits.
    pub(super) fn rules(&self, ty: &JobType) -> Arc<Rules> {
        self.rules.get(ty).cloned().unwrap_or_default()
    }

    /// Whether jobs may wait for a limit.
    pub(super) fn is_waited(&self, ty: &JobType, limit: &Bytes) -> bool {
        let named = (ty.clone(), limit.clone());
        self.waited.get(&named).copied().unwrap_or_default()
    }

    /// No job waits for a limit any more.
    pub(super) fn unwaited(&mut self, ty: &JobType, limit: &Bytes) {
        self.waited.insert((ty.clone(), limit.clone()), false);
    }
}

impl Jobs {
    /// Gives freed slots to waiting jobs, and marks limits that jobs begin to wait for.
    pub(crate) async fn settle_limits(
        &self,
        effects: &mut Effects<'_>,
        tx: &Transaction,
        op: &Op,
    ) -> Result<()> {
        let _alone = tx.alone();
        while !effects.limits.is_settled() {
            let waits = std::mem::take(&mut effects.limits.waits);
            let freed = std::mem::take(&mut effects.limits.freed);
            self.read_limits(&mut effects.limits, tx, &waits, &freed)
                .await?;
            for named in waits {
                let (key, waited) = (self.keys().waited(&named.0, &named.1), true);
                if effects.limits.waited.insert(named, waited) != Some(true) {
                    let row = Slot {
                        id: None,
                        free_ms: 0,
                    };
                    tx.set(&key, &row.encode());
                }
            }
            for freed in freed {
                self.free(effects, tx, freed, op).await?;
            }
        }
        Ok(())
    }

    /// Reads what is not known yet.
    async fn read_limits(
        &self,
        known: &mut Contended,
        tx: &Transaction,
        waits: &BTreeSet<Named>,
        freed: &[Freed],
    ) -> Result<()> {
        for Freed { ty, .. } in freed {
            if !known.rules.contains_key(ty) {
                let rules = self.limit_rules(tx, ty).await?;
                known.rules.insert(ty.clone(), rules);
            }
        }
        let freed = (freed.iter()).map(|freed| (freed.ty.clone(), freed.slot.0.clone()));
        let limits: BTreeSet<Named> = (waits.iter().cloned().chain(freed))
            .filter(|limit| !known.waited.contains_key(limit))
            .collect();
        let read = limits.into_iter().map(|named| async move {
            let key = self.keys().waited(&named.0, &named.1);
            let row = if self.planted().is(Bug::HandOverLost) {
                tx.snapshot().get(&key).await?
            } else {
                tx.get(&key).await?
            };
            Ok::<_, Error>((named, row.is_some()))
        });
        known.waited.extend(try_join_all(read).await?);
        Ok(())
    }
}
