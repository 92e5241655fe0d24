//! What tests see of the log's files, and do to them.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Something that happened to the log's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    Written {
        segment: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// What was written into the segment among the first `events` is on disk.
    Synced {
        segment: u64,
        events: usize,
    },
    /// A file of zeros, itself on disk, was given a name.
    Filled {
        segment: u64,
        bytes: u64,
    },
    Renamed {
        from: u64,
        to: u64,
    },
    Removed {
        segment: u64,
    },
    /// The names among the first `events` are on disk.
    DirectorySynced {
        events: usize,
    },
    /// What a test has to say: everything up to here was acknowledged, or is in the tree.
    Note(Note),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    Acknowledged(u64),
    Tree(usize),
}

#[derive(Debug, Default)]
pub(super) struct Trace {
    state: Mutex<State>,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct State {
    recording: bool,
    events: Vec<Event>,
    write_error: Option<i32>,
    sync_error: Option<i32>,
}

#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

/// Lets no sync through until it is dropped.
#[derive(Debug)]
pub(super) struct Held(Arc<Gate>);

impl Trace {
    pub(super) fn record(&self) {
        self.state().recording = true;
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.state().events.clone()
    }

    pub(super) fn push(&self, event: Event) {
        let mut state = self.state();
        if state.recording {
            state.events.push(event);
        }
    }

    /// Lets every write fail with this code, until it is called with `None`.
    pub(super) fn fail_writes(&self, code: Option<i32>) {
        self.state().write_error = code;
    }

    /// Lets the next sync fail with this code.
    pub(super) fn fail_sync(&self, code: i32) {
        self.state().sync_error = Some(code);
    }

    pub(super) fn hold_syncs(&self) -> Held {
        *closed(&self.gate) = true;
        Held(Arc::clone(&self.gate))
    }

    pub(super) fn before_write(&self) -> io::Result<()> {
        match self.state().write_error {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Ok(()),
        }
    }

    /// How many events there were when the sync began.
    pub(super) fn before_sync(&self) -> io::Result<usize> {
        let waited = (self.gate.opened).wait_while(closed(&self.gate), |closed| *closed);
        drop(waited);
        let mut state = self.state();
        match state.sync_error.take() {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Ok(state.events.len()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        *closed(&self.0) = false;
        self.0.opened.notify_all();
    }
}

fn closed(gate: &Gate) -> MutexGuard<'_, bool> {
    gate.closed.lock().unwrap_or_else(PoisonError::into_inner)
}
