//! Undecodable jobs. A claim or sweep that finds one, or a transaction that would give it a slot, moves its index row to
//! QUARANTINE and continues without it: nothing else changes, so the job can be examined, and is counted in its state.
//! Maintenance puts it back when a node can decode it, and [`Jobs::remove`] removes it.

use futures::future::{try_join, try_join_all};
use store::{Call, RangeOptions, Transaction};

use crate::model::header::State;
use crate::model::keys::Keys;
use crate::operations::leases::Lease;
use crate::{Error, JobId, JobType, Jobs, Op, Result, telemetry};

const FORMAT: u8 = 1;
/// Jobs that one transaction retries, and maximum jobs counted.
const JOBS: usize = 100;
pub(crate) const COUNTED_MAX: usize = 1_000;

impl Jobs {
    /// Moves a job out of the index of its state, given its row there.
    pub(crate) fn quarantine(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
        (state, row): (State, &[u8]),
        error: &Error,
    ) {
        telemetry::undecodable(ty, &self.keys().job(ty, id), error);
        tx.clear(row);
        tx.set(&self.keys().quarantined(ty, id), &[FORMAT, state as u8]);
    }

    /// The state of a job in quarantine; `None` if it is not there.
    pub(crate) async fn quarantined_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
    ) -> Result<Option<State>> {
        let row = tx.get(&self.keys().quarantined(ty, id)).await?;
        Ok(row.and_then(|row| match *row {
            [FORMAT, state] => State::ALL.into_iter().find(|known| *known as u8 == state),
            _ => None,
        }))
    }

    /// The jobs of a type in quarantine, up to 1,000.
    pub async fn quarantined(&self, ty: &JobType) -> Result<Vec<JobId>> {
        let all = &self.keys().all_quarantined(ty);
        self.read(Call::batch("quarantined"), |tx| async move {
            let rows = (tx.snapshot()).get_range(all.clone(), RangeOptions::limit(COUNTED_MAX));
            let ids = rows.collect().await?;
            ids.iter().map(|row| Keys::id(all, &row.key)).collect()
        })
        .await
    }

    /// Puts back the jobs that this node can decode.
    pub(crate) async fn release(&self, ty: &JobType, lease: &Lease) -> Result<()> {
        let all = &self.keys().all_quarantined(ty);
        let mut range = all.clone();
        loop {
            let (from, op) = (&range, &self.op());
            let last = (self.store())
                .transact(Call::batch("release"), |tx| async move {
                    let rows = tx
                        .snapshot()
                        .get_range(from.clone(), RangeOptions::limit(JOBS));
                    let rows = rows.collect().await?;
                    if rows.is_empty() || !lease.holds(self, &tx, ty).await? {
                        return Ok::<_, Error>(None);
                    }
                    let ids = rows.iter().map(|row| Keys::id(all, &row.key));
                    let ids: Vec<JobId> = ids.collect::<Result<_>>()?;
                    self.release_in(&tx, op, ty, &ids).await?;
                    let full = rows.len() == JOBS;
                    Ok(rows.last().filter(|_| full).map(|row| row.key.clone()))
                })
                .await?;
            match last {
                Some(last) => range.begin = [&*last, &[0]].concat().into(),
                None => return Ok(()),
            }
        }
    }

    async fn release_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        ids: &[JobId],
    ) -> Result<()> {
        let read = ids.iter().map(|id| async move {
            let key = self.keys().quarantined(ty, id);
            let (there, header) = (tx.get(&key).await?, self.try_header(tx, ty, id).await?);
            let (Some(_), Ok(header)) = (there, header) else {
                return Ok(None);
            };
            if let Some(header) = &header
                && self.try_blob(tx, ty, id, &header.data).await?.is_err()
            {
                return Ok(None);
            }
            Ok::<_, Error>(Some((id, key, header)))
        });
        let (read, timeout) = try_join(try_join_all(read), self.timeout_in(tx, ty)).await?;
        let mut effects = self.effects(tx, op.now_ms).await?;
        for (id, key, header) in read.into_iter().flatten() {
            tx.clear(&key);
            if let Some(header) = header {
                effects.restore_index(ty, id, &header, timeout);
            }
        }
        effects.flush(op).await.map(drop)
    }

    /// Removes a job with an undecodable header, if it is in quarantine.
    pub(crate) async fn remove_quarantined(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        id: &JobId,
        error: Error,
    ) -> Result<()> {
        let state = self.quarantined_in(tx, ty, id).await?.ok_or(error)?;
        let mut effects = self.effects(tx, op.now_ms).await?;
        let keys = self.keys();
        tx.clear(&keys.job(ty, id));
        tx.clear(&keys.quarantined(ty, id));
        tx.clear_range(keys.chunks_of(ty, id));
        tx.clear_range(keys.attempts(ty, id));
        tx.clear_range(keys.calls(ty, id, None));
        effects.count_removed(ty, state);
        effects.flush(op).await.map(drop)
    }
}
