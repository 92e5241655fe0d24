//! What tests see of the disk, and do to it.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Something that happened to the log's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    Written {
        segment: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// What was written into the segment among the first `events` is on disk.
    Synced { segment: u64, events: usize },
}

#[derive(Debug, Default)]
pub(super) struct Trace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    recording: bool,
    events: Vec<Event>,
    write_error: Option<i32>,
    sync_error: Option<i32>,
}

impl Trace {
    pub(super) fn record(&self) {
        self.lock().recording = true;
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// Lets every write fail with this code, until it is called with `None`.
    pub(super) fn fail_writes(&self, code: Option<i32>) {
        self.lock().write_error = code;
    }

    /// Lets the next sync fail with this code.
    pub(super) fn fail_sync(&self, code: i32) {
        self.lock().sync_error = Some(code);
    }

    pub(super) fn before_write(&self) -> io::Result<()> {
        match self.lock().write_error {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Ok(()),
        }
    }

    pub(super) fn written(&self, segment: u64, offset: u64, bytes: &[u8]) {
        let mut state = self.lock();
        if state.recording {
            let bytes = bytes.to_vec();
            state.events.push(Event::Written {
                segment,
                offset,
                bytes,
            });
        }
    }

    /// How many events there were when the sync began.
    pub(super) fn before_sync(&self) -> io::Result<usize> {
        let mut state = self.lock();
        match state.sync_error.take() {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Ok(state.events.len()),
        }
    }

    pub(super) fn synced(&self, segment: u64, events: usize) {
        let mut state = self.lock();
        if state.recording {
            state.events.push(Event::Synced { segment, events });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
