//! Which changes a feed shows.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use document::mango::{Budget, Selector};
use document::rev::Rev;
use document::revtree::Node;
use http::Method;
use serde_json::Value;

use crate::db::{Database, Document, Version};
use crate::functions::Query;
use crate::http::document::live;
use crate::refusal::Refusal;
use crate::render::{self, Shown};
use crate::request::Request;

/// With more ids than this, CouchDB reads the feed instead of looking the documents up.
const LOOKED_UP_MAX: usize = 100;

type Check = dyn Fn(&Value) -> bool + Send + Sync;

pub(super) enum Filter {
    None,
    Ids(HashSet<String>),
    Design,
    /// Documents for which the function returns true.
    Content(Box<Check>),
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Ids(_) => "Ids",
            Self::Design => "Design",
            Self::Content(_) => "Content",
        })
    }
}

impl Filter {
    pub(super) fn parse(
        request: &Request,
        body: Option<&str>,
        db: &Database,
    ) -> Result<Self, Refusal> {
        let body: Value = body
            .and_then(|body| serde_json::from_str(body).ok())
            .unwrap_or_default();
        match request.param("filter").unwrap_or_default() {
            "" => Ok(Self::None),
            "_doc_ids" => Self::ids(request, &body),
            "_selector" => Self::selector(request, &body),
            "_design" => Ok(Self::Design),
            "_view" => Self::view(request, db),
            name if name.starts_with('_') => {
                Err(Refusal::bad_request("unknown builtin filter name"))
            }
            name => Self::named(request, db, name),
        }
    }

    fn ids(request: &Request, body: &Value) -> Result<Self, Refusal> {
        let refuse =
            || Refusal::bad_request("`doc_ids` filter parameter is not a list of doc ids.");
        let ids = if request.method == Method::POST {
            body.get("doc_ids").cloned().unwrap_or_default()
        } else {
            let text = request.param("doc_ids").unwrap_or("null");
            serde_json::from_str(text).map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))?
        };
        serde_json::from_value(ids)
            .map(Self::Ids)
            .map_err(|_| refuse())
    }

    fn selector(request: &Request, body: &Value) -> Result<Self, Refusal> {
        if request.method != Method::POST {
            return Err(Refusal::bad_request(
                "Selector must be specified in POST payload",
            ));
        }
        let selector = body.get("selector").filter(|selector| selector.is_object());
        let selector = selector
            .ok_or_else(|| Refusal::bad_request("Selector error: expected a JSON object"))?;
        let selector = Selector::new(&selector.into())
            .map_err(|error| Refusal::bad_request(error.to_string()))?;
        Ok(Self::Content(Box::new(move |doc| {
            selector.matches(doc, &mut Budget::of_document()) == Ok(true)
        })))
    }

    fn view(request: &Request, db: &Database) -> Result<Self, Refusal> {
        let view = request.param("view").filter(|view| !view.is_empty());
        let view =
            view.ok_or_else(|| Refusal::bad_request("`view` filter parameter is not provided."))?;
        let form = "`view` must be of the form `designname/viewname`";
        let (design, name) = view
            .split_once('/')
            .ok_or_else(|| Refusal::bad_request(form))?;
        let view = member(db, design, "views", name)?;
        let source = view.get("map").and_then(Value::as_str).unwrap_or_default();
        let emits = db.functions.find_map(source).ok_or_else(unknown_function)?;
        Ok(Self::Content(Box::new(move |doc| emits(doc))))
    }

    fn named(request: &Request, db: &Database, name: &str) -> Result<Self, Refusal> {
        let form = "`filter` must be of the form `designname/filtername`";
        let (design, name) = name
            .split_once('/')
            .ok_or_else(|| Refusal::bad_request(form))?;
        let filter = member(db, design, "filters", name)?;
        let filter = db
            .functions
            .find_filter(filter.as_str().unwrap_or_default())
            .ok_or_else(unknown_function)?;
        let query: Query = request.query.iter().cloned().collect();
        Ok(Self::Content(Box::new(move |doc| filter(doc, &query))))
    }

    /// Whether CouchDB looks the documents up by id instead of reading the feed.
    pub(super) fn looks_up(&self) -> bool {
        match self {
            Self::Ids(ids) => ids.len() <= LOOKED_UP_MAX,
            Self::Design => true,
            Self::None | Self::Content(_) => false,
        }
    }

    /// The revisions that pass, among the leaves (winner first) or the winner only.
    pub(super) fn passing<'a>(
        &self,
        id: &str,
        document: &'a Document,
        all_leaves: bool,
    ) -> Vec<&'a Rev> {
        let passes = match self {
            Self::None | Self::Content(_) => true,
            Self::Ids(ids) => ids.contains(id),
            Self::Design => id.starts_with("_design"),
        };
        if !passes {
            return Vec::new();
        }
        let mut leaves = if all_leaves {
            document.tree.leaves()
        } else {
            vec![document.winner()]
        };
        if let Self::Content(check) = self {
            leaves.retain(|leaf| check(&content(id, *leaf)));
        }
        leaves.into_iter().map(|leaf| leaf.rev).collect()
    }
}

fn content(id: &str, node: Node<'_, Arc<Version>>) -> Value {
    let mut json = Vec::new();
    render::node(&mut json, id, node, &Shown::default());
    serde_json::from_slice(&json).unwrap_or_default()
}

fn unknown_function() -> Refusal {
    Refusal::internal("compilation_error", "no closure stands for this function")
}

/// A member of an object in a design document.
fn member(db: &Database, design: &str, kind: &str, name: &str) -> Result<Value, Refusal> {
    let missing = |key: &str| Refusal::not_found(format!("missing json key: {key}"));
    let version = live(db, &format!("_design/{design}"), |node| node.value.cloned())?;
    let version = version.ok_or_else(Refusal::missing)?;
    let body: Value = serde_json::from_str(&version.body).unwrap_or_default();
    let kind = body.get(kind).ok_or_else(|| missing(kind))?;
    kind.get(name).cloned().ok_or_else(|| missing(name))
}
