//! What rules ask for about databases that were there before them, and about those whose events were lost.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use couch::{Error, ListedDatabase, Seq, Server};
use futures::future::try_join_all;
use percent_encoding::percent_decode_str;
use scheduler::ServiceError;
use store::{RangeOptions, Transaction};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::options::{FEED_DELAY, FeedKind, Source, SourceOptions};
use super::reactions::{BYTES_MAX, REACTIONS, Reaction, Reactions, RuleBook, portions};
use super::sweep::{ANSWER_MAX, NAMES_MAX, Stopped, is_made_anew};
use crate::keys;
use crate::rule::{Compiled, Event, Seen, Set};

/// Names per request.
const PAGE: usize = 1000;
/// After this many unreadable databases, a look stops asking for them one by one: each request may take long to fail.
const FAILED_MAX: usize = 10;
/// Between two requests, so that looking at a million databases does not occupy their server.
const PAUSE: Duration = Duration::from_millis(20);

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
    loop {
        rules.mark_unchanged();
        let mut began = Instant::now();
        let mut done = seed(&reactions, connection, false).await;
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
            done = look(&reactions, connection).await;
            looked = Instant::now();
        }
    }
}

/// Looks for what events did not report.
async fn look(reactions: &Reactions<'_>, connection: &Server) -> Result<Unread, Stopped> {
    // Those of new rules first, as they are now: all others that are not known have come since the last look.
    let seeded = match seed(reactions, connection, false).await {
        Err(Stopped::Store(error)) => return Err(error.into()),
        // A database that cannot be read does not hold up the others.
        seeded => seeded,
    };
    reactions.heard.begin_look();
    listen_again(reactions, connection).await?;
    seed(reactions, connection, true).await?;
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
    let about_known = all.then(|| {
        let about_known = rules
            .iter()
            .filter(|rule| !rule.rule.databases.only_created());
        Set::new(about_known.cloned())
    });
    let (about_known, mut unread) = (about_known.as_ref(), Unread::default());
    let failed = &mut unread;
    let exact: Option<Vec<String>> = (rules.iter())
        .map(|rule| rule.rule.databases.exact().map(str::to_owned))
        .collect();
    if let Some(mut names) = exact {
        // Spiegel's rules name a database as it stands in URLs.
        let plain = names.iter().map(|name| percent_decode_str(name));
        let plain: Vec<_> = plain
            .filter_map(|name| Some(name.decode_utf8().ok()?.into_owned()))
            .collect();
        names.extend(plain);
        names.sort_unstable();
        names.dedup();
        names.retain(|name| !set.matching(source, name).is_empty());
        for names in names.chunks(NAMES_MAX) {
            if all {
                let there = existing(connection, names).await?;
                seed_some(reactions, connection, &set, &there, about_known, failed).await?;
                sleep(PAUSE).await;
            } else {
                seed_some(reactions, connection, &set, names, about_known, failed).await?;
            }
        }
    } else {
        seed_listed(reactions, connection, &set, about_known, failed).await?;
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
    }
    Ok(unread)
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
    about_known: Option<&Set>,
    failed: &mut Unread,
) -> Result<(), Stopped> {
    let source = reactions.source;
    let matches = |name: &&String| source.follows(name) && !set.matching(source, name).is_empty();
    let mut after: Option<String> = None;
    loop {
        let page = connection.all_dbs(after.as_deref(), PAGE).await?;
        let names: Vec<String> = page.iter().filter(matches).cloned().collect();
        for names in names.chunks(NAMES_MAX) {
            seed_some(reactions, connection, set, names, about_known, failed).await?;
        }
        if page.len() < PAGE {
            return Ok(());
        }
        after = page.last().cloned();
        sleep(PAUSE).await;
    }
}

/// Has some databases dealt with: in a look at all, those that are known by the rules `about_known` only.
async fn seed_some(
    reactions: &Reactions<'_>,
    connection: &Server,
    set: &Set,
    names: &[String],
    about_known: Option<&Set>,
    failed: &mut Unread,
) -> Result<(), Stopped> {
    let (book, server) = (reactions.book, reactions.source.server().url_text());
    let known = seen(book, server, names).await?;
    let now_ms = book.replications.jobs().clock().now_ms();
    let mut found = Found::default();
    if let Some(about_known) = about_known {
        // A database that was not there at the last look is new.
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
    } else {
        // The feed may be about to report that a database is new: its jobs wait for that.
        let news_ms = match reactions.source.options().feed {
            FeedKind::DbsInfo => 0,
            _ => i64::try_from(FEED_DELAY.as_millis()).unwrap_or_default(),
        };
        for (name, seq) in sequences(connection, names, failed).await? {
            if let Some(seq) = &seq {
                let seen = Some(Seen { seq, news_ms });
                let for_one = reactions.for_one(set, &name, Event::Updated, seen, now_ms);
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

/// Those of these databases that have been looked at.
async fn seen(
    book: &RuleBook,
    server: &str,
    names: &[String],
) -> Result<Vec<String>, ServiceError> {
    (book.replications.jobs().store())
        .transact("look_at_databases", |tx| async move {
            let snapshot = &tx.snapshot();
            let seen = names.iter().map(|name| async move {
                let row = snapshot.get(&keys::seen(server, name)).await?;
                Ok::<_, ServiceError>(row.map(|_| name.clone()))
            });
            let seen = try_join_all(seen).await?;
            Ok::<_, ServiceError>(seen.into_iter().flatten().collect())
        })
        .await
}

/// The rules whose databases have not been looked for in this revision.
async fn unseeded(
    book: &RuleBook,
    source: &Source,
    set: &Set,
) -> Result<Vec<Arc<Compiled>>, ServiceError> {
    let server = source.server().url_text();
    let mut new = Vec::new();
    let rules: Vec<_> = set.iter().cloned().collect();
    for rules in rules.chunks(PAGE) {
        let known = (book.replications.jobs().store()).transact("look_at_rules", |tx| async move {
            let snapshot = &tx.snapshot();
            let known = rules.iter().map(|rule| async move {
                let row = snapshot.get(&keys::seeded(server, &rule.id)).await?;
                let value = keys::seeded_value(rule, source);
                Ok::<_, ServiceError>(row.is_some_and(|row| row == value))
            });
            try_join_all(known).await
        });
        let known = known.await?;
        let unknown = rules.iter().zip(known).filter(|(_, known)| !known);
        new.extend(unknown.map(|(rule, _)| Arc::clone(rule)));
    }
    Ok(new)
}

async fn mark(
    book: &RuleBook,
    source: &Source,
    rules: &[Arc<Compiled>],
) -> Result<(), ServiceError> {
    let server = source.server().url_text();
    for rules in rules.chunks(PAGE) {
        (book.replications.jobs().store())
            .transact("mark_rules", |tx| async move {
                for rule in rules {
                    let value = keys::seeded_value(rule, source);
                    tx.set(&keys::seeded(server, &rule.id), &value);
                }
                Ok::<_, ServiceError>(())
            })
            .await?;
    }
    Ok(())
}

/// Signals the jobs of databases that rules ask for calls about and that have changed since the last look; remembers their
/// sequences in the same transaction.
async fn listen_again(reactions: &Reactions<'_>, connection: &Server) -> Result<(), Stopped> {
    let (book, source) = (reactions.book, reactions.source);
    let (server, set) = (source.server().url_text(), book.current().await?);
    let (mut after, mut failed): (Option<Vec<u8>>, _) = (None, Unread::default());
    loop {
        let mut rows = rows_after(book, server, after.as_deref()).await?;
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

type Row = (Vec<u8>, String, Seq);

async fn rows_after(
    book: &RuleBook,
    server: &str,
    after: Option<&[u8]>,
) -> Result<Vec<Row>, ServiceError> {
    (book.replications.jobs().store())
        .transact("list_databases", |tx| async move {
            let mut range = keys::all_seen(server);
            if let Some(after) = after {
                range.begin = [after, b"\0"].concat().into();
            }
            let rows = tx
                .snapshot()
                .get_range(range, RangeOptions::limit(NAMES_MAX));
            let rows = rows.collect().await?;
            let seen = rows.into_iter().filter_map(|row| {
                let name = keys::seen_database(&row.key)?;
                let seq = Seq::from_json(std::str::from_utf8(&row.value).ok()?)?;
                Some((row.key.to_vec(), name, seq))
            });
            Ok::<_, ServiceError>(seen.collect())
        })
        .await
}
