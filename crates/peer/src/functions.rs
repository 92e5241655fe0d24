//! What the functions in design documents do.
//!
//! There is no JavaScript here. A function is known by its text: a closure stands for it, and a design document that holds another text is
//! stored and served but cannot run. So a filter whose code changes behaves differently afterwards, as on a real server.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// Query parameters of the request a filter works for, `req.query`.
pub type Query = HashMap<String, String>;

type Filter = dyn Fn(&Value, &Query) -> bool + Send + Sync;
type Map = dyn Fn(&Value) -> bool + Send + Sync;
pub(crate) type Validate = dyn Fn(&Value, &UserContext) -> Result<(), Objection> + Send + Sync;

/// The user who writes a document, as a validation function sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserContext {
    /// `None` for anonymous requests.
    pub name: Option<String>,
    /// Roles; `_admin` for administrators.
    pub roles: Vec<String>,
}

/// What a validation function throws.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    Forbidden(String),
    Unauthorized(String),
}

/// The functions a peer can run, by kind and source text. The default has a few for tests and the demo; see [`sources`].
#[derive(Clone)]
pub struct Functions {
    filters: HashMap<String, Arc<Filter>>,
    maps: HashMap<String, Arc<Map>>,
    validations: HashMap<String, Arc<Validate>>,
}

/// Source texts of the functions that every peer can run.
pub mod sources {
    /// Filter: documents whose `type` is the query parameter of that name.
    pub const FILTER_TYPE: &str = "function(doc, req) { return doc.type === req.query.type; }";
    /// Filter: documents whose `class` is `mammal`.
    pub const FILTER_MAMMAL: &str = "function(doc, req) { return doc.class === 'mammal'; }";
    /// Filter: documents whose id starts with the query parameter `starts`.
    pub const FILTER_STARTS: &str =
        "function(doc, req) { return doc._id.indexOf(req.query.starts) === 0; }";
    /// Filter: documents whose `integer` is even.
    pub const FILTER_EVEN: &str = "function(doc, req) { return (doc.integer % 2) === 0; }";
    /// Filter: documents that are not deleted.
    pub const FILTER_LIVE: &str = "function(doc, req) { return !doc._deleted; }";
    /// Map function that emits for documents whose `class` is `mammal`.
    pub const MAP_MAMMAL: &str =
        "function(doc) { if (doc.class === 'mammal') { emit(doc._id, null); } }";
    /// Map function that emits for every document.
    pub const MAP_ALL: &str = "function(doc) { emit(doc._id, null); }";
    /// Validation: `integer` must be even, where there is one.
    pub const VALIDATE_EVEN: &str =
        "function(doc) { if ((doc.integer % 2) !== 0) { throw({forbidden: 'only even'}); } }";
    /// Validation: only users with a name may write.
    pub const VALIDATE_USER: &str =
        "function(doc, old, user) { if (!user.name) { throw({unauthorized: 'log in first'}); } }";
}

impl Functions {
    /// Runs a closure for a filter function (`filters.name` of a design document).
    #[must_use]
    pub fn filter<F>(mut self, source: &str, run: F) -> Self
    where
        F: Fn(&Value, &Query) -> bool + Send + Sync + 'static,
    {
        self.filters.insert(source.trim().to_owned(), Arc::new(run));
        self
    }

    /// Runs a closure for a map function (`views.name.map`) in the filter `_view`: whether it emits for a document.
    #[must_use]
    pub fn map<F>(mut self, source: &str, emits: F) -> Self
    where
        F: Fn(&Value) -> bool + Send + Sync + 'static,
    {
        self.maps.insert(source.trim().to_owned(), Arc::new(emits));
        self
    }

    /// Runs a closure for a validation function (`validate_doc_update`).
    #[must_use]
    pub fn validation<F>(mut self, source: &str, run: F) -> Self
    where
        F: Fn(&Value, &UserContext) -> Result<(), Objection> + Send + Sync + 'static,
    {
        self.validations
            .insert(source.trim().to_owned(), Arc::new(run));
        self
    }

    pub(crate) fn find_filter(&self, source: &str) -> Option<Arc<Filter>> {
        self.filters.get(source.trim()).cloned()
    }

    pub(crate) fn find_map(&self, source: &str) -> Option<Arc<Map>> {
        self.maps.get(source.trim()).cloned()
    }

    pub(crate) fn find_validation(&self, source: &str) -> Option<Arc<Validate>> {
        self.validations.get(source.trim()).cloned()
    }
}

impl Default for Functions {
    fn default() -> Self {
        let none = Self {
            filters: HashMap::new(),
            maps: HashMap::new(),
            validations: HashMap::new(),
        };
        let mammal = |doc: &Value| doc["class"] == "mammal";
        let odd = |doc: &Value| {
            doc["integer"]
                .as_f64()
                .is_none_or(|integer| integer % 2.0 != 0.0)
        };
        none.filter(sources::FILTER_TYPE, |doc, query| {
            doc["type"].as_str() == query.get("type").map(String::as_str)
        })
        .filter(sources::FILTER_MAMMAL, move |doc, _| mammal(doc))
        .filter(sources::FILTER_STARTS, |doc, query| {
            // Without the parameter JavaScript compares with the text "undefined".
            let starts = query.get("starts").map_or("undefined", String::as_str);
            doc["_id"].as_str().is_some_and(|id| id.starts_with(starts))
        })
        .filter(sources::FILTER_EVEN, move |doc, _| !odd(doc))
        .filter(sources::FILTER_LIVE, |doc, _| doc["_deleted"] != true)
        .map(sources::MAP_MAMMAL, mammal)
        .map(sources::MAP_ALL, |_| true)
        .validation(sources::VALIDATE_EVEN, move |doc, _| {
            if odd(doc) {
                Err(Objection::Forbidden("only even".to_owned()))
            } else {
                Ok(())
            }
        })
        .validation(sources::VALIDATE_USER, |_, user| match user.name {
            Some(_) => Ok(()),
            None => Err(Objection::Unauthorized("log in first".to_owned())),
        })
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.filters.len() + self.maps.len() + self.validations.len();
        f.debug_struct("Functions").field("known", &count).finish()
    }
}
