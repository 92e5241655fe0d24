//! Logs on standard error, one line per event. The level can change at run time.

use std::fmt;
use std::io::IsTerminal as _;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};
use url::Url;

use crate::config::{LogFormat, LogOptions};
use crate::traces::Traces;

/// Changes the log level.
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
    traces: Option<Traces>,
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logs").finish_non_exhaustive()
    }
}

impl LogOptions {
    pub(crate) fn check(&self) -> Result<(), String> {
        filter(&self.level)?;
        self.otlp_url().map(drop)
    }

    fn otlp_url(&self) -> Result<Option<Url>, String> {
        let Some(text) = &self.otlp_url else {
            return Ok(None);
        };
        match Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(Some(url)),
            _ => Err(format!(
                "`otlp_url` is {text:?}; give an address like http://127.0.0.1:4318"
            )),
        }
    }
}

impl Logs {
    /// Starts logging, and span export if configured; once per process.
    pub fn init(options: &LogOptions, node: &str) -> Result<Self, String> {
        let traces = (options.otlp_url()?)
            .map(|url| Traces::start(&url, node))
            .transpose()
            .map_err(|error| format!("`otlp_url`: {error:#}"))?;
        let (filter, handle) = reload::Layer::new(filter(&options.level)?);
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        let lines = match options.format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        let subscriber = tracing_subscriber::registry()
            .with(filter)
            .with(lines)
            .with(traces.as_ref().map(Traces::layer));
        // Keep an existing subscriber, such as a test's.
        drop(subscriber.try_init());
        Ok(Self {
            filter: handle,
            traces,
        })
    }

    /// Sends the remaining spans, with a time limit.
    pub async fn finish(self) {
        if let Some(traces) = self.traces {
            // A collector that does not respond must not block this thread.
            drop(tokio::task::spawn_blocking(move || traces.stop()).await);
        }
    }

    /// Applies the log level of the options.
    pub fn set(&self, options: &LogOptions) -> Result<(), String> {
        let filter = filter(&options.level)?;
        self.filter
            .reload(filter)
            .map_err(|error| error.to_string())
    }
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    // A bare word that is no level would be the name of a component, and silence all others.
    let is_word = |part: &&str| !part.contains(['=', '[', '{']);
    let mut words = level.split(',').map(str::trim).filter(is_word);
    let known = words.all(|word| !word.is_empty() && word.parse::<LevelFilter>().is_ok());
    let filter = EnvFilter::try_new(level).ok().filter(|_| known);
    filter.ok_or_else(|| {
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
        for level in ["info,couch=loud", "inof", "couch", "info,inof", "", "7"] {
            assert!(filter(level).unwrap_err().contains("`level`"), "{level}");
        }
    }
}
