//! Classes of priority, and tenants.

use bytes::Bytes;

use crate::model::codec::Reader;
use crate::model::ids::check;
use crate::{Error, Result};

/// Maximum bytes of a tenant's name.
pub const TENANT_BYTES_MAX: usize = 256;

/// The number of labels of jobs' data; 0 is none.
pub(crate) const LABELS: u8 = 16;

/// The priority of a job. A claim takes no job of a class while one of an earlier class is due and can start, so enough work
/// in one class starves later ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Before all others.
    Urgent,
    /// The class of jobs for which none is set.
    #[default]
    Normal,
    /// After all others.
    Bulk,
}

impl Class {
    /// All of them, in the order in which claims take them.
    pub const ALL: [Self; 3] = [Self::Urgent, Self::Normal, Self::Bulk];

    /// Its number in headers and counters.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Normal => 0,
            Self::Urgent => 1,
            Self::Bulk => 2,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.number() == number)
    }

    pub(crate) fn read(from: &mut Reader) -> Result<Self> {
        Self::from_number(from.byte()?).ok_or_else(|| Error::corrupt("a job of an unknown class"))
    }

    /// Its lower-case name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::Normal => "normal",
            Self::Bulk => "bulk",
        }
    }
}

impl std::str::FromStr for Class {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let class = Self::ALL.into_iter().find(|class| class.as_str() == name);
        class.ok_or(Error::Invalid("a class is urgent, normal or bulk"))
    }
}

/// What a job is counted by besides its state: the label of its data, and its class.
pub(crate) fn tag(label: u8, class: Class) -> u8 {
    class.number() * LABELS + label % LABELS
}

/// The label and the class in a tag.
pub(crate) fn of_tag(tag: u8) -> (u8, Class) {
    let class = Class::from_number(tag / LABELS).unwrap_or_default();
    (tag % LABELS, class)
}

/// The name of a tenant: whose job it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub(crate) Bytes);

impl Tenant {
    /// A name of 1 to [`TENANT_BYTES_MAX`] bytes.
    pub fn new(name: impl Into<Bytes>) -> Result<Self> {
        let name = name.into();
        check("a tenant's name", name.len(), TENANT_BYTES_MAX)?;
        if name.is_empty() {
            return Err(Error::Invalid("a tenant needs a name"));
        }
        Ok(Self(name))
    }

    /// The name as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&str> for Tenant {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name.to_owned())
    }
}

impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}
