//! The names of databases, and the ids that distinguish databases of the same name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::keys::Keys;
use crate::{Error, Result};

const NAME_BYTES_MAX: usize = 238;

/// The name of a database: a kind such as `_replicator`, or a prefix and a kind: `sales/_replicator`. A kind without an
/// underscore takes no prefix.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DbName(Arc<str>);

impl DbName {
    /// Parses the name of a database of one of these kinds.
    pub fn parse(name: &str, kinds: &[impl AsRef<str>]) -> Result<Self> {
        let known = |kind: &str| match name.strip_suffix(kind) {
            Some("") => true,
            Some(prefix) => kind.starts_with('_') && prefix.strip_suffix('/').is_some_and(is_name),
            None => false,
        };
        if name.len() > NAME_BYTES_MAX || !kinds.iter().any(|kind| known(kind.as_ref())) {
            return Err(Error::IllegalName(name.to_owned()));
        }
        Ok(Self(name.into()))
    }

    pub(crate) fn stored(name: String) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part of the name after the last slash.
    pub fn kind(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && (name.bytes())
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9') || b"_$()+-/".contains(&byte))
}

impl fmt::Display for DbName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DbName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The random id of a database, different from those of earlier and later databases of its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub [u8; 16]);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an instance id has 32 hexadecimal digits")]
pub struct NotAnInstanceId;

impl FromStr for InstanceId {
    type Err = NotAnInstanceId;

    fn from_str(text: &str) -> Result<Self, NotAnInstanceId> {
        if text.len() != 32 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NotAnInstanceId);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| NotAnInstanceId)?;
        Ok(Self(number.to_be_bytes()))
    }
}

/// An open database, cheap to clone.
///
/// After the database is deleted, operations fail with [`Error::NoDatabase`], even if another one of the
/// same name is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Db {
    name: DbName,
    instance: InstanceId,
    pub(crate) keys: Arc<Keys>,
}

impl Db {
    pub(crate) fn new(name: DbName, instance: InstanceId) -> Self {
        let keys = Arc::new(Keys::new(instance));
        Self {
            name,
            instance,
            keys,
        }
    }

    pub fn name(&self) -> &DbName {
        &self.name
    }

    pub fn instance(&self) -> InstanceId {
        self.instance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_a_kind() {
        let kinds = ["_replicator", "_users"];
        for name in [
            "_replicator",
            "_users",
            "a/_replicator",
            "a/b/_replicator",
            "a0_$()+-/_users",
        ] {
            let parsed = DbName::parse(name, &kinds).unwrap();
            assert_eq!(parsed.as_str(), name);
            assert!(kinds.contains(&parsed.kind()), "{name}");
        }
        for name in [
            "",
            "db",
            "/_replicator",
            "x_replicator",
            "A/_replicator",
            "1/_replicator",
            "_replicator/_replicator",
            "a b/_replicator",
            "é/_replicator",
            "_replicators",
            "_replicator/",
        ] {
            let refused = DbName::parse(name, &kinds).unwrap_err();
            assert!(matches!(refused, Error::IllegalName(given) if given == name));
        }
        let long = format!("{}/_replicator", "a".repeat(226));
        assert!(DbName::parse(&long, &kinds).is_ok());
        assert!(DbName::parse(&format!("a{long}"), &kinds).is_err());
        assert!(DbName::parse("_users", &["_replicator"]).is_err());
        assert!(DbName::parse("spiegel", &["spiegel"]).is_ok());
        assert!(DbName::parse("a/spiegel", &["spiegel"]).is_err());
    }

    #[test]
    fn instance_ids_are_hexadecimal() {
        let id = InstanceId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "+0000000000000000000000000000000", "00", "g"] {
            assert_eq!(text.parse::<InstanceId>(), Err(NotAnInstanceId), "{text}");
        }
    }
}
