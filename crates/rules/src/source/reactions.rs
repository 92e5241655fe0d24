//! What rules ask for when a database of a source has changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{try_join, try_join_all};
use jobs::{Op, Signal};
use scheduler::{Replications, Ruled, ServiceError};
use store::Transaction;
use tokio::sync::watch;

use super::heard::Heard;
use super::options::Source;
use crate::keys;
use crate::rule::{Compiled, Event, Listeners, Seen, Set};

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

/// Reactions per transaction.
pub(super) const REACTIONS: usize = 200;
/// Bytes of their replications per transaction, before these are encrypted.
pub(super) const BYTES_MAX: usize = 1_000_000;

/// One thing that a rule asks for.
#[derive(Debug)]
pub(super) enum Reaction {
    /// A replication is to be there, and to run if it failed while its database was missing. If the rule is only about new
    /// databases, it depends on whether this one is.
    Replicate {
        asked: Box<Ruled>,
        is_back: bool,
        if_new: Option<(Arc<Compiled>, String)>,
    },
    /// The database of a replication is gone.
    Forget(Box<Ruled>),
    /// A database is to be listened to.
    Listen(Box<Listen>),
}

impl Reaction {
    /// About how many bytes it writes, if it may be many.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Replicate { asked, .. } => asked.body.to_string().len(),
            Self::Forget(_) | Self::Listen(_) => 0,
        }
    }
}

/// Parts of these that a transaction has room for.
pub(super) fn portions(mut rest: &[Reaction]) -> impl Iterator<Item = &[Reaction]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |reaction: &&Reaction| {
            bytes += reaction.bytes();
            bytes <= BYTES_MAX
        };
        let fitting = rest.iter().take(REACTIONS).take_while(fits).count().max(1);
        let (portion, later) = rest.split_at_checked(fitting)?;
        rest = later;
        Some(portion)
    })
}

#[derive(Debug)]
pub(super) struct Listen {
    rule: Arc<Compiled>,
    database: String,
    event: Event,
    signal: Signal,
}

impl Listen {
    fn is_there(&self) -> bool {
        self.event != Event::Deleted
    }
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

    /// What the rules ask for because of an event, and what is known of the database.
    pub(super) fn for_one(
        &self,
        set: &Set,
        database: &str,
        event: Event,
        seen: Option<Seen<'_>>,
        now_ms: i64,
    ) -> Vec<Reaction> {
        let mut reactions = Vec::new();
        for (rule, captures) in set.matching(self.source, database) {
            for ruled in rule.replications(database, &captures) {
                match ruled {
                    Ok(ruled) => {
                        reactions.extend(self.replicate(&rule, ruled, database, event));
                    }
                    Err(error) => {
                        let doc_id = &rule.id.doc;
                        tracing::warn!(rule = doc_id, database, %error, "cannot build a rule's URL for a database");
                    }
                }
            }
        }
        let signals = Listeners::signals(set, self.source, database, event, now_ms, seen);
        reactions.extend(signals.into_iter().map(|(rule, signal)| {
            Reaction::Listen(Box::new(Listen {
                rule,
                database: database.to_owned(),
                event,
                signal,
            }))
        }));
        reactions
    }

    /// What a replication asks for because of an event; nothing if its job is known.
    fn replicate(
        &self,
        rule: &Arc<Compiled>,
        ruled: Ruled,
        database: &str,
        event: Event,
    ) -> Option<Reaction> {
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
        let if_new = rule.rule.databases.only_created() && event == Event::Updated;
        let if_new = if_new.then(|| (Arc::clone(rule), database.to_owned()));
        Some(Reaction::Replicate {
            asked,
            is_back,
            if_new,
        })
    }
}

impl RuleBook {
    /// Does these in the caller's transaction, which must have room for them. Call [`Self::see_in`] once all
    /// reactions to an event are done.
    pub(super) async fn react_in(
        &self,
        tx: &Transaction,
        op: &Op,
        source: &Source,
        reactions: &[Reaction],
    ) -> Result<(), ServiceError> {
        let (mut ruled, mut back) = (Vec::new(), Vec::new());
        let (mut signals, mut created) = (Vec::new(), Vec::new());
        let facts = Facts::read(tx, source, reactions).await?;
        let mut kept = Vec::new();
        for reaction in reactions {
            match reaction {
                Reaction::Replicate {
                    asked,
                    if_new: Some((rule, database)),
                    ..
                } if !facts.is_new(rule, database) => kept.push(&**asked),
                Reaction::Replicate { asked, is_back, .. } => {
                    ruled.push(&**asked);
                    back.extend(is_back.then_some(&**asked));
                }
                Reaction::Forget(gone) => self.replications.unrule_in(tx, op, gone).await?,
                Reaction::Listen(listen) => {
                    let signal = facts.signal(listen)?;
                    created.extend((listen.event == Event::Created).then(|| signal.clone()));
                    signals.push(signal);
                }
            }
        }
        // What was new to an earlier revision of a rule, its next ones keep.
        let has_job = kept
            .iter()
            .map(|ruled| self.replications.has_job_in(tx, ruled));
        let has_job = try_join_all(has_job).await?;
        ruled.extend(
            kept.into_iter()
                .zip(has_job)
                .filter_map(|(ruled, has)| has.then_some(ruled)),
        );
        self.replications.rule_in(tx, op, &ruled).await?;
        for ruled in back {
            // Rare, and large.
            Box::pin(self.replications.retry_ruled_in(tx, op, ruled)).await?;
        }
        if !signals.is_empty() {
            let ty = self.listeners.job_type();
            let jobs = self.replications.jobs();
            jobs.signal_many_in(tx, op, ty, &signals).await?;
            self.listeners.begin_in(tx, op, &created).await?;
        }
        Ok(())
    }

    /// Records the databases of these as known, or forgets those that were deleted.
    pub(super) async fn see_in(
        &self,
        tx: &Transaction,
        source: &Source,
        reactions: &[Reaction],
    ) -> Result<(), ServiceError> {
        let snapshot = &tx.snapshot();
        let see = databases(source, reactions).into_iter();
        let see = see.map(|(key, is_there)| async move {
            if !is_there {
                tx.clear(&key);
            } else if snapshot.get(&key).await?.is_none() {
                tx.set(&key, b"null");
            }
            Ok::<_, store::Error>(())
        });
        try_join_all(see).await?;
        Ok(())
    }
}

/// The rule and the database on which a reaction depends, and whether the database is there.
fn depends_on(reaction: &Reaction) -> Option<(&Arc<Compiled>, &str, bool)> {
    match reaction {
        Reaction::Listen(listen) => Some((&listen.rule, &listen.database, listen.is_there())),
        Reaction::Replicate {
            if_new: Some((rule, database)),
            ..
        } => Some((rule, database, true)),
        Reaction::Replicate { .. } | Reaction::Forget(_) => None,
    }
}

/// The keys of the databases on which these depend, and whether they are there.
fn databases(source: &Source, reactions: &[Reaction]) -> BTreeMap<Vec<u8>, bool> {
    let server = source.server().url_text();
    let databases = reactions.iter().filter_map(depends_on);
    databases
        .map(|(_, database, is_there)| (keys::seen(server, database), is_there))
        .collect()
}

/// What the store knows of the rules and databases of reactions.
#[derive(Default)]
struct Facts {
    server: String,
    /// Keys of rules whose databases have been looked for.
    seeded: HashSet<Vec<u8>>,
    /// Keys of databases that have been looked at.
    seen: HashSet<Vec<u8>>,
    /// Those of them that could not be read.
    unread: HashSet<Vec<u8>>,
}

impl Facts {
    async fn read(
        tx: &Transaction,
        source: &Source,
        reactions: &[Reaction],
    ) -> Result<Self, ServiceError> {
        let server = source.server().url_text();
        let snapshot = &tx.snapshot();
        let rules = reactions.iter().filter_map(depends_on);
        let rules = rules.filter(|(.., is_there)| *is_there).map(|(rule, ..)| {
            let value = keys::seeded_value(rule, source);
            (keys::seeded(server, &rule.id), value)
        });
        let rules: BTreeMap<_, _> = rules.collect();
        let seeded = rules.into_iter().map(|(key, value)| async move {
            let row = snapshot.get(&key).await?;
            Ok(row.is_some_and(|row| row == value).then_some(key))
        });
        let there = databases(source, reactions).into_iter();
        let there = there.filter_map(|(key, is_there)| is_there.then_some(key));
        let seen = there.map(|key| async move {
            let row = snapshot.get(&key).await?;
            Ok::<_, store::Error>(row.map(|row| (key, *row == *keys::UNREAD)))
        });
        let (seeded, seen) = try_join(try_join_all(seeded), try_join_all(seen)).await?;
        let seen: Vec<_> = seen.into_iter().flatten().collect();
        let unread = seen.iter().filter(|(_, is_unread)| *is_unread);
        Ok(Self {
            server: server.to_owned(),
            seeded: seeded.into_iter().flatten().collect(),
            unread: unread.map(|(key, _)| key.clone()).collect(),
            seen: seen.into_iter().map(|(key, _)| key).collect(),
        })
    }

    /// Whether the databases that were there before a rule are known.
    fn is_seeded(&self, rule: &Compiled) -> bool {
        self.seeded.contains(&keys::seeded(&self.server, &rule.id))
    }

    /// Whether a database has come after a rule.
    fn is_new(&self, rule: &Compiled, database: &str) -> bool {
        self.is_seeded(rule) && !self.seen.contains(&keys::seen(&self.server, database))
    }

    fn signal(&self, listen: &Listen) -> jobs::Result<Signal> {
        let mut signal = listen.signal.clone();
        let is_unread = || {
            let key = keys::seen(&self.server, &listen.database);
            self.unread.contains(&key)
        };
        if !listen.is_there() || !self.is_seeded(&listen.rule) || is_unread() {
            return Ok(Listeners::at_the_newest(signal));
        }
        signal.create |= self.is_new(&listen.rule, &listen.database);
        // The rule has a job for each database that was there before it: one without is new, and the event of that was lost.
        Listeners::from_the_start(signal)
    }
}
