//! What jobs know of the remotes that ask for them.

use docstore::InstanceId;
use jobs::LimitName;
use serde::{Deserialize, Serialize};

/// The database of the remotes whose names are their documents' ids.
const MAIN: &str = "_rules";
/// The limit of runs per remote, followed by its name.
pub(crate) const REMOTES: &str = "remote";

/// What a job knows of the remote that asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// See [`remote_name`].
    pub name: String,
    /// Stands for one of its URLs in ids of jobs.
    pub url: String,
    /// From a failure to the next try.
    pub retry_ms: u64,
    /// Failures in a row after which another try follows; 0 is no limit.
    pub retries_max: u32,
    /// Whether `_security` is copied, too.
    pub copy_security: bool,
}

/// The name of a remote: the id of its document in `_rules`; in other databases, the database, a slash and the id.
pub fn remote_name(db: &str, doc_id: &str) -> String {
    if db == MAIN {
        return doc_id.to_owned();
    }
    format!("{db}/{doc_id}")
}

/// The database and the id of a remote of this name. No id of a remote has a slash.
pub fn remote_document(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or((MAIN, name))
}

impl Remote {
    /// The limit of its runs.
    pub(crate) fn pool(&self) -> Option<LimitName> {
        remote_pool(&self.name).ok()
    }

    /// Whether no try follows the last of so many failures.
    pub(crate) fn gives_up(&self, failures: u32) -> bool {
        self.retries_max > 0 && failures > self.retries_max
    }
}

/// The limit of a remote's runs.
pub(crate) fn remote_pool(name: &str) -> jobs::Result<LimitName> {
    LimitName::new(format!("{REMOTES}|{name}"))
}

/// The name of the remote whose limit this is.
pub(crate) fn remote_of(limit: &LimitName) -> Option<&str> {
    let name = std::str::from_utf8(limit.as_bytes()).ok()?;
    name.strip_prefix(REMOTES)?.strip_prefix('|')
}

/// The remote whose replications are shown.
#[derive(Clone, Copy, Debug)]
pub struct RemoteId<'a> {
    pub instance: InstanceId,
    pub doc_id: &'a str,
    pub rev: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_documents() {
        for (db, id, name) in [
            ("_rules", "eu", "eu"),
            ("team/_rules", "eu", "team/_rules/eu"),
            ("spiegel", "eu", "spiegel/eu"),
        ] {
            assert_eq!(remote_name(db, id), name);
            assert_eq!(remote_document(name), (db, id));
            assert_eq!(remote_of(&remote_pool(name).unwrap()), Some(name));
        }
        assert_eq!(remote_of(&"remotes|a".try_into().unwrap()), None);
    }
}
