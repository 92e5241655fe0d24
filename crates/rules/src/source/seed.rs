//! What rules ask for about databases that were there before them, and about those whose events were lost.

mod before;
mod rows;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use couch::{Error, ListedDatabase, Seq, Server};
use percent_encoding::percent_decode_str;
use scheduler::ServiceError;
use store::Transaction;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::options::{FEED_DELAY, FeedKind, Source, SourceOptions};
use super::reactions::{BYTES_MAX, REACTIONS, Reaction, Reactions, RuleBook, portions};
use super::sweep::{ANSWER_MAX, NAMES_MAX, Stopped, is_made_anew};
use crate::rule::{Compiled, Event, Seen, Set};
use before::{Before, PAGE, PAUSE};
use rows::{mark, rows_after, seen, unseeded};

/// After this many unreadable databases, a look stops asking for them one by one: each request may take long to fail.
const FAILED_MAX: usize = 10;

/// Looks for the databases of new rules whenever rules change, and now and then for what events did not report: often
/// while `polls` says that there are no events.
pub(super) async fn seed_forever(
    reactions: Reactions<'_>,
    connection: &Server,
    mut polls: watch::Receiver<bool>,
) -> ServiceError {
    let (book, source) = (reactions.book, reactions.source);
    let (mut rules, mut failures) = (book.rules.clone(), 0);
    let (mut looked, mut has_warned) = (Instant::now(), false);
    let before = &mut Before::default();
    loop {
        rules.mark_unchanged();
        let mut began = Instant::now();
        let mut done = seed(&reactions, connection, before, false).await;
        loop {
            let is_done = matches!(&done, Ok(unread) if unread.names.is_empty());
            failures = if is_done { 0 } else { failures + 1 };
            match done {
                Ok(unread) => {
                    if let (false, Some(name)) = (has_warned, unread.names.first()) {
                        tracing::warn!(
                            source = source.name(),
                            database = name,
                            error = unread.reason,
                            "cannot read a database that rules are about"
                        );
                    }
                    has_warned = !is_done;
                }
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
            done = look(&reactions, connection, before).await;
            looked = Instant::now();
        }
    }
}

/// Looks for what events did not report.
async fn look(
    reactions: &Reactions<'_>,
    connection: &Server,
    before: &mut Before,
) -> Result<Unread, Stopped> {
    // Those of new rules first, as they are now: all others that are not known have come since the last look.
    let seeded = match seed(reactions, connection, before, false).await {
        Err(Stopped::Store(error)) => return Err(error.into()),
        // A database that cannot be read does not hold up the others.
        seeded => seeded,
    };
    reactions.heard.begin_look();
    listen_again(reactions, connection).await?;
    seed(reactions, connection, before, true).await?;
    reactions.heard.end_look();
    seeded
}

/// Waits until the next look is due, however often rules have changed since the last one.
pub(super) async fn wait(
    polls: &mut watch::Receiver<bool>,
    options: &SourceOptions,
    looked: Instant,
    took: Duration,
    failures: u32,
) {
    loop {
        let pause = if *polls.borrow_and_update() {
            options.poll(took, failures)
        } else {
            options.sweep()
        };
        tokio::select! {
            () = sleep_until(looked + pause) => return,
            changed = polls.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

/// What a look is for.
enum Look<'a> {
    /// The databases of rules that have not been looked for.
    New(&'a Before),
    /// All databases. Those that were there at the last look concern these rules only.
    All { about_known: &'a Set },
}

/// Databases of new rules that could not be read.
#[derive(Default)]
struct Unread {
    names: Vec<String>,
    /// Why the first one could not be read.
    reason: Option<String>,
}

impl Unread {
    fn add(&mut self, name: String, reason: String) {
        self.names.push(name);
        self.reason.get_or_insert(reason);
    }
}

/// Looks for the databases of rules that are new, or for all databases of all rules, as of those created unnoticed.
async fn seed(
    reactions: &Reactions<'_>,
    connection: &Server,
    before: &mut Before,
    all: bool,
) -> Result<Unread, Stopped> {
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
        return Ok(Unread::default());
    }
    if all {
        reactions.begin_look();
    }
    let fresh = reactions.afresh();
    let reactions = if all { reactions } else { &fresh };
    let set = Set::new(rules.iter().cloned());
    let exact = exact_names(source, &set, &rules);
    let about_known = all.then(|| {
        let about_known = rules.iter();
        let about_known = about_known.filter(|rule| !rule.rule.databases.only_created());
        Set::new(about_known.cloned())
    });
    let look = if let Some(about_known) = &about_known {
        Look::All { about_known }
    } else {
        if exact.is_none() {
            before.list(book, connection, source, &rules).await?;
        }
        Look::New(before)
    };
    let (look, mut unread) = (&look, Unread::default());
    let failed = &mut unread;
    if let Some(names) = exact {
        for names in names.chunks(NAMES_MAX) {
            if all {
                let there = existing(connection, names).await?;
                seed_some(reactions, connection, &set, &there, look, failed).await?;
                sleep(PAUSE).await;
            } else {
                seed_some(reactions, connection, &set, names, look, failed).await?;
            }
        }
    } else {
        seed_listed(reactions, connection, &set, look, failed).await?;
    }
    if all {
        reactions.end_look();
    } else {
        // A database that was not looked at would be new later.
        let unfinished = unread.names.iter();
        let unfinished = unfinished.flat_map(|name| set.matching(source, name));
        let unfinished: HashSet<_> = unfinished.map(|(rule, _)| rule.id.clone()).collect();
        rules.retain(|rule| !unfinished.contains(&rule.id));
        // Jobs of earlier revisions that these do not ask for.
        let edited = |rule: &&Arc<Compiled>| !rule.rev.starts_with("1-") && rule.is_about(source);
        for rule in rules.iter().filter(edited) {
            (book.replications.unrule(rule.id.instance, &rule.id.doc)).await?;
        }
        mark(book, source, &rules).await?;
        before.add(&rules);
    }
    Ok(unread)
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

/// Sequences of databases, `None` of one that is missing.
///
/// CouchDB lists a database as missing whenever it cannot read it, as while a node is down. So each of these is asked for by
/// itself. One that still cannot be read is left out; after too many of these in a look, so are all that are listed as missing.
async fn sequences(
    connection: &Server,
    names: &[String],
    failed: &mut Unread,
) -> Result<Vec<(String, Option<Seq>)>, Error> {
    let mut found = Vec::new();
    for ListedDatabase { name, update_seq } in connection.dbs_info(names).await? {
        if update_seq.is_some() {
            found.push((name, update_seq));
        } else if failed.names.len() < FAILED_MAX {
            match timeout(ANSWER_MAX, connection.update_seq(&name)).await {
                Ok(Ok(update_seq)) => found.push((name, update_seq)),
                Ok(Err(error)) => failed.add(name, wire::chain(&error)),
                Err(late) => failed.add(name, wire::chain(&late)),
            }
        } else {
            failed.names.push(name);
        }
    }
    Ok(found)
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
    failed: &mut Unread,
) -> Result<(), Stopped> {
    let source = reactions.source;
    let matches = |name: &&String| source.follows(name) && !set.matching(source, name).is_empty();
    let mut after: Option<String> = None;
    loop {
        let page = connection.all_dbs(after.as_deref(), PAGE).await?;
        let names: Vec<String> = page.iter().filter(matches).cloned().collect();
        for names in names.chunks(NAMES_MAX) {
            seed_some(reactions, connection, set, names, look, failed).await?;
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
    failed: &mut Unread,
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
        Look::New(before) => {
            // The feed may be about to report that a database is new: its jobs wait for that.
            let news_ms = match reactions.source.options().feed {
                FeedKind::DbsInfo => 0,
                _ => i64::try_from(FEED_DELAY.as_millis()).unwrap_or_default(),
            };
            for (name, seq) in sequences(connection, names, failed).await? {
                let Some(seq) = &seq else { continue };
                let is_known = known.contains(&name);
                let new = before.new_to(reactions.source, set, &name, is_known);
                let seen = Some(Seen { seq, news_ms });
                let updated = |set| reactions.for_one(set, &name, Event::Updated, seen, now_ms);
                let for_one = if new.is_empty() {
                    updated(set)
                } else {
                    let matching = set.matching(reactions.source, &name).into_iter();
                    let old = matching.map(|(rule, _)| rule);
                    let old = old.filter(|rule| !new.iter().any(|new| new.id == rule.id));
                    let (mut for_one, new) = (updated(&Set::new(old)), Set::new(new));
                    for_one.extend(reactions.for_one(&new, &name, Event::Created, None, now_ms));
                    for_one
                };
                found.add(reactions, for_one).await?;
            }
        }
    }
    Ok(found.react(reactions).await?)
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
    let next = last.map(|(key, ..)| key.clone());
    let mut names: Vec<_> = rows.into_iter().map(|(_, name, _)| name).collect();
    names.retain(|name| source.follows(name));
    Ok((names, next))
}

/// Signals the jobs of databases that rules ask for calls about and that have changed since the last look; remembers their
/// sequences in the same transaction.
async fn listen_again(reactions: &Reactions<'_>, connection: &Server) -> Result<(), Stopped> {
    let (book, source) = (reactions.book, reactions.source);
    let (server, set) = (source.server().url_text(), book.current().await?);
    let (mut after, mut failed): (Option<Vec<u8>>, _) = (None, Unread::default());
    loop {
        let mut rows = rows_after(book, server, after.as_deref(), NAMES_MAX).await?;
        let is_last = rows.len() < NAMES_MAX;
        after = rows.last().map(|(key, ..)| key.clone());
        rows.retain(|(_, name, _)| source.follows(name));
        let names: Vec<String> = rows.iter().map(|(_, name, _)| name.clone()).collect();
        let listed = if names.is_empty() {
            Vec::new()
        } else {
            sequences(connection, &names, &mut failed).await?
        };
        let mut rows: HashMap<_, _> = rows
            .into_iter()
            .map(|(key, name, seq)| (name, (key, seq)))
            .collect();
        let now_ms = book.replications.jobs().clock().now_ms();
        for (name, seq) in listed {
            let Some((key, before)) = &rows.remove(&name) else {
                continue;
            };
            let Some(seq) = seq else {
                let clear = |tx: Transaction| async move {
                    tx.clear(key);
                    Ok::<_, ServiceError>(())
                };
                book.replications
                    .jobs()
                    .store()
                    .transact("forget_database", clear)
                    .await?;
                continue;
            };
            if before.is_same(&seq) {
                continue;
            }
            if !before.is_null() {
                let since = (!is_made_anew(before, &seq)).then_some(before);
                reactions.heard.changed(&name, since);
            }
            let seen = Some(Seen {
                seq: before,
                news_ms: 0,
            });
            let for_one = &reactions.for_one(&set, &name, Event::Updated, seen, now_ms);
            let op = book.replications.jobs().op();
            let seq = &seq;
            (book.replications.jobs().store())
                .transact("listen_again", |tx| async move {
                    book.react_in(&tx, &op, source, for_one).await?;
                    tx.set(key, seq.as_json().as_bytes());
                    Ok::<_, ServiceError>(())
                })
                .await?;
        }
        sleep(PAUSE).await;
        if is_last {
            return Ok(());
        }
    }
}
