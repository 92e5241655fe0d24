//! Frees slots that no job has. Removing a job from quarantine leaves them: its header could not say which it had.

use bytes::Bytes;
use futures::future::try_join_all;
use store::{Call, KeyRange, KeyValue, Transaction};

use super::contended::{Free, Freed};
use crate::model::header::Header;
use crate::model::keys::Keys;
use crate::model::limits::Slot;
use crate::operations::page::page;
use crate::{JobId, JobType, Jobs, Op, Result};

/// A limit, and the number of its slot.
type SlotOf = (Bytes, u32);

/// Slots that one transaction looks at.
const ROWS: usize = 200;

impl Jobs {
    /// Frees slots from this key on, or from the first; returns where to continue.
    pub(crate) async fn free_orphans(
        &self,
        ty: &JobType,
        from: Option<&Bytes>,
    ) -> Result<Option<Bytes>> {
        let op = &self.op();
        let (freed, next) = (self.store())
            .transact(Call::batch("free_slots"), |tx| async move {
                self.free_orphans_in(&tx, op, ty, from).await
            })
            .await?;
        for (id, (limit, slot)) in freed {
            tracing::warn!(job.ty = %ty, job.id = %id, limit = %limit.escape_ascii(), slot, "freed a slot that its job does not have");
        }
        Ok(next)
    }

    async fn free_orphans_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        from: Option<&Bytes>,
    ) -> Result<(Vec<(JobId, SlotOf)>, Option<Bytes>)> {
        let all = &self.keys().all_slots(ty);
        let (rows, next) = page(tx, all, from, ROWS).await?;
        let looked = rows.into_iter().map(|row| self.orphan(tx, ty, all, row));
        let orphans: Vec<_> = (try_join_all(looked).await?.into_iter().flatten()).collect();
        if !orphans.is_empty() {
            let mut effects = self.effects(tx, op.now_ms).await?;
            for (_, slot) in &orphans {
                let (ty, slot, free) = (ty.clone(), slot.clone(), Free::AsStored);
                effects.limits.free(Freed { ty, slot, free });
            }
            effects.flush(op).await?;
        }
        Ok((orphans, next))
    }

    /// This slot, if its job does not have it. Then conflicts with taking and freeing it.
    async fn orphan(
        &self,
        tx: &Transaction,
        ty: &JobType,
        all: &KeyRange,
        row: KeyValue,
    ) -> Result<Option<(JobId, SlotOf)>> {
        let (Ok(slot), Ok(Slot { id: Some(id), .. })) =
            (Keys::slot_of(all, &row.key), Slot::decode(row.value))
        else {
            return Ok(None);
        };
        let header = tx.snapshot().get(&self.keys().job(ty, &id)).await?;
        let has = match header.map(Header::decode) {
            Some(Ok(header)) => header.taken().contains(&slot),
            Some(Err(_)) => true,
            None => false,
        };
        if has {
            return Ok(None);
        }
        tx.add_read_conflict_range(KeyRange::key(&row.key));
        Ok(Some((id, slot)))
    }
}
