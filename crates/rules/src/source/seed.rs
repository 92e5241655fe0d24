//! What rules ask for about databases that were there before them, and about those whose events were lost.

mod again;
mod before;
mod rows;
mod unread;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use couch::{Error, Seq, Server};
use percent_encoding::percent_decode_str;
use scheduler::ServiceError;
use store::Transaction;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::options::{FEED_DELAY, FeedKind, Source};
use super::reactions::{BYTES_MAX, REACTIONS, Reaction, Reactions, RuleBook, portions};
use super::sweep::{NAMES_MAX, Stopped, wait};
use crate::rule::{Compiled, Event, RuleId, Seen, Set};
use again::listen_again;
use before::{Before, PAGE, PAUSE, records};
use rows::{mark, rows_after, seen, set_unread, unseeded};
use unread::Unread;

/// Looks for the databases of new rules whenever rules change, and now and then for what events did not report: often
/// while `polls` says that there are no events.
pub(super) async fn seed_forever(
    reactions: Reactions<'_>,
    connection: &Server,
    polls: watch::Receiver<bool>,
) -> ServiceError {
    let unread = Unread::default();
    tokio::select! {
        error = look_forever(&reactions, connection, polls, &unread) => error,
        error = unread.ask_forever(&reactions, connection) => error,
    }
}

async fn look_forever(
    reactions: &Reactions<'_>,
    connection: &Server,
    mut polls: watch::Receiver<bool>,
    unread: &Unread,
) -> ServiceError {
    let (book, source) = (reactions.book, reactions.source);
    let (mut rules, mut failures, mut looked) = (book.rules.clone(), 0, Instant::now());
    let before = &mut Before::default();
    loop {
        rules.mark_unchanged();
        let mut began = Instant::now();
        let mut done = seed(reactions, connection, before, unread, false).await;
        loop {
            failures = if done.is_ok() { 0 } else { failures + 1 };
            match done {
                Ok(()) => {}
                Err(Stopped::Store(error)) => return error,
                Err(Stopped::Server(error)) => {
                    tracing::debug!(source = source.name(), %error, "cannot look for the databases of rules");
                }
            }
            tokio::select! {
                changed = rules.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    break;
                }
                () = wait(&mut polls, source.options(), looked, began.elapsed(), failures) => {}
            }
            began = Instant::now();
            done = look(reactions, connection, before, unread).await;
            looked = Instant::now();
        }
    }
}

/// Looks for what events did not report.
async fn look(
    reactions: &Reactions<'_>,
    connection: &Server,
    before: &mut Before,
    unread: &Unread,
) -> Result<(), Stopped> {
    // Those of new rules first, as they are now: all others that are not known have come since the last look.
    let seeded = match seed(reactions, connection, before, unread, false).await {
        Err(Stopped::Store(error)) => return Err(error.into()),
        // What cannot be listed does not hold up the others.
        seeded => seeded,
    };
    reactions.heard.begin_look();
    listen_again(reactions, connection, unread).await?;
    seed(reactions, connection, before, unread, true).await?;
    reactions.heard.end_look();
    seeded
}

/// What a look is for.
enum Look<'a> {
    /// The databases of rules that have not been looked for.
    New {
        before: &'a Before,
        unread: &'a Unread,
        /// Those whose sequences the server does not tell with others.
        left: &'a Mutex<Vec<String>>,
    },
    /// All databases. Those that were there at the last look concern these rules only.
    All { about_known: &'a Set },
}

/// Looks for the databases of rules that are new, or for all databases of all rules, as of those created unnoticed.
async fn seed(
    reactions: &Reactions<'_>,
    connection: &Server,
    before: &mut Before,
    unread: &Unread,
    all: bool,
) -> Result<(), Stopped> {
    let (book, source) = (reactions.book, reactions.source);
    let set = book.current().await?;
    let mut rules = unseeded(book, source, &set).await?;
    if all {
        // To a rule that was written since then, all databases would be new.
        let new: HashSet<_> = rules.iter().map(|rule| rule.id.clone()).collect();
        let known = set.iter().filter(|rule| !new.contains(&rule.id));
        rules = known.cloned().collect();
    } else {
        before.settle(book, source, &set, &rules).await?;
    }
    if rules.is_empty() {
        return Ok(());
    }
    if all {
        reactions.begin_look();
    }
    let fresh = reactions.afresh();
    let reactions = if all { reactions } else { &fresh };
    let set = Set::new(rules.iter().cloned());
    let (exact, left) = (exact_names(source, &set, &rules), Mutex::default());
    let about_known = all.then(|| {
        let about_known = rules.iter();
        let about_known = about_known.filter(|rule| !rule.rule.databases.only_created());
        Set::new(about_known.cloned())
    });
    let look = &if let Some(about_known) = &about_known {
        Look::All { about_known }
    } else {
        if exact.is_none() {
            before.list(book, connection, source, &rules).await?;
        }
        Look::New {
            before,
            unread,
            left: &left,
        }
    };
    if let Some(names) = exact {
        for names in names.chunks(NAMES_MAX) {
            if all {
                let there = existing(connection, names).await?;
                seed_some(reactions, connection, &set, &there, look).await?;
                sleep(PAUSE).await;
            } else {
                seed_some(reactions, connection, &set, names, look).await?;
            }
        }
    } else {
        seed_listed(reactions, connection, &set, look).await?;
    }
    if all {
        reactions.end_look();
    } else {
        let left = left.into_inner().unwrap_or_else(PoisonError::into_inner);
        drop_unasked(book, source, &set, &left).await?;
        unread.asked(&left).await;
        mark(book, source, &rules).await?;
        before.add(&rules);
    }
    Ok(())
}

/// Drops the jobs of earlier revisions of rules that these do not ask for, as far as that is known: not those about `left`
/// databases, which are still asked for.
async fn drop_unasked(
    book: &RuleBook,
    source: &Source,
    set: &Set,
    left: &[String],
) -> Result<(), ServiceError> {
    let edited = |rule: &&Arc<Compiled>| !rule.rev.starts_with("1-") && rule.is_about(source);
    for rule in set.iter().filter(edited) {
        let asks = |name: &&String| {
            let mut matching = set.matching(source, name).into_iter();
            matching.any(|(one, _)| one.id == rule.id)
        };
        let kept = left.iter().filter(asks).map(String::as_str).collect();
        (book.replications)
            .unrule(rule.id.instance, &rule.id.doc, &kept)
            .await?;
    }
    Ok(())
}

/// The databases that rules are about, in order, if each rule is about one.
fn exact_names(source: &Source, set: &Set, rules: &[Arc<Compiled>]) -> Option<Vec<String>> {
    let exact = rules.iter().map(|rule| rule.rule.databases.exact());
    let mut names: Vec<String> = exact
        .map(|name| name.map(str::to_owned))
        .collect::<Option<_>>()?;
    // Spiegel's rules name a database as it stands in URLs.
    let plain = names.iter().map(|name| percent_decode_str(name));
    let plain: Vec<_> = plain
        .filter_map(|name| Some(name.decode_utf8().ok()?.into_owned()))
        .collect();
    names.extend(plain);
    names.sort_unstable();
    names.dedup();
    names.retain(|name| !set.matching(source, name).is_empty());
    Some(names)
}

/// Sequences of databases, as far as one response of the server has them; `None` if it never does.
///
/// CouchDB lists a database as missing whenever it cannot read it, as while a node is down. [`Unread`] asks for each of
/// these by itself.
async fn sequences(
    connection: &Server,
    names: &[String],
) -> Result<Option<HashMap<String, Seq>>, Error> {
    match connection.dbs_info(names).await {
        Ok(listed) => {
            let told = listed.into_iter();
            let told = told.filter_map(|one| Some((one.name, one.update_seq?)));
            Ok(Some(told.collect()))
        }
        Err(error) if error.is_refusal() && error.status() != Some(429) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Those of these databases that are there; all, if the server does not tell.
async fn existing(connection: &Server, names: &[String]) -> Result<Vec<String>, Stopped> {
    match connection.dbs_info(names).await {
        Ok(listed) => {
            let there = listed.into_iter().filter(|one| one.update_seq.is_some());
            Ok(there.map(|one| one.name).collect())
        }
        Err(error) if error.is_refusal() => Ok(names.to_vec()),
        Err(error) => Err(error.into()),
    }
}

/// Looks through all databases of the server.
async fn seed_listed(
    reactions: &Reactions<'_>,
    connection: &Server,
    set: &Set,
    look: &Look<'_>,
) -> Result<(), Stopped> {
    let source = reactions.source;
    let matches = |name: &&String| source.follows(name) && !set.matching(source, name).is_empty();
    let mut after: Option<String> = None;
    loop {
        let page = connection.all_dbs(after.as_deref(), PAGE).await?;
        let names: Vec<String> = page.iter().filter(matches).cloned().collect();
        for names in names.chunks(NAMES_MAX) {
            seed_some(reactions, connection, set, names, look).await?;
        }
        if page.len() < PAGE {
            return Ok(());
        }
        after = page.last().cloned();
        sleep(PAUSE).await;
    }
}

/// Has some databases dealt with.
async fn seed_some(
    reactions: &Reactions<'_>,
    connection: &Server,
    set: &Set,
    names: &[String],
    look: &Look<'_>,
) -> Result<(), Stopped> {
    let (book, server) = (reactions.book, reactions.source.server().url_text());
    let known = seen(book, server, names).await?;
    let now_ms = book.replications.jobs().clock().now_ms();
    let mut found = Found::default();
    match look {
        // A database that was not there at the last look is new.
        Look::All { about_known } => {
            for name in names {
                let is_known = known.contains(name);
                let set = if is_known { about_known } else { set };
                let mut for_one = reactions.for_one(set, name, Event::Created, None, now_ms);
                let listens = |one: &Reaction| matches!(one, Reaction::Listen(..));
                if !is_known && for_one.iter().any(listens) {
                    reactions.heard.changed(name, None);
                }
                for_one.retain(|one| !is_known || !listens(one));
                found.add(reactions, for_one).await?;
            }
        }
        Look::New {
            before,
            unread,
            left: all_left,
        } => {
            let told = sequences(connection, names).await?.unwrap_or_default();
            let mut left = Vec::new();
            for name in names {
                let is_known = known.contains(name);
                let new = before.new_to(reactions.source, set, name, is_known);
                if let Some(seq) = told.get(name) {
                    let for_one = for_first(reactions, set, new, name, seq);
                    found.add(reactions, for_one).await?;
                } else {
                    left.push((name, ids(&new)));
                }
            }
            // Unless they are stored, they would be new later.
            let is_old = |(name, new): &&(&String, HashSet<RuleId>)| {
                let matching = set.matching(reactions.source, name).into_iter();
                let mut old = matching.filter(|(rule, _)| !new.contains(&rule.id));
                old.any(|(rule, _)| records(&rule))
            };
            let old: Vec<_> = left.iter().filter(is_old).map(|(name, _)| *name).collect();
            set_unread(book, server, &old).await?;
            let names = left.iter().map(|(name, _)| (*name).clone());
            (all_left.lock().unwrap_or_else(PoisonError::into_inner)).extend(names);
            for (name, new) in left {
                unread.add(name, new);
            }
        }
    }
    Ok(found.react(reactions).await?)
}

/// What rules ask for because of a database that they have not looked at, and that is new to some.
fn for_first(
    reactions: &Reactions<'_>,
    set: &Set,
    new: Vec<Arc<Compiled>>,
    name: &str,
    seq: &Seq,
) -> Vec<Reaction> {
    let now_ms = reactions.book.replications.jobs().clock().now_ms();
    // The feed may be about to report that a database is new: its jobs wait for that.
    let news_ms = match reactions.source.options().feed {
        FeedKind::DbsInfo => 0,
        _ => i64::try_from(FEED_DELAY.as_millis()).unwrap_or_default(),
    };
    let seen = Some(Seen { seq, news_ms });
    let newer = ids(&new);
    let matching = set.matching(reactions.source, name).into_iter();
    let old = matching.map(|(rule, _)| rule);
    let old = Set::new(old.filter(|rule| !newer.contains(&rule.id)));
    let mut all = reactions.for_one(&old, name, Event::Updated, seen, now_ms);
    let new = Set::new(new);
    all.extend(reactions.for_one(&new, name, Event::Created, None, now_ms));
    all
}

fn ids(rules: &[Arc<Compiled>]) -> HashSet<RuleId> {
    rules.iter().map(|rule| rule.id.clone()).collect()
}

/// What rules ask for because of databases that a look has found.
#[derive(Default)]
struct Found {
    all: Vec<Reaction>,
    bytes: usize,
}

impl Found {
    /// Adds what they ask for because of a database, and does all of it if it is much.
    async fn add(
        &mut self,
        reactions: &Reactions<'_>,
        for_one: Vec<Reaction>,
    ) -> Result<(), ServiceError> {
        self.bytes += for_one.iter().map(Reaction::bytes).sum::<usize>();
        self.all.extend(for_one);
        if self.bytes >= BYTES_MAX {
            std::mem::take(self).react(reactions).await?;
        }
        Ok(())
    }

    async fn react(self, reactions: &Reactions<'_>) -> Result<(), ServiceError> {
        let (book, source) = (reactions.book, reactions.source);
        let store = book.replications.jobs().store();
        for found in portions(&self.all) {
            let op = book.replications.jobs().op();
            let react =
                |tx: Transaction| async move { book.react_in(&tx, &op, source, found).await };
            store.transact("seed_rules", react).await?;
        }
        // A database that was known before all of them were done would not be new to the other rules.
        for found in self.all.chunks(REACTIONS) {
            let see = |tx: Transaction| async move { book.see_in(&tx, source, found).await };
            store.transact("see_databases", see).await?;
        }
        Ok(())
    }
}

/// A page of the databases that rules ask for calls about, and where the next page starts; `None` at the end.
pub(super) async fn known_after(
    book: &RuleBook,
    source: &Source,
    after: Option<&[u8]>,
) -> Result<(Vec<String>, Option<Vec<u8>>), ServiceError> {
    let rows = rows_after(book, source.server().url_text(), after, NAMES_MAX).await?;
    let last = rows.last().filter(|_| rows.len() == NAMES_MAX);
    let next = last.map(|row| row.key.clone());
    let mut names: Vec<_> = rows.into_iter().map(|row| row.name).collect();
    names.retain(|name| source.follows(name));
    Ok((names, next))
}
