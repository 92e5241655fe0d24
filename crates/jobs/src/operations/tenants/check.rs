//! Compares the turns of tenants with the rows that say that they have one.

use std::collections::BTreeMap;

use store::{Call, RangeOptions};

use crate::model::keys::{InClass, Keys};
use crate::{JobType, Jobs, Result};

/// Maximum tenants that are compared: the rows of all must be read within the transaction's time limit.
const TENANTS_MAX: usize = 100_000;

impl Jobs {
    /// Tenants with a turn of which nothing says so, with several turns in a class, or with none although a row says so.
    /// `None` if there are too many to compare.
    pub(crate) async fn check_turns(&self, ty: &JobType) -> Result<Option<Vec<String>>> {
        let (turns, there) = (&self.keys().turns(ty, None), &self.keys().all_there(ty));
        self.read(Call::batch("check"), |tx| async move {
            let rows = |range| {
                let rows = tx
                    .snapshot()
                    .get_range(range, RangeOptions::limit(TENANTS_MAX));
                rows.collect()
            };
            let (of_turns, of_there) = (rows(turns.clone()).await?, rows(there.clone()).await?);
            if of_turns.len().max(of_there.len()) == TENANTS_MAX {
                return Ok(None);
            }
            let mut tenants: BTreeMap<InClass, (usize, usize)> = BTreeMap::new();
            for row in of_turns {
                let (tenant, _) = Keys::turn_of(turns, &row.key)?;
                tenants.entry(tenant).or_default().0 += 1;
            }
            for row in of_there {
                let tenant = Keys::there_of(there, &row.key)?;
                tenants.entry(tenant).or_default().1 += 1;
            }
            let wrong = tenants.into_iter().filter(|(_, counts)| *counts != (1, 1));
            let problem = |((class, name), (turns, there)): (InClass, _)| {
                let name = name.escape_ascii().to_string();
                format!(
                    "tenant \"{name}\" has {turns} turns in class {class:?}, and {there} are known"
                )
            };
            Ok(Some(wrong.map(problem).collect()))
        })
        .await
    }
}
