//! Rules in the store: checked before they are written, indexed in the write's transaction, and compiled by every node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use docstore::{
    Change, Db, Document, Edit, EditMode, NewAttachment, ReadOptions, Rev, Revisions, WriteHook,
};
use document::json::Json;
use jobs::Op;
use scheduler::{Replications, ServiceError, remote_document, remote_name, strip};
use sha2::{Digest as _, Sha256};
use store::{Call, RangeOptions, Transaction, Watch};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::document::{Rule, Task};
use super::fields::Invalid;
use super::remote;
use super::set::{Compiled, RuleId, Set};
use crate::keys;

/// The kinds of databases that hold rules; the second is what Spiegel calls its own.
pub const KINDS: [&str; 2] = ["_rules", "spiegel"];
/// A rule is read with many others.
const RULE_BYTES_MAX: usize = 100_000;
/// The member that says whether a rule does anything.
const ENABLED: &str = "enabled";
/// Rules per transaction.
const PAGE: usize = 100;
/// Rules are read again after this time, in case a watch was missed.
const CHECK_EVERY: Duration = Duration::from_mins(1);
/// After an error.
const PAUSE: Duration = Duration::from_secs(1);

/// The rules in a store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rules(Replications);

impl Rules {
    pub fn new(replications: Replications) -> Self {
        Self(replications)
    }

    pub fn replications(&self) -> &Replications {
        &self.0
    }

    /// Checks an edit, and seals its credentials. Call it before the transaction that writes the edit with
    /// [`hook`](Self::hook). `_local` documents are not changed.
    pub fn prepare(&self, db: &Db, mut edit: Edit) -> Result<Edit, Invalid> {
        if edit.is_local() {
            return Ok(edit);
        }
        let invalid = |path: &str, reason: &str| Err(Invalid::new(path, reason));
        if edit.id.starts_with("_design/") && !edit.deleted {
            return invalid(
                "_id",
                "a design document does nothing here; choose an id that does not start with `_design/`",
            );
        }
        let Ok(body) = Json::parse(&edit.body) else {
            return invalid("", "the document is not JSON");
        };
        if !edit.deleted {
            if edit.body.len() > RULE_BYTES_MAX {
                return invalid("", "a rule has 100 kB at most; make it smaller");
            }
            if let Some(rule) = Rule::parse(&body)? {
                rule.check_id(db.name().as_str(), &edit.id)?;
                self.look_at_secrets(db, &edit.id, &rule)?;
            }
        }
        edit.sealed = strip::seal_body(self.0.sealer(), db, &edit.id, &body, None);
        Ok(edit)
    }

    /// The hook for writes to databases of rules.
    pub fn hook(&self) -> RuleHook<'_> {
        let op = self.0.jobs().op();
        RuleHook {
            replications: &self.0,
            op,
        }
    }

    /// Deletes a database of rules, which then apply no longer. Nothing else would find what they leave, so all of it goes in
    /// one transaction.
    pub async fn delete_database(&self, db: &Db) -> Result<(), ServiceError> {
        let store = self.0.docs().store();
        let op = &self.0.jobs().op();
        let remotes = &self.0.remotes().await?;
        let delete = |tx: Transaction| async move {
            self.0.docs().delete_database_in(&tx, db).await?;
            tx.clear_range(keys::rules_of(db.instance()));
            tx.clear_range(keys::ended_of(db.instance()));
            let all = RuleId {
                instance: db.instance(),
                doc: String::new(),
            };
            tx.set(&keys::left(&all), b"");
            for (name, _) in remotes {
                if remote_document(name).0 == db.name().as_str() {
                    self.0.limit_remote_in(&tx, op, name, None).await?;
                }
            }
            touch(&tx);
            Ok::<_, ServiceError>(())
        };
        store.transact("delete_rules", delete).await?;
        self.0.sweep_deleted().await;
        Ok(())
    }

    /// The enabled rules. Those that `known` has in the same revision are not read again.
    pub async fn load(&self, known: &Set) -> Result<Set, ServiceError> {
        let (store, stamp) = (self.0.docs().store(), self.stamp().await?);
        let (mut rules, mut from) = (Vec::new(), Some(keys::rules()));
        while let Some(range) = from.take() {
            let range = &range;
            let page = store.transact(Call::batch("load_rules"), |tx| async move {
                self.page_in(&tx, range.clone(), known).await
            });
            let (page, last) = page.await?;
            rules.extend(page);
            from = last.map(|last| {
                let mut begin = last;
                begin.push(0);
                store::KeyRange::new(begin, range.end.clone())
            });
        }
        let mut set = Set::new(rules);
        set.stamp = stamp;
        Ok(set)
    }

    /// Changes with every rule.
    pub(crate) async fn stamp(&self) -> Result<Option<Vec<u8>>, ServiceError> {
        let read = |tx: Transaction| async move {
            let row = tx.snapshot().get(&keys::stamp()).await?;
            Ok::<_, ServiceError>(row.map(|row| row.to_vec()))
        };
        let store = self.0.docs().store();
        store.transact("look_at_rules", read).await
    }

    /// An enabled rule as it is now; `known` may have it compiled.
    pub async fn find(
        &self,
        id: &RuleId,
        known: &Set,
    ) -> Result<Option<Arc<Compiled>>, ServiceError> {
        let key = &keys::rule(id.instance, &id.doc);
        let find = |tx: Transaction| async move {
            let (page, _) = self.page_in(&tx, store::KeyRange::key(key), known).await?;
            Ok::<_, ServiceError>(page.into_iter().next())
        };
        self.0.docs().store().transact("find_rule", find).await
    }

    /// A rule as it is now, enabled or not, by the name of its database; or why this version cannot read it.
    pub async fn named(
        &self,
        db: &str,
        doc: &str,
    ) -> Result<Option<Result<Compiled, Invalid>>, ServiceError> {
        let docs = self.0.docs();
        let name = &docs.name(db)?;
        let read = |tx: Transaction| async move {
            let db = docs.open_in(&tx, name).await?;
            let document = docs.get_in(&tx, &db, doc, &ReadOptions::default()).await?;
            let ended = ended_in(&tx, &db, doc).await?;
            Ok::<_, ServiceError>((db, document, ended))
        };
        let found = match docs.store().transact("find_rule", read).await {
            Err(ServiceError::Docs(
                docstore::Error::NoDatabase | docstore::Error::Missing | docstore::Error::Deleted,
            )) => return Ok(None),
            found => found?,
        };
        let (db, document, ended) = found;
        let body = strip::open_body(self.0.sealer(), &db, doc, &document.body)?;
        let rule = Rule::accepted(&body).transpose();
        Ok(rule.map(|rule| Ok(compiled(&db, &document, ended, rule?))))
    }

    /// Pauses or resumes a rule: sets its `enabled`. Returns its revision.
    pub async fn set_enabled(&self, db: &Db, id: &str, enabled: bool) -> Result<Rev, ServiceError> {
        let docs = self.0.docs();
        let set = |tx: Transaction| async move {
            let document = docs.get_in(&tx, db, id, &ReadOptions::default()).await?;
            let body = strip::open_body(self.0.sealer(), db, id, &document.body)?;
            let is_enabled = body.get(ENABLED).and_then(Json::as_bool);
            if is_enabled.unwrap_or(true) == enabled {
                return Ok(document.rev);
            }
            let mut members = body.as_object().unwrap_or_default().to_vec();
            members.retain(|(name, _)| name != ENABLED);
            members.push((ENABLED.to_owned(), Json::Bool(enabled)));
            let body = Json::Object(members);
            let stub = |attachment: docstore::Attachment| NewAttachment {
                name: attachment.name,
                revpos: Some(attachment.revpos),
                content: None,
            };
            let edit = Edit {
                sealed: strip::seal_body(self.0.sealer(), db, id, &body, None),
                id: document.id,
                revisions: Some(Revisions::from(document.rev)),
                deleted: false,
                body: body.to_string(),
                attachments: document.attachments.into_iter().map(stub).collect(),
            };
            docs.put_in(&tx, db, &edit, EditMode::NewEdits, &self.hook())
                .await
        };
        docs.store().transact("enable_rule", set).await
    }

    /// Whether a rule is still enabled, in this revision.
    pub(super) async fn holds_in(
        &self,
        tx: &Transaction,
        rule: &Compiled,
    ) -> Result<bool, ServiceError> {
        let row = tx.get(&keys::rule(rule.id.instance, &rule.id.doc)).await?;
        Ok(row.is_some_and(|row| row == row_of(&rule.db, &rule.rev)))
    }

    /// Some rules, and the key of the last, unless there are no more.
    async fn page_in(
        &self,
        tx: &Transaction,
        range: store::KeyRange,
        known: &Set,
    ) -> Result<(Vec<Arc<Compiled>>, Option<Vec<u8>>), ServiceError> {
        let docs = self.0.docs();
        let rows = (tx.snapshot()).get_range(range, RangeOptions::limit(PAGE));
        let rows = rows.collect().await?;
        let last = rows.last().filter(|_| rows.len() == PAGE);
        let last = last.map(|row| row.key.to_vec());
        let (mut rules, mut databases) = (Vec::new(), HashMap::new());
        for row in rows {
            let parsed = serde_json::from_slice::<(String, String)>(&row.value).ok();
            let (Some(id), Some((name, rev))) = (keys::parse_rule(&row.key), parsed) else {
                tracing::error!(key = %row.key.escape_ascii(), "the row of a rule cannot be decoded");
                continue;
            };
            if !databases.contains_key(&name) {
                let found = match docs.open_in(tx, &docs.name(&name)?).await {
                    Ok(db) => Some(db),
                    Err(docstore::Error::NoDatabase) => None,
                    Err(error) => return Err(error.into()),
                };
                databases.insert(name.clone(), found);
            }
            let db = databases.get(&name).and_then(Option::as_ref);
            let Some(db) = db.filter(|db| db.instance() == id.instance) else {
                continue;
            };
            if let Some(rule) = known.get(&id).filter(|rule| rule.rev == rev) {
                rules.push(Arc::clone(rule));
                continue;
            }
            let options = ReadOptions::default();
            let document = match docs.get_in(tx, db, &id.doc, &options).await {
                // A row without its rule, which must not cost the others theirs.
                Err(docstore::Error::Missing | docstore::Error::Deleted) => continue,
                document => document?,
            };
            if let Some(rule) = self.compile(db, &document) {
                let ended = ended_in(tx, db, &id.doc).await?;
                rules.push(Arc::new(compiled(db, &document, ended, rule)));
            }
        }
        Ok((rules, last))
    }

    /// The rule in a document that was accepted before; `None` if it has none, or a version that was stricter or had
    /// other keys wrote it.
    fn compile(&self, db: &Db, document: &Document) -> Option<Rule> {
        let (name, doc) = (db.name(), &document.id);
        let body = strip::open_body(self.0.sealer(), db, &document.id, &document.body);
        match body.map(|body| Rule::accepted(&body)) {
            Ok(Ok(rule)) => rule,
            Ok(Err(error)) => {
                tracing::error!(db = %name, doc, %error, "skipped a rule; write it again");
                None
            }
            Err(error) => {
                tracing::error!(db = %name, doc, %error, "skipped a rule: its credentials cannot be read");
                None
            }
        }
    }
}

/// Whether a document is a rule that asks for calls, even if it cannot be compiled.
fn calls(document: &Document) -> bool {
    has_type(document, &["on_change"])
}

/// Whether a document is a rule, even if it cannot be compiled.
fn is_rule(document: &Document) -> bool {
    has_type(document, &["replicator", "on_change", "remote"])
}

fn has_type(document: &Document, types: &[&str]) -> bool {
    let body = Json::parse(&document.body).ok();
    let found = body.as_ref().and_then(|body| body.get("type")?.as_str());
    found.is_some_and(|found| types.contains(&found))
}

/// Where another rule of this id was deleted, or became one without calls, or no rule.
async fn ended_in(tx: &Transaction, db: &Db, doc: &str) -> Result<Option<String>, ServiceError> {
    let id = RuleId {
        instance: db.instance(),
        doc: doc.to_owned(),
    };
    let row = tx.snapshot().get(&keys::ended(&id)).await?;
    Ok(row.map(|rev| String::from_utf8_lossy(&rev).into_owned()))
}

fn compiled(db: &Db, document: &Document, ended: Option<String>, rule: Rule) -> Compiled {
    Compiled {
        id: RuleId {
            instance: db.instance(),
            doc: document.id.clone(),
        },
        db: db.name().to_string(),
        rev: document.rev.to_string(),
        ended,
        rule,
    }
}

fn row_of(db: &str, rev: &str) -> Vec<u8> {
    serde_json::to_vec(&(db, rev)).expect("two texts are JSON")
}

/// Notifies all nodes.
fn touch(tx: &Transaction) {
    tx.set_versionstamped_value(&keys::stamp(), &keys::stamp_value());
}

/// Keeps the index of rules, in the transaction that writes their documents.
#[derive(Debug)]
pub struct RuleHook<'a> {
    replications: &'a Replications,
    op: Op,
}

impl RuleHook<'_> {
    /// Sets or removes the limit of the remote that a document is, or was.
    async fn limit_in(
        &self,
        tx: &Transaction,
        (db, id, rev): (&Db, &str, &str),
        rule: Option<&Rule>,
    ) -> Result<(), ServiceError> {
        let db = db.name().as_str();
        if remote::check_id(db, id).is_err() {
            return Ok(());
        }
        let threads = rule.and_then(|rule| match &rule.task {
            Task::Copy(remote) => Some(remote.threads),
            Task::Replicate(_) | Task::Call(_) => None,
        });
        // A hook may serve several transactions.
        let hash = Sha256::digest(format!("{db}|{id}|{rev}"));
        let (hash, _) = hash.split_at(16);
        let hash = hash.try_into().expect("sixteen bytes are sixteen bytes");
        let bits = self.op.bits ^ u128::from_be_bytes(hash);
        let op = Op { bits, ..self.op };
        let name = remote_name(db, id);
        (self.replications)
            .limit_remote_in(tx, &op, &name, threads)
            .await
    }
}

impl WriteHook for RuleHook<'_> {
    type Error = ServiceError;

    fn watches(&self, _: &Db, id: &str) -> bool {
        !id.starts_with("_design/")
    }

    async fn changed(&self, tx: &Transaction, change: &Change<'_>) -> Result<(), ServiceError> {
        (self.replications)
            .seals_body_in(tx, &change.written.body)
            .await?;
        if !change.winner_changed() {
            return Ok(());
        }
        let (db, after) = (change.db, change.after);
        let key = keys::rule(db.instance(), change.id);
        let rule = if after.deleted {
            None
        } else {
            Rules(self.replications.clone()).compile(db, after)
        };
        let rev = after.rev.to_string();
        (self.limit_in(tx, (db, change.id, &rev), rule.as_ref())).await?;
        if rule.is_some_and(|rule| rule.enabled) {
            tx.set(&key, &row_of(db.name().as_str(), &rev));
        } else {
            tx.clear(&key);
        }
        let no_longer = |is: fn(&Document) -> bool| change.before.is_some_and(is) && !is(after);
        if after.deleted || no_longer(calls) || no_longer(is_rule) {
            let id = RuleId {
                instance: db.instance(),
                doc: change.id.to_owned(),
            };
            tx.set(&keys::ended(&id), rev.as_bytes());
            tx.set(&keys::left(&id), rev.as_bytes());
        }
        touch(tx);
        Ok(())
    }

    async fn dropped(&self, tx: &Transaction, db: &Db, id: &str) -> Result<(), ServiceError> {
        self.limit_in(tx, (db, id, ""), None).await?;
        tx.clear(&keys::rule(db.instance(), id));
        Ok(())
    }
}

/// The service that compiles rules when they change: one per process.
#[derive(Debug)]
pub struct RuleWatcher {
    rules: Rules,
    set: watch::Sender<Arc<Set>>,
}

impl RuleWatcher {
    /// A watcher, and the rules as it last read them. They stay as they are while they cannot be read.
    pub fn new(rules: Rules) -> (Self, watch::Receiver<Arc<Set>>) {
        let (set, seen) = watch::channel(Arc::default());
        (Self { rules, set }, seen)
    }

    pub async fn run(self, stop: CancellationToken) {
        loop {
            let changed = self.reload().await.unwrap_or_else(|error| {
                tracing::warn!(error = %wire::chain(&error), "cannot read the rules");
                None
            });
            let changed = async {
                match changed {
                    // A watch that fails is a reason to read again, too.
                    Some(watch) => drop(watch.changed().await),
                    None => tokio::time::sleep(PAUSE).await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = changed => {}
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
        }
    }

    /// Reads the rules; what changes while they are read fires the watch.
    async fn reload(&self) -> Result<Option<Watch>, ServiceError> {
        let store = self.rules.0.docs().store();
        let arm = |tx: Transaction| async move {
            match tx.watch(&keys::stamp()).await {
                Ok(watch) => Ok(Some(watch)),
                Err(store::Error::TooManyWatches { .. }) => Ok(None),
                Err(error) => Err(ServiceError::from(error)),
            }
        };
        let watch = store.transact(Call::batch("watch_rules"), arm).await?;
        let known = Arc::clone(&self.set.borrow());
        let set = self.rules.load(&known).await?;
        for rule in set.iter() {
            let is_same = known
                .get(&rule.id)
                .is_some_and(|known| known.rev == rule.rev);
            if matches!(rule.rule.task, Task::Copy(_)) && !is_same {
                (self.rules.0).serve_remote(&rule.remote_name()).await?;
            }
        }
        self.set.send_if_modified(|known| {
            // Without a stamp, no rule has been written yet.
            let changed = set.stamp.is_none() || known.stamp != set.stamp;
            *known = Arc::new(set);
            changed
        });
        Ok(watch)
    }
}

#[cfg(test)]
mod tests;
