//! Filters that need no JavaScript.

use std::collections::HashSet;
use std::sync::Arc;

use document::matching::Matcher;

#[derive(Clone, Debug, Default)]
pub enum Filter {
    #[default]
    Everything,
    DocIds(Arc<HashSet<String>>),
    Design,
    Selector(Arc<Matcher>),
}

impl Filter {
    /// The part of the filter that depends on the id only.
    pub(super) fn takes_id(&self, id: &str) -> bool {
        match self {
            Self::Everything | Self::Selector(_) => true,
            Self::DocIds(ids) => ids.contains(id),
            Self::Design => id.starts_with("_design/"),
        }
    }
}
