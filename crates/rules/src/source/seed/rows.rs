//! What the store knows of rules and databases that have been looked for.

use std::collections::HashSet;
use std::sync::Arc;

use couch::Seq;
use futures::future::try_join_all;
use scheduler::ServiceError;
use sha2::{Digest as _, Sha256};
use store::{RangeOptions, Transaction};

use crate::keys;
use crate::rule::{Compiled, Set};
use crate::source::options::Source;
use crate::source::reactions::RuleBook;

/// Rules per transaction.
const RULES: usize = 1000;
/// Bytes per page of hashes.
const PAGE_BYTES: usize = 80_000;
/// Pages per transaction.
const PAGES: usize = 10;

/// A database that has been looked at.
pub(super) struct Row {
    pub(super) key: Vec<u8>,
    pub(super) name: String,
    /// Its sequence then; `None` if it could not be read.
    pub(super) seq: Option<Seq>,
}

impl Row {
    fn new(key: &[u8], value: &[u8]) -> Option<Self> {
        let seq = match value {
            keys::UNREAD => None,
            value => Some(Seq::from_json(std::str::from_utf8(value).ok()?)?),
        };
        Some(Self {
            key: key.to_vec(),
            name: keys::seen_database(key)?,
            seq,
        })
    }
}

/// Those of these databases that have been looked at.
pub(super) async fn seen(
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
pub(super) async fn unseeded(
    book: &RuleBook,
    source: &Source,
    set: &Set,
) -> Result<Vec<Arc<Compiled>>, ServiceError> {
    let server = source.server().url_text();
    let mut new = Vec::new();
    let rules: Vec<_> = set.iter().cloned().collect();
    for rules in rules.chunks(RULES) {
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

pub(super) async fn mark(
    book: &RuleBook,
    source: &Source,
    rules: &[Arc<Compiled>],
) -> Result<(), ServiceError> {
    let server = source.server().url_text();
    for rules in rules.chunks(RULES) {
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

/// The hash of a database's name, the same on every node.
pub(super) fn hash(name: impl AsRef<[u8]>) -> u64 {
    let hash = Sha256::digest(name);
    let (first, _) = hash.split_first_chunk().expect("there are 32 bytes");
    u64::from_be_bytes(*first)
}

/// The hash that says that the first look for a rule has begun.
pub(super) fn begun(source: &Source, rule: &Compiled) -> u64 {
    let key = keys::seeded(source.server().url_text(), &rule.id);
    hash([key, keys::seeded_value(rule, source)].concat())
}

/// The hash that says that a database was new to a rule when its first look began.
pub(super) fn new_hash(source: &Source, rule: &Compiled, database: &str) -> u64 {
    hash([&begun(source, rule).to_be_bytes()[..], database.as_bytes()].concat())
}

/// Stores which databases are there, and last for which rules that is so, for the node that repeats their first look.
pub(super) async fn save_there(
    book: &RuleBook,
    source: &Source,
    there: &HashSet<u64>,
    rules: impl Iterator<Item = &Arc<Compiled>>,
) -> Result<(), ServiceError> {
    let rules = rules.map(|rule| begun(source, rule));
    let hashes = there.iter().copied().chain(rules);
    let hashes: Vec<u8> = hashes.flat_map(u64::to_be_bytes).collect();
    clear_there(book, source).await?;
    for (page, hashes) in (0..).zip(hashes.chunks(PAGE_BYTES)) {
        let key = &keys::there(source.server().url_text(), page);
        let save = |tx: Transaction| async move {
            tx.set(key, hashes);
            Ok::<_, ServiceError>(())
        };
        (book.replications.jobs().store())
            .transact("save_databases", save)
            .await?;
    }
    Ok(())
}

/// What [`save_there`] has stored.
pub(super) async fn load_there(
    book: &RuleBook,
    source: &Source,
) -> Result<HashSet<u64>, ServiceError> {
    let (mut hashes, mut range) = (HashSet::new(), keys::all_there(source.server().url_text()));
    loop {
        let rest = &range;
        let rows = (book.replications.jobs().store()).transact("load_databases", |tx| async move {
            let rows = tx
                .snapshot()
                .get_range(rest.clone(), RangeOptions::limit(PAGES));
            Ok::<_, ServiceError>(rows.collect().await?)
        });
        let rows = rows.await?;
        for row in &rows {
            let (chunks, _) = row.value.as_chunks();
            hashes.extend(chunks.iter().map(|hash| u64::from_be_bytes(*hash)));
        }
        match rows.last() {
            Some(last) if rows.len() == PAGES => {
                range.begin = [&*last.key, b"\0"].concat().into();
            }
            _ => return Ok(hashes),
        }
    }
}

pub(super) async fn clear_there(book: &RuleBook, source: &Source) -> Result<(), ServiceError> {
    (book.replications.jobs().store())
        .transact("clear_databases", |tx| async move {
            tx.clear_range(keys::all_there(source.server().url_text()));
            Ok::<_, ServiceError>(())
        })
        .await
}

pub(super) async fn rows_after(
    book: &RuleBook,
    server: &str,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<Row>, ServiceError> {
    (book.replications.jobs().store())
        .transact("list_databases", |tx| async move {
            let mut range = keys::all_seen(server);
            if let Some(after) = after {
                range.begin = [after, b"\0"].concat().into();
            }
            let rows = tx.snapshot().get_range(range, RangeOptions::limit(limit));
            let rows = rows.collect().await?;
            let seen = rows.iter();
            let seen = seen.filter_map(|row| Row::new(&row.key, &row.value));
            Ok::<_, ServiceError>(seen.collect())
        })
        .await
}

pub(super) async fn row(
    book: &RuleBook,
    server: &str,
    name: &str,
) -> Result<Option<Row>, ServiceError> {
    let key = &keys::seen(server, name);
    (book.replications.jobs().store())
        .transact("look_at_database", |tx| async move {
            let value = tx.snapshot().get(key).await?;
            Ok::<_, ServiceError>(value.and_then(|value| Row::new(key, &value)))
        })
        .await
}

/// Stores that rules have come across these databases, which cannot be read.
pub(super) async fn set_unread(
    book: &RuleBook,
    server: &str,
    names: &[&String],
) -> Result<(), ServiceError> {
    if names.is_empty() {
        return Ok(());
    }
    (book.replications.jobs().store())
        .transact("unread_databases", |tx| async move {
            for name in names {
                tx.set(&keys::seen(server, name), keys::UNREAD);
            }
            Ok::<_, ServiceError>(())
        })
        .await
}

/// A database is missing.
pub(super) async fn forget(book: &RuleBook, server: &str, name: &str) -> Result<(), ServiceError> {
    let key = &keys::seen(server, name);
    (book.replications.jobs().store())
        .transact("forget_database", |tx| async move {
            tx.clear(key);
            Ok::<_, ServiceError>(())
        })
        .await
}
