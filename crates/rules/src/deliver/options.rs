//! The section `[webhooks]`.

use std::time::Duration;

use scheduler::EventKind;
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use crate::rule::call::{Sign, Target};

/// Of calls about replications, in the place of a rule's id, which never begins with an underscore.
pub(super) const RULE: &str = "_events";

/// The section `[webhooks]`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Maximum number of concurrent calls by a node. One in eight is reserved for endpoints without a call in progress.
    pub max_in_flight: usize,
    /// Maximum number of concurrent calls by a node to one endpoint, which is a scheme, host and port.
    pub max_in_flight_per_host: usize,
    /// Seconds after which a call without a response fails, unless its rule has a `timeout_sec` of its own.
    pub timeout_sec: f64,
    /// Seconds for which delivered calls are kept, so that they can be listed and replayed.
    pub retention_sec: u64,
    /// Calls about replications.
    pub events: EventOptions,
}

/// The section `[webhooks.events]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EventOptions {
    /// The URL that is called when a replication fails, lags or recovers, if any. It may have a user name, as in rules.
    pub url: String,
    /// The name of the entry of `[secrets]` whose `signing` signs the calls; none if empty.
    pub secret: String,
    /// The events that are sent: `replication.failed`, `replication.lagging`, `replication.recovered`.
    pub events: Vec<String>,
}

impl EventOptions {
    /// Where calls go; `None` if no URL is configured.
    pub(super) fn target(&self) -> Option<Target> {
        let url = Url::parse(&self.url).ok()?;
        let sign = (!self.secret.is_empty()).then(|| Sign::SecretRef(self.secret.clone()));
        Some(Target {
            sign,
            ..Target::new(url)
        })
    }
}

impl Default for EventOptions {
    fn default() -> Self {
        let all = [EventKind::Failed, EventKind::Lagging, EventKind::Recovered];
        Self {
            url: String::new(),
            secret: String::new(),
            events: all.map(|kind| kind.as_str().to_owned()).to_vec(),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_in_flight: 50,
            max_in_flight_per_host: 8,
            timeout_sec: 30.0,
            retention_sec: 86_400,
            events: EventOptions::default(),
        }
    }
}

/// The longest time-out of a call, in seconds.
const TIMEOUT_SEC_MAX: f64 = 3_600.0;

impl Options {
    /// Checks the values.
    pub fn validate(&self) -> Result<(), &'static str> {
        if self.max_in_flight == 0 || self.max_in_flight_per_host == 0 {
            return Err("`max_in_flight` and `max_in_flight_per_host` must be at least 1");
        }
        if !(self.timeout_sec > 0.0 && self.timeout_sec <= TIMEOUT_SEC_MAX) {
            return Err("`timeout_sec` must be above 0 and at most 3600");
        }
        let events = &self.events;
        let is_http = |url: Url| matches!(url.scheme(), "http" | "https");
        if !events.url.is_empty() && !Url::parse(&events.url).is_ok_and(is_http) {
            return Err("`events.url` must be a URL with http or https");
        }
        let known = EventOptions::default().events;
        if events.events.iter().any(|event| !known.contains(event)) {
            return Err(
                "`events.events` must be replication.failed, replication.lagging or replication.recovered",
            );
        }
        Ok(())
    }

    /// The time-out of a call.
    pub(super) fn timeout(&self, wanted_sec: Option<f64>) -> Duration {
        let seconds = wanted_sec.unwrap_or(self.timeout_sec);
        Duration::from_secs_f64(seconds.clamp(0.001, TIMEOUT_SEC_MAX))
    }
}
