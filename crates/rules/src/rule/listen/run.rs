//! One run of a listening job.

use std::sync::Arc;
use std::time::Duration;

use couch::{Change as Row, ChangesRequest, Database, RequestOptions, Seq};
use document::json::Json;
use document::mango::TooExpensive;
use document::matching::matches;
use jobs::{Failure, Finish, Held, Task};
use store::Transaction;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{Answer, Listening, Place, SINCE_NOW, Sender, millis};
use crate::rule::call::{Call, Outcome};
use crate::rule::document::Task as Todo;
use crate::rule::pattern::Captures;
use crate::rule::set::Compiled;
use crate::rule::template::Change;
use crate::rule::webhook::Webhook;

/// Changes per request.
const PAGE: u64 = 100;
/// A page ends with the document that brings its total to this size, which bounds the memory of a run.
const PAGE_BYTES_MAX: usize = 2_000_000;
/// Pages per run: then others get their turn.
const PAGES_MAX: usize = 20;
/// A run ends after this time if all listeners are busy.
const TURN: Duration = Duration::from_secs(2);
/// Limits of one transaction.
const CALLS_MAX: usize = 200;
const CALLS_BYTES_MAX: usize = 500_000;
/// A database that has been missing for this time is forgotten, and so is a source that no node has known.
const GONE_MS_MAX: i64 = 300_000;
/// How often a missing database is looked for.
const MISSING_PAUSE_MS: i64 = 30_000;
/// How often a node that knows the source is looked for.
const UNKNOWN_PAUSE_MS: i64 = 5_000;
/// For how long a rule that has just been resumed is left alone.
const RESUMED_PAUSE: Duration = Duration::from_secs(1);

/// Why a run ends before it has caught up.
enum Stop {
    /// Others may be waiting for a listener.
    Turn,
    /// The rule was edited, disabled, deleted or rewound.
    RuleChanged,
    /// The database does not exist.
    Missing,
    /// The call failed, is repeated after this time, and why.
    Refused(Duration, String),
    /// The endpoint of the call is to be left alone for this time, and why.
    Later(Duration, String),
    /// The source or the store failed.
    Failed(Failure),
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A run in progress.
struct Run<'a, S> {
    listening: &'a Listening<S>,
    task: &'a Task<Place>,
    place: Place,
    rule: Arc<Compiled>,
    captures: Captures,
    /// A permit for each listener without a run.
    idle: &'a Semaphore,
    began: Instant,
}

impl<S: Sender> Listening<S> {
    pub(super) async fn listen(
        &self,
        mut task: Task<Place>,
        idle: &Semaphore,
    ) -> Result<Finish, Failure> {
        let sources = Arc::clone(&self.sources.borrow());
        let source = (sources.iter()).find(|source| source.name() == task.data.source);
        if source.is_some() && task.data.unknown_ms.take().is_some() {
            // Now, because not every run stores its place when it ends.
            let _held = task.save().await?;
        }
        let place = task.data.clone();
        let known = Arc::clone(&self.rules.borrow());
        let rule = match place.rule_id() {
            Some(id) => self.listeners.rules.find(&id, &known).await?,
            None => None,
        };
        let Some(rule) = rule else {
            return self.end_without_rule(&task).await;
        };
        if !is_of(&task, &rule) {
            return self.forget(&task).await;
        }
        let Some(source) = source else {
            return self.wait_for_source(&task, place).await;
        };
        let captures = rule.rule.databases.captures_by_name(&place.db);
        let (Some(captures), Todo::Call(webhook)) = (captures, &rule.rule.task) else {
            return self.forget(&task).await;
        };
        let now_ms = task.jobs().clock().now_ms();
        let rested_ms = place
            .began_ms
            .saturating_add(millis(webhook.pace.min_interval_sec));
        let rested_ms = rested_ms.max(place.rests_ms);
        if rested_ms > now_ms {
            return Ok(Finish::again(rested_ms));
        }
        let Some(endpoint) = source.server().database(&place.db) else {
            return self.forget(&task).await;
        };
        let database = self
            .network
            .database(endpoint, RequestOptions::default())
            .await?;
        let mut run = Run {
            listening: self,
            place: Place {
                rests_ms: 0,
                maybe_new_ms: None,
                ..place
            },
            task: &task,
            captures,
            rule: Arc::clone(&rule),
            idle,
            began: Instant::now(),
        };
        let ended = run.catch_up(&database, webhook).await;
        let mut place = run.place;
        if matches!(ended, Ok(true)) {
            place.began_ms = now_ms;
        }
        self.end(&task, place, ended).await
    }

    /// Keeps the place for some time: other nodes may know the source while a change of configuration is under way.
    async fn wait_for_source(
        &self,
        task: &Task<Place>,
        mut place: Place,
    ) -> Result<Finish, Failure> {
        let now_ms = task.jobs().clock().now_ms();
        if is_forgotten(&mut place.unknown_ms, now_ms) {
            return self.forget(task).await;
        }
        let finish = Finish::again(now_ms.saturating_add(UNKNOWN_PAUSE_MS));
        Ok(finish.data(jobs::encode(&place)?))
    }

    /// Keeps the place if the rule is disabled, or was until just now, or if other nodes may be able to read it.
    async fn end_without_rule(&self, task: &Task<Place>) -> Result<Finish, Failure> {
        let place = &task.data;
        let rule = (self.listeners.rules)
            .named(&place.rules, &place.rule)
            .await?
            .transpose()
            .map_err(|error| Failure::Retry(format!("cannot read its rule: {error}")))?;
        match rule.filter(|rule| is_of(task, rule)) {
            None => self.forget(task).await,
            Some(rule) if rule.rule.enabled => Ok(task.again_in(RESUMED_PAUSE)),
            Some(_) => Ok(Finish::done()),
        }
    }

    async fn end(
        &self,
        task: &Task<Place>,
        mut place: Place,
        ended: Result<bool, Stop>,
    ) -> Result<Finish, Failure> {
        let now_ms = task.jobs().clock().now_ms();
        let finish = match ended {
            Ok(true) => Finish::done(),
            Err(Stop::RuleChanged) => Finish::again(0),
            // After the jobs that are due already.
            Ok(false) | Err(Stop::Turn) => Finish::again(now_ms),
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::Missing) => {
                if is_forgotten(&mut place.missing_ms, now_ms) {
                    return self.forget(task).await;
                }
                Finish::again(now_ms.saturating_add(MISSING_PAUSE_MS))
            }
            Err(Stop::Refused(wait, why)) => Finish {
                again_ms: Some(after(now_ms, wait)),
                ..Finish::failed(why)
            },
            Err(Stop::Later(wait, why)) => {
                place.rests_ms = after(now_ms, wait);
                Finish {
                    reason: Some(why),
                    ..Finish::again(place.rests_ms)
                }
            }
        };
        Ok(finish.data(jobs::encode(&place)?))
    }

    /// Ends the job for good, unless a signal has come.
    async fn forget(&self, task: &Task<Place>) -> Result<Finish, Failure> {
        let (jobs, ty) = (task.jobs(), &self.listeners.ty);
        let op = jobs.op();
        let forget = |tx: Transaction| async move {
            let held = jobs.finish_in(&tx, &op, task.job(), Finish::done()).await?;
            if !held.again && !held.repeated {
                jobs.remove_in(&tx, &op, ty, &task.job().id).await?;
            }
            Ok::<_, jobs::Error>(())
        };
        jobs.store().transact("forget_listener", forget).await?;
        Ok(Finish::done())
    }
}

/// Whether a job is one of this rule, rather than of one of its id that was deleted.
fn is_of(task: &Task<Place>, rule: &Compiled) -> bool {
    let place = &task.data;
    task.job().id == rule.job(&[&*place.source, &*place.db])
}

pub(super) fn after(now_ms: i64, wait: Duration) -> i64 {
    now_ms.saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX))
}

impl<S: Sender> Run<'_, S> {
    /// False if there is more to do.
    async fn catch_up(&mut self, database: &Database, webhook: &Webhook) -> Result<bool, Stop> {
        if self.place.since.as_deref() == Some(SINCE_NOW) {
            let info = match database.info().await {
                Err(error) if error.is_missing() => {
                    // All changes that it will have are later ones.
                    self.place.since = Some("0".to_owned());
                    return Err(Stop::Missing);
                }
                info => info?,
            };
            self.place.since = Some(info.update_seq.to_query());
            self.place.missing_ms = None;
            return Ok(true);
        }
        for _ in 0..PAGES_MAX {
            let (rows, is_last) = match self.page(database).await {
                Err(error) if error.is_missing() => return Err(Stop::Missing),
                page => page?,
            };
            if self.place.missing_ms.take().is_some() {
                // It was deleted and made anew.
                self.place.since = Some("0".to_owned());
                continue;
            }
            let Some(last) = rows.last().map(|row| row.seq.clone()) else {
                if !self.is_made_anew(database).await? {
                    // All changes that an empty database will have are later ones.
                    self.place.since.get_or_insert_with(|| "0".to_owned());
                    return Ok(true);
                }
                self.place.since = Some("0".to_owned());
                continue;
            };
            // If a call failed, the newest change could be another one when it is repeated.
            if webhook.block && self.place.since.is_some() {
                self.in_order(webhook, &rows).await?;
            } else {
                self.at_once(webhook, &rows).await?;
            }
            let last = Some(last.to_query());
            // Behind the last call, the rule may have become another that is about these changes.
            if self.place.since != last {
                self.check_rule().await?;
            }
            (self.place.since, self.place.failures) = (last, 0);
            if is_last {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a database without further changes is another one than before: where sequences are numbers, they only grow.
    async fn is_made_anew(&self, database: &Database) -> Result<bool, couch::Error> {
        let since = self.place.since.as_deref().map(seq_of);
        let Some(since @ 1..) = since.and_then(|since| since.as_number()) else {
            return Ok(false);
        };
        let last = database.info().await?.update_seq.as_number();
        Ok(last.is_some_and(|last| last < since))
    }

    /// The next changes, and whether they are the last.
    async fn page(&self, database: &Database) -> Result<(Vec<Row>, bool), couch::Error> {
        let newest = self.place.since.is_none();
        let request = ChangesRequest {
            since: self.place.since.as_deref().map_or_else(Seq::zero, seq_of),
            all_leaves: false,
            include_docs: true,
            descending: newest,
            limit: Some(if newest { 1 } else { PAGE }),
            ..ChangesRequest::default()
        };
        let mut feed = database.changes(&request).await?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while let Some(row) = feed.next().await? {
            bytes += row.document.as_ref().map_or(0, |doc| doc.json().len());
            rows.push(row);
            if bytes >= PAGE_BYTES_MAX {
                return Ok((rows, newest));
            }
        }
        let is_last = newest || (rows.len() as u64) < PAGE;
        Ok((rows, is_last))
    }

    /// Makes one call after the other.
    async fn in_order(&mut self, webhook: &Webhook, rows: &[Row]) -> Result<(), Stop> {
        for row in rows {
            let Some(call) = self.call(webhook, row).await? else {
                continue;
            };
            // The changes before this one may have been skipped under another rule than the one that is there now.
            self.check_rule().await?;
            // A call that loops ends as a dead letter.
            let given_up = call.loops() || !self.send(&call).await?;
            // Others may go on; this one is a delivery now, which ends as a dead letter, too.
            let calls: Vec<_> = given_up.then(|| call.storable()).into_iter().collect();
            self.place.failures = 0;
            self.advance(row, &calls).await?;
            if self.began.elapsed() >= TURN && self.idle.available_permits() == 0 {
                return Err(Stop::Turn);
            }
        }
        Ok(())
    }

    /// Makes a call. False if it is not to be repeated here although it failed.
    async fn send(&mut self, call: &Call) -> Result<bool, Stop> {
        let change = Some((call.doc_id.clone(), call.rev.clone()));
        if self.place.failing != change {
            (self.place.failures, self.place.failing) = (0, change);
        }
        let failures = self.place.failures;
        let (outcome, attempt) = match self.listening.sender.send(call, failures).await {
            Answer::Made(outcome, attempt) => (outcome, attempt),
            Answer::Later(wait, why) => return Err(Stop::Later(wait, why)),
        };
        let why = attempt.summary();
        self.place.last_call = Some(attempt);
        match outcome {
            Outcome::Delivered => Ok(true),
            Outcome::Failed(asked) if call.retry.limit.is_none_or(|limit| failures < limit) => {
                self.place.failures = failures.saturating_add(1);
                let entropy = self.task.jobs().entropy();
                let wait = call.retry.delay(self.place.failures, entropy);
                Err(Stop::Refused(wait.max(asked.unwrap_or_default()), why))
            }
            Outcome::Failed(_) | Outcome::Dead => Ok(false),
        }
    }

    async fn at_once(&mut self, webhook: &Webhook, rows: &[Row]) -> Result<(), Stop> {
        let (mut calls, mut bytes) = (Vec::new(), 0);
        for (nth, row) in rows.iter().enumerate() {
            if let Some(call) = self.call(webhook, row).await? {
                let call = call.storable();
                let texts = [call.body.as_ref(), call.query.as_ref(), Some(&call.url)];
                bytes += texts.into_iter().flatten().map(String::len).sum::<usize>();
                calls.push(call);
            }
            let is_last = nth + 1 == rows.len();
            let is_full = calls.len() >= CALLS_MAX || bytes >= CALLS_BYTES_MAX;
            if is_full || (is_last && !calls.is_empty()) {
                self.advance(row, &calls).await?;
                (calls, bytes) = (Vec::new(), 0);
            }
        }
        Ok(())
    }

    /// Ends the run unless its rule is still the one in the store.
    async fn check_rule(&self) -> Result<(), Stop> {
        let (rules, rule) = (&self.listening.listeners.rules, &*self.rule);
        let holds = |tx: Transaction| async move { rules.holds_in(&tx, rule).await };
        let store = self.task.jobs().store();
        let holds = store.transact("rule_holds", holds).await?;
        holds.then_some(()).ok_or(Stop::RuleChanged)
    }

    /// Moves the place behind a change in the transaction that enqueues calls.
    async fn advance(&mut self, row: &Row, calls: &[Call]) -> Result<(), Stop> {
        let before = self.place.since.replace(row.seq.to_query());
        let data = &jobs::encode(&self.place)?;
        let (listening, task, rule) = (self.listening, self.task, &*self.rule);
        let jobs = task.jobs();
        let op = jobs.op();
        let advance = |tx: Transaction| async move {
            let holds = listening.listeners.rules.holds_in(&tx, rule).await?;
            if !holds && !calls.is_empty() {
                return Ok(None);
            }
            let held: Held = jobs
                .update_in(&tx, &op, task.job(), Some(data.clone()))
                .await?;
            if !held.repeated && !calls.is_empty() {
                listening.sender.enqueue_in(&tx, &op, calls).await?;
            }
            // Signals ask for no other run, but rewinding does.
            Ok::<_, scheduler::ServiceError>(Some(holds && !held.again))
        };
        match jobs.store().transact("listen", advance).await? {
            Some(true) => Ok(()),
            // The change was called about.
            Some(false) => Err(Stop::RuleChanged),
            None => {
                self.place.since = before;
                Err(Stop::RuleChanged)
            }
        }
    }

    /// The call that a change asks for, if any.
    async fn call(&self, webhook: &Webhook, row: &Row) -> Result<Option<Call>, Stop> {
        let rev = row.revs.first().map_or("", |rev| rev.as_str());
        let text = row.document.as_ref().map(couch::Document::json);
        let parsed = text.and_then(|text| Json::parse(std::str::from_utf8(text).ok()?).ok());
        let document = parsed.unwrap_or_else(|| stub(row, rev));
        match asks(webhook, &document).await {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                // It would keep the rule from all later changes.
                self.warn_of(row, &error);
                return Ok(None);
            }
        }
        let seq = Json::parse(row.seq.as_json())?;
        let change = Change {
            source: &self.place.source,
            db: &self.place.db,
            captures: &self.captures,
            doc_id: row.id.as_str(),
            rev,
            doc: &document,
            seq: &seq,
        };
        match self.rule.call(webhook, &change) {
            Ok(call) => Ok(Some(call)),
            Err(error) => {
                self.warn_of(row, &error);
                Ok(None)
            }
        }
    }

    fn warn_of(&self, row: &Row, error: &dyn std::error::Error) {
        let (rule, db, doc) = (&self.rule.id.doc, &self.place.db, row.id.as_str());
        tracing::warn!(rule, db, doc, %error, "skipped a change");
    }
}

/// Whether `if` and `selector` match a document.
async fn asks(webhook: &Webhook, document: &Json) -> Result<bool, TooExpensive> {
    if !webhook.accepts(document)? {
        return Ok(false);
    }
    match webhook.selector() {
        None => Ok(true),
        Some(selector) => matches(selector, document.to_string()).await,
    }
}

/// Whether a database or source has been gone for so long that its place is forgotten.
fn is_forgotten(since_ms: &mut Option<i64>, now_ms: i64) -> bool {
    now_ms.saturating_sub(*since_ms.get_or_insert(now_ms)) >= GONE_MS_MAX
}

/// A sequence in the form of a query.
fn seq_of(text: &str) -> Seq {
    Seq::from_json(text).unwrap_or_else(|| Seq::from_value(&text.into()))
}

/// What is known of a document that the feed does not have.
fn stub(row: &Row, rev: &str) -> Json {
    let text = |text: &str| Json::String(text.to_owned());
    let mut members = vec![
        ("_id".to_owned(), text(row.id.as_str())),
        ("_rev".to_owned(), text(rev)),
    ];
    if row.deleted {
        members.push(("_deleted".to_owned(), Json::Bool(true)));
    }
    Json::Object(members)
}
