//! Which databases are new to a rule at the first look for its databases.
//!
//! Feeds may lose creations, and a source that is only polled reports none. So a database that a look comes across is new to a
//! rule if it was not there when the rule's first look began, however often that look was repeated, or if it has appeared since
//! the last look for an earlier revision of the rule. The databases that were there, and which of them were new, are stored: if
//! this node dies, another one repeats the look with them (of several unfinished looks, the last one counts). Databases that
//! earlier revisions saw are not stored: if the node dies before it has listed the databases, all that exist then count as old.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use couch::Server;
use scheduler::ServiceError;
use tokio::time::sleep;

use super::rows::{begun, clear_there, hash, load_there, new_hash, save_there, seen};
use crate::rule::{Compiled, RuleId, Set, Task};
use crate::source::options::Source;
use crate::source::reactions::RuleBook;
use crate::source::sweep::{NAMES_MAX, Stopped};

/// Names per request.
pub(super) const PAGE: usize = 1000;
/// Between two requests, so that looking at a million databases does not occupy their server.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(super) struct Before {
    /// Databases that were there when the first look for a revision of a rule began.
    there: HashMap<(RuleId, String), Arc<HashSet<u64>>>,
    /// Rules that record the databases they have seen, once those have been looked for; for an edited rule, its earlier
    /// revision.
    looked_for: Set,
    /// Whether what another node has stored was read.
    is_loaded: bool,
}

impl Before {
    /// The databases of all rules in `set` have been looked for, except those of `unseeded`.
    pub(super) async fn settle(
        &mut self,
        book: &RuleBook,
        source: &Source,
        set: &Set,
        unseeded: &[Arc<Compiled>],
    ) -> Result<(), ServiceError> {
        let mut is_stored = !self.there.is_empty();
        if !self.is_loaded {
            let there = Arc::new(load_there(book, source).await?);
            let known = unseeded.iter();
            let known = known.filter(|rule| there.contains(&begun(source, rule)));
            self.there
                .extend(known.map(|rule| (key(rule), Arc::clone(&there))));
            (self.is_loaded, is_stored) = (true, !there.is_empty());
        }
        let unseeded: HashSet<_> = unseeded.iter().map(key).collect();
        self.there.retain(|rule, _| unseeded.contains(rule));
        if is_stored && self.there.is_empty() {
            clear_there(book, source).await?;
        }
        let looked_for = set.iter().filter_map(|rule| {
            if !unseeded.contains(&key(rule)) {
                return records(rule).then(|| Arc::clone(rule));
            }
            let earlier = self.looked_for.get(&rule.id)?;
            (earlier.ended == rule.ended).then(|| Arc::clone(earlier))
        });
        self.looked_for = Set::new(looked_for.collect::<Vec<_>>());
        Ok(())
    }

    /// The databases of these rules have been looked for, too.
    pub(super) fn add(&mut self, rules: &[Arc<Compiled>]) {
        let new: HashSet<_> = rules.iter().map(|rule| &rule.id).collect();
        let others = (self.looked_for.iter()).filter(|rule| !new.contains(&rule.id));
        let all = others.chain(rules.iter().filter(|rule| records(rule)));
        self.looked_for = Set::new(all.cloned());
    }

    /// Remembers which databases are there, for rules whose first look begins.
    pub(super) async fn list(
        &mut self,
        book: &RuleBook,
        connection: &Server,
        source: &Source,
        unseeded: &[Arc<Compiled>],
    ) -> Result<(), Stopped> {
        let all = || unseeded.iter().filter(|rule| records(rule));
        let first = all().filter(|rule| !self.there.contains_key(&key(rule)));
        let first: Vec<_> = first.collect();
        if first.is_empty() {
            return Ok(());
        }
        let set = Set::new(all().cloned());
        let (mut there, mut after) = (HashSet::new(), None::<String>);
        loop {
            let page = connection.all_dbs(after.as_deref(), PAGE).await?;
            let about = |name: &&String| !set.matching(source, name).is_empty();
            there.extend(page.iter().filter(about).map(hash));
            there.extend(self.new_to_edited(book, source, &set, &page).await?);
            if page.len() < PAGE {
                break;
            }
            after = page.into_iter().next_back();
            sleep(PAUSE).await;
        }
        save_there(book, source, &there, all()).await?;
        let there = Arc::new(there);
        let there = first
            .into_iter()
            .map(|rule| (key(rule), Arc::clone(&there)));
        self.there.extend(there);
        Ok(())
    }

    /// Databases that were new to an earlier revision, as hashes for the node that repeats the look without knowing it.
    async fn new_to_edited(
        &self,
        book: &RuleBook,
        source: &Source,
        unseeded: &Set,
        names: &[String],
    ) -> Result<Vec<u64>, ServiceError> {
        let edited = |name: &str| {
            let earlier = self.looked_for.matching(source, name).into_iter();
            let edited = earlier.filter_map(|(earlier, _)| unseeded.get(&earlier.id).cloned());
            edited.collect::<Vec<_>>()
        };
        let mut names = names.to_vec();
        names.retain(|name| !edited(name).is_empty());
        let mut new = Vec::new();
        for names in names.chunks(NAMES_MAX) {
            let seen = seen(book, source.server().url_text(), names).await?;
            for name in names.iter().filter(|name| !seen.contains(name)) {
                new.extend((edited(name).iter()).map(|rule| new_hash(source, rule, name)));
            }
        }
        Ok(new)
    }

    /// The rules to which a database is new: among those in `unseeded` and, unless it has been seen, among all others.
    pub(super) fn new_to(
        &self,
        source: &Source,
        unseeded: &Set,
        name: &str,
        is_seen: bool,
    ) -> Vec<Arc<Compiled>> {
        let known = if is_seen {
            Vec::new()
        } else {
            self.looked_for.matching(source, name)
        };
        let hash = hash(name);
        let is_new = |rule: &Arc<Compiled>| {
            let there = self.there.get(&key(rule));
            let is_new = |there: &Arc<HashSet<u64>>| {
                !there.contains(&hash) || there.contains(&new_hash(source, rule, name))
            };
            there.is_some_and(is_new) || known.iter().any(|(earlier, _)| earlier.id == rule.id)
        };
        let matching = unseeded.matching(source, name).into_iter();
        let mut new: Vec<_> = matching.map(|(rule, _)| rule).filter(is_new).collect();
        let others = known.into_iter().map(|(rule, _)| rule);
        new.extend(others.filter(|rule| unseeded.get(&rule.id).is_none()));
        new
    }
}

/// Whether a rule treats new databases differently, so the ones it has seen must be recorded.
pub(super) fn records(rule: &Compiled) -> bool {
    matches!(rule.rule.task, Task::Call(_)) || rule.rule.databases.only_created()
}

fn key(rule: &Arc<Compiled>) -> (RuleId, String) {
    (rule.id.clone(), rule.rev.clone())
}
