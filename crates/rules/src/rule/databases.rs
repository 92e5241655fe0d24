//! Which databases a rule is about.

use document::json::Json;
use document::mango::Budget;
use url::Url;

use super::fields::{Fields, Invalid};
use super::pattern::{Captures, Pattern};
use super::remote;
use super::template::{RESERVED, encode};

/// What happened to a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Created,
    Updated,
    Deleted,
}

/// The value of `match` of a `replicator` document that is about databases of one name, on all sources, as in Spiegel.
pub(super) const NAME_ONLY: &str = "name_only";

#[derive(Debug)]
pub struct Databases {
    names: Names,
    /// Only those that are created after the rule was written.
    only_created: bool,
    /// The address that the databases are below; `None` for those of all sources.
    server: Option<Url>,
}

#[derive(Debug)]
enum Names {
    All,
    One(String),
    Matching {
        pattern: Pattern,
        /// Also names as they stand in URLs match: Spiegel tests only those.
        escaped: bool,
    },
    /// Those of a remote.
    Listed(remote::Names),
}

impl Databases {
    /// Reads `match`, and `db_name`, which only `on_change` has.
    pub(super) fn parse(fields: &Fields<'_>) -> Result<Self, Invalid> {
        let given = match fields.get("match") {
            Some(Json::String(text)) if text == NAME_ONLY => None,
            _ => fields.object("match", &["database", "events"])?,
        };
        let own = match &given {
            Some(given) => given.pattern("database")?,
            None => None,
        };
        let names = match (own, fields.pattern("db_name")?) {
            (Some(_), Some(_)) => {
                let reason = "names the databases twice; leave out `match.database`";
                return Err(fields.invalid("db_name", reason));
            }
            (Some(pattern), None) => Names::Matching {
                pattern,
                escaped: false,
            },
            (None, Some(pattern)) => Names::Matching {
                pattern,
                escaped: true,
            },
            (None, None) => Names::All,
        };
        let only_created = match &given {
            Some(given) => only_created(given)?,
            None => false,
        };
        let databases = Self {
            names,
            only_created,
            server: None,
        };
        let reserved = (databases.captures().into_iter()).find(|name| RESERVED.contains(&&**name));
        if let Some(reserved) = reserved {
            let reason =
                format!("the name `{reserved}` of a group is that of a variable; rename it");
            return Err(fields.invalid("match", reason));
        }
        Ok(databases)
    }

    /// Those of a remote.
    pub(super) fn listed(names: remote::Names) -> Self {
        Self {
            names: Names::Listed(names),
            only_created: false,
            server: None,
        }
    }

    /// Only those below this address; unless there is a pattern, only the one of this name.
    pub(super) fn below(mut self, server: Option<Url>, name: String) -> Self {
        if !self.is_pattern() {
            self.names = Names::One(name);
        }
        Self { server, ..self }
    }

    pub(crate) fn only_created(&self) -> bool {
        self.only_created
    }

    /// Whether it is about databases by a pattern or list.
    pub(super) fn is_pattern(&self) -> bool {
        matches!(self.names, Names::Matching { .. } | Names::Listed(_))
    }

    /// The names of the groups, which are variables.
    pub(super) fn captures(&self) -> Vec<String> {
        match &self.names {
            Names::Matching { pattern, .. } => pattern.names().map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }

    /// The address that they are below.
    pub(super) fn server(&self) -> Option<&Url> {
        self.server.as_ref()
    }

    /// Whether they may be below this address.
    pub(super) fn may_be_below(&self, server: &Url) -> bool {
        self.server.as_ref().is_none_or(|own| own == server)
    }

    /// What the groups contain if the rule is about a database of this name, below this address.
    pub fn captures_of(&self, server: &Url, name: &str) -> Option<Captures> {
        let below = self.may_be_below(server);
        below.then(|| self.captures_by_name(name)).flatten()
    }

    /// The same wherever the database is.
    pub fn captures_by_name(&self, name: &str) -> Option<Captures> {
        let (pattern, escaped) = match &self.names {
            Names::All => return Some(Captures::new()),
            Names::One(one) => return (one == name).then(Captures::new),
            Names::Matching { pattern, escaped } => (pattern, *escaped),
            Names::Listed(names) => return names.matches(name).then(|| remote::captures(name)),
        };
        let find = |name: &str| {
            let found = pattern.captures(name, &mut Budget::of_document());
            found.unwrap_or_else(|error| {
                tracing::warn!(%error, "gave up matching a rule's pattern against a database name");
                None
            })
        };
        let encoded = encode(name);
        find(name).or_else(|| (escaped && encoded != name).then(|| find(&encoded))?)
    }

    /// The name of the only database that this is about, as it is or as it stands in URLs.
    pub(crate) fn exact(&self) -> Option<&str> {
        match &self.names {
            Names::All => None,
            Names::One(name) => Some(name),
            Names::Matching { pattern, .. } => pattern.exact(),
            Names::Listed(names) => names.exact(),
        }
    }

    /// What all names start with, as they are or as they stand in URLs.
    pub(super) fn prefix(&self) -> &str {
        match &self.names {
            Names::Matching { pattern, .. } => pattern.prefix(),
            Names::Listed(names) => names.prefix(),
            _ => "",
        }
    }
}

/// Reads `events`. `deleted` is accepted next to others: what is gone can neither be copied nor called about.
fn only_created(given: &Fields<'_>) -> Result<bool, Invalid> {
    let Some(list) = given.get("events") else {
        return Ok(false);
    };
    let known = |event: &Json| matches!(event.as_str(), Some("created" | "updated" | "deleted"));
    let has = |wanted: &str| {
        let mut list = list.as_array().unwrap_or_default().iter();
        list.any(|event| event.as_str() == Some(wanted))
    };
    let is_valid = list.as_array().is_some_and(|list| list.iter().all(known));
    if !is_valid || !(has("created") || has("updated")) {
        let reason = "must be `[\"created\"]` for databases that are created from now on, or \
                      `[\"created\", \"updated\"]` for all";
        return Err(given.invalid("events", reason));
    }
    Ok(!has("updated"))
}
