//! What rules ask for when a database of a source has changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use couch::Seq;
use futures::future::{try_join, try_join_all};
use jobs::{Op, Signal};
use scheduler::{Replications, Ruled, ServiceError};
use store::Transaction;
use tokio::sync::watch;

use super::heard::Heard;
use super::options::Source;
use crate::keys;
use crate::rule::{Compiled, Event, Listeners, Set};

/// Replications of rules that are remembered as known, before they are looked up again.
const KNOWN_MAX: usize = 1_000_000;

/// The rules that a follower asks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RuleBook {
    pub(super) replications: Replications,
    /// What [`RuleWatcher`](crate::rule::RuleWatcher) reads.
    pub(super) rules: watch::Receiver<Arc<Set>>,
    pub(super) listeners: Listeners,
}

impl RuleBook {
    pub fn new(
        replications: Replications,
        rules: watch::Receiver<Arc<Set>>,
        listeners: Listeners,
    ) -> Self {
        Self {
            replications,
            rules,
            listeners,
        }
    }

    /// The rules as they are in the store. What was read of them last may be older than an event: nothing, on a node that
    /// has just started.
    pub(super) async fn current(&self) -> Result<Arc<Set>, ServiceError> {
        let (rules, known) = (self.listeners.rules(), Arc::clone(&self.rules.borrow()));
        if rules.stamp().await? == known.stamp {
            return Ok(known);
        }
        Ok(Arc::new(rules.load(&known).await?))
    }
}

/// One thing that a rule asks for.
#[derive(Debug)]
pub(super) enum Reaction {
    /// A replication is to be there, and to run if it failed while its database was missing.
    Replicate { asked: Box<Ruled>, is_back: bool },
    /// The database of a replication is gone.
    Forget(Box<Ruled>),
    /// A database is to be listened to.
    Listen(Box<Listen>),
}

#[derive(Debug)]
pub(super) struct Listen {
    rule: Arc<Compiled>,
    database: String,
    signal: Signal,
}

/// Finds reactions, and remembers which replications are there already. Clones share that: what one forgets, others may
/// have to ask for again.
#[derive(Clone)]
pub(super) struct Reactions<'a> {
    pub(super) book: &'a RuleBook,
    pub(super) source: &'a Source,
    known: Arc<Mutex<Known>>,
    pub(super) heard: Arc<Heard>,
    hasher: RandomState,
    /// Whether databases are found by looking for them, rather than reported by a feed.
    looks: bool,
}

/// The replications that are there.
#[derive(Default)]
struct Known {
    /// Each with the number of the last look in which its database was there.
    looks: HashMap<u64, u64>,
    /// The number of the present look.
    look: u64,
    /// The databases of all others were not there at the last look.
    is_whole: bool,
    /// There were more than can be remembered.
    is_full: bool,
}

impl Known {
    /// Whether it was known.
    fn add(&mut self, replication: u64) -> bool {
        if self.looks.len() >= KNOWN_MAX && !self.looks.contains_key(&replication) {
            self.looks.clear();
            (self.is_whole, self.is_full) = (false, true);
        }
        self.looks.insert(replication, self.look).is_some()
    }
}

impl<'a> Reactions<'a> {
    pub(super) fn new(book: &'a RuleBook, source: &'a Source) -> Self {
        Self {
            book,
            source,
            known: Arc::default(),
            heard: Arc::default(),
            hasher: RandomState::new(),
            looks: false,
        }
    }

    /// The same, for databases that are found by looking for them.
    pub(super) fn for_looks(&self) -> Self {
        Self {
            looks: true,
            ..self.clone()
        }
    }

    /// A look at all databases begins.
    pub(super) fn begin_look(&self) {
        let mut known = self.known();
        known.look += 1;
        known.is_full = false;
    }

    /// It has ended: the databases of replications that it did not come across are gone.
    pub(super) fn end_look(&self) {
        let known = &mut *self.known();
        known.looks.retain(|_, look| *look >= known.look);
        known.is_whole = !known.is_full;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, remembering nothing: what others remember, they may not have committed yet.
    pub(super) fn afresh(&self) -> Self {
        Self {
            known: Arc::default(),
            ..self.clone()
        }
    }

    /// What the rules ask for because of these events.
    pub(super) fn for_all(
        &self,
        set: &Set,
        databases: &BTreeMap<String, Event>,
        now_ms: i64,
    ) -> Vec<Reaction> {
        if set.is_empty() {
            return Vec::new();
        }
        let mut reactions = Vec::new();
        for (database, event) in databases {
            reactions.extend(self.for_one(set, database, *event, None, now_ms));
        }
        reactions
    }

    /// What the rules ask for because of an event; `seen` is the sequence of the database, if it is known.
    pub(super) fn for_one(
        &self,
        set: &Set,
        database: &str,
        event: Event,
        seen: Option<&Seq>,
        now_ms: i64,
    ) -> Vec<Reaction> {
        let mut reactions = Vec::new();
        // Whatever a rule is about, its replication of a database that is gone goes as well.
        let about = if event == Event::Deleted {
            Event::Updated
        } else {
            event
        };
        for (rule, captures) in set.matching(self.source, database, about) {
            for ruled in rule.replications(database, &captures) {
                match ruled {
                    Ok(ruled) => reactions.extend(self.replicate(ruled, database, event)),
                    Err(error) => {
                        let doc_id = &rule.id.doc;
                        tracing::warn!(rule = doc_id, database, %error, "a rule does not fit a database");
                    }
                }
            }
        }
        let signals = Listeners::signals(set, self.source, database, event, now_ms, seen);
        reactions.extend(signals.into_iter().map(|(rule, signal)| {
            Reaction::Listen(Box::new(Listen {
                rule,
                database: database.to_owned(),
                signal,
            }))
        }));
        reactions
    }

    /// What a replication asks for because of an event; nothing if its job is known.
    fn replicate(&self, ruled: Ruled, database: &str, event: Event) -> Option<Reaction> {
        let url = ruled.remote.as_ref().map(|remote| &remote.url);
        let of = (&ruled.instance, &ruled.doc_id, &ruled.rev, database, url);
        let known = self.hasher.hash_one(of);
        let mut all_known = self.known();
        if event == Event::Deleted {
            all_known.looks.remove(&known);
            return Some(Reaction::Forget(Box::new(ruled)));
        }
        let was_whole = all_known.is_whole;
        let is_known = all_known.add(known);
        let is_new = !self.looks || (was_whole && !is_known);
        let is_back = event == Event::Created && is_new;
        if is_known && !is_back {
            return None;
        }
        // A remote about a million databases must not hold up the others.
        let is_bulk = ruled.remote.is_some() && event == Event::Updated;
        let asked = Box::new(Ruled { is_bulk, ..ruled });
        Some(Reaction::Replicate { asked, is_back })
    }
}

impl RuleBook {
    /// Does these in the caller's transaction, which must have room for them.
    pub(super) async fn react_in(
        &self,
        tx: &Transaction,
        op: &Op,
        source: &Source,
        reactions: &[Reaction],
    ) -> Result<(), ServiceError> {
        let (mut ruled, mut back, mut listens) = (Vec::new(), Vec::new(), Vec::new());
        for reaction in reactions {
            match reaction {
                Reaction::Replicate { asked, is_back } => {
                    ruled.push(&**asked);
                    back.extend(is_back.then_some(&**asked));
                }
                Reaction::Forget(gone) => self.replications.unrule_in(tx, op, gone).await?,
                Reaction::Listen(listen) => listens.push(&**listen),
            }
        }
        let replicate = self.replications.rule_in(tx, op, &ruled);
        let listen = listen_in(tx, source, &listens);
        let (_, signals) = try_join(replicate, listen).await?;
        for ruled in back {
            // Rare, and large.
            Box::pin(self.replications.retry_ruled_in(tx, op, ruled)).await?;
        }
        if !signals.is_empty() {
            let ty = self.listeners.job_type();
            let jobs = self.replications.jobs();
            jobs.signal_many_in(tx, op, ty, &signals).await?;
        }
        Ok(())
    }
}

/// The signals for databases, which are known from now on, or not any more once they are deleted.
async fn listen_in(
    tx: &Transaction,
    source: &Source,
    listens: &[&Listen],
) -> Result<Vec<Signal>, ServiceError> {
    let server = source.server().url_text();
    let snapshot = &tx.snapshot();
    let (mut rules, mut databases) = (BTreeMap::new(), BTreeMap::new());
    for listen in listens {
        let is_there = listen.signal.create;
        databases.insert(keys::seen(server, &listen.database), is_there);
        if is_there {
            rules.insert(keys::seeded(server, &listen.rule.id), &listen.rule.rev);
        }
    }
    let seeded = rules.into_iter().map(|(key, rev)| async move {
        let row = snapshot.get(&key).await?;
        let is_seeded = row.is_some_and(|row| row == keys::seeded_value(rev, source.name()));
        Ok(is_seeded.then_some(key))
    });
    let known = databases.into_iter().map(|(key, is_there)| async move {
        if !is_there {
            tx.clear(&key);
        } else if snapshot.get(&key).await?.is_none() {
            tx.set(&key, b"null");
        }
        Ok::<_, store::Error>(())
    });
    let (seeded, _) = try_join(try_join_all(seeded), try_join_all(known)).await?;
    let seeded: HashSet<_> = seeded.into_iter().flatten().collect();
    let signal = |listen: &&Listen| {
        let signal = listen.signal.clone();
        // The rule has a job for each database that was there before it: one without is new, and the event of that was lost.
        if signal.create && seeded.contains(&keys::seeded(server, &listen.rule.id)) {
            return Ok(Listeners::from_the_start(signal)?);
        }
        Ok(signal)
    };
    listens.iter().map(signal).collect()
}
