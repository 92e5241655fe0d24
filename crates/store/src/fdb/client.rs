//! The client library and its network thread, of which a process has at most one.
//!
//! The library is opened and the thread started by the first `fdb:` store that is opened. Both last
//! until the process ends: the client can be started only once. By then the thread must have been
//! stopped, because the library takes itself down at exit, and a thread that runs on crashes.
//!
//! [`shutdown`] stops it. So does the end of the main thread, for a process that forgets, and for
//! test harnesses, which have no place to call it from. An exit handler would come too late: the
//! library registers some of its own as it runs, and the youngest is called first. What goes before
//! them all is the destructor of a thread's local variable.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::sync::{Arc, Mutex, PoisonError};

use foundationdb::FdbResult;
use foundationdb::api::{FdbApiBuilder, NetworkAutoStop};
use foundationdb_sys::LoadError;

use crate::{Error, Result};

static CLIENT: Mutex<Client> = Mutex::new(Client::Idle);

enum Client {
    Idle,
    Running(NetworkAutoStop),
    /// The library's one chance was used up.
    Failed(Error),
    Stopped,
}

/// Opens the library and starts the network thread, unless that is done.
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
    // A library that cannot be opened may be there the next time.
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

/// Stops what the first `fdb:` store of this process has started; a `main` calls it last, when every
/// store is dropped. Does nothing when there was none. No `fdb:` store can be opened afterwards.
pub fn shutdown() {
    let mut client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Client::Running(network) = std::mem::replace(&mut *client, Client::Stopped) {
        drop(network);
    }
}

#[expect(
    unsafe_code,
    reason = "the library leaves it to us to stop its thread in time"
)]
fn boot() -> FdbResult<NetworkAutoStop> {
    let network = FdbApiBuilder::default().build()?;
    // SAFETY: the thread is stopped before the process exits, by `AtExit` if nobody else does it.
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

/// Makes the main thread's `AT_EXIT`, before `main`.
extern "C" fn install() {
    AT_EXIT.with(|_| ());
}

#[expect(unsafe_code, reason = "nobody else runs on the main thread of a test")]
#[used]
// SAFETY: what is in this section are such functions, which are called once, on the main thread. This
// one makes a thread local, for which the standard library needs nothing that `main` would set up.
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_os = "macos"), unsafe(link_section = ".init_array"))]
static INSTALL: extern "C" fn() = install;

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
