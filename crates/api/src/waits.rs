//! Permits of requests that wait for changes or jobs. A caller who is not a server administrator gets at most half
//! of them, so that one user or token cannot keep all others from waiting.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::authenticator::Proven;

#[derive(Clone, Debug)]
pub(crate) struct Waits {
    all: Arc<Semaphore>,
    share_max: usize,
    shares: Arc<Mutex<Shares>>,
}

/// How many permits each caller has.
type Shares = HashMap<Caller, usize>;

/// A name, and whether it is that of an API token.
type Caller = (Option<String>, bool);

/// A permit for a request.
#[derive(Debug)]
pub(crate) struct Permit {
    _permit: OwnedSemaphorePermit,
    _share: Option<Share>,
}

/// Counts until it is dropped.
#[derive(Debug)]
struct Share {
    shares: Arc<Mutex<Shares>>,
    caller: Caller,
}

impl Waits {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(max)),
            share_max: max.div_ceil(2),
            shares: Arc::default(),
        }
    }

    /// A permit, unless all are taken or the caller has too many.
    pub(crate) fn acquire(&self, proven: &Proven) -> Option<Permit> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let share = if proven.identity.is_admin() {
            None
        } else {
            Some(self.share((proven.identity.name.clone(), proven.scope.is_some()))?)
        };
        Some(Permit {
            _permit: permit,
            _share: share,
        })
    }

    fn share(&self, caller: Caller) -> Option<Share> {
        let mut shares = lock(&self.shares);
        let taken = shares.entry(caller.clone()).or_default();
        if *taken >= self.share_max {
            return None;
        }
        *taken += 1;
        drop(shares);
        Some(Share {
            shares: Arc::clone(&self.shares),
            caller,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = lock(&self.shares);
        let caller = std::mem::take(&mut self.caller);
        if let Entry::Occupied(mut taken) = shares.entry(caller) {
            *taken.get_mut() -= 1;
            if *taken.get() == 0 {
                taken.remove();
            }
        }
    }
}

impl From<OwnedSemaphorePermit> for Permit {
    fn from(permit: OwnedSemaphorePermit) -> Self {
        Self {
            _permit: permit,
            _share: None,
        }
    }
}

fn lock(shares: &Mutex<Shares>) -> std::sync::MutexGuard<'_, Shares> {
    shares.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Waits, lock};
    use crate::auth::authenticator::{Method, Proven};
    use crate::auth::{ADMIN_ROLE, Identity};

    fn caller(name: &str, roles: &[&str]) -> Proven {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        let name = Some(name.to_owned());
        Proven::by(Method::Password, Identity { name, roles })
    }

    #[test]
    fn a_caller_gets_half() {
        let waits = Waits::new(5);
        let (anna, root) = (caller("anna", &[]), caller("root", &[ADMIN_ROLE]));
        let mut taken = vec![waits.acquire(&anna).unwrap()];
        taken.push(waits.acquire(&anna).unwrap());
        taken.push(waits.acquire(&anna).unwrap());
        assert!(waits.acquire(&anna).is_none());
        let bert = waits.acquire(&caller("bert", &[])).unwrap();
        let last = waits.acquire(&root).unwrap();
        assert!(waits.acquire(&root).is_none());
        drop(bert);
        assert!(waits.acquire(&anna).is_none());
        drop((taken, last));
        assert!(lock(&waits.shares).is_empty());
        let all: Vec<_> = (0..5).map(|_| waits.acquire(&root).unwrap()).collect();
        drop(all);
        assert!(Waits::new(1).acquire(&anna).is_some());
    }
}
