//! Rows of this crate: a format byte, and JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

const FORMAT: u8 = 1;

pub(crate) fn encode(row: &impl Serialize) -> Result<Vec<u8>> {
    let mut value = vec![FORMAT];
    serde_json::to_writer(&mut value, row).map_err(Error::corrupt)?;
    Ok(value)
}

/// Decodes the row of `what`.
pub(crate) fn decode<T: DeserializeOwned>(value: &[u8], what: impl std::fmt::Display) -> Result<T> {
    let Some(row) = value.strip_prefix(&[FORMAT]) else {
        return Err(Error::corrupt(format!("{what} is in an unknown format")));
    };
    serde_json::from_slice(row).map_err(|error| Error::corrupt(format!("{what}: {error}")))
}
