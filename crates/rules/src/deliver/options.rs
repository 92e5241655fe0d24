//! The section `[webhooks]`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// The section `[webhooks]`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Maximum number of concurrent calls of a node.
    pub max_in_flight: usize,
    /// Maximum number of concurrent calls of a node to one endpoint, which is a scheme, host and port.
    pub max_in_flight_per_host: usize,
    /// Seconds after which a call without a response fails, unless its rule has a `timeout_sec` of its own.
    pub timeout_sec: f64,
    /// Seconds for which delivered calls are kept, so that they can be listed and replayed.
    pub retention_sec: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_in_flight: 50,
            max_in_flight_per_host: 8,
            timeout_sec: 30.0,
            retention_sec: 86_400,
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
        Ok(())
    }

    /// The time-out of a call.
    pub(super) fn timeout(&self, wanted_sec: Option<f64>) -> Duration {
        let seconds = wanted_sec.unwrap_or(self.timeout_sec);
        Duration::from_secs_f64(seconds.clamp(0.001, TIMEOUT_SEC_MAX))
    }
}
