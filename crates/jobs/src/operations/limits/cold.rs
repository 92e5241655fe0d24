//! Clears rows of limits that say nothing any more: slots of rates that are free again, and marks of limits that no job
//! waits for. Without this, keys that no job uses again would keep theirs.

use bytes::Bytes;
use store::{Call, KeyRange, RangeOptions, Transaction};

use super::slots::slot_in;
use crate::model::keys::{Keys, WAITED};
use crate::operations::page::page;
use crate::{JobType, Jobs, Result};

/// Rows that one transaction looks at.
const ROWS: usize = 500;
/// How long a slot of a rate is free before its row is cleared: the clocks of nodes differ.
const COLD_MS: i64 = 600_000;

impl Jobs {
    /// Clears rows from this key on, or from the first; returns where to continue.
    pub(crate) async fn clear_cold(
        &self,
        ty: &JobType,
        from: Option<&Bytes>,
    ) -> Result<Option<Bytes>> {
        let now_ms = self.clock().now_ms();
        (self.store())
            .transact(Call::batch("clear_slots"), |tx| async move {
                self.clear_cold_in(&tx, ty, from, now_ms).await
            })
            .await
    }

    async fn clear_cold_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        from: Option<&Bytes>,
        now_ms: i64,
    ) -> Result<Option<Bytes>> {
        let all = self.keys().all_slots(ty);
        let (rows, next) = page(tx, &all, from, ROWS).await?;
        for row in rows {
            let Ok((limit, n)) = Keys::slot_of(&all, &row.key) else {
                continue;
            };
            let slot = slot_in(ty, &row.key, row.value);
            if slot.in_use() || slot.free_ms.saturating_add(COLD_MS) > now_ms {
                continue;
            }
            if n == WAITED {
                let waiting = self.keys().waiting(ty, &limit);
                let first = RangeOptions::limit(1);
                let waits = (tx.snapshot()).get_range(waiting.clone(), first);
                if !waits.collect().await?.is_empty() {
                    continue;
                }
                tx.add_read_conflict_range(waiting);
            }
            tx.add_read_conflict_range(KeyRange::key(&row.key));
            tx.clear(&row.key);
        }
        Ok(next)
    }
}
