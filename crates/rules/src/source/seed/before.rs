//! Which databases are new to a rule at the first look for its databases.
//!
//! Feeds may lose creations, and a source that is only polled reports none. So a database that a look comes across is new to a
//! rule if it was not there when the rule's first look began, however often that look was repeated, or if it has appeared since
//! the last look for an earlier revision of the rule. Only the node that follows the source remembers this.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use couch::{Error, Server};
use tokio::time::sleep;

use crate::rule::{Compiled, RuleId, Set, Task};
use crate::source::options::Source;

/// Names per request.
pub(super) const PAGE: usize = 1000;
/// Between two requests, so that looking at a million databases does not occupy their server.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(super) struct Before {
    hasher: RandomState,
    /// Databases that were there when the first look for a revision of a rule began.
    there: HashMap<(RuleId, String), Arc<HashSet<u64>>>,
    /// Rules that record the databases they have seen, once those have been looked for; for an edited rule, its earlier
    /// revision.
    looked_for: Set,
}

impl Before {
    /// The databases of all rules in `set` have been looked for, except those of `unseeded`.
    pub(super) fn settle(&mut self, set: &Set, unseeded: &[Arc<Compiled>]) {
        let unseeded: HashSet<_> = unseeded.iter().map(key).collect();
        self.there.retain(|rule, _| unseeded.contains(rule));
        let looked_for = set.iter().filter_map(|rule| {
            if !unseeded.contains(&key(rule)) {
                return records(rule).then(|| Arc::clone(rule));
            }
            let earlier = self.looked_for.get(&rule.id)?;
            (earlier.ended == rule.ended).then(|| Arc::clone(earlier))
        });
        self.looked_for = Set::new(looked_for.collect::<Vec<_>>());
    }

    /// Remembers which databases are there, for rules whose first look begins.
    pub(super) async fn list(
        &mut self,
        connection: &Server,
        source: &Source,
        unseeded: &[Arc<Compiled>],
    ) -> Result<(), Error> {
        let first = unseeded.iter();
        let first = first.filter(|rule| records(rule) && !self.there.contains_key(&key(rule)));
        let first = Set::new(first.cloned());
        if first.is_empty() {
            return Ok(());
        }
        let (mut there, mut after) = (HashSet::new(), None::<String>);
        loop {
            let page = connection.all_dbs(after.as_deref(), PAGE).await?;
            let about = |name: &&String| !first.matching(source, name).is_empty();
            there.extend(
                (page.iter().filter(about)).map(|name| self.hasher.hash_one(name.as_str())),
            );
            if page.len() < PAGE {
                break;
            }
            after = page.into_iter().next_back();
            sleep(PAUSE).await;
        }
        let there = Arc::new(there);
        let there = first.iter().map(|rule| (key(rule), Arc::clone(&there)));
        self.there.extend(there);
        Ok(())
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
        let hash = self.hasher.hash_one(name);
        let is_new = |rule: &Arc<Compiled>| {
            let there = self.there.get(&key(rule));
            there.is_some_and(|there| !there.contains(&hash))
                || known.iter().any(|(earlier, _)| earlier.id == rule.id)
        };
        let matching = unseeded.matching(source, name).into_iter();
        let mut new: Vec<_> = matching.map(|(rule, _)| rule).filter(is_new).collect();
        let others = known.into_iter().map(|(rule, _)| rule);
        new.extend(others.filter(|rule| unseeded.get(&rule.id).is_none()));
        new
    }
}

/// Whether a rule treats new databases differently, so the ones it has seen must be recorded.
fn records(rule: &Compiled) -> bool {
    matches!(rule.rule.task, Task::Call(_)) || rule.rule.databases.only_created()
}

fn key(rule: &Arc<Compiled>) -> (RuleId, String) {
    (rule.id.clone(), rule.rev.clone())
}
