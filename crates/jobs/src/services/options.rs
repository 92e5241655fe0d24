//! Options of the services, under `couch_jobs`' names.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// Below this, a slow holder could be mistaken for a dead one.
const TIMEOUT_MIN_S: u64 = 3;
const TIMEOUT_MAX_S: u64 = 3_600;

/// The section `[couch_jobs]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Seconds without a heartbeat after which a job is taken from its node. Other nodes get the
    /// job within twice this time plus `activity_monitor_max_jitter_msec`. A job sends about four
    /// heartbeats per timeout. The value of the node that started last applies to all nodes of the
    /// store.
    pub job_timeout_sec: u64,
    /// Maximum random delay of an activity monitor's check, in milliseconds.
    pub activity_monitor_max_jitter_msec: u64,
    /// Minimum interval between a notifier's checks for changes, in milliseconds.
    pub type_monitor_holdoff_msec: u64,
    /// Interval at which the registered types are read if no change is noticed, in milliseconds.
    pub type_check_period_msec: u64,
    /// Maximum random delay of that read, in milliseconds.
    pub type_check_max_jitter_msec: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            job_timeout_sec: 61,
            activity_monitor_max_jitter_msec: 10_000,
            type_monitor_holdoff_msec: 50,
            type_check_period_msec: 15_000,
            type_check_max_jitter_msec: 5_000,
        }
    }
}

impl Options {
    /// Checks the values.
    pub fn check(&self) -> Result<(), String> {
        if (TIMEOUT_MIN_S..=TIMEOUT_MAX_S).contains(&self.job_timeout_sec) {
            return Ok(());
        }
        Err(format!(
            "`job_timeout_sec` must be from {TIMEOUT_MIN_S} to {TIMEOUT_MAX_S}"
        ))
    }

    pub(crate) fn monitor_jitter_max(&self) -> Duration {
        Duration::from_millis(self.activity_monitor_max_jitter_msec)
    }

    pub(crate) fn holdoff(&self) -> Duration {
        Duration::from_millis(self.type_monitor_holdoff_msec)
    }

    pub(crate) fn type_check(&self) -> Duration {
        Duration::from_millis(self.type_check_period_msec)
    }

    pub(crate) fn type_check_jitter_max(&self) -> Duration {
        Duration::from_millis(self.type_check_max_jitter_msec)
    }
}
