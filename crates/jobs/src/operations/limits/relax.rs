//! Forgets that a limit was higher, once all slots from then are free. Until then, each claim has to count the slots in use,
//! as does each end of a run if jobs wait, and conflicts with others that do.

use bytes::Bytes;
use store::Call;

use crate::model::keys::WAITED;
use crate::model::limits::{Rule, Rules};
use crate::{JobType, Jobs, Result};

impl Jobs {
    /// Updates the settings of limits that were lowered or removed.
    pub(crate) async fn relax_limits(&self, ty: &JobType) -> Result<()> {
        let call = || Call::batch("relax_limits");
        let rules = (self.store())
            .transact(call(), |tx| async move { self.limit_rules(&tx, ty).await })
            .await?;
        let mut done = Vec::new();
        for (name, row) in &rules.by_name {
            let lowered = row.removed || row.over > row.limit.max;
            if lowered && !self.is_exceeded(ty, &rules, name).await? {
                done.push((name, (!row.removed).then(|| Rule::new(row.limit, 0))));
            }
        }
        if done.is_empty() {
            return Ok(());
        }
        let (op, rules, done) = (&self.op(), &rules, &done);
        (self.store())
            .transact(call(), |tx| async move {
                // No slot beyond a limit is taken again as long as the limit stays the same.
                if self.limit_rules(&tx, ty).await?.version == rules.version {
                    for (name, row) in done {
                        self.write_rule(&tx, ty, name, *row);
                    }
                    self.change_limits(&tx, ty, op);
                }
                Ok(())
            })
            .await
    }

    /// Whether a slot beyond the maximum is in use of one of the limits that have their setting from this row.
    async fn is_exceeded(&self, ty: &JobType, rules: &Rules, row: &Bytes) -> Result<bool> {
        for limit in self.limits_with_slots(ty, row).await? {
            if rules.is_row_of(row, &limit) {
                let beyond = rules.of(&limit).limit.max..WAITED;
                let beyond = self.keys().slots(ty, &limit, beyond);
                if self.first_key(&beyond).await?.is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
