//! What a process says when LMDB runs into damage that it cannot see: it trusts the pages of its
//! file, and one that was changed or is missing leads it to memory that is not there.
//!
//! While a thread reads or writes the tree, the signals that follow from this end the process with a
//! message and an exit code of their own. What happens elsewhere goes the way it went before.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

/// The exit code of a process whose store is damaged.
const EXIT_CODE: i32 = 3;
/// Reading beyond the file, reading beyond the map, a division by a size of zero, a failed assertion.
const SIGNALS: [i32; 4] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGABRT];

thread_local! {
    /// What this thread says if it is hit: an address and a length, or nothing.
    static MESSAGE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// What each signal did before.
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// For as long as it lives, its thread works in the tree.
#[derive(Debug)]
pub(super) struct InTree<'m> {
    outer: (usize, usize),
    message: PhantomData<&'m str>,
    /// It belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl<'m> InTree<'m> {
    pub(super) fn enter(message: &'m str) -> Self {
        let outer = MESSAGE.replace((message.as_ptr().addr(), message.len()));
        compiler_fence(Ordering::SeqCst);
        Self {
            outer,
            message: PhantomData,
            not_send: PhantomData,
        }
    }
}

impl Drop for InTree<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        MESSAGE.set(self.outer);
    }
}

/// Takes the signals over, once in a process.
#[expect(unsafe_code, reason = "signals have no safe form")]
pub(super) fn handle() {
    BEFORE.get_or_init(|| {
        SIGNALS.map(|signal| {
            // SAFETY: an action is plain data, for which zeros are valid; with no new action, the
            // call only writes what the old one is.
            unsafe {
                let mut before: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &raw mut before);
                before
            }
        })
    });
    for signal in SIGNALS {
        // SAFETY: as above, and the handler calls nothing but what a handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = (hit as extern "C" fn(i32)) as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

#[expect(unsafe_code, reason = "signals have no safe form")]
extern "C" fn hit(signal: i32) {
    let (message, length) = MESSAGE.get();
    if message != 0 {
        // SAFETY: the message lives for as long as this thread is in the tree, and both calls may be
        // made in a handler.
        unsafe {
            libc::write(2, message as *const libc::c_void, length);
            libc::_exit(EXIT_CODE);
        }
    }
    // The instruction is run again, and meets what was there before.
    let number = SIGNALS.iter().position(|other| *other == signal);
    if let (Some(before), Some(number)) = (BEFORE.get(), number) {
        // SAFETY: the action was read from the kernel.
        unsafe { libc::sigaction(signal, &raw const before[number], std::ptr::null_mut()) };
    }
}
