//! Logs go to standard error, a line for an event; how much of them can change while they are written.

use std::fmt;
use std::io::IsTerminal as _;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::config::{LogFormat, LogOptions};

/// Changes how much is logged.
pub struct Logs(reload::Handle<EnvFilter, Registry>);

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logs").finish_non_exhaustive()
    }
}

impl LogOptions {
    pub(crate) fn check(&self) -> Result<(), String> {
        filter(&self.level).map(drop)
    }
}

impl Logs {
    /// Begins to log; once in a process.
    pub fn init(options: &LogOptions) -> Result<Self, String> {
        let (filter, handle) = reload::Layer::new(filter(&options.level)?);
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        let lines = match options.format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        let subscriber = tracing_subscriber::registry().with(filter).with(lines);
        // Somebody who logs already, as a test does, goes on.
        drop(subscriber.try_init());
        Ok(Self(handle))
    }

    /// Logs as much as the options say from now on.
    pub fn set(&self, options: &LogOptions) -> Result<(), String> {
        let filter = filter(&options.level)?;
        self.0.reload(filter).map_err(|error| error.to_string())
    }
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(level).map_err(|_| {
        format!("`level` is {level:?}; use error, warn, info, debug or trace, or a list as in info,couch=debug")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_checked() {
        for level in ["info", "INFO", "info,couch=debug", "off"] {
            assert!(filter(level).is_ok(), "{level}");
        }
        assert!(filter("info,couch=loud").unwrap_err().contains("`level`"));
    }
}
