//! Which documents to replicate.

use std::sync::Arc;

use document::json::Json;
use document::mango::Selector;

use super::fields::Fields;
use super::invalid::Invalid;

/// At most one of `filter`, `doc_ids` and `selector`.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    None,
    /// A filter whose name starts with an underscore, such as `_design` and `_view`.
    BuiltIn {
        name: String,
        /// Its parameters, an object.
        query_params: Json,
    },
    /// A function of a design document of the source.
    User {
        design_doc: String,
        name: String,
        /// Its parameters, an object.
        query_params: Json,
    },
    /// These documents, sorted.
    DocIds(Vec<String>),
    Selector(SelectorFilter),
}

/// A selector as given, and compiled.
#[derive(Clone, Debug)]
pub struct SelectorFilter {
    given: Json,
    compiled: Arc<Selector>,
}

impl SelectorFilter {
    /// The selector as the user wrote it, which is sent to the source.
    pub fn given(&self) -> &Json {
        &self.given
    }

    pub fn compiled(&self) -> &Arc<Selector> {
        &self.compiled
    }
}

impl PartialEq for SelectorFilter {
    fn eq(&self, other: &Self) -> bool {
        self.given == other.given
    }
}

impl Filter {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Invalid> {
        let name = match fields.get("filter") {
            None => None,
            Some(Json::String(name)) if name.len() > 1 => Some(name),
            Some(_) => return Err(Invalid::new("`filter` must be a string")),
        };
        let query_params = match fields.get_unless_null("query_params") {
            None => Json::Object(Vec::new()),
            Some(params @ Json::Object(_)) => params.clone(),
            Some(_) => return Err(Invalid::new("`query_params` is not `null` or object")),
        };
        let doc_ids = fields
            .get_unless_null("doc_ids")
            .map(read_doc_ids)
            .transpose()?;
        let selector = fields.get("selector").map(read_selector).transpose()?;
        match (name, doc_ids, selector) {
            (None, None, None) => Ok(Self::None),
            (Some(name), None, None) if name.starts_with('_') => Ok(Self::BuiltIn {
                name: name.clone(),
                query_params,
            }),
            (Some(name), None, None) => {
                // The slash is checked later: a missing source is reported first.
                let (design_doc, name) = name.split_once('/').unwrap_or((name, ""));
                Ok(Self::User {
                    design_doc: design_doc.to_owned(),
                    name: name.to_owned(),
                    query_params,
                })
            }
            (None, Some(ids), None) => Ok(Self::DocIds(ids)),
            (None, None, Some(selector)) => Ok(Self::Selector(selector)),
            _ => Err(Invalid::new(
                "`doc_ids`,`filter`,`selector` are mutually  exclusive",
            )),
        }
    }

    /// Checks that a named filter has all it needs.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::User {
                design_doc, name, ..
            } if design_doc.is_empty() || name.is_empty() => Err(Invalid::new(
                "Invalid filter. Must match `ddocname/filtername`.",
            )),
            Self::BuiltIn { name, query_params } if name == "_view" => {
                match query_params
                    .get("view")
                    .and_then(Json::as_str)
                    .map(|view| view.split('/').count())
                {
                    Some(2) => Ok(()),
                    _ => Err(Invalid::new("Invalid `view` parameter.")),
                }
            }
            _ => Ok(()),
        }
    }
}

fn read_doc_ids(value: &Json) -> Result<Vec<String>, Invalid> {
    let ids = value
        .as_array()
        .ok_or_else(|| Invalid::new("`doc_ids` must be an array"))?;
    let decode = |id: &Json| match id.as_str() {
        Some(id) if !id.is_empty() => Ok(percent_decoded(id)),
        _ => Err(Invalid::new("`doc_ids` array must contain strings")),
    };
    let mut ids = ids.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// Decodes `%2F` and the like; invalid escapes, and those that do not decode to UTF-8, stay as they are.
fn percent_decoded(id: &str) -> String {
    let hex = |digit: u8| {
        char::from(digit)
            .to_digit(16)
            .and_then(|value| u8::try_from(value).ok())
    };
    let mut out = Vec::with_capacity(id.len());
    let mut rest = id.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, after @ ..]) if hex(*high).is_some() && hex(*low).is_some() => {
                out.push(hex(*high).unwrap_or_default() << 4 | hex(*low).unwrap_or_default());
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| id.to_owned())
}

fn read_selector(value: &Json) -> Result<SelectorFilter, Invalid> {
    if value.as_object().is_none() {
        return Err(Invalid::new("`selector` must be a JSON object"));
    }
    let compiled = Selector::new(value).map_err(|error| Invalid(error.to_string()))?;
    Ok(SelectorFilter {
        given: value.clone(),
        compiled: Arc::new(compiled),
    })
}
