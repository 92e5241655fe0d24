//! Compares the turns of tenants with the rows that say that they have one.

use std::collections::{BTreeMap, BTreeSet};

use store::Call;

use crate::model::keys::{InClass, Keys};
use crate::operations::page::page;
use crate::{JobType, Jobs, Result};

/// Turns, and rows that say that there is one, per transaction.
const ROWS: usize = 10_000;
/// A tenant is reported only if this many passes find it wrong, because turns move while pages are read.
const PASSES: usize = 4;

/// Tenants with the number of their turns, and of the rows that say that they have one.
type Counted = BTreeMap<InClass, (usize, usize)>;

impl Jobs {
    /// Tenants with a turn of which nothing says so, with several turns in a class, or with none although a row says so.
    pub(crate) async fn check_turns(&self, ty: &JobType) -> Result<Vec<String>> {
        let mut problems = BTreeSet::new();
        let mut wrong = self.count_turns(ty, |_| true, &mut problems).await?;
        for _ in 1..PASSES {
            if wrong.is_empty() {
                break;
            }
            let is_wrong = |tenant: &InClass| wrong.contains_key(tenant);
            wrong = self.count_turns(ty, is_wrong, &mut problems).await?;
        }
        problems.extend(wrong.into_iter().map(|((class, name), (turns, there))| {
            let name = name.escape_ascii().to_string();
            format!("tenant \"{name}\" has {turns} turns in class {class:?}, and {there} are known")
        }));
        Ok(problems.into_iter().collect())
    }

    /// Those of these tenants that do not have exactly one of each. Rows that cannot be decoded are problems.
    async fn count_turns(
        &self,
        ty: &JobType,
        counts: impl Fn(&InClass) -> bool,
        problems: &mut BTreeSet<String>,
    ) -> Result<Counted> {
        let (turns, there) = (&self.keys().turns(ty, None), &self.keys().all_there(ty));
        let mut from = (turns.begin.clone(), there.begin.clone());
        let mut tenants = Counted::new();
        while from.0 < turns.end || from.1 < there.end {
            let (of_turns, of_there) = (&from.0, &from.1);
            let read = self.read(Call::batch("check"), |tx| async move {
                let of_turns = page(&tx, turns, Some(of_turns), ROWS).await?;
                Ok((of_turns, page(&tx, there, Some(of_there), ROWS).await?))
            });
            let ((of_turns, next_turn), (of_there, next_there)) = read.await?;
            let of_turns = of_turns.iter().map(|row| {
                let turn = Keys::turn_of(turns, &row.key);
                (turn.map(|(tenant, _)| tenant), (1, 0))
            });
            let of_there = (of_there.iter()).map(|row| (Keys::there_of(there, &row.key), (0, 1)));
            for (tenant, (turn, known)) in of_turns.chain(of_there) {
                match tenant {
                    Ok(tenant) if counts(&tenant) => {
                        let count = tenants.entry(tenant).or_default();
                        *count = (count.0 + turn, count.1 + known);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        problems.insert(error.chain().to_string());
                    }
                }
            }
            from = (
                next_turn.unwrap_or_else(|| turns.end.clone()),
                next_there.unwrap_or_else(|| there.end.clone()),
            );
        }
        tenants.retain(|_, counts| *counts != (1, 1));
        Ok(tenants)
    }
}
