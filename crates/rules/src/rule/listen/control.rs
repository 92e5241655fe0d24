//! What operators do to the listening jobs of a rule.

use futures::future::try_join_all;
use jobs::{Cursor, JobId, JobInfo, Listed, Op, Query, Signal, State};
use store::{Call, Transaction};

use super::{Listeners, Place, SINCE_NOW};
use crate::picked::picked;
use crate::rule::call::Attempt;
use crate::rule::set::RuleId;

/// Jobs per page and transaction.
const PAGE: usize = 100;
/// Jobs read for one page of a listing.
const LOOKED_MAX: usize = 2_000;

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

/// How far a rule is in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub source: String,
    pub database: String,
    /// The sequence of the last change that has been dealt with; `None` before the first run.
    pub since: Option<String>,
    /// Calls that failed in a row.
    pub failures: u32,
    /// When the next run is due, if there is one; in the past if it is to run as soon as possible.
    pub next_ms: Option<i64>,
    /// The current run, else the last one.
    pub last: Option<jobs::Attempt>,
    /// The last call of a rule that blocks.
    pub last_call: Option<Attempt>,
}

/// Goes through all listening jobs, those of other rules among them.
#[derive(Default)]
struct Walk {
    cursor: Option<Cursor>,
    is_over: bool,
}

impl Listeners {
    /// Looks at the databases of a rule now, even during a back-off. Returns how many there are. After an error some are
    /// looked at and others not.
    pub async fn trigger(&self, rule: &RuleId) -> jobs::Result<u64> {
        let (only, mut walk, mut triggered) = (Only::default(), Walk::default(), 0);
        while !walk.is_over {
            let found = self.walk(&mut walk, PAGE, rule, &only).await?;
            let ids: Vec<_> = found.into_iter().map(|(info, _)| info.id).collect();
            let (op, ids) = (self.jobs().op(), &ids);
            let trigger = |tx: Transaction| async move { self.trigger_in(&tx, &op, ids).await };
            let store = self.jobs().store();
            triggered += store.transact(Call::batch("trigger"), trigger).await?;
        }
        Ok(triggered)
    }

    /// Lets a rule go on from another place in databases that it has looked at. Returns how many there are. After an
    /// error some are rewound and others not; call it again.
    pub async fn rewind(&self, rule: &RuleId, only: &Only, to: &Rewind) -> jobs::Result<u64> {
        let (mut walk, mut rewound) = (Walk::default(), 0);
        while !walk.is_over {
            let found = self.walk(&mut walk, PAGE, rule, only).await?;
            let ids: Vec<_> = found.into_iter().map(|(info, _)| info.id).collect();
            let (op, ids) = (self.jobs().op(), &ids);
            let rewind =
                |tx: Transaction| async move { self.rewind_in(&tx, &op, ids, to.since()).await };
            let store = self.jobs().store();
            rewound += store.transact(Call::batch("rewind"), rewind).await?;
        }
        Ok(rewound)
    }

    /// Forgets how far rules are in the databases of a source.
    pub(crate) async fn forget_source(&self, source: &str) -> jobs::Result<()> {
        let begin = format!("{source}|");
        let query = Query {
            to: Some(JobId::new(format!("{begin}\u{10ffff}"))?),
            from: Some(JobId::new(begin)?),
            ..Query::default()
        };
        loop {
            let page = self.jobs().list(&self.ty, &query, None, PAGE).await?;
            for listed in &page.jobs {
                self.remove(&listed.info.id).await?;
            }
            if page.cursor.is_none() {
                return Ok(());
            }
        }
    }

    /// Removes a job, if it is still there.
    pub(super) async fn remove(&self, id: &JobId) -> jobs::Result<()> {
        match self.jobs().remove(&self.ty, id).await {
            Err(jobs::Error::NotFound) => Ok(()),
            removed => removed,
        }
    }

    /// A page of up to `limit` databases that a rule has looked at, possibly fewer although more follow, and where the next
    /// page starts; `None` at the end.
    pub async fn progress(
        &self,
        rule: &RuleId,
        only: &Only,
        after: Option<Cursor>,
        limit: usize,
    ) -> jobs::Result<(Vec<Progress>, Option<Cursor>)> {
        let limit = limit.clamp(1, jobs::PAGE_JOBS_MAX);
        let mut walk = Walk {
            cursor: after,
            is_over: false,
        };
        let (mut found, mut looked) = (Vec::new(), 0);
        while !walk.is_over && found.len() < limit && looked < LOOKED_MAX {
            let wanted = limit - found.len();
            looked += wanted.max(PAGE);
            let jobs = self.walk(&mut walk, wanted, rule, only).await?;
            found.extend(jobs.into_iter().map(Progress::from));
        }
        Ok((found, walk.cursor))
    }

    async fn trigger_in(&self, tx: &Transaction, op: &Op, ids: &[JobId]) -> jobs::Result<u64> {
        let (jobs, mut signals, mut triggered) = (self.jobs(), Vec::new(), 0);
        for id in ids {
            let Some((info, data)) = jobs.get_in(tx, &self.ty, id).await? else {
                continue;
            };
            triggered += 1;
            let place = serde_json::from_slice::<Place>(&data).ok();
            let Some(place) = place.filter(|_| info.state != State::Running) else {
                // The run in progress is not disturbed.
                signals.push(Signal::new(id.clone()).due_ms(op.now_ms));
                continue;
            };
            let place = Place {
                began_ms: 0,
                rests_ms: 0,
                ..place
            };
            let data = jobs::encode(&place)?;
            jobs.resubmit_in(tx, op, &self.ty, id, Some(0), Some(data))
                .await?;
        }
        jobs.signal_many_in(tx, op, &self.ty, &signals).await?;
        Ok(triggered)
    }

    /// Moves jobs to the first change of databases that have turned out to be new. This applies only to jobs that a look
    /// created with a later start, and that have not run yet.
    pub(crate) async fn begin_in(
        &self,
        tx: &Transaction,
        op: &Op,
        created: &[Signal],
    ) -> jobs::Result<()> {
        let jobs = self.jobs();
        let read = created.iter().map(|Signal { add, .. }| async move {
            let job = jobs.get_in(tx, &self.ty, &add.id).await?;
            Ok::<_, jobs::Error>(job.map(|job| (add, job)))
        });
        for (add, (info, data)) in try_join_all(read).await?.into_iter().flatten() {
            let Ok(mut place) = serde_json::from_slice::<Place>(&data) else {
                continue;
            };
            let until_ms = place.maybe_new_ms.take();
            if info.state != State::Pending || until_ms.is_none_or(|ms| ms < op.now_ms) {
                continue;
            }
            place.since = Some("0".to_owned());
            let data = jobs::encode(&place)?;
            jobs.resubmit_in(tx, op, &self.ty, &add.id, add.due_ms.into(), Some(data))
                .await?;
        }
        Ok(())
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
                rests_ms: 0,
                maybe_new_ms: None,
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

    /// The jobs of a rule among the next ones.
    async fn walk(
        &self,
        walk: &mut Walk,
        limit: usize,
        rule: &RuleId,
        only: &Only,
    ) -> jobs::Result<Vec<(JobInfo, Place)>> {
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
            wanted.then_some((listed.info, place))
        };
        let (after, lengths) = (walk.cursor.as_ref(), (limit, PAGE));
        let next = picked(self.jobs(), &self.ty, &query, after, lengths, of_rule).await?;
        (walk.is_over, walk.cursor) = (next.cursor.is_none(), next.cursor);
        Ok(next.jobs)
    }
}

impl From<(JobInfo, Place)> for Progress {
    fn from((info, place): (JobInfo, Place)) -> Self {
        let due_ms = (info.state == State::Pending).then_some(info.due_ms);
        let next_ms = info.next_due_ms.or(info.signal_ms).or(due_ms);
        Self {
            source: place.source,
            database: place.db,
            since: place.since,
            failures: place.failures,
            next_ms: next_ms.map(|ms| ms.max(info.created_ms)),
            last: info.last,
            last_call: place.last_call,
        }
    }
}
