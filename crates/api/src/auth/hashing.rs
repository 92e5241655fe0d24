//! Threads for password hashing: only a few, so that logins leave CPU for other requests, with a bounded queue.
//! Configured administrators have a separate queue, so a flood of other logins does not block theirs.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::AuthError;

/// Hashes of a lane that run or wait. At about 200 ms per hash, the last one waits for seconds.
pub const QUEUE_MAX: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Admins,
    Others,
}

#[derive(Debug, Clone)]
pub struct Hashing {
    threads: Arc<Semaphore>,
    /// Limits how many users wait for a thread, so that an administrator waits behind only a few.
    others: Arc<Semaphore>,
    admins_queue: Arc<Semaphore>,
    others_queue: Arc<Semaphore>,
}

#[derive(Debug)]
pub struct Ticket {
    lane: Lane,
    queued: OwnedSemaphorePermit,
}

impl Default for Hashing {
    /// Half of the CPUs, at least one.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (processors / 2).max(1);
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            threads: semaphore(threads),
            others: semaphore(threads),
            admins_queue: semaphore(QUEUE_MAX),
            others_queue: semaphore(QUEUE_MAX),
        }
    }
}

impl Hashing {
    /// Reserves a slot in the queue, or fails if it is full.
    pub fn enter(&self, lane: Lane) -> Result<Ticket, AuthError> {
        let queue = match lane {
            Lane::Admins => &self.admins_queue,
            Lane::Others => &self.others_queue,
        };
        let queued = Arc::clone(queue).try_acquire_owned();
        let queued = queued.map_err(|_| AuthError::Busy)?;
        Ok(Ticket { lane, queued })
    }

    /// Runs `work` on a blocking thread; `None` if it panics. It keeps running if the caller goes away.
    pub async fn run<T: Send + 'static>(
        &self,
        ticket: Ticket,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let other = match ticket.lane {
            Lane::Admins => None,
            Lane::Others => Some(Arc::clone(&self.others).acquire_owned().await.ok()?),
        };
        let thread = Arc::clone(&self.threads).acquire_owned().await.ok()?;
        let held = (ticket.queued, other, thread);
        let running = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(held);
            done
        });
        running.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::{Hashing, Lane, QUEUE_MAX};
    use crate::auth::AuthError;

    #[tokio::test]
    async fn a_full_queue_refuses_and_administrators_pass_it() {
        let hashing = Hashing::default();
        let threads = hashing.threads.available_permits();
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(std::sync::Mutex::new(released));
        let mut waiting = Vec::new();
        for _ in 0..QUEUE_MAX {
            let (ticket, hashing) = (hashing.enter(Lane::Others).unwrap(), hashing.clone());
            let released = std::sync::Arc::clone(&released);
            let work = move || released.lock().unwrap().recv().is_ok();
            waiting.push(tokio::spawn(async move { hashing.run(ticket, work).await }));
        }
        while hashing.threads.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(hashing.enter(Lane::Others).unwrap_err(), AuthError::Busy);
        // When a running hash ends, the administrator's is next.
        let ticket = hashing.enter(Lane::Admins).unwrap();
        let admin = tokio::spawn({
            let hashing = hashing.clone();
            async move { hashing.run(ticket, || true).await }
        });
        for _ in 0..threads {
            release.send(()).unwrap();
        }
        assert_eq!(admin.await.unwrap(), Some(true));
        for _ in threads..QUEUE_MAX {
            release.send(()).unwrap();
        }
        for hashed in waiting {
            assert_eq!(hashed.await.unwrap(), Some(true));
        }
        assert_eq!(hashing.threads.available_permits(), threads);
    }
}
