//! The client library and its network thread. A process has at most one of each.
//!
//! The first `fdb:` store that is opened loads the library and starts the thread, for the rest of the
//! process: the client can be started only once. The thread must be stopped before the process exits,
//! because the library's exit handlers free what the thread uses.
//!
//! [`shutdown`] stops it. Programs that do not call it, such as test harnesses, are covered by a
//! thread-local of the main thread, whose destructor runs before all exit handlers. An exit handler
//! would run too late: handlers run in reverse order, and the library registers its own while it runs.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::sync::{Arc, Mutex, PoisonError};

use foundationdb::FdbResult;
use foundationdb::api::{FdbApiBuilder, NetworkAutoStop};
#[cfg(fdb_loaded)]
use foundationdb_sys::LoadError;

use crate::{Error, Result};

static CLIENT: Mutex<Client> = Mutex::new(Client::Idle);

enum Client {
    Idle,
    Running(NetworkAutoStop),
    /// The client cannot be started a second time.
    Failed(Error),
    Stopped,
}

/// Loads the library and starts the network thread, once.
pub(super) fn start() -> Result<()> {
    let mut client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
    match &*client {
        Client::Running(_) => return Ok(()),
        Client::Failed(error) => return Err(error.clone()),
        Client::Stopped => {
            return Err(Error::Misuse("an fdb: store was opened after the shutdown"));
        }
        Client::Idle => {}
    }
    // Loading can be retried, unlike starting. Upstream's bindings link the library.
    #[cfg(fdb_loaded)]
    foundationdb_sys::load().map_err(unusable)?;
    match boot() {
        Ok(network) => {
            *client = Client::Running(network);
            Ok(())
        }
        Err(error) => {
            let error = Error::Open {
                message: "FoundationDB's client library could not be started".to_owned(),
                source: Some(Arc::new(error)),
            };
            *client = Client::Failed(error.clone());
            Err(error)
        }
    }
}

/// Stops FoundationDB's network thread, if it was started. `main` calls it after dropping all stores;
/// no `fdb:` store can be opened afterwards.
pub fn shutdown() {
    let mut client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Client::Running(network) = std::mem::replace(&mut *client, Client::Stopped) {
        drop(network);
    }
}

#[expect(
    unsafe_code,
    reason = "the caller must stop the library's thread before exit"
)]
fn boot() -> FdbResult<NetworkAutoStop> {
    let network = FdbApiBuilder::default().build()?;
    // SAFETY: the thread is stopped before the process exits, at the latest by `AtExit`.
    unsafe { network.boot() }
}

struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        shutdown();
    }
}

thread_local! {
    static AT_EXIT: AtExit = const { AtExit };
}

/// Initializes the main thread's `AT_EXIT` before `main`.
extern "C" fn install() {
    AT_EXIT.with(|_| ());
}

#[expect(
    unsafe_code,
    reason = "test harnesses run no code of ours on the main thread"
)]
#[used]
// SAFETY: the section holds functions of this type, each called once on the main thread. This one
// initializes a thread-local, which needs nothing that the start of `main` sets up.
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_os = "macos"), unsafe(link_section = ".init_array"))]
static INSTALL: extern "C" fn() = install;

#[cfg(fdb_loaded)]
fn unusable(error: LoadError) -> Error {
    let why = match &error {
        LoadError::Open(_) => "cannot be opened".to_owned(),
        LoadError::Foreign(_) => "is something else".to_owned(),
        LoadError::TooOld { api_version_max } => {
            format!("is too old: its API version is {api_version_max}")
        }
    };
    Error::Open {
        message: format!(
            "an fdb: store needs FoundationDB's client library, 7.3 or newer, and \
             {DLL_PREFIX}fdb_c{DLL_SUFFIX} {why}: install the package foundationdb-clients in the \
             cluster's version"
        ),
        source: Some(Arc::new(error)),
    }
}
