//! Compares slots and waiting jobs with the headers of jobs.

use bytes::Bytes;
use store::{Call, KeyRange, KeyValue, RangeOptions, Transaction};

use super::usable;
use crate::model::header::{Header, Place};
use crate::model::keys::{Keys, WAITED};
use crate::model::limits::{Rules, Slot, Taken};
use crate::{JobId, JobType, Jobs, Result};

impl Jobs {
    /// Problems of a job's slots.
    pub(crate) async fn check_taken(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
        header: &Header,
    ) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        if header.taken().is_empty() {
            return Ok(problems);
        }
        let rules = self.limit_rules(tx, ty).await?;
        let is_rate = |(limit, _): &Taken| rules.of(limit).limit.per_ms.is_some();
        let waits = header.place == Place::Timed && !header.taken().iter().any(is_rate);
        if waits || header.state().is_over() {
            problems.push(format!("job {id} has slots, and will not run soon"));
        }
        for (limit, n) in header.taken() {
            let row = tx.snapshot().get(&self.keys().slot(ty, limit, *n)).await?;
            let Ok(slot) = row.map(Slot::decode).transpose() else {
                continue;
            };
            if slot.and_then(|slot| slot.id).as_ref() != Some(id) {
                let limit = limit.escape_ascii();
                problems.push(format!("job {id} does not have slot {n} of limit {limit}"));
            }
        }
        Ok(problems)
    }

    /// Problems of a slot, by settings that may have changed since.
    pub(crate) async fn check_slot(
        &self,
        tx: &Transaction,
        ty: &JobType,
        (all, rules): (&KeyRange, &Rules),
        row: KeyValue,
    ) -> Result<Vec<String>> {
        let taken = match Keys::slot_of(all, &row.key) {
            Ok(taken) => taken,
            Err(error) => return Ok(vec![error.chain().to_string()]),
        };
        let (limit, n) = (taken.0.escape_ascii(), taken.1);
        let mut problems = Vec::new();
        let is_beyond = |rules: &Rules| n != WAITED && n >= rules.of(&taken.0).end();
        if is_beyond(rules) && is_beyond(&*self.limit_rules(tx, ty).await?) {
            problems.push(format!("slot {n} of limit {limit} is beyond its end"));
        }
        let id = match Slot::decode(row.value) {
            Ok(slot) => slot.id,
            Err(error) => {
                let error = error.chain();
                problems.push(format!(
                    "slot {n} of limit {limit} cannot be decoded: {error}"
                ));
                None
            }
        };
        let Some(id) = id else {
            return Ok(problems);
        };
        let header = self.try_header(tx, ty, &id).await?;
        let known = match &header {
            Ok(header) => (header.as_ref()).is_some_and(|header| header.taken().contains(&taken)),
            // Already reported.
            Err(_) => true,
        };
        if !known {
            problems.push(format!(
                "slot {n} of limit {limit} is taken by job {id}, which does not have it"
            ));
        }
        Ok(problems)
    }

    /// Settings that cannot be decoded, and limits with free slots and waiting jobs.
    pub(crate) async fn check_limits(&self, ty: &JobType, rules: &Rules) -> Result<Vec<String>> {
        let damaged = rules.damaged.iter().map(|name| name.escape_ascii());
        let damaged = damaged.map(|name| format!("the setting of limit {name} cannot be decoded"));
        let mut problems: Vec<String> = damaged.collect();
        for limit in self.waiting_limits(ty, None, usize::MAX).await? {
            let problem = self.read(Call::batch("check"), |tx| {
                let limit = &limit;
                async move { self.check_waiting(&tx, ty, limit).await }
            });
            problems.extend(problem.await?);
        }
        Ok(problems)
    }

    async fn check_waiting(
        &self,
        tx: &Transaction,
        ty: &JobType,
        limit: &Bytes,
    ) -> Result<Option<String>> {
        let rule = self.limit_rules(tx, ty).await?.of(limit);
        let rows = self.slots_of(tx, ty, limit).await?;
        let waiting =
            (tx.snapshot()).get_range(self.keys().waiting(ty, limit), RangeOptions::limit(1));
        let waits = !waiting.collect().await?.is_empty();
        let free = usable(&rows, rule, 1, 0).len();
        let marked = tx.snapshot().get(&self.keys().waited(ty, limit)).await?;
        let problem = match (waits, marked) {
            (true, _) if free > 0 => "which has free slots",
            (true, None) => "of which nothing says so",
            _ => return Ok(None),
        };
        let limit = limit.escape_ascii();
        Ok(Some(format!("jobs wait for limit {limit}, {problem}")))
    }
}
