//! The filters that need no JavaScript.

use std::collections::HashSet;
use std::sync::Arc;

use document::matching::Matcher;

/// Which documents a feed tells of.
#[derive(Clone, Debug, Default)]
pub enum Filter {
    /// All of them.
    #[default]
    Everything,
    /// `_doc_ids`: these.
    DocIds(Arc<HashSet<String>>),
    /// `_design`: design documents.
    Design,
    /// `_selector`: those that match.
    Selector(Arc<Matcher>),
}

impl Filter {
    /// What the id alone decides.
    pub(super) fn takes_id(&self, id: &str) -> bool {
        match self {
            Self::Everything | Self::Selector(_) => true,
            Self::DocIds(ids) => ids.contains(id),
            Self::Design => id.starts_with("_design/"),
        }
    }
}
