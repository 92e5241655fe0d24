//! A call of a webhook that a change asked for, as plain data: what [`crate::deliver`] sends.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Text that `Debug` does not print. At rest it is as safe as what it is part of.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// An expanded request. Headers and body may hold credentials and documents, so `Debug` prints neither.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The id of the rule's document.
    pub rule: String,
    /// In upper case.
    pub method: String,
    /// With the user name that stands in the rule's URL, without a password.
    pub url: String,
    /// The password that stands in the rule's URL. Without one, that of host and user is looked up when the call is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Hidden>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The name of the source whose database changed.
    pub source: String,
    pub db: String,
    pub doc_id: String,
    pub rev: String,
    /// The update sequence, as text.
    pub seq: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sign: Option<Sign>,
    #[serde(default)]
    pub retry: Retry,
    /// `None`: the configured time-out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_sec: Option<f64>,
    /// Equal calls that wait become one.
    #[serde(default)]
    pub debounce: bool,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("rule", &self.rule)
            .field("method", &self.method)
            .field("db", &self.db)
            .field("doc_id", &self.doc_id)
            .field("rev", &self.rev)
            .finish_non_exhaustive()
    }
}

/// How a call is signed, with the signature `v1` of Standard Webhooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// With the secret in the rule: `whsec_` and 24 to 64 bytes in base64.
    Secret(Hidden),
    /// With the secret that the configuration knows by this name.
    SecretRef(String),
}

/// When a failed call is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Retry {
    pub delay_sec: f64,
    /// The factor between one delay and the next.
    pub multiplier: f64,
    pub max_delay_sec: f64,
    /// Number of retries after which the call becomes a dead letter; `None` retries until it succeeds.
    pub limit: Option<u32>,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            delay_sec: 5.0,
            multiplier: 2.0,
            max_delay_sec: 3600.0,
            limit: None,
        }
    }
}
