//! What the store knows of rules and databases that have been looked for.

use std::sync::Arc;

use couch::Seq;
use futures::future::try_join_all;
use scheduler::ServiceError;
use store::RangeOptions;

use crate::keys;
use crate::rule::{Compiled, Set};
use crate::source::options::Source;
use crate::source::reactions::RuleBook;

/// Rules per transaction.
const RULES: usize = 1000;

/// A database that has been looked at: its key, its name and its sequence then.
pub(super) type Row = (Vec<u8>, String, Seq);

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
            let seen = rows.into_iter().filter_map(|row| {
                let name = keys::seen_database(&row.key)?;
                let seq = Seq::from_json(std::str::from_utf8(&row.value).ok()?)?;
                Some((row.key.to_vec(), name, seq))
            });
            Ok::<_, ServiceError>(seen.collect())
        })
        .await
}
