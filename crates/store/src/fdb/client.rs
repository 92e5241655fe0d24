//! The client library and its network thread, of which a process has at most one.
//!
//! The library is opened and the thread started by the first `fdb:` store that is opened. Both last
//! until the process ends: the client can be started only once. [`shutdown`] stops the thread; an
//! exit handler does the same for a process that ends without it, because the library tears its
//! globals down at exit and must not run on while it does.

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
    // SAFETY: the thread is stopped before the process exits, by `at_exit` if nobody else does it.
    let network = unsafe { network.boot()? };
    // SAFETY: `at_exit` is a plain function that lives as long as the program. Should there be no
    // room for the handler, a process that forgets `shutdown` may crash at its end; nothing is lost.
    let _ = unsafe { libc::atexit(at_exit) };
    Ok(network)
}

/// Runs before the library's own exit handlers, since it was registered after them.
extern "C" fn at_exit() {
    shutdown();
}

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
