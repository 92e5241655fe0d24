//! The full recount: checks indexes, counters and chunks against the headers.
//!
//! Reads everything, page by page. In memory it keeps one page, the limits that jobs wait for, the names of tenants with turns,
//! and what it reports. Each row is compared with its job's header in one transaction, so only counters may differ during
//! writes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::future::try_join_all;
use store::{Call, KeyRange, KeyValue, RangeOptions, Transaction};

use crate::model::class::of_tag;
use crate::model::header::{Header, State};
use crate::model::keys::{Keys, Position, vtime_in};
use crate::operations::effects::CHUNK_BYTES;
use crate::operations::tenants;
use crate::{Error, JobId, JobType, Jobs, Result};

/// Rows, and chunks, per transaction.
const ROWS: usize = 1_000;
const CHUNKS: usize = 50;
/// Maximum problems listed.
const PROBLEMS_MAX: usize = 1_000;

/// The result of a recount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Check {
    /// The number of jobs.
    pub jobs: u64,
    /// Inconsistencies: none, unless the queue or its store has a bug. If there are more than 1,000, the last entry is
    /// their number.
    pub problems: Vec<String>,
}

/// The results so far.
#[derive(Debug, Default)]
struct Found {
    check: Check,
    more: u64,
    jobs: BTreeMap<(State, u8), u64>,
}

/// The result for one row.
#[derive(Debug, Default)]
struct Seen {
    kind: Option<(State, u8)>,
    problems: Vec<String>,
    /// A job with chunks, each of which must exist.
    chunked: Option<JobId>,
}

impl Jobs {
    /// [`Self::check`] of every type with stored rows, registered or not.
    pub async fn check_all(&self) -> Result<BTreeMap<JobType, Check>> {
        let mut types: BTreeSet<JobType> = self.types().await?.into_keys().collect();
        for table in self.keys().of_jobs() {
            let mut rest = table.clone();
            while let Some(key) = self.first_key(&rest).await? {
                let (ty, after) = Keys::type_of(&table, &key)?;
                types.insert(ty);
                rest = after;
            }
        }
        let mut checks = BTreeMap::new();
        for ty in types {
            let check = self.check(&ty).await?;
            checks.insert(ty, check);
        }
        Ok(checks)
    }

    pub(crate) async fn first_key(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        self.read(Call::batch("check"), |tx| async move {
            let first = RangeOptions::limit(1);
            let rows = tx.snapshot().get_range(range.clone(), first);
            Ok(rows.collect().await?.into_iter().next().map(|row| row.key))
        })
        .await
    }

    /// Compares every index row, counter and chunk of a type with the headers of its jobs.
    pub async fn check(&self, ty: &JobType) -> Result<Check> {
        let mut found = Found::default();
        self.check_jobs(ty, &mut found).await?;
        for state in State::ALL {
            let range = self.keys().state(ty, state);
            let look = |tx, row| async move { self.check_index(&tx, ty, state, row).await };
            self.check_rows(range, ROWS, look, |seen| found.add(seen))
                .await?;
        }
        let all = &self.keys().data(ty);
        let look = |tx, row| async move { self.check_chunk(&tx, ty, all, row).await };
        self.check_rows(all.clone(), CHUNKS, look, |seen| found.add(seen))
            .await?;
        let all = &self.keys().all_quarantined(ty);
        let look = |_, row: KeyValue| async move {
            let id = Keys::id(all, &row.key)?;
            Ok(Seen::problem(format!("job {id} is in quarantine")))
        };
        self.check_rows(all.clone(), ROWS, look, |seen| found.add(seen))
            .await?;
        let all = &self.keys().all_slots(ty);
        let rules = self.read(Call::batch("check"), |tx| async move {
            // Those that this process knows may have been damaged since.
            self.rules_after(&tx, ty, None).await
        });
        let rules = &*rules.await?;
        let look = |tx, row| async move {
            let problems = self.check_slot(&tx, ty, (all, rules), row).await?;
            Ok(Seen {
                problems,
                ..Seen::default()
            })
        };
        self.check_rows(all.clone(), ROWS, look, |seen| found.add(seen))
            .await?;
        self.check_tenants(ty, &mut found).await?;
        let limits = self.check_limits(ty, rules).await?;
        let turns = self.check_turns(ty).await?;
        for problem in limits.into_iter().chain(turns) {
            found.say(problem);
        }
        let counts = self.counts(ty).await?;
        for (state, counted) in [
            (State::Pending, counts.pending),
            (State::Running, counts.running),
            (State::Finished, counts.finished),
            (State::Dead, counts.dead),
        ] {
            let of_state = found.jobs.iter().filter(|((of, _), _)| *of == state);
            let jobs: u64 = of_state.map(|(_, jobs)| jobs).sum();
            if counted != jobs {
                let state = format!("{state:?}").to_lowercase();
                found.say(format!(
                    "{counted} {state} jobs are counted and {jobs} are there"
                ));
            }
        }
        found.compare_tags(self.counts_by_tag(ty).await?);
        Ok(found.end())
    }

    /// Checks the accounts and the shares of tenants.
    async fn check_tenants(&self, ty: &JobType, found: &mut Found) -> Result<()> {
        let all = &self.keys().vtimes(ty);
        let vtimes = |_, row: KeyValue| async move {
            let vtime = Keys::tenant_of(all, &row.key).and_then(|_| vtime_in(Some(&row.value)));
            Ok(Seen::undecodable(&row.key, vtime))
        };
        self.check_rows(all.clone(), ROWS, vtimes, |seen| found.add(seen))
            .await?;
        let all = &self.keys().all_shares(ty);
        let shares = |_, row: KeyValue| async move {
            let shares = Keys::tenant_of(all, &row.key).and_then(|_| tenants::decode(row.value));
            Ok(Seen::undecodable(&row.key, shares))
        };
        self.check_rows(all.clone(), ROWS, shares, |seen| found.add(seen))
            .await
    }

    /// Checks the headers, and that each has its index row and chunks.
    async fn check_jobs(&self, ty: &JobType, found: &mut Found) -> Result<()> {
        let all = &self.keys().jobs(ty);
        let look = |tx, row| async move { self.check_header(&tx, ty, all, row).await };
        let mut range = all.clone();
        while !range.is_empty() {
            let mut chunked = Vec::new();
            let rest = (self.check_page(&range, ROWS, &look, |seen: Seen| {
                chunked.extend(seen.chunked.clone());
                found.add(seen);
            }))
            .await?;
            for id in &chunked {
                let missing = self.read(Call::batch("check"), |tx| async move {
                    self.missing_chunks(&tx, ty, id).await
                });
                missing
                    .await?
                    .into_iter()
                    .for_each(|problem| found.say(problem));
            }
            match rest {
                Some(rest) => range = rest,
                None => break,
            }
        }
        Ok(())
    }

    async fn check_header(
        &self,
        tx: &Transaction,
        ty: &JobType,
        all: &KeyRange,
        row: KeyValue,
    ) -> Result<Seen> {
        let id = match Keys::id(all, &row.key) {
            Ok(id) => id,
            Err(error) => return Ok(Seen::problem(error.chain().to_string())),
        };
        let quarantined = self.quarantined_in(tx, ty, &id).await?;
        let header = match Header::decode(row.value) {
            Ok(header) => header,
            Err(error) => {
                let key = row.key.escape_ascii();
                let problem = format!("job {id} cannot be decoded: {}: {key}", error.chain());
                return Ok(Seen {
                    kind: quarantined.map(|state| (state, 0)),
                    ..Seen::problem(problem)
                });
            }
        };
        let mut seen = Seen {
            kind: Some((header.state(), header.tag())),
            problems: problems_of(&id, &header),
            chunked: header.chunked().next().map(|_| id.clone()),
        };
        let position = Position::of(&header);
        let index = self.keys().index(ty, &id, &position);
        if quarantined.is_none() && tx.snapshot().get(&index).await?.is_none() {
            let problem = format!("job {id} has no row {position:?}");
            seen.problems.push(problem);
        }
        let slots = self.check_taken(tx, ty, &id, &header).await?;
        seen.problems.extend(slots);
        Ok(seen)
    }

    async fn missing_chunks(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
    ) -> Result<Vec<String>> {
        let Ok(Some(header)) = self.try_header(tx, ty, id).await? else {
            return Ok(Vec::new());
        };
        let mut problems = Vec::new();
        for blob in header.chunked() {
            for n in (0..).take((blob.len as usize).div_ceil(CHUNK_BYTES)) {
                let key = self.keys().chunk(ty, id, blob.slot, n);
                if tx.snapshot().get(&key).await?.is_none() {
                    problems.push(format!("missing chunk {}", key.escape_ascii()));
                }
            }
        }
        Ok(problems)
    }

    async fn check_index(
        &self,
        tx: &Transaction,
        ty: &JobType,
        state: State,
        row: KeyValue,
    ) -> Result<Seen> {
        let (position, id) = match self.keys().position(ty, state, &row.key) {
            Ok(parsed) => parsed,
            Err(error) => return Ok(Seen::problem(error.chain().to_string())),
        };
        let same = match self.try_header(tx, ty, &id).await? {
            Ok(header) => header.is_some_and(|header| Position::of(&header) == position),
            // Already reported.
            Err(_) => true,
        };
        if same && *row.key == *self.keys().index(ty, &id, &position) {
            if let Position::Shared(class, tenant, _) = position {
                let there = self.keys().there(ty, &(class, tenant));
                if tx.snapshot().get(&there).await?.is_none() {
                    let problem = format!("job {id} is ready, and its tenant has no turn");
                    return Ok(Seen::problem(problem));
                }
            }
            return Ok(Seen::default());
        }
        let problem = format!("orphan row of job {id}: {position:?}");
        Ok(Seen::problem(problem))
    }

    async fn check_chunk(
        &self,
        tx: &Transaction,
        ty: &JobType,
        all: &KeyRange,
        row: KeyValue,
    ) -> Result<Seen> {
        if let Ok((id, slot, n)) = Keys::chunk_of(all, &row.key) {
            let header = self.try_header(tx, ty, &id).await?;
            let belongs = |header: &Header| {
                header.chunked().any(|blob| {
                    blob.slot == slot && (n as usize) < (blob.len as usize).div_ceil(CHUNK_BYTES)
                })
            };
            if header.is_err() || header.is_ok_and(|h| h.is_some_and(|h| belongs(&h))) {
                return Ok(Seen::default());
            }
        }
        let problem = format!("orphan chunk {}", row.key.escape_ascii());
        Ok(Seen::problem(problem))
    }

    /// Checks every row of a range, `rows` per transaction.
    async fn check_rows<Fut: Future<Output = Result<Seen>>>(
        &self,
        mut range: KeyRange,
        rows: usize,
        look: impl Fn(Transaction, KeyValue) -> Fut,
        mut seen: impl FnMut(Seen),
    ) -> Result<()> {
        while let Some(rest) = self.check_page(&range, rows, &look, &mut seen).await? {
            range = rest;
        }
        Ok(())
    }

    /// Checks the first rows of a range; returns the rest of it.
    async fn check_page<Fut: Future<Output = Result<Seen>>>(
        &self,
        range: &KeyRange,
        rows: usize,
        look: &impl Fn(Transaction, KeyValue) -> Fut,
        seen: impl FnMut(Seen),
    ) -> Result<Option<KeyRange>> {
        let (page, last) = self
            .read(Call::batch("check"), |tx| async move {
                let page = (tx.snapshot()).get_range(range.clone(), RangeOptions::limit(rows));
                let page = page.collect().await?;
                let full = page.len() == rows;
                let last = page.last().filter(|_| full).map(|row| row.key.clone());
                let looked = page.into_iter().map(|row| look(tx.clone(), row));
                Ok::<_, Error>((try_join_all(looked).await?, last))
            })
            .await?;
        page.into_iter().for_each(seen);
        Ok(last.map(|last| KeyRange::new([&*last, &[0]].concat(), range.end.clone())))
    }
}

impl Seen {
    fn problem(problem: String) -> Self {
        Self {
            problems: vec![problem],
            ..Self::default()
        }
    }

    /// A problem, if a row could not be decoded.
    fn undecodable<T>(key: &[u8], decoded: Result<T>) -> Self {
        decoded.err().map_or_else(Self::default, |error| {
            Self::problem(format!("{}: {}", error.chain(), key.escape_ascii()))
        })
    }
}

impl Found {
    fn say(&mut self, problem: String) {
        if self.check.problems.len() < PROBLEMS_MAX {
            self.check.problems.push(problem);
        } else {
            self.more += 1;
        }
    }

    fn add(&mut self, seen: Seen) {
        if let Some(kind) = seen.kind {
            self.check.jobs += 1;
            *self.jobs.entry(kind).or_default() += 1;
        }
        seen.problems
            .into_iter()
            .for_each(|problem| self.say(problem));
    }

    fn compare_tags(&mut self, counted: BTreeMap<(State, u8), u64>) {
        let mut all = counted;
        for kind in self.jobs.keys() {
            all.entry(*kind).or_default();
        }
        for ((state, tag), counted) in all {
            let jobs = self.jobs.get(&(state, tag)).copied().unwrap_or_default();
            let (label, class) = of_tag(tag);
            if counted != jobs {
                self.say(format!(
                    "{counted} jobs in state {state:?}, {class:?}, with label {label} are counted and {jobs} are there"
                ));
            }
        }
    }

    fn end(mut self) -> Check {
        if self.more > 0 {
            let more = format!("and {} more problems", self.more);
            self.check.problems.push(more);
        }
        self.check
    }
}

/// Violated invariants of a header.
fn problems_of(id: &JobId, header: &Header) -> Vec<String> {
    let ended = header.last.as_ref().map(|last| last.end.is_some());
    let running = header.state() == State::Running;
    let last_run = header.last.as_ref().map_or(0, |last| last.number);
    let over = header.state().is_over();
    let rules = [
        (
            ended == Some(running) || (running && ended.is_none()),
            "its state and its last run disagree",
        ),
        (
            header.next.is_some() && !running,
            "asked to run again, and not running",
        ),
        (
            header.signal_ms().is_some() && !running,
            "signalled for another run, and not running",
        ),
        (
            header.asked_ms().is_some() && over,
            "finished or dead, and a signal is not covered",
        ),
        (
            last_run != header.attempts,
            "its last run is not its last attempt",
        ),
        (
            !header.watchers.is_empty() && over,
            "finished or dead, and its subscribers were not told",
        ),
    ];
    let broken = rules.into_iter().filter(|(broken, _)| *broken);
    broken
        .map(|(_, problem)| format!("job {id}: {problem}"))
        .collect()
}
