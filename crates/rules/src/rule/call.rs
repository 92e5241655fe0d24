//! A call of a webhook that a change asked for, as plain data: what [`crate::deliver`] sends.

use std::fmt;
use std::time::Duration;

use jobs::Entropy;
use serde::{Deserialize, Serialize};
use url::Url;

/// Text that `Debug` does not print, and that cannot be stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What a call is about, and, unless it was read from the store, its [`Target`]. The body may be a document, so `Debug`
/// does not print it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The id of the rule's document.
    pub rule: String,
    /// The name of the database that the document is in; empty for calls that the configuration asks for.
    pub rules: String,
    /// In upper case.
    pub method: String,
    /// See [`Target::shown`].
    pub url: String,
    /// Parameters for the query, encoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
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
    #[serde(default)]
    pub retry: Retry,
    /// `None`: the configured time-out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_sec: Option<f64>,
    /// Equal calls that wait become one.
    #[serde(default)]
    pub debounce: bool,
    /// How many calls led to the change, one after the other.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hops: u32,
    /// The size of the call in bytes if it was too large to be stored: it has no content, and is not made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
    /// Tells its rule from later ones of the same id. `None` if whichever rule has the id now is to make the call: an operator
    /// replays it, or an earlier version stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
    /// Not stored: the rule has it, sealed.
    #[serde(skip)]
    pub target: Option<Target>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Call {
    /// After so many calls, the next one is not made.
    const HOPS_MAX: u32 = 16;

    /// The largest call that can be stored. A job has room for some more, which the last attempt needs.
    const STORED_BYTES_MAX: usize = jobs::DATA_BYTES_MAX - 300_000;

    /// Whether calls cause each other, so that this one must not be made.
    pub fn loops(&self) -> bool {
        self.hops >= Self::HOPS_MAX
    }

    /// The call as it can be stored: one that is too large becomes a dead letter without its content.
    pub(crate) fn storable(mut self) -> Self {
        let texts = [self.body.as_deref(), self.query.as_deref()];
        let plain: usize = texts.into_iter().flatten().map(str::len).sum();
        // JSON needs at most six bytes for one.
        if plain <= Self::STORED_BYTES_MAX / 8 {
            return self;
        }
        let stored = serde_json::to_vec(&self).map_or(usize::MAX, |call| call.len());
        if stored > Self::STORED_BYTES_MAX {
            self.left_out = u32::try_from(stored).unwrap_or(u32::MAX);
            (self.body, self.query) = (None, None);
        }
        self
    }
}

/// Headers whose values are not credentials. Those of all others may be.
const PUBLIC_HEADERS: [&str; 9] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-encoding",
    "content-language",
    "content-type",
    "prefer",
    "user-agent",
];

/// Whether the value of a header may be a credential.
pub fn is_secret(header: &str) -> bool {
    !(PUBLIC_HEADERS.iter()).any(|public| header.eq_ignore_ascii_case(public))
}

/// Headers that only some calls have.
pub(crate) const CALL_HEADERS: [&str; 5] = [
    "webhook-hop",
    "webhook-replay",
    "x-couch-db",
    "x-couch-doc-id",
    "x-couch-seq",
];

/// Where a call goes, and what authorises it there.
#[derive(Clone, PartialEq)]
pub struct Target {
    /// With the rule's user, password and query, but without [`Call::query`].
    pub url: Url,
    pub headers: Vec<(String, String)>,
    pub sign: Option<Sign>,
}

impl Target {
    pub fn new(url: Url) -> Self {
        Self {
            url,
            headers: Vec::new(),
            sign: None,
        }
    }

    /// The URL without user, password, query and fragment, any of which may be a credential.
    pub fn shown(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        url.set_fragment(None);
        // Neither fails for a URL with a host.
        let _ = (url.set_username(""), url.set_password(None));
        url.into()
    }

    /// The URL with these parameters added to its query.
    pub fn with_query(&self, query: Option<&str>) -> Url {
        let mut url = self.url.clone();
        if let Some(query) = query {
            let own = url.query().filter(|own| !own.is_empty());
            let all = own.map_or_else(|| query.to_owned(), |own| format!("{own}&{query}"));
            url.set_query(Some(&all));
        }
        url
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.shown()).finish()
    }
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
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The part of a delay by which it is longer or shorter.
const JITTER: f64 = 0.2;
/// After so many failures in a row, delays are at least this long, so that a rule without delays does not call without end.
const QUICK_MAX: u32 = 3;
const SLOW_MIN: Duration = Duration::from_secs(1);

impl Retry {
    /// The delay after this many failures in a row.
    pub(crate) fn delay(&self, failures: u32, entropy: &Entropy) -> Duration {
        let grown = self.multiplier.powf(f64::from(failures.saturating_sub(1)));
        // Infinity times a delay of 0 would not be a number.
        let grown = grown.min(f64::MAX);
        let delay_max = Self::default().max_delay_sec;
        let delay = seconds(self.delay_sec * grown, Duration::MAX).min(seconds(
            self.max_delay_sec,
            Duration::from_secs_f64(delay_max),
        ));
        let delay = if failures > QUICK_MAX {
            delay.max(SLOW_MIN)
        } else {
            delay
        };
        delay.mul_f64(1.0 - JITTER) + entropy.up_to(delay.mul_f64(2.0 * JITTER))
    }
}

/// Seconds as a duration; `default` if they are negative or too many.
fn seconds(seconds: f64, default: Duration) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(default)
}

/// A call that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub at_ms: i64,
    pub took_ms: u64,
    /// The status of the response, if there was one.
    pub status: Option<u16>,
    /// Why there was no response.
    pub error: Option<String>,
    /// The beginning of the response's body.
    pub body: String,
}

impl Attempt {
    /// For the history of a job.
    pub(crate) fn summary(&self) -> String {
        match (self.status, &self.error) {
            (Some(status), _) => format!("{status} in {} ms", self.took_ms),
            (None, Some(error)) => error.clone(),
            (None, None) => String::new(),
        }
    }
}

/// What an attempt means for its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    /// It is repeated, at the earliest after what the receiver asks for.
    Failed(Option<Duration>),
    Dead,
}

impl Outcome {
    /// The longest wait that a receiver may ask for.
    const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

    /// Of a response.
    pub(crate) fn of_status(status: u16, retry_after: Option<Duration>) -> Self {
        let asked = retry_after.map(|asked| asked.min(Self::RETRY_AFTER_MAX));
        match status {
            200..=299 => Self::Delivered,
            410 => Self::Dead,
            408 | 425 | 429 | 500..=599 => Self::Failed(asked),
            _ => Self::Failed(None),
        }
    }

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed(_) => "failed",
            Self::Dead => "dead",
        }
    }
}
