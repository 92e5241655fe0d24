//! What happened, when.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use crate::endpoint::Mode;

/// Everything that happened. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Journal(Arc<Mutex<Record>>);

pub(crate) struct Record {
    pub(crate) begun: Instant,
    pub(crate) events: Vec<(Instant, Event)>,
    pub(crate) changes: Vec<Change>,
    pub(crate) calls: Vec<Call>,
    /// When a document came to a target, by the names of the database and the document, or the first call about it that succeeded.
    pub(crate) arrived: BTreeMap<(&'static str, String, String), Instant>,
}

/// For the story.
pub(crate) enum Event {
    /// Concerns all databases.
    All(String),
    Of(String, String),
}

/// A new document.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) at: Instant,
    pub(crate) db: String,
    pub(crate) doc: String,
    /// Its database is gone.
    pub(crate) is_gone: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) at: Instant,
    pub(crate) way: String,
    pub(crate) db: String,
    pub(crate) doc: String,
    pub(crate) mode: Mode,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Record {
            begun: Instant::now(),
            events: Vec::new(),
            changes: Vec::new(),
            calls: Vec::new(),
            arrived: BTreeMap::new(),
        })))
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Record) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    pub(crate) fn note(&self, event: Event) {
        self.with(|record| record.events.push((Instant::now(), event)));
    }

    pub(crate) fn all(&self, text: impl Into<String>) {
        self.note(Event::All(text.into()));
    }

    pub(crate) fn of(&self, db: &str, text: impl Into<String>) {
        self.note(Event::Of(db.to_owned(), text.into()));
    }

    pub(crate) fn changed(&self, db: &str, doc: &str) {
        self.of(db, format!("{doc} is written"));
        let change = Change {
            at: Instant::now(),
            db: db.to_owned(),
            doc: doc.to_owned(),
            is_gone: false,
        };
        self.with(|record| record.changes.push(change));
    }

    pub(crate) fn deleted(&self, db: &str) {
        self.of(db, "is deleted");
        self.with(|record| {
            for change in record.changes.iter_mut().filter(|change| change.db == db) {
                change.is_gone = true;
            }
        });
    }

    pub(crate) fn arrived(&self, way: &'static str, db: &str, doc: &str) {
        self.of(db, format!("{doc} has arrived, {way}"));
        let key = (way, db.to_owned(), doc.to_owned());
        self.with(|record| {
            record.arrived.entry(key).or_insert_with(Instant::now);
        });
    }

    pub(crate) fn called(&self, way: &str, db: &str, doc: &str, mode: Mode) {
        self.of(db, format!("{way} is called about {doc}: {mode:?}"));
        let call = Call {
            at: Instant::now(),
            way: way.to_owned(),
            db: db.to_owned(),
            doc: doc.to_owned(),
            mode,
        };
        self.with(|record| record.calls.push(call));
    }
}

impl Record {
    pub(crate) fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.begun).as_secs_f64()
    }

    /// What happened to a database, and to all, from a moment on.
    pub(crate) fn story(&self, db: &str, from: Instant) -> Vec<String> {
        let told = self.events.iter().filter(|(at, _)| *at >= from);
        let told = told.filter_map(|(at, event)| {
            let at = self.seconds(*at);
            match event {
                Event::All(text) => Some(format!("{at:8.3} {text}")),
                Event::Of(of, text) => (of == db).then(|| format!("{at:8.3} {db}: {text}")),
            }
        });
        told.collect()
    }
}
