//! What was sent and answered, in the order in which clients saw it, and what must not be.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Attempts that the history of a job reaches back.
const HISTORY: u64 = 10;

/// A run that a client was given.
type Run = (String, u64);

#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) problems: Vec<String>,
    pub(super) story: Vec<String>,
    /// Jobs whose addition was sent, and those for which it was answered.
    pub(super) sent: BTreeSet<String>,
    pub(super) added: BTreeSet<String>,
    /// Ids of jobs without one, by key of the request.
    unnamed: BTreeMap<String, String>,
    /// Locks by run.
    locks: BTreeMap<Run, String>,
    /// The last attempt that was given, by job.
    newest: BTreeMap<String, u64>,
    /// Ends that were sent, and those that were answered with `ok`.
    pub(super) ends: BTreeMap<Run, Vec<String>>,
    ok: BTreeMap<Run, String>,
    /// Jobs that some run has finished, as its client knows.
    done: BTreeSet<String>,
    /// Removed, or perhaps.
    pub(super) removed: BTreeSet<String>,
    pub(super) removal_sent: BTreeSet<String>,
    /// No request that adds them is on its way: once removed, they would stay so.
    pub(super) settled: BTreeSet<String>,
    pub(super) runs: usize,
}

/// What was known when a request was sent.
#[derive(Debug, Clone)]
pub(super) struct Before {
    newest: u64,
    ok: bool,
}

impl Journal {
    fn problem(&mut self, text: String) {
        self.story.push(format!("PROBLEM: {text}"));
        self.problems.push(text);
    }

    pub(super) fn tell(&mut self, text: String) {
        self.story.push(text);
    }

    /// A job without an id was added.
    pub(super) fn unnamed(&mut self, key: &str, id: &str) {
        let first = self
            .unnamed
            .entry(key.to_owned())
            .or_insert_with(|| id.to_owned());
        if first != id {
            let text = format!("the request {key} added {first} and {id}");
            self.problem(text);
        }
        self.sent.insert(id.to_owned());
        self.added.insert(id.to_owned());
    }

    /// Jobs that would stay removed.
    pub(super) fn removable(&self) -> Vec<String> {
        let all = self.settled.difference(&self.removal_sent);
        all.cloned().collect()
    }

    /// What a claim must not return: jobs that were over when it was sent.
    pub(super) fn over(&self) -> BTreeSet<String> {
        self.done.union(&self.removed).cloned().collect()
    }

    /// Jobs that a claim returned, whether or not its client wanted them.
    pub(super) fn claimed(&mut self, jobs: &[Value], over: &BTreeSet<String>) {
        for job in jobs {
            let id = job["id"].as_str().unwrap().to_owned();
            let lock = job["lock"].as_str().unwrap().to_owned();
            let attempt = job["attempt"].as_u64().unwrap();
            self.runs += 1;
            self.tell(format!("{id} is given, attempt {attempt}"));
            if over.contains(&id) {
                self.problem(format!("{id} was over and ran again, attempt {attempt}"));
            }
            if !self.sent.contains(&id) && !id.starts_with(|c: char| c.is_ascii_hexdigit()) {
                self.problem(format!("{id} was never added"));
            }
            if let Some(other) = self.locks.insert((id.clone(), attempt), lock.clone()) {
                self.problem(format!(
                    "attempt {attempt} of {id} was given twice: {other}, {lock}"
                ));
            }
            let newest = self.newest.entry(id).or_default();
            *newest = attempt.max(*newest);
        }
    }

    /// A request with a lock is sent.
    pub(super) fn before(&self, id: &str, attempt: u64) -> Before {
        Before {
            newest: self.newest.get(id).copied().unwrap_or_default(),
            ok: self.ok.contains_key(&(id.to_owned(), attempt)),
        }
    }

    pub(super) fn beaten(&mut self, id: &str, attempt: u64, before: &Before, status: &str) {
        self.tell(format!("{id} beats, attempt {attempt}: {status}"));
        if status != "halt" && before.newest > attempt {
            let newest = before.newest;
            self.problem(format!(
                "{id}: a beat of attempt {attempt} was {status} after {newest} had begun"
            ));
        }
        if status != "halt" && before.ok {
            self.problem(format!(
                "{id}: a beat of attempt {attempt} was {status} after its end"
            ));
        }
    }

    pub(super) fn ending(&mut self, id: &str, attempt: u64, outcome: &str) {
        let run = (id.to_owned(), attempt);
        self.ends.entry(run).or_default().push(outcome.to_owned());
    }

    pub(super) fn ended(
        &mut self,
        id: &str,
        attempt: u64,
        before: &Before,
        status: &str,
        outcome: &str,
    ) {
        self.tell(format!(
            "{id} ends with {outcome}, attempt {attempt}: {status}"
        ));
        let run = (id.to_owned(), attempt);
        let newest = self.newest.get(id).copied().unwrap_or_default();
        match status {
            "ok" => {
                if before.newest > attempt {
                    self.problem(format!(
                        "{id}: attempt {attempt} ended after {} had begun",
                        before.newest
                    ));
                }
                if let Some(earlier) = self.ok.insert(run, outcome.to_owned()) {
                    self.problem(format!(
                        "{id}: attempt {attempt} ended twice: {earlier}, {outcome}"
                    ));
                }
                if outcome == "done" {
                    self.done.insert(id.to_owned());
                }
            }
            "repeated" => {}
            _ if before.ok && newest < attempt + HISTORY && !self.removal_sent.contains(id) => {
                self.problem(format!(
                    "{id}: the repeated end of attempt {attempt} was {status}"
                ));
            }
            _ => {}
        }
    }

    /// The state of a job when everything is over.
    pub(super) fn last(&mut self, id: &str, status: u16, job: &Value) {
        if self.removal_sent.contains(id) {
            if self.removed.contains(id) && status != 404 {
                self.problem(format!("{id} was removed, and is there: {job}"));
            }
            return;
        }
        if status != 200 || job["state"] != "finished" {
            self.problem(format!("{id} is lost: {status} {job}"));
            return;
        }
        let by = job["result"]["attempt"].as_u64().unwrap_or_default();
        let ends = self.ends.get(&(id.to_owned(), by));
        if !ends.is_some_and(|ends| ends.iter().any(|end| end == "done")) {
            self.problem(format!("{id} was finished by no run: {job}"));
        }
        let run = self
            .ok
            .iter()
            .find(|((of, _), end)| of == id && *end == "done");
        if let Some(((_, attempt), _)) = run
            && *attempt != by
        {
            self.problem(format!(
                "{id} was finished by attempt {attempt}, and has the result of {by}"
            ));
        }
    }
}
