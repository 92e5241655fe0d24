//! Finds limits that have slots in use or jobs waiting: one read for each, however many rows it has.

use std::collections::BTreeSet;

use bytes::Bytes;
use store::{Call, KeyRange, RangeOptions};

use crate::model::keys::Keys;
use crate::{JobType, Jobs, LimitName, Result, telemetry};

/// Limits that one transaction finds.
const FOUND_MAX: usize = 100;
/// Limits that one turn of maintenance looks at.
pub(crate) const SERVED_MAX: usize = 1_000;

impl Jobs {
    /// The limits of this name or group that have slots in use or jobs waiting.
    pub(super) async fn limits_in_use(
        &self,
        ty: &JobType,
        name: &LimitName,
    ) -> Result<BTreeSet<Bytes>> {
        let mut limits = BTreeSet::from_iter(self.limits_with_slots(ty, name.as_bytes()).await?);
        for range in self.keys().waiting_in_group(ty, name.as_bytes()) {
            limits.extend(self.limits_waited_in(ty, range, usize::MAX).await?);
        }
        Ok(limits)
    }

    /// The limits of this name or group that have slots in use or not free yet.
    pub(super) async fn limits_with_slots(&self, ty: &JobType, name: &[u8]) -> Result<Vec<Bytes>> {
        let all = &self.keys().all_slots(ty);
        let mut limits = Vec::new();
        for range in self.keys().slots_in_group(ty, name) {
            let of_range = self.limits_in(ty, range, usize::MAX, |key| {
                let (limit, _) = Keys::slot_of(all, key)?;
                let next = self.keys().after_slots(ty, &limit);
                Ok((limit, next))
            });
            limits.extend(of_range.await?);
        }
        Ok(limits)
    }

    /// The first limits that jobs wait for, in order, after this one.
    pub(crate) async fn waiting_limits(
        &self,
        ty: &JobType,
        after: Option<&Bytes>,
        max: usize,
    ) -> Result<Vec<Bytes>> {
        let mut range = self.keys().all_waiting(ty);
        if let Some(after) = after {
            range.begin = self.keys().waiting(ty, after).end;
        }
        self.limits_waited_in(ty, range, max).await
    }

    async fn limits_waited_in(
        &self,
        ty: &JobType,
        range: KeyRange,
        max: usize,
    ) -> Result<Vec<Bytes>> {
        self.limits_in(ty, range, max, |key| {
            let limit = self.keys().waiting_limit(ty, key)?;
            let next = self.keys().waiting(ty, &limit).end;
            Ok((limit, next))
        })
        .await
    }

    /// The first limits with rows in a range. `limit_of` says whose a row is, and where the rows of the next limit begin.
    async fn limits_in(
        &self,
        ty: &JobType,
        mut range: KeyRange,
        max: usize,
        limit_of: impl Fn(&[u8]) -> Result<(Bytes, Bytes)> + Sync,
    ) -> Result<Vec<Bytes>> {
        let mut limits = Vec::new();
        while limits.len() < max {
            let (from, limit_of) = (&range, &limit_of);
            let count = FOUND_MAX.min(max - limits.len());
            let (found, next) = self
                .read(Call::batch("find_limits"), |tx| async move {
                    let (mut found, mut rest) = (Vec::new(), from.clone());
                    while found.len() < count {
                        let first = RangeOptions::limit(1);
                        let row = tx.snapshot().get_range(rest.clone(), first).collect();
                        let Some(row) = row.await?.pop() else {
                            return Ok((found, None));
                        };
                        match limit_of(&row.key) {
                            Ok((limit, next)) => {
                                found.push(limit);
                                rest.begin = next;
                            }
                            Err(error) => {
                                telemetry::undecodable(ty, &row.key, &error);
                                rest.begin = [&*row.key, &[0]].concat().into();
                            }
                        }
                    }
                    Ok((found, Some(rest.begin)))
                })
                .await?;
            limits.extend(found);
            match next {
                Some(next) => range.begin = next,
                None => break,
            }
        }
        Ok(limits)
    }
}
