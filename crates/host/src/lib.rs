//! What a process needs from its host: Unix signals, periodic upkeep, and the host's name.
//!
//! It knows nothing of what the process does. Start reading here: this is all.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

/// SIGTERM and SIGINT: the first stops a program gracefully, a second one at once. Until this exists, they kill the
/// process.
#[derive(Debug)]
pub struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal, and returns its name. Cancel-safe.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// SIGHUP, which makes a program reload its configuration. Until this exists, it kills the process.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    pub fn new() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) {
        // There is always another one, as long as the process lives.
        self.0.recv().await;
    }
}

/// Runs `work` again and again, each time after this pause. It must be short, such as the upkeep of metrics.
pub async fn every(pause: Duration, mut work: impl FnMut()) {
    loop {
        sleep(pause).await;
        work();
    }
}

/// The host's name, or `localhost` if it has none.
pub fn name() -> String {
    let system = rustix::system::uname();
    match system.nodename().to_string_lossy() {
        name if name.is_empty() => "localhost".to_owned(),
        name => name.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn a_second_signal_is_told_from_the_first() {
        let (mut stops, mut hangups) = (Stops::new().unwrap(), Hangups::new().unwrap());
        for (signal, name) in [
            (Signal::TERM, "SIGTERM"),
            (Signal::INT, "SIGINT"),
            (Signal::TERM, "SIGTERM"),
        ] {
            kill_process(getpid(), signal).unwrap();
            assert_eq!(stops.next().await, name);
        }
        kill_process(getpid(), Signal::HUP).unwrap();
        hangups.next().await;
    }

    #[test]
    fn a_host_has_a_name() {
        assert!(!name().is_empty());
    }
}
