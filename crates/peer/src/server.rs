//! The state of a server, without HTTP.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use document::doc::{Doc, check_id};

use crate::attachment::{Rules, Sent};
use crate::auth::{Auth, Password, hide_password};
use crate::clock::{Chance, Clock};
use crate::db::{Database, Incoming, Slot};
use crate::events::{Events, Kind};
use crate::faults::Injector;
use crate::options::{Limits, Options};
use crate::record::Recorder;
use crate::refusal::Refusal;
use crate::security::Security;
use crate::seq::Seqs;

/// Databases whose names may start with an underscore.
const SYSTEM_DATABASES: [&str; 5] = ["_users", "_replicator", "_global_changes", "_dbs", "_nodes"];

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) options: Options,
    pub(crate) limits: RwLock<Limits>,
    pub(crate) uuid: String,
    pub(crate) clock: Clock,
    pub(crate) chance: Chance,
    pub(crate) auth: Auth,
    pub(crate) events: Arc<Events>,
    /// Distinguishes the sequences of `_db_updates` from those of other servers.
    events_uuid: [u8; 8],
    pub(crate) faults: Injector,
    pub(crate) recorder: Recorder,
    databases: RwLock<BTreeMap<String, Arc<Database>>>,
    last_created: AtomicI64,
}

impl Server {
    /// `seed` also distinguishes servers started with the same options.
    pub(crate) fn new(options: Options, seed: u64) -> Self {
        let chance = Chance::new(seed);
        let auth = Auth::new(chance.bytes());
        if let Some((name, password)) = &options.admin {
            auth.set_admin(name, Some(Password::new(password, chance.uuid())));
        }
        Self {
            limits: RwLock::new(options.limits),
            uuid: chance.uuid(),
            clock: Clock::new(),
            auth,
            events: Arc::new(Events::new()),
            events_uuid: chance.bytes(),
            faults: Injector::new(options.faults.clone()),
            recorder: Recorder::default(),
            databases: RwLock::default(),
            last_created: AtomicI64::new(0),
            chance,
            options,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        *self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules {
            limits: self.limits(),
            compress: self.options.compress,
        }
    }

    pub(crate) fn database(&self, name: &str) -> Result<Arc<Database>, Refusal> {
        let databases = self
            .databases
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        databases
            .get(name)
            .cloned()
            .ok_or_else(Refusal::no_database)
    }

    pub(crate) fn databases(&self) -> Vec<Arc<Database>> {
        self.databases
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    pub(crate) fn create_database(&self, name: &str) -> Result<Arc<Database>, Refusal> {
        check_database_name(name)?;
        let mut databases = self
            .databases
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if databases.contains_key(name) {
            return Err(Refusal::database_exists());
        }
        let security = Security::initial(self.options.admin_only);
        // Creation times distinguish a database from predecessors of the same name, even within a second.
        let now = self.clock.seconds();
        let next = |last| Some(now.max(last + 1));
        let last = self
            .last_created
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let created = now.max(last.unwrap_or_default() + 1);
        let functions = self.options.functions.clone();
        let events = Arc::clone(&self.events);
        let database = Database::new(
            name,
            created,
            self.chance.bytes(),
            security,
            functions,
            events,
        );
        let database = Arc::new(database);
        databases.insert(name.to_owned(), Arc::clone(&database));
        drop(databases);
        self.events.add(Kind::Created, name);
        Ok(database)
    }

    pub(crate) fn delete_database(&self, name: &str) -> Result<(), Refusal> {
        let mut databases = self
            .databases
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let database = databases.remove(name).ok_or_else(Refusal::no_database)?;
        drop(databases);
        database.gone.cancel();
        self.events.add(Kind::Deleted, name);
        Ok(())
    }

    /// Checks a document and stores its attachments; `edit` is false for a replicated revision.
    pub(crate) fn prepare(
        &self,
        db: &Database,
        mut doc: Doc<'_>,
        sent: &[Sent],
        edit: bool,
    ) -> Result<Incoming, Refusal> {
        let limits = self.limits();
        let id = doc.id.take().unwrap_or_else(|| self.chance.uuid());
        check_id(&id, limits.id_bytes_max)?;
        if doc.body.len() > limits.document_bytes_max {
            return Err(Refusal::document_too_large(&id));
        }
        if !edit && doc.revisions.is_none() {
            let reason =
                "When `new_edits: false`, the document needs `_rev` or `_revisions` specified";
            return Err(Refusal::bad_request(reason));
        }
        let generation = doc
            .revisions
            .as_ref()
            .map_or(0, |revisions| revisions.start);
        let attachments = Slot::store(sent, edit.then_some(generation), &self.rules())?;
        let hidden = (db.name == "_users")
            .then(|| hide_password(&doc.body, self.chance.uuid()))
            .flatten();
        let body = hidden.unwrap_or(doc.body);
        Ok(Incoming {
            id: id.into(),
            revisions: doc.revisions,
            deleted: doc.deleted,
            body,
            attachments,
        })
    }

    pub(crate) fn seqs(&self, database: &Database) -> Seqs {
        Seqs {
            form: self.options.seqs,
            uuid: database.uuid,
        }
    }

    pub(crate) fn event_seqs(&self) -> Seqs {
        Seqs {
            form: self.options.seqs,
            uuid: self.events_uuid,
        }
    }
}

fn check_database_name(name: &str) -> Result<(), Refusal> {
    let plain = |name: &str| {
        let allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_$()+-/".contains(&byte)
        };
        name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(allowed)
    };
    let system = match name.rsplit_once('/') {
        Some((prefix, last)) => plain(prefix) && SYSTEM_DATABASES.contains(&last),
        None => SYSTEM_DATABASES.contains(&name),
    };
    if plain(name) || system {
        Ok(())
    } else {
        Err(Refusal::database_name(name))
    }
}
