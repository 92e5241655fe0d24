//! Jobs of rules that were deleted, or no longer ask for calls: nothing signals them any more, and their runs have to end.

use std::collections::{HashMap, HashSet};

use jobs::{Cursor, JobId, Listed, Query};
use scheduler::ServiceError;
use store::{RangeOptions, Transaction};

use super::{Listeners, Place};
use crate::keys;
use crate::rule::set::RuleId;

/// Rules per walk through all jobs.
const RULES: usize = 1_000;
/// Jobs per page.
const PAGE: usize = 100;

/// Where rules ended; a rule without a document id stands for all of its database.
pub(super) type Left = HashMap<RuleId, String>;

impl Listeners {
    /// Removes the jobs of rules that have ended.
    pub(crate) async fn remove_left(&self) -> Result<(), ServiceError> {
        loop {
            let left = self.left().await?;
            if left.is_empty() {
                return Ok(());
            }
            self.remove_of(&left).await?;
            for rule in left.keys() {
                let (replications, kept) = (self.rules.replications(), HashSet::new());
                replications.unrule(rule.instance, &rule.doc, &kept).await?;
            }
            let clear = |tx: Transaction| {
                let left = &left;
                async move {
                    for (rule, rev) in left {
                        let key = keys::left(rule);
                        // Deleted again meanwhile, it may have left others.
                        if (tx.get(&key).await?).is_some_and(|row| row == rev.as_bytes()) {
                            tx.clear(&key);
                        }
                    }
                    Ok::<_, ServiceError>(())
                }
            };
            self.jobs().store().transact("forget_rules", clear).await?;
        }
    }

    pub(super) async fn left(&self) -> Result<Left, ServiceError> {
        let read = |tx: Transaction| async move {
            let rows = (tx.snapshot()).get_range(keys::all_left(), RangeOptions::limit(RULES));
            let rows = rows.collect().await?.into_iter();
            let left = rows.filter_map(|row| {
                let rev = String::from_utf8_lossy(&row.value).into_owned();
                Some((keys::parse_rule(&row.key)?, rev))
            });
            Ok::<_, ServiceError>(left.collect())
        };
        self.jobs().store().transact("deleted_rules", read).await
    }

    pub(super) async fn remove_of(&self, left: &Left) -> jobs::Result<()> {
        let query = Query {
            data: true,
            ..Query::default()
        };
        let mut cursor: Option<Cursor> = None;
        loop {
            let page = (self.jobs().list(&self.ty, &query, cursor.as_ref(), PAGE)).await?;
            for Listed { info, data, .. } in page.jobs {
                let place = data.and_then(|data| serde_json::from_slice::<Place>(&data).ok());
                let of = place.and_then(|place| Some((place.rule_id()?, place)));
                let Some((rule, place)) = of else {
                    continue;
                };
                let all = RuleId {
                    doc: String::new(),
                    ..rule.clone()
                };
                let is_left = |rev: &&String| {
                    // One of this id may be there again, and have jobs of its own.
                    info.id != rule.job(&[&*place.source, &*place.db], Some(rev.as_str()))
                };
                let of_rule = || Some((&rule, left.get(&rule).filter(is_left)?));
                let of_all = left.get(&all).map(|rev| (&all, rev));
                if let Some((rule, rev)) = of_all.or_else(of_rule) {
                    self.remove_while_left(rule, rev, &info.id).await?;
                }
            }
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(());
            }
        }
    }

    /// Removes a job, unless its rule was written and deleted again meanwhile: then it may belong to the newer rule.
    async fn remove_while_left(&self, rule: &RuleId, rev: &str, id: &JobId) -> jobs::Result<()> {
        let (jobs, key) = (self.jobs(), &keys::left(rule));
        let op = jobs.op();
        let remove = |tx: Transaction| async move {
            if (tx.get(key).await?).is_none_or(|row| row != rev.as_bytes()) {
                return Ok(());
            }
            match jobs.remove_in(&tx, &op, &self.ty, id).await {
                Err(jobs::Error::NotFound) => Ok(()),
                removed => removed,
            }
        };
        jobs.store().transact("remove_listener", remove).await
    }
}
