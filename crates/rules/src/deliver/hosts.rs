//! Which endpoint may be called now: limits per endpoint and node, and a circuit breaker for endpoints that fail.
//!
//! A claimed job waits here only briefly. If its endpoint is busy for longer, or fails, the job goes back to the queue
//! and is due when its turn is likely to come, so that it takes no place from jobs of other endpoints.
//!
//! After some failures in a row an endpoint is not called for a while, and then by one job: if that fails, too, the
//! pause is doubled; any response to it other than an overload or a server error ends it. Calls that began before the
//! pause do not end it, but may prolong it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jobs::Entropy;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::seats::{Seats, Share, Taken};

/// Failures in a row after which an endpoint is not called for a while.
const FAILURES_MAX: u32 = 5;
/// The first pause, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_mins(5);
/// The longest pause that an overloaded endpoint may ask for.
const ASKED_MAX: Duration = Duration::from_hours(1);
/// How long a job may wait for a seat.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How many jobs may wait for an endpoint that has not answered yet, and how fast it is thought to be.
const WAITING_UNKNOWN_MAX: usize = 64;
const TIME_UNKNOWN: Duration = Duration::from_millis(10);
/// Jobs return within this time even if many are before them.
const RETURN_MAX: Duration = Duration::from_mins(1);
/// Without more endpoints than this, none is forgotten.
const HOSTS_KEPT: usize = 1_000;

pub(super) struct Hosts {
    per_host: usize,
    all: Arc<Seats>,
    by_name: Mutex<HashMap<String, Arc<Host>>>,
    entropy: Entropy,
}

struct Host {
    seats: Arc<Semaphore>,
    share: Arc<Share>,
    state: Mutex<State>,
}

struct State {
    /// In a row.
    failures: u32,
    pause: Option<Pause>,
    /// The time that a call takes, a moving average.
    time: Option<Duration>,
    /// When a seat was free last.
    moved: Instant,
    waiting: usize,
    /// When the last of the jobs that went back is due.
    slot: Instant,
}

struct Pause {
    until: Instant,
    length: Duration,
    probed: bool,
}

pub(super) enum Admission {
    /// Call it.
    Seat(Seat),
    /// Put the job back for this long.
    Later(Duration, String),
}

/// The right to make one call.
pub(super) struct Seat {
    host: Arc<Host>,
    since: Instant,
    is_probe: bool,
    _permits: (OwnedSemaphorePermit, Taken),
}

/// What a call shows about its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Well,
    Failing,
    /// Nothing: the call was not made.
    Unknown,
    /// It asks for a pause.
    Overloaded(Duration),
}

impl Hosts {
    pub(super) fn new(max: usize, per_host: usize, entropy: Entropy) -> Self {
        Self {
            per_host,
            all: Arc::new(Seats::new(max)),
            by_name: Mutex::default(),
            entropy,
        }
    }

    /// Calls in progress.
    pub(super) fn in_flight(&self, max: usize) -> usize {
        max.saturating_sub(self.all.free())
    }

    /// Waits for a seat at an endpoint, but not for long.
    pub(super) async fn admit(&self, endpoint: &str) -> Admission {
        let host = self.host(endpoint);
        let is_probe = match host.state().enter(self, host.is_full()) {
            Ok(is_probe) => is_probe,
            Err((wait, why)) => return Admission::Later(wait, why),
        };
        let mut place = Place {
            host: &host,
            is_probe,
        };
        let seats = Arc::clone(&host.seats).acquire_owned();
        let Ok(Ok(seat)) = timeout(WAIT_MAX, seats).await else {
            let (wait, why) = host.state().busy(self);
            return Admission::Later(wait, why);
        };
        if !is_probe && let Some(later) = host.state().paused(self) {
            return Admission::Later(later.0, later.1);
        }
        let one_of_all = self.all.take(&host.share).await;
        let since = Instant::now();
        place.is_probe = false;
        drop(place);
        Admission::Seat(Seat {
            host,
            since,
            is_probe,
            _permits: (seat, one_of_all),
        })
    }

    fn host(&self, endpoint: &str) -> Arc<Host> {
        let mut hosts = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.get(endpoint) {
            return Arc::clone(host);
        }
        if hosts.len() >= HOSTS_KEPT {
            hosts.retain(|_, host| Arc::strong_count(host) > 1 || host.state().failures > 0);
        }
        let host = Arc::new(Host {
            seats: Arc::new(Semaphore::new(self.per_host)),
            share: Arc::default(),
            state: Mutex::new(State::new(Instant::now())),
        });
        hosts.insert(endpoint.to_owned(), Arc::clone(&host));
        host
    }
}

impl Host {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self) -> bool {
        self.seats.available_permits() == 0
    }
}

/// A place in the line for a seat.
struct Place<'a> {
    host: &'a Host,
    /// Gives up the probe if it never gets a seat.
    is_probe: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.host.state();
        state.waiting -= 1;
        if self.is_probe
            && let Some(pause) = &mut state.pause
        {
            pause.probed = false;
        }
    }
}

type Later = (Duration, String);

impl State {
    fn new(now: Instant) -> Self {
        Self {
            failures: 0,
            pause: None,
            time: None,
            moved: now,
            waiting: 0,
            slot: now,
        }
    }

    /// Enters the line for a seat, as the probe if true.
    fn enter(&mut self, hosts: &Hosts, is_full: bool) -> Result<bool, Later> {
        let now = Instant::now();
        let is_probe = match &self.pause {
            Some(pause) if now >= pause.until && !pause.probed => true,
            Some(_) => return Err(self.paused(hosts).unwrap_or_default()),
            None => false,
        };
        if !is_full {
            self.moved = now;
        }
        let stuck = is_full && now - self.moved >= WAIT_MAX;
        let expected = |time: Duration| {
            time * u32::try_from(self.waiting / hosts.per_host).unwrap_or(u32::MAX)
        };
        let crowded = match self.time {
            Some(time) => expected(time) >= WAIT_MAX,
            None => self.waiting >= WAITING_UNKNOWN_MAX,
        };
        if stuck || crowded {
            return Err(self.busy(hosts));
        }
        if let Some(pause) = &mut self.pause {
            pause.probed = true;
        }
        self.waiting += 1;
        Ok(is_probe)
    }

    /// If the endpoint is not to be called: until when, and some time longer, because not all can be the first.
    fn paused(&self, hosts: &Hosts) -> Option<Later> {
        let pause = self.pause.as_ref()?;
        let left = pause.until.saturating_duration_since(Instant::now());
        let why = format!("its endpoint failed {} times in a row", self.failures);
        Some((left + hosts.entropy.up_to(pause.length), why))
    }

    /// When it is a job's turn that goes back because the endpoint has too much to do.
    fn busy(&mut self, hosts: &Hosts) -> Later {
        let now = Instant::now();
        let time = self.time.unwrap_or(TIME_UNKNOWN).max(now - self.moved);
        let spacing = time / u32::try_from(hosts.per_host).unwrap_or(u32::MAX);
        self.slot = self.slot.max(now) + spacing;
        let mut wait = self.slot - now;
        if wait > RETURN_MAX {
            self.slot = now + RETURN_MAX;
            wait = hosts.entropy.up_to(RETURN_MAX);
        }
        (wait, "its endpoint is busy".to_owned())
    }

    fn ended(&mut self, took: Duration, is_probe: bool, health: Health) {
        let now = Instant::now();
        self.moved = now;
        self.time = Some(self.time.map_or(took, |time| (time * 7 + took) / 8));
        // Calls from before the pause say nothing new, unless they ask for a longer one.
        let is_old = self.pause.is_some() && !is_probe;
        if health == Health::Well {
            if !is_old {
                (self.failures, self.pause) = (0, None);
            }
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let asked = match health {
            Health::Overloaded(asked) => asked.min(ASKED_MAX),
            Health::Well | Health::Failing | Health::Unknown => Duration::ZERO,
        };
        let length = match &mut self.pause {
            Some(pause) if is_old => {
                pause.until = pause.until.max(now + asked);
                return;
            }
            Some(pause) => (pause.length * 2).min(PAUSE_MAX),
            None if self.failures >= FAILURES_MAX || !asked.is_zero() => PAUSE_MIN,
            None => return,
        };
        self.pause = Some(Pause {
            until: now + length.max(asked),
            length,
            probed: false,
        });
    }
}

impl Seat {
    /// The call has ended.
    pub(super) fn leave(mut self, health: Health) {
        if health == Health::Unknown {
            return;
        }
        let is_probe = std::mem::take(&mut self.is_probe);
        self.host
            .state()
            .ended(self.since.elapsed(), is_probe, health);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.is_probe
            && let Some(pause) = &mut self.host.state().pause
        {
            // The call was given up or not made, so another job has to find out.
            pause.probed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    fn hosts() -> Hosts {
        Hosts::new(4, 2, Entropy::seeded(1))
    }

    async fn seat(hosts: &Hosts, endpoint: &str) -> Seat {
        match hosts.admit(endpoint).await {
            Admission::Seat(seat) => seat,
            Admission::Later(wait, why) => panic!("{why}, {wait:?}"),
        }
    }

    async fn later(hosts: &Hosts, endpoint: &str) -> (Duration, String) {
        match hosts.admit(endpoint).await {
            Admission::Seat(_) => panic!("it got a seat"),
            Admission::Later(wait, why) => (wait, why),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_endpoint_sends_jobs_back_and_leaves_others_alone() {
        let hosts = hosts();
        let held = (seat(&hosts, "slow").await, seat(&hosts, "slow").await);
        let (first, why) = later(&hosts, "slow").await;
        assert_eq!(why, "its endpoint is busy");
        let (second, _) = later(&hosts, "slow").await;
        assert!(
            second > first,
            "jobs return one after the other: {first:?}, {second:?}"
        );
        let other = seat(&hosts, "fast").await;
        assert_eq!(hosts.in_flight(4), 3);
        other.leave(Health::Well);
        drop(held);
        assert_eq!(hosts.in_flight(4), 0);
        seat(&hosts, "slow").await.leave(Health::Well);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_endpoint_is_probed_by_one_job() {
        let hosts = hosts();
        for _ in 0..FAILURES_MAX {
            seat(&hosts, "bad").await.leave(Health::Failing);
        }
        let (wait, why) = later(&hosts, "bad").await;
        assert_eq!(why, "its endpoint failed 5 times in a row");
        assert!((PAUSE_MIN..=PAUSE_MIN * 2).contains(&wait), "{wait:?}");
        tokio::time::advance(PAUSE_MIN).await;
        let probe = seat(&hosts, "bad").await;
        later(&hosts, "bad").await;
        // The probe's node was stopped.
        drop(probe);
        let probe = seat(&hosts, "bad").await;
        probe.leave(Health::Failing);
        let (wait, _) = later(&hosts, "bad").await;
        assert!(wait >= PAUSE_MIN * 2, "{wait:?}");
        tokio::time::advance(PAUSE_MIN * 2).await;
        seat(&hosts, "bad").await.leave(Health::Well);
        let _both = (seat(&hosts, "bad").await, seat(&hosts, "bad").await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_overloaded_endpoint_is_left_alone_as_long_as_it_asks() {
        let hosts = hosts();
        let asked = Duration::from_secs(100);
        seat(&hosts, "full").await.leave(Health::Overloaded(asked));
        assert!(later(&hosts, "full").await.0 >= asked);
        let day = Duration::from_hours(24);
        seat(&hosts, "bold").await.leave(Health::Overloaded(day));
        assert!(later(&hosts, "bold").await.0 <= ASKED_MAX + PAUSE_MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_probe_ends_a_pause() {
        let hosts = hosts();
        let asked = Duration::from_mins(10);
        let earlier = (seat(&hosts, "full").await, seat(&hosts, "full").await);
        earlier.0.leave(Health::Overloaded(asked));
        earlier.1.leave(Health::Well);
        assert!(later(&hosts, "full").await.0 >= asked);
        tokio::time::advance(asked).await;
        // A call that was not made shows nothing, so the next one is the probe.
        seat(&hosts, "full").await.leave(Health::Unknown);
        let probe = seat(&hosts, "full").await;
        later(&hosts, "full").await;
        probe.leave(Health::Well);
        let _both = (seat(&hosts, "full").await, seat(&hosts, "full").await);
    }

    /// The last probe gave up before its seat was free.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_is_sent_back_is_no_probe() {
        let hosts = hosts();
        for _ in 0..FAILURES_MAX {
            seat(&hosts, "bad").await.leave(Health::Failing);
        }
        tokio::time::advance(PAUSE_MIN).await;
        let host = hosts.host("bad");
        let sent_back = host.state().enter(&hosts, true).unwrap_err();
        assert_eq!(sent_back.1, "its endpoint is busy");
        assert!(host.state().enter(&hosts, false).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_from_before_a_pause_may_ask_for_a_longer_one() {
        let hosts = hosts();
        let asked = Duration::from_mins(10);
        let earlier = (seat(&hosts, "full").await, seat(&hosts, "full").await);
        earlier
            .0
            .leave(Health::Overloaded(Duration::from_secs(100)));
        earlier.1.leave(Health::Overloaded(asked));
        assert!(later(&hosts, "full").await.0 >= asked);
    }

    /// There are as many slow endpoints as seats, and each always has a call waiting.
    #[tokio::test(start_paused = true)]
    async fn slow_endpoints_leave_others_their_turn() {
        let hosts = Arc::new(hosts());
        let mut calling = tokio::task::JoinSet::new();
        for (nth, slow) in (0..).zip(["a", "b", "c", "d"].repeat(3)) {
            let hosts = Arc::clone(&hosts);
            calling.spawn(async move {
                sleep(Duration::from_secs(2 * nth)).await;
                loop {
                    match hosts.admit(slow).await {
                        Admission::Seat(seat) => {
                            sleep(Duration::from_secs(8)).await;
                            seat.leave(Health::Well);
                        }
                        Admission::Later(wait, _) => sleep(wait).await,
                    }
                }
            });
        }
        let mut seats = 0;
        for _ in 0..15 {
            sleep(Duration::from_secs(4)).await;
            let admitted = timeout(Duration::from_secs(2), hosts.admit("fast")).await;
            if let Ok(Admission::Seat(seat)) = admitted {
                seat.leave(Health::Well);
                seats += 1;
            }
        }
        assert!(seats >= 5, "{seats}");
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_with_calls_leave_seats_for_others() {
        let hosts = Hosts::new(8, 8, Entropy::seeded(1));
        let mut held = Vec::new();
        for _ in 0..7 {
            held.push(seat(&hosts, "slow").await);
        }
        let short = Duration::from_millis(1);
        assert!(timeout(short, hosts.admit("slow")).await.is_err());
        seat(&hosts, "fast").await.leave(Health::Well);
        held.pop();
        held.push(seat(&hosts, "slow").await);
        seat(&hosts, "fast").await.leave(Health::Well);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fast_endpoint_may_have_a_long_line() {
        let hosts = Arc::new(hosts());
        seat(&hosts, "fast").await.leave(Health::Well);
        let held = (seat(&hosts, "fast").await, seat(&hosts, "fast").await);
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..500 {
            let hosts = Arc::clone(&hosts);
            waiting.spawn(async move { seat(&hosts, "fast").await.leave(Health::Well) });
        }
        tokio::task::yield_now().await;
        drop(held);
        while let Some(ended) = waiting.join_next().await {
            ended.unwrap();
        }
    }
}
