//! What an operator can set of the services, under `couch_jobs`' names.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// The settings of the queue's services.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// How much later than its turn an activity monitor looks at most, in milliseconds.
    pub activity_monitor_max_jitter_msec: u64,
    /// How often a notifier looks for changes at most: once in so many milliseconds.
    pub type_monitor_holdoff_msec: u64,
    /// How often the registered types are read, in milliseconds, when no change is noticed.
    pub type_check_period_msec: u64,
    /// How much later than their turn they are read at most, in milliseconds.
    pub type_check_max_jitter_msec: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            activity_monitor_max_jitter_msec: 10_000,
            type_monitor_holdoff_msec: 50,
            type_check_period_msec: 15_000,
            type_check_max_jitter_msec: 5_000,
        }
    }
}

impl Options {
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
