//! Conditions that must hold after all faults have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use store::KeyValue;
use testkit::Report;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::admission;
use super::fleet::{Fleet, Member, START_MS};
use super::history::{self, Glimpse};
use super::judge::Judge;
use super::node::{Hook, Node};
use crate::model::header::Header;
use crate::model::keys::{Keys, Table, WAITED};
use crate::model::limits::Slot;
use crate::testing::rules::{Told, token_of};
use crate::testing::{log, moves};
use crate::{Holder, JobId, Maintenance};

impl Fleet {
    /// Whether any job of a type is held, or due and not held.
    async fn busy(&self, ty: usize) -> bool {
        let (name, now_ms) = (&self.world.types[ty], self.calm.clock().now_ms());
        let running = self.calm.counts(name).await.unwrap().running;
        let backlog = self.calm.backlog(name, now_ms, 100).await.unwrap();
        running > 0 || backlog.due > 0 || backlog.held > 0 || !self.slots(ty).await.is_empty()
    }

    /// The slots of a type that jobs have, also those that a rate will let start later.
    async fn slots(&self, ty: usize) -> Vec<KeyValue> {
        let range = self.calm.keys().all_slots(&self.world.types[ty]);
        let mut slots = self.calm.rows(range).await;
        slots.retain(|row| Slot::decode(row.value.clone()).unwrap().id.is_some());
        slots
    }

    /// Waits until all due jobs are done.
    pub(super) async fn drain(&mut self) {
        let begin = Instant::now();
        let time_limit = self.world.plan.healed_within();
        for ty in 0..self.world.types.len() {
            while unconstrained(self.busy(ty)).await {
                if begin.elapsed() > time_limit {
                    let name = &self.world.types[ty];
                    let counts = self.calm.counts(name).await.unwrap();
                    let problem = format!("due {name} jobs are still not done: {counts:?}");
                    return self.world.history.problem(problem);
                }
                sleep(Duration::from_millis(500)).await;
            }
        }
        // Creators complete their current call, and those jobs are done, too.
        sleep(Duration::from_secs(40)).await;
        self.audit().await;
    }

    /// Checks that every open subscriber has its job's current state, or gets it soon: scheduled
    /// jobs may just have run, and a service that lost a watch polls every few seconds.
    pub(super) async fn check_final_notices(&mut self) {
        let mut before = BTreeMap::new();
        for _ in 0..4 {
            let late = self.late_followers().await;
            for (follower, (told, is)) in &late {
                if before.get(follower) == Some(&(told.clone(), is.clone())) {
                    let problem =
                        format!("subscriber {follower} last heard {told:?}, and it is {is:?}");
                    self.world.history.problem(problem);
                }
            }
            if late.is_empty() || self.world.history.has_problems() {
                return;
            }
            before = late;
            sleep(Duration::from_secs(15)).await;
        }
    }

    /// Subscribers without their job's current state: their last notice, and that state.
    async fn late_followers(&self) -> BTreeMap<usize, (Option<Told>, Told)> {
        let open: Vec<_> = {
            let record = self.world.history.record();
            let open = (record.followed.iter().enumerate()).filter(|(_, followed)| followed.open);
            open.map(|(follower, followed)| {
                let told = followed.told.last().cloned();
                (follower, followed.ty, followed.id.clone(), told)
            })
            .collect()
        };
        let mut late = BTreeMap::new();
        for (follower, ty, id, told) in open {
            let ended = match &told {
                Some(Told::Job { state, .. }) => state.is_over(),
                _ => true,
            };
            if ended {
                continue;
            }
            let got = self.calm.get(&self.world.types[ty], &id).await.unwrap();
            let is = got.map_or(Told::Removed, |(info, data)| Told::Job {
                state: info.state,
                attempts: info.attempts,
                data: token_of(&data),
            });
            if told.as_ref() != Some(&is) {
                late.insert(follower, (told, is));
            }
        }
        late
    }

    /// An idle fleet does little.
    pub(super) async fn idle(&mut self) {
        // Crowds of finished jobs may expire in this minute.
        let tried = |members: &[Member]| -> u64 {
            let up = members.iter().filter_map(|member| member.process.as_ref());
            let stats = up.flat_map(|process| process.services.store().stats());
            let others = stats.filter(|(name, _)| *name != "expire");
            others.map(|(_, stats)| stats.attempts).sum()
        };
        let before = tried(&self.members);
        sleep(Duration::from_mins(1)).await;
        let tried = tried(&self.members) - before;
        let (nodes, plan) = (self.members.len() as u64, &self.world.plan);
        // Per type: a poll every 2.5 s by acceptor and notifier, and the turns of a monitor, each
        // of which reads leases, heartbeats and expired jobs.
        let turns = |timeout_ms: u64| 60_000 / (timeout_ms / 3).min(20_000) + 1;
        let types = plan.types.iter();
        let of_types: u64 = types
            .map(|ty| 60 + sweeps(turns(ty.config.timeout_ms)))
            .sum();
        if tried > nodes * (60 + of_types) {
            let problem = format!("{nodes} nodes tried {tried} transactions in an idle minute");
            self.world.history.problem(problem);
        }
    }

    /// One node runs on, long enough to remove everything that expires.
    pub(super) async fn clean_up(&mut self) {
        let node = Node {
            index: 0,
            world: Arc::clone(&self.world),
            jobs: self.calm.clone(),
            holder: Holder::new("the last one").unwrap(),
        };
        let options = self.world.plan.options.clone();
        let mut service = Maintenance::new(self.calm.clone(), options);
        for ty in &self.world.types {
            service = service.serve_with(ty.clone(), Hook(node.clone()));
        }
        let stop = CancellationToken::new();
        let running = tokio::spawn(service.run(stop.clone()));
        sleep(Duration::from_mins(25)).await;
        stop.cancel();
        running.await.unwrap();
        self.audit().await;
        self.find_orphans().await;
    }

    /// Reports rows without an owner, and jobs that should have expired.
    async fn find_orphans(&self) {
        let history = &self.world.history;
        let now_ms = self.calm.clock().now_ms();
        for ty in &self.world.types {
            let keys = self.calm.keys();
            let headers = self.headers(ty).await;
            for (id, header) in &headers {
                if let crate::model::header::Place::Finished { expires_ms, .. } = header.place
                    && expires_ms < now_ms - 120_000
                {
                    history.problem(format!("job {id} should have been forgotten"));
                }
                let attempts = self.calm.history(ty, id).await.unwrap();
                if attempts.len() != header.attempts.min(11) as usize {
                    history.problem(format!("job {id} has the history {attempts:?}"));
                }
            }
            let mut orphans = Vec::new();
            for range in [
                keys.sleepers(ty),
                keys.notifiers(ty),
                keys.all(Table::Note, ty),
            ] {
                orphans.extend(self.calm.rows(range).await);
            }
            let mut slots = self.calm.rows(keys.all_slots(ty)).await;
            // Ten minutes after they are free, and after the turn of a node that says so, nothing is left of those of rates.
            let is_late = |slot: Slot| slot.id.is_some() || slot.free_ms < now_ms - 720_000;
            slots.retain(|row| {
                Keys::slot_number(&row.key).unwrap() != WAITED
                    && is_late(Slot::decode(row.value.clone()).unwrap())
            });
            orphans.extend(slots);
            for runs in [Table::History, Table::Call].map(|table| keys.all(table, ty)) {
                for row in self.calm.rows(runs.clone()).await {
                    if !headers.contains_key(&Keys::first_id(&runs, &row.key).unwrap()) {
                        orphans.push(row);
                    }
                }
            }
            for row in orphans {
                history.problem(format!("an orphaned row: {}", row.key.escape_ascii()));
            }
        }
    }

    async fn headers(&self, ty: &crate::JobType) -> BTreeMap<JobId, Header> {
        let range = self.calm.keys().jobs(ty);
        let rows = self.calm.rows(range.clone()).await;
        let header = |row: KeyValue| {
            let id = Keys::id(&range, &row.key).unwrap();
            (id, Header::decode(row.value).unwrap())
        };
        rows.into_iter().map(header).collect()
    }

    /// Indexes, counters and chunks agree with the headers at this version.
    pub(super) async fn audit(&self) {
        for ty in &self.world.types {
            let check = unconstrained(self.calm.check(ty)).await.unwrap();
            for problem in check.problems {
                self.world.history.problem(problem);
            }
        }
    }

    pub(super) async fn judge(&mut self) -> (Report, u64) {
        let world = &self.world;
        let committed = log::committed(&world.store, history::LOG).await;
        let moved = log::committed(&world.store, moves::LOG).await;
        let digest = world.history.digest(&committed);
        let (mut last, mut counts) = (BTreeMap::new(), Vec::new());
        for (number, ty) in world.types.iter().enumerate() {
            for (id, header) in self.headers(ty).await {
                last.insert((number, id), Glimpse::of(Some(&header)));
            }
            counts.push(self.calm.counts(ty).await.unwrap());
        }
        let record = world.history.record();
        let mut problems = record.problems.clone();
        for delivered in &record.delivered {
            let accepted = &delivered.accepted;
            let now_ms = self.clock_at(delivered.node, accepted.claimed_at);
            // A job with limits waits for them once any node has found it due.
            let limited = world.plan.types[delivered.ty].limits.is_some();
            if accepted.due_ms > now_ms && !limited {
                problems.push(format!(
                    "job {} was due at {} and given to node {} when it was {now_ms} there",
                    accepted.job.id, accepted.due_ms, delivered.node,
                ));
            }
        }
        let verdict = Judge::new(&world.plan, &record).judge(&committed, &last, &counts);
        problems.extend(verdict.problems);
        let moves = world.moves.all();
        let moved: Vec<_> = (moved.iter())
            .map(|(version, number)| (*version, &moves[*number]))
            .collect();
        problems.extend(admission::judge(
            &world.types,
            &record.settings,
            &moved,
            self.skew_ms(),
        ));
        let delivered = record.delivered.iter();
        let jobs: BTreeSet<_> = delivered
            .map(|got| (got.ty, &got.accepted.job.id))
            .collect();
        let report = Report {
            problems,
            story: verdict.story,
            counts: [("jobs", jobs.len()), ("runs", record.delivered.len())],
            lasted: world.history.now(),
        };
        (report, digest)
    }

    /// How much the clocks of the fleet differed.
    fn skew_ms(&self) -> i64 {
        let skews = self.members.iter().flat_map(|member| &member.skews);
        let skews = skews.map(|(_, skew_ms)| *skew_ms).chain([0]);
        let (least, most) = skews.fold((0, 0), |(least, most), skew_ms| {
            (skew_ms.min(least), skew_ms.max(most))
        });
        most - least
    }

    /// A node's clock at a moment; if it was set then, the later reading.
    fn clock_at(&self, node: usize, at: Instant) -> i64 {
        let skews = &self.members[node].skews;
        let last = skews
            .iter()
            .rposition(|(since, _)| *since < at)
            .unwrap_or(0);
        let moments = skews[last..].iter().take_while(|(since, _)| *since <= at);
        let skew_ms = moments.map(|(_, skew_ms)| *skew_ms).max().unwrap_or(0);
        let since = at - skews[0].0;
        START_MS + i64::try_from(since.as_millis()).unwrap() + skew_ms
    }
}

/// Transactions that a node's monitor tries in this many turns: its leases, and two sweeps of each partition.
fn sweeps(turns: u64) -> u64 {
    turns * (2 + 2 * 8)
}
