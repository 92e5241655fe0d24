//! What operators do to the listening jobs of a rule.

use jobs::{Add, JobId, Listed, Op, Query, Signal};
use store::{Call, Transaction};

use super::{Listeners, Place, SINCE_NOW};
use crate::rule::set::RuleId;

/// Jobs per page and transaction.
const PAGE: usize = 100;

/// Which databases of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Of the source of this name.
    pub source: Option<String>,
    pub database: Option<String>,
}

/// Where listening goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewind {
    /// Behind the database's present sequence.
    Now,
    /// Behind this one, in the form of a query; `0` for all changes.
    Seq(String),
}

impl Rewind {
    fn since(&self) -> &str {
        match self {
            Self::Now => SINCE_NOW,
            Self::Seq(seq) => seq,
        }
    }
}

impl Listeners {
    /// Looks at the databases of a rule now. Returns how many there are.
    pub async fn trigger(&self, rule: &RuleId) -> jobs::Result<u64> {
        let now_ms = self.jobs().clock().now_ms();
        let signal = |id| Signal {
            add: Add::new(id, "").due_ms(now_ms),
            create: false,
        };
        let ids = self.jobs_of(rule, &Only::default()).await?;
        let signals: Vec<_> = ids.into_iter().map(signal).collect();
        let sent = self.jobs().signal_many(&self.ty, &signals).await?;
        Ok(sent.len() as u64)
    }

    /// Lets a rule go on from another place in databases that it has looked at. Returns how many there are. After an
    /// error some are rewound and others not; call it again.
    pub async fn rewind(&self, rule: &RuleId, only: &Only, to: &Rewind) -> jobs::Result<u64> {
        let mut rewound = 0;
        for ids in self.jobs_of(rule, only).await?.chunks(PAGE) {
            let op = self.jobs().op();
            let rewind =
                |tx: Transaction| async move { self.rewind_in(&tx, &op, ids, to.since()).await };
            let store = self.jobs().store();
            rewound += store.transact(Call::batch("rewind"), rewind).await?;
        }
        Ok(rewound)
    }

    async fn rewind_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ids: &[JobId],
        since: &str,
    ) -> jobs::Result<u64> {
        let mut rewound = 0;
        for id in ids {
            let Some((_, data)) = self.jobs().get_in(tx, &self.ty, id).await? else {
                continue;
            };
            let Ok(place) = serde_json::from_slice::<Place>(&data) else {
                continue;
            };
            let place = Place {
                since: Some(since.to_owned()),
                failures: 0,
                began_ms: 0,
                ..place
            };
            // A run in progress ends, and this is what the next one begins with.
            let data = jobs::encode(&place)?;
            (self.jobs())
                .resubmit_in(tx, op, &self.ty, id, Some(0), Some(data))
                .await?;
            rewound += 1;
        }
        Ok(rewound)
    }

    async fn jobs_of(&self, rule: &RuleId, only: &Only) -> jobs::Result<Vec<JobId>> {
        let query = Query {
            data: true,
            ..Query::default()
        };
        let is_one =
            |only: &Option<String>, name: &str| only.as_ref().is_none_or(|only| only == name);
        let of_rule = |listed: Listed| {
            let place: Place = serde_json::from_slice(&listed.data?).ok()?;
            let wanted = place.rule_id().as_ref() == Some(rule)
                && is_one(&only.source, &place.source)
                && is_one(&only.database, &place.db);
            wanted.then_some(listed.info.id)
        };
        let (mut cursor, mut found) = (None, Vec::new());
        loop {
            let page = (self.jobs())
                .list(&self.ty, &query, cursor.as_ref(), PAGE)
                .await?;
            found.extend(page.jobs.into_iter().filter_map(of_rule));
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(found);
            }
        }
    }
}
