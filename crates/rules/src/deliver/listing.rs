//! Shows deliveries, makes them again, and removes them.

use jobs::{Cursor, End, JobId, JobInfo, Listed, Op, Outcome, Query, State};
use store::{Call as Transact, Transaction};

use super::delivery::Delivery;
use super::{Deliveries, identity};
use crate::picked::picked;
use crate::rule::call::Attempt;

/// Deliveries per transaction when many are replayed or removed.
const TOGETHER: usize = 100;
/// Jobs read for one page of a listing by rule.
const LOOKED_MAX: usize = 2_000;
/// Jobs per transaction of such a listing, of which few may be of the rule.
const AT_LEAST: usize = 100;

/// Which deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of rules with this document id.
    pub rule: Option<String>,
    /// Of rules in the database of this name.
    pub rule_database: Option<String>,
    pub state: Option<State>,
}

/// What is done to deliveries that have ended.
#[derive(Clone, Copy)]
enum Act {
    Replay,
    Remove,
}

impl Act {
    /// The name of its transactions.
    fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Remove => "remove",
        }
    }
}

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Possibly fewer than requested although more follow.
    pub deliveries: Vec<Shown>,
    /// Where the next page starts; `None` at the end.
    pub cursor: Option<Cursor>,
}

/// A delivery, without what may be confidential: body, headers, query and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub id: String,
    /// The `webhook-id`.
    pub message: String,
    pub state: State,
    pub rule: String,
    /// The name of the database that the rule is in; `None` if the configuration asked for the call.
    pub rule_database: Option<String>,
    pub source: String,
    pub db: String,
    pub doc_id: String,
    pub rev: String,
    pub seq: String,
    pub method: String,
    /// Without user, query and fragment.
    pub url: String,
    pub created_ms: i64,
    /// When it is due, if it waits; 0 is as soon as possible.
    pub due_ms: Option<i64>,
    /// Calls made, and those that failed in a row.
    pub attempts: u32,
    pub failures: u32,
    /// Why it waits, or what the last call led to.
    pub reason: Option<String>,
    pub last: Option<Attempt>,
}

/// A run of a job: for a delivery, a call, or a return to the queue without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub number: u32,
    pub node: String,
    pub started_ms: i64,
    pub ended_ms: Option<i64>,
    pub reason: Option<String>,
}

impl Shown {
    fn of(info: JobInfo, data: &[u8]) -> Option<Self> {
        let delivery: Delivery = serde_json::from_slice(data).ok()?;
        let message = identity::message(&delivery.call);
        let call = delivery.call;
        let end = info.last.and_then(|last| last.end);
        Some(Self {
            id: String::from_utf8_lossy(info.id.as_bytes()).into_owned(),
            message,
            state: info.state,
            rule: call.rule,
            rule_database: Some(call.rules).filter(|name| !name.is_empty()),
            source: call.source,
            db: call.db,
            doc_id: call.doc_id,
            rev: call.rev,
            seq: call.seq,
            method: call.method,
            url: call.url,
            created_ms: info.created_ms,
            due_ms: (info.state == State::Pending).then_some(info.due_ms),
            attempts: delivery.attempts,
            failures: delivery.failures,
            reason: end.and_then(reason),
            last: delivery.last,
        })
    }
}

impl From<jobs::Attempt> for Run {
    fn from(run: jobs::Attempt) -> Self {
        Self {
            number: run.number,
            node: run.holder.to_string(),
            started_ms: run.started_ms,
            ended_ms: run.end.as_ref().map(|end| end.at_ms),
            reason: run.end.and_then(reason),
        }
    }
}

fn reason(end: End) -> Option<String> {
    end.reason.or_else(|| match end.outcome {
        Outcome::Done | Outcome::Failed | Outcome::Again => None,
        _ => Some("its node went silent".to_owned()),
    })
}

impl Deliveries {
    /// A page of up to `limit` deliveries.
    pub async fn list(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> jobs::Result<Listing> {
        let limit = limit.clamp(1, jobs::PAGE_JOBS_MAX);
        let query = Query {
            state: filter.state,
            data: true,
            ..Query::default()
        };
        let (mut found, mut looked) = (Vec::new(), 0);
        let mut cursor = after.cloned();
        loop {
            let few = if filter.is_of_rules() { AT_LEAST } else { 1 };
            let lengths = (limit - found.len(), few);
            let shown = |listed| filter.shown(listed);
            let (after, jobs) = (cursor.as_ref(), &self.jobs);
            let next = picked(jobs, &self.ty, &query, after, lengths, shown).await?;
            looked += next.looked;
            found.extend(next.jobs);
            cursor = next.cursor;
            if cursor.is_none() || found.len() >= limit || looked >= LOOKED_MAX {
                return Ok(Listing {
                    deliveries: found,
                    cursor,
                });
            }
        }
    }

    /// A delivery and its last runs, oldest first; `None` if it does not exist.
    pub async fn show(&self, id: &str) -> jobs::Result<Option<(Shown, Vec<Run>)>> {
        let Ok(id) = JobId::try_from(id) else {
            return Ok(None);
        };
        let Some((info, data)) = self.jobs.get(&self.ty, &id).await? else {
            return Ok(None);
        };
        let history = match self.jobs.history(&self.ty, &id).await {
            // Removed in between.
            Err(jobs::Error::NotFound) => return Ok(None),
            history => history?,
        };
        let runs = history.into_iter().map(Run::from);
        Ok(Shown::of(info, &data).map(|shown| (shown, runs.collect())))
    }

    /// Makes a delivery again, as soon as possible or, if it runs, after that; its back-off and its count of failures
    /// start anew. False if it does not exist.
    pub async fn replay(&self, id: &str) -> jobs::Result<bool> {
        let Ok(id) = &JobId::try_from(id) else {
            return Ok(false);
        };
        let op = self.jobs.op();
        (self.jobs.store())
            .transact(
                "replay",
                |tx| async move { self.replay_in(&tx, &op, id).await },
            )
            .await
    }

    async fn replay_in(&self, tx: &Transaction, op: &Op, id: &JobId) -> jobs::Result<bool> {
        let Some((info, data)) = self.jobs.get_in(tx, &self.ty, id).await? else {
            return Ok(false);
        };
        if info.next_due_ms.is_some() {
            // A newer state follows anyway.
            return Ok(true);
        }
        let delivery = serde_json::from_slice::<Delivery>(&data).map(|mut delivery| {
            // Also where its rule was deleted and written anew.
            delivery.call.generation = None;
            Delivery {
                failures: 0,
                replay: true,
                ..delivery
            }
        });
        // What cannot be read stays as it is, and so a dead letter.
        let data = delivery.ok().map(|delivery| delivery.encode().into());
        (self.jobs)
            .resubmit_in(tx, op, &self.ty, id, Some(0), data)
            .await?;
        Ok(true)
    }

    /// Replays all deliveries of a filter that have ended before now: dead letters, unless the filter's state says
    /// otherwise. Returns how many. Not atomic: after an error some are replayed and others not; call it again.
    pub async fn replay_all(&self, filter: &Filter) -> jobs::Result<u64> {
        self.each_ended(filter, Act::Replay).await
    }

    /// Removes a delivery in any state. A call that is being made may still arrive. False if it does not exist.
    pub async fn remove(&self, id: &str) -> jobs::Result<bool> {
        let Ok(id) = &JobId::try_from(id) else {
            return Ok(false);
        };
        match self.jobs.remove(&self.ty, id).await {
            Err(jobs::Error::NotFound) => Ok(false),
            removed => removed.map(|()| true),
        }
    }

    /// Removes deliveries, chosen as in [`Self::replay_all`]. Returns how many.
    pub async fn remove_all(&self, filter: &Filter) -> jobs::Result<u64> {
        self.each_ended(filter, Act::Remove).await
    }

    async fn each_ended(&self, filter: &Filter, act: Act) -> jobs::Result<u64> {
        let filter = Filter {
            state: filter.state.or(Some(State::Dead)),
            ..filter.clone()
        };
        let now_ms = self.jobs.clock().now_ms();
        let query = Query {
            state: filter.state,
            data: true,
            ..Query::default()
        };
        let (mut cursor, mut count) = (None, 0);
        loop {
            let page = (self.jobs)
                .list(&self.ty, &query, cursor.as_ref(), TOGETHER)
                .await?;
            // One that ended later may be one that this call has replayed.
            let ended =
                |listed: &Listed| listed.info.finished_ms.is_some_and(|at_ms| at_ms <= now_ms);
            let of_filter = |listed: Listed| {
                let id = listed.info.id.clone();
                filter.shown(listed).map(|_| id)
            };
            let ids: Vec<JobId> = page
                .jobs
                .into_iter()
                .filter(ended)
                .filter_map(of_filter)
                .collect();
            count += self.act_on(&ids, act).await?;
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(count);
            }
        }
    }

    async fn act_on(&self, ids: &[JobId], act: Act) -> jobs::Result<u64> {
        if ids.is_empty() {
            return Ok(0);
        }
        let op = self.jobs.op();
        (self.jobs.store())
            .transact(Transact::batch(act.name()), |tx| async move {
                let mut count = 0;
                for id in ids {
                    let done = match act {
                        Act::Replay => self.replay_in(&tx, &op, id).await?,
                        Act::Remove => self.remove_ended_in(&tx, &op, id).await?,
                    };
                    count += u64::from(done);
                }
                Ok(count)
            })
            .await
    }

    /// False if it has not ended: it may have been replayed since it was listed.
    async fn remove_ended_in(&self, tx: &Transaction, op: &Op, id: &JobId) -> jobs::Result<bool> {
        let info = self.jobs.info_in(tx, &self.ty, id).await?;
        let has_ended = info.is_some_and(|info| info.state.is_over());
        if has_ended {
            self.jobs.remove_in(tx, op, &self.ty, id).await?;
        }
        Ok(has_ended)
    }
}

impl Filter {
    fn is_of_rules(&self) -> bool {
        self.rule.is_some() || self.rule_database.is_some()
    }

    fn shown(&self, listed: Listed) -> Option<Shown> {
        let shown = Shown::of(listed.info, &listed.data?)?;
        let database = self.rule_database.as_ref();
        let wanted = self.rule.as_ref().is_none_or(|rule| *rule == shown.rule)
            && database.is_none_or(|_| shown.rule_database.as_ref() == database);
        wanted.then_some(shown)
    }
}

#[cfg(test)]
mod tests {
    use jobs::{Clock, Entropy, Jobs};
    use store::Store;

    use super::*;
    use crate::deliver::Options;
    use crate::deliver::testing::call;
    use crate::rule::call::Call;

    /// Even if that is another rule than the one that asked for the call.
    #[tokio::test]
    async fn a_replayed_call_is_one_of_the_rule_that_is_there() {
        let store = Store::open("memory:").await.unwrap();
        let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
        let deliveries = &Deliveries::new(jobs.clone());
        deliveries.register(&Options::default()).await.unwrap();
        let call = &Call {
            generation: Some("deleted".to_owned()),
            ..call("http://h/")
        };
        let op = &jobs.op();
        let enqueue = |tx| async move { deliveries.enqueue_in(&tx, op, call).await };
        jobs.store().transact("enqueue", enqueue).await.unwrap();
        let id = JobId::new(identity::message(call)).unwrap();
        let stored = async || {
            let (_, data) = jobs.get(&deliveries.ty, &id).await.unwrap().unwrap();
            let delivery: Delivery = serde_json::from_slice(&data).unwrap();
            (delivery.replay, delivery.call.generation)
        };
        assert_eq!(stored().await, (false, call.generation.clone()));
        assert!(deliveries.replay(&id.to_string()).await.unwrap());
        assert_eq!(stored().await, (true, None));
    }
}
