//! Compares the sequences of databases with those that they had when rules last looked at them.

use std::collections::{HashMap, HashSet};

use couch::{Seq, Server};
use scheduler::ServiceError;
use tokio::time::sleep;

use super::before::PAUSE;
use super::rows::{Row, rows_after};
use super::unread::Unread;
use super::{Found, for_first, sequences};
use crate::keys;
use crate::rule::{Event, RuleId, Seen, Set};
use crate::source::reactions::Reactions;
use crate::source::sweep::{NAMES_MAX, Stopped, is_made_anew};

/// Signals the jobs of databases that rules ask for calls about and that have changed since the last look; remembers their
/// sequences in the same transaction.
pub(super) async fn listen_again(
    reactions: &Reactions<'_>,
    connection: &Server,
    unread: &Unread,
) -> Result<(), Stopped> {
    let (book, source) = (reactions.book, reactions.source);
    let (server, set) = (source.server().url_text(), book.current().await?);
    let mut after: Option<Vec<u8>> = None;
    loop {
        let mut rows = rows_after(book, server, after.as_deref(), NAMES_MAX).await?;
        let is_last = rows.len() < NAMES_MAX;
        after = rows.last().map(|row| row.key.clone());
        rows.retain(|row| source.follows(&row.name));
        let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
        let told = if names.is_empty() {
            Some(HashMap::new())
        } else {
            sequences(connection, &names).await?
        };
        for row in rows {
            let seq = told.as_ref().and_then(|told| told.get(&row.name));
            if let Some(seq) = seq {
                let new = unread.remove(&row.name);
                compare(reactions, &set, &row.name, Some(&row), &new, seq).await?;
            } else if told.is_some() || row.seq.is_none() {
                // Where the server tells no sequences, the feed has to do for those that were read.
                unread.keep(&row.name);
            }
        }
        sleep(PAUSE).await;
        if is_last {
            return Ok(());
        }
    }
}

/// Does what rules ask for if a database has another sequence than in the row, or if it has not been read, and is new to
/// some rules.
pub(super) async fn compare(
    reactions: &Reactions<'_>,
    set: &Set,
    name: &str,
    row: Option<&Row>,
    new: &HashSet<RuleId>,
    seq: &Seq,
) -> Result<(), ServiceError> {
    let (book, source) = (reactions.book, reactions.source);
    let jobs = book.replications.jobs();
    let key = &keys::seen(source.server().url_text(), name);
    let Some(before) = row.and_then(|row| row.seq.as_ref()) else {
        let fresh = &reactions.afresh();
        let new = new.iter().filter_map(|id| set.get(id).cloned());
        let mut found = Found::default();
        let for_one = for_first(fresh, set, new.collect(), name, seq);
        found.add(fresh, for_one).await?;
        found.react(fresh).await?;
        return jobs
            .store()
            .transact("read_database", |tx| async move {
                if tx.get(key).await?.is_some() {
                    tx.set(key, seq.as_json().as_bytes());
                }
                Ok(())
            })
            .await;
    };
    if before.is_same(seq) {
        return Ok(());
    }
    if !before.is_null() {
        let since = (!is_made_anew(before, seq)).then_some(before);
        reactions.heard.changed(name, since);
    }
    let seen = Some(Seen {
        seq: before,
        news_ms: 0,
    });
    let now_ms = jobs.clock().now_ms();
    let for_one = &reactions.for_one(set, name, Event::Updated, seen, now_ms);
    let op = jobs.op();
    (jobs.store())
        .transact("listen_again", |tx| async move {
            book.react_in(&tx, &op, source, for_one).await?;
            tx.set(key, seq.as_json().as_bytes());
            Ok::<_, ServiceError>(())
        })
        .await
}
