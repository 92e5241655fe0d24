//! All active rules, compiled, and which of them a change of a database concerns.

use std::collections::HashMap;
use std::sync::Arc;

use docstore::InstanceId;
use document::json::Json;
use jobs::JobId;
use scheduler::{Remote, Ruled, remote_name};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::call::Call;
use super::document::{Rule, Task};
use super::pattern::Captures;
use super::replicator::address;
use super::template::{Change, Unsendable, encode};
use super::webhook::Webhook;
use crate::source::options::Source;

/// The document that a rule is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId {
    /// The database that the document is in.
    pub instance: InstanceId,
    pub doc: String,
}

impl RuleId {
    /// The id of a job that the rule has for these: readable, unless it is too long. `ended` as in [`Compiled`].
    pub fn job(&self, about: &[&str], ended: Option<&str>) -> JobId {
        let instance = self.instance.to_string();
        let parts = about.iter().copied().chain([&*instance, &*self.doc]);
        let parts = parts.chain(ended);
        let mut id = parts.collect::<Vec<_>>().join("|");
        if id.len() > jobs::ID_BYTES_MAX {
            let hash = wire::hex(&Sha256::digest(&id));
            id.truncate(id.floor_char_boundary(jobs::ID_BYTES_MAX - hash.len() - 1));
            id.push('|');
            id.push_str(&hash);
        }
        JobId::new(id).expect("its length is checked")
    }
}

#[derive(Debug)]
pub struct Compiled {
    pub id: RuleId,
    /// The name of the database that the document is in.
    pub db: String,
    /// The revision of the document.
    pub rev: String,
    /// The revision in which another rule of this id was deleted, or stopped asking for calls: its jobs are not this rule's.
    pub ended: Option<String>,
    pub rule: Rule,
}

impl Compiled {
    /// The id of this rule's job about these, rather than the job of an earlier rule of the same id that ended.
    pub(super) fn job(&self, about: &[&str]) -> JobId {
        self.id.job(about, self.ended.as_deref())
    }

    /// What tells it from the rules of the same name that ended before it.
    pub(crate) fn generation(&self) -> String {
        let ended = self.ended.as_deref().unwrap_or_default();
        format!("{}|{ended}", self.id.instance)
    }

    /// The call that its webhook makes for a change.
    pub(super) fn call(&self, webhook: &Webhook, change: &Change<'_>) -> Result<Call, Unsendable> {
        let call = webhook.call(&self.db, &self.id.doc, change)?;
        Ok(Call {
            generation: Some(self.generation()),
            ..call
        })
    }

    /// The replications that a change of a database asks for; none if the rule asks for calls.
    pub fn replications(&self, db: &str, captures: &Captures) -> Vec<Result<Ruled, Unsendable>> {
        let ruled = |body: Result<Json, Unsendable>, remote: Option<Remote>| {
            body.map(|body| Ruled {
                db: self.db.clone(),
                instance: self.id.instance,
                doc_id: self.id.doc.clone(),
                rev: self.rev.clone(),
                database: (self.rule.databases.is_pattern()).then(|| db.to_owned()),
                remote,
                is_bulk: false,
                body,
            })
        };
        match &self.rule.task {
            Task::Call(_) => Vec::new(),
            Task::Replicate(replicate) => vec![ruled(replicate.body(db, captures), None)],
            Task::Copy(remote) => {
                let name = self.remote_name();
                let bodies = remote.bodies(db);
                let each =
                    bodies.map(|(url, body)| ruled(body, Some(remote.job(name.clone(), url))));
                each.collect()
            }
        }
    }

    /// Its name, if it is a remote.
    pub fn remote_name(&self) -> String {
        remote_name(&self.db, &self.id.doc)
    }

    /// Whether it may be about databases of a source.
    pub(crate) fn is_about(&self, source: &Source) -> bool {
        let server = server_of(source);
        server.is_some_and(|server| self.rule.databases.may_be_below(&server))
    }
}

fn server_of(source: &Source) -> Option<Url> {
    Url::parse(source.server().url_text()).map(address).ok()
}

/// The active rules. Rules about one name, or names that start alike, are found without testing the others.
#[derive(Debug, Default)]
pub struct Set {
    rules: HashMap<RuleId, Arc<Compiled>>,
    /// By the names of their databases, and their ids.
    named: HashMap<(String, String), Arc<Compiled>>,
    exact: HashMap<String, Vec<Arc<Compiled>>>,
    /// By what their names start with.
    starting: HashMap<String, Vec<Arc<Compiled>>>,
    /// The stamp of the rules in the store before they were read.
    pub(crate) stamp: Option<Vec<u8>>,
}

impl Set {
    pub fn new(rules: impl IntoIterator<Item = Arc<Compiled>>) -> Self {
        let mut set = Self::default();
        for rule in rules.into_iter().filter(|rule| rule.rule.enabled) {
            let databases = &rule.rule.databases;
            let (index, text) = match databases.exact() {
                Some(name) => (&mut set.exact, name),
                None => (&mut set.starting, databases.prefix()),
            };
            let found = index.entry(text.to_owned()).or_default();
            found.push(Arc::clone(&rule));
            let name = (rule.db.clone(), rule.id.doc.clone());
            set.named.insert(name, Arc::clone(&rule));
            set.rules.insert(rule.id.clone(), rule);
        }
        set
    }

    pub fn get(&self, id: &RuleId) -> Option<&Arc<Compiled>> {
        self.rules.get(id)
    }

    /// The rule of this id in the database of this name.
    pub fn named(&self, db: &str, doc: &str) -> Option<&Arc<Compiled>> {
        self.named.get(&(db.to_owned(), doc.to_owned()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Compiled>> {
        self.rules.values()
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules about a database of a source, ordered by id, each with what its named groups matched. None is about one
    /// that the source excludes.
    pub fn matching(&self, source: &Source, name: &str) -> Vec<(Arc<Compiled>, Captures)> {
        let Some(server) = server_of(source).filter(|_| source.follows(name)) else {
            return Vec::new();
        };
        let encoded = encode(name);
        let mut spellings = vec![name];
        if encoded != name {
            spellings.push(&encoded);
        }
        let mut candidates = Vec::new();
        for name in spellings {
            candidates.extend(self.exact.get(name).into_iter().flatten());
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            for start in ends.map(|end| &name[..end]) {
                candidates.extend(self.starting.get(start).into_iter().flatten());
            }
        }
        candidates.sort_by(|a, b| a.id.cmp(&b.id));
        candidates.dedup_by(|a, b| a.id == b.id);
        let found = candidates.into_iter().filter_map(|rule| {
            let captures = rule.rule.databases.captures_of(&server, name)?;
            Some((Arc::clone(rule), captures))
        });
        found.collect()
    }
}
