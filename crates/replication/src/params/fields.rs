//! Typed access to the members of a body.

use document::json::Json;

use super::invalid::Invalid;
use crate::names::ReplicationId;

pub(super) struct Fields<'a>(&'a [(String, Json)]);

impl<'a> Fields<'a> {
    pub(super) fn new(body: &'a Json) -> Result<Self, Invalid> {
        body.as_object()
            .map(Self)
            .ok_or_else(|| Invalid::new("Replication must be a JSON object"))
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Json> {
        self.0
            .iter()
            .find_map(|(key, value)| (key == name).then_some(value))
    }

    /// An optional member; null counts as missing.
    pub(super) fn get_unless_null(&self, name: &str) -> Option<&'a Json> {
        self.get(name).filter(|value| **value != Json::Null)
    }

    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, Invalid> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Bool(truth)) => Ok(Some(*truth)),
            Some(_) => Err(Invalid(format!("`{name}` must be a boolean"))),
        }
    }

    /// An integer of at least `min`, or a string that parses as one. Larger values saturate.
    pub(super) fn integer(&self, name: &str, min: u64) -> Result<Option<u64>, Invalid> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = match value {
            Json::String(text) => text.parse().ok(),
            other => other.as_integer(),
        };
        let number: i128 = number.ok_or_else(|| Invalid(format!("`{name}` must be an integer")))?;
        if number < i128::from(min) {
            return Err(Invalid(format!(
                "`{name}` must be an integer of {min} or more"
            )));
        }
        Ok(Some(u64::try_from(number).unwrap_or(u64::MAX)))
    }

    /// One of several words.
    pub(super) fn word<T: Copy>(
        &self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Invalid> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let found = words.iter().find(|(word, _)| value.as_str() == Some(word));
        found.map(|(_, meaning)| Some(*meaning)).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
            Invalid(format!("`{name}` must be {}", words.join(" or ")))
        })
    }

    /// The id of the replication to cancel, in any of its spellings.
    pub(super) fn cancel_id(&self) -> Result<Option<ReplicationId>, Invalid> {
        for name in ["_local_id", "replication_id", "id"] {
            match self.get(name) {
                None => {}
                Some(Json::String(id)) => return Ok(Some(ReplicationId::from_client(id))),
                Some(_) => return Err(Invalid(format!("`{name}` must be a string"))),
            }
        }
        Ok(None)
    }
}
