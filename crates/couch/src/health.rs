//! Which servers give no response.
//!
//! When a request fails, its server is asked for `/`, without credentials, until it responds: only when
//! it does not respond several times in a row is it unreachable. A slow or failing database alone does not make it so.
//! A server that nothing uses any more is forgotten, so that a mistyped host name does not stay unreachable.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::error::Failure;
use crate::exchange::exchange;
use crate::net::{Profile, Trouble};
use crate::payload::{Payload, Progress};
use crate::{USER_AGENT, metrics, types::millis};

/// A server is unreachable after so many probes in a row without a response.
const PROBES: u32 = 2;
/// Longest time that a server is probed without being used.
const NEEDED_MAX: Duration = Duration::from_hours(1);
/// Unused servers are looked for once this many are known.
const TIDY_MIN: usize = 100;

/// When doubtful servers are probed.
#[derive(Debug, Clone, Copy)]
pub struct ProbeTimes {
    /// Before each probe.
    pub pause: Duration,
    /// For the response to one.
    pub timeout: Duration,
    /// How long they are probed after their last use.
    pub linger: Duration,
}

impl Default for ProbeTimes {
    /// Together with the 30 seconds that requests wait for a response, an outage is known within a minute.
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(3),
            timeout: Duration::from_secs(5),
            linger: Duration::from_mins(2),
        }
    }
}

/// The servers of a node.
#[derive(Default)]
pub(crate) struct Servers(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_origin: HashMap<Arc<str>, Arc<Watched>>,
    /// How many were left when unused ones were last looked for.
    tidied: usize,
}

impl Servers {
    pub(crate) fn get(&self, origin: &str) -> Arc<Watched> {
        let mut known = self.known();
        if let Some(found) = known.by_origin.get(origin) {
            return Arc::clone(found);
        }
        if known.by_origin.len() >= TIDY_MIN.max(2 * known.tidied) {
            known.by_origin.retain(|_, watched| {
                let is_used = watched.is_used(1);
                if !is_used {
                    metrics::endpoint_up(&watched.server, f64::NAN);
                }
                is_used
            });
            known.tidied = known.by_origin.len();
        }
        let server: Arc<str> = origin.into();
        let watched = Arc::new(Watched {
            server: Arc::clone(&server),
            down: watch::Sender::new(None),
            doubted: AtomicBool::new(false),
            needed_until: Mutex::new(Instant::now()),
        });
        metrics::endpoint_up(origin, 1.0);
        known.by_origin.insert(server, Arc::clone(&watched));
        watched
    }

    /// Forgets a server that only its caller uses; false if there are others.
    fn forget(&self, watched: &Arc<Watched>) -> bool {
        let mut known = self.known();
        // In this order: a user says how long the server is needed before it leaves.
        if watched.is_used(2) || *watched.needed_until() >= Instant::now() {
            return false;
        }
        known.by_origin.remove(&watched.server);
        // Whether it responds is not known.
        metrics::endpoint_up(&watched.server, f64::NAN);
        true
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Watched {
    server: Arc<str>,
    down: watch::Sender<Option<Arc<str>>>,
    doubted: AtomicBool,
    /// Until when it is probed even if nothing uses it.
    needed_until: Mutex<Instant>,
}

/// Tells whether a server responds. A server with one is in use: it is probed until it responds.
#[derive(Clone, Debug)]
pub struct Reachability {
    server: Arc<str>,
    down: watch::Receiver<Option<Arc<str>>>,
}

impl Reachability {
    /// Scheme, host and port.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Why the server is unreachable, if it is.
    pub fn outage(&self) -> Option<Arc<str>> {
        self.down.borrow().clone()
    }

    /// Waits until that has changed.
    pub async fn changed(&mut self) {
        if self.down.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Watched {
    pub(crate) fn reachability(&self) -> Reachability {
        Reachability {
            server: Arc::clone(&self.server),
            down: self.down.subscribe(),
        }
    }

    /// Records a failed request; true if the caller must [`observe`](Self::observe) the server from now on.
    pub(crate) fn doubt(&self, times: ProbeTimes) -> bool {
        self.need_for(times.linger);
        !self.doubted.swap(true, Ordering::Relaxed)
    }

    /// Keeps the server probed for this long, even if nothing uses it.
    pub(crate) fn need_for(&self, pause: Duration) {
        let until = Instant::now() + pause.min(NEEDED_MAX);
        let mut needed_until = self.needed_until();
        *needed_until = until.max(*needed_until);
    }

    fn needed_until(&self) -> MutexGuard<'_, Instant> {
        self.needed_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything uses it besides this many references. If not, nothing can begin to while [`Servers`] is locked.
    fn is_used(self: &Arc<Self>, references: usize) -> bool {
        self.down.receiver_count() > 0 || Arc::strong_count(self) > references
    }

    /// Probes the server until it responds, or has not been used for a while.
    pub(crate) async fn observe(
        self: Arc<Self>,
        servers: Arc<Servers>,
        profile: Arc<Profile>,
        times: ProbeTimes,
    ) {
        let mut missed = 0;
        loop {
            sleep(times.pause).await;
            match probe(&profile, &self.server, times.timeout).await {
                Ok(()) => break,
                Err(reason) => {
                    missed += 1;
                    if missed >= PROBES {
                        self.set_down(reason);
                    }
                }
            }
            if self.down.receiver_count() > 0 {
                self.need_for(times.linger);
            } else if servers.forget(&self) {
                return;
            }
        }
        if self.down.send_replace(None).is_some() {
            tracing::info!(server = &*self.server, "server responds again");
        }
        metrics::endpoint_up(&self.server, 1.0);
        self.doubted.store(false, Ordering::Relaxed);
    }

    fn set_down(&self, reason: String) {
        if self.down.borrow().is_some() {
            return;
        }
        tracing::warn!(server = &*self.server, reason, "server is unreachable");
        metrics::endpoint_up(&self.server, 0.0);
        self.down.send_replace(Some(reason.into()));
    }
}

/// Whether a failed request says that its server may give no response.
pub(crate) fn is_doubtful(failure: &Failure) -> bool {
    match failure {
        Failure::Status(answer) => matches!(answer.status, 502..=504),
        Failure::Limited(_) | Failure::Expired(_) | Failure::BadAnswer(_) => false,
        _ => true,
    }
}

async fn probe(profile: &Profile, server: &str, limit: Duration) -> Result<(), String> {
    let now = Instant::now();
    let progress = Progress::new(now);
    let request = http::Request::builder()
        .uri(format!("{server}/"))
        .header(http::header::USER_AGENT, USER_AGENT)
        .body(Payload::Empty.body(Arc::clone(&progress)));
    // What cannot be sent says nothing about the server.
    let Ok(mut request) = request else {
        return Ok(());
    };
    if profile.authorize_proxy(&mut request).is_err() {
        return Ok(());
    }
    let deadline = Some((now + limit, millis(limit)));
    match exchange(profile, request, &progress, limit, deadline).await {
        Ok((answer, _)) => match answer.status().as_u16() {
            status @ 502..=504 => Err(format!("it answers {status}")),
            _ => Ok(()),
        },
        Err(Trouble::Fatal(_)) => Ok(()),
        Err(Trouble::Retry(failure) | Trouble::Final(failure)) => Err(failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its last user may say so after it was asked for, and leave.
    #[test]
    fn a_server_that_is_needed_is_not_forgotten() {
        let servers = Servers::default();
        let watched = servers.get("http://a");
        watched.need_for(Duration::from_mins(1));
        assert!(!servers.forget(&watched));
        *watched.needed_until() = Instant::now() - Duration::from_millis(1);
        assert!(servers.forget(&watched));
        assert!(!Arc::ptr_eq(&servers.get("http://a"), &watched));
    }
}
