//! Checks answers of calls against their effects.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Answer, CallId, Called, Entry, Glimpse, Record, What};
use crate::JobId;

/// The effects of each call, and what was undone.
pub(super) struct Answers<'a> {
    /// Effects by version.
    done: BTreeMap<CallId, BTreeMap<u64, Vec<&'a Entry>>>,
    /// Jobs removed, by version.
    removed: BTreeSet<(usize, &'a JobId, u64)>,
    /// The state of jobs whose holder was rejected.
    refused: BTreeMap<CallId, &'a Glimpse>,
}

impl<'a> Answers<'a> {
    pub(super) fn of(record: &'a Record, committed: &[(u64, usize)]) -> Self {
        let mut answers = Self {
            done: BTreeMap::new(),
            removed: BTreeSet::new(),
            refused: BTreeMap::new(),
        };
        for (version, number) in committed {
            let entry = &record.entries[*number];
            if let Some(call) = entry.call {
                let of_call = answers.done.entry(call).or_default();
                of_call.entry(*version).or_default().push(entry);
            }
            if matches!(entry.what, What::Remove) {
                answers.removed.insert((entry.ty, &entry.id, *version));
            }
        }
        for (_, entry) in &record.seen {
            if let (What::Halt(_), Some(call), Some(before)) =
                (&entry.what, entry.call, &entry.before)
            {
                answers.refused.insert(call, before);
            }
        }
        answers
    }

    /// All effects of a call.
    pub(super) fn done(&self, call: CallId) -> Vec<&'a Entry> {
        let done = self.done.get(&call);
        done.into_iter()
            .flat_map(BTreeMap::values)
            .flatten()
            .copied()
            .collect()
    }

    /// What is wrong with the answer to a call.
    pub(super) fn wrong(&self, number: CallId, call: &Called) -> Option<&'static str> {
        let done = self.done.get(&number);
        let times = done.map_or(0, BTreeMap::len);
        match call.answer {
            Some(Answer::Done) if times == 0 => Some("was said to be done, and was not"),
            Some(Answer::Failed) if times > 0 => Some("was said not to be done, and was"),
            // The effect of an unsure attempt may be undone before the next one reads.
            Some(Answer::NotFound) if times > 0 && !call.unsure => {
                Some("was not found, and was done")
            }
            Some(Answer::Halt) if times > 0 && !(call.unsure && self.was_lost(number)) => {
                Some("was refused, and was done")
            }
            // A retried claim may get other jobs; the judge checks that.
            // So does a retried signal whose jobs have run meanwhile.
            _ if times > 1
                && !matches!(call.name, "accept" | "signal")
                && !(call.unsure && self.was_undone(number)) =>
            {
                Some("was done twice")
            }
            _ => None,
        }
    }

    /// Whether the job was taken from its holder after the call's effect.
    fn was_lost(&self, call: CallId) -> bool {
        let first = self.done.get(&call).and_then(BTreeMap::first_key_value);
        first.is_some_and(|(version, done)| {
            let beat = matches!(done[0].what, What::Beat { .. });
            let refused = self.refused.get(&call);
            refused.is_some_and(|before| beat || before.state.is_none())
                || self.removed_between(done[0], *version, u64::MAX)
        })
    }

    /// Whether the jobs, and with them the traces that a retry recognises, were removed after the
    /// call's effect, so that it happened again.
    fn was_undone(&self, call: CallId) -> bool {
        let Some(done) = self.done.get(&call) else {
            return false;
        };
        let first = done.keys().next().copied().unwrap_or_default();
        done.iter().skip(1).all(|(version, again)| {
            again.iter().all(|entry| {
                let absent = (entry.before.as_ref()).is_some_and(|before| before.state.is_none());
                absent || self.removed_between(entry, first, *version)
            })
        })
    }

    fn removed_between(&self, entry: &Entry, from: u64, to: u64) -> bool {
        let at = |version| (entry.ty, &entry.id, version);
        self.removed.range(at(from)..at(to)).next().is_some()
    }
}
