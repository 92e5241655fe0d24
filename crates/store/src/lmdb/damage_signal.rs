//! Reports a damaged tree when LMDB crashes on it: LMDB trusts the pages of its file, so a changed or
//! missing one leads it to invalid memory.
//!
//! While a thread reads or writes the tree, the resulting signals end the process with a message and
//! an exit code of their own. Elsewhere they have their usual effect.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

/// The exit code of a process whose store is damaged.
const EXIT_CODE: i32 = 3;
/// Reads beyond the file or the map, a division by a size of zero, and failed assertions.
const SIGNALS: [i32; 4] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGABRT];

thread_local! {
    /// The message of this thread, as address and length. A cell of plain numbers can be read in a
    /// signal handler: it allocates nothing and takes no lock.
    static MESSAGE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The actions of the signals before ours.
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// Marks that its thread is reading or writing the tree.
#[derive(Debug)]
pub(super) struct TreeAccess<'m> {
    outer: (usize, usize),
    message: PhantomData<&'m str>,
    /// It must be dropped by the same thread.
    not_send: PhantomData<*const ()>,
}

impl<'m> TreeAccess<'m> {
    pub(super) fn enter(message: &'m str) -> Self {
        let outer = MESSAGE.replace((message.as_ptr().addr(), message.len()));
        // Keeps the compiler from moving reads of the tree before the message is set.
        compiler_fence(Ordering::SeqCst);
        Self {
            outer,
            message: PhantomData,
            not_send: PhantomData,
        }
    }
}

impl Drop for TreeAccess<'_> {
    fn drop(&mut self) {
        // Keeps the compiler from moving reads of the tree after this.
        compiler_fence(Ordering::SeqCst);
        MESSAGE.set(self.outer);
    }
}

/// Installs the handler. Another library may have replaced it since the last time.
#[expect(unsafe_code, reason = "signals have no safe form")]
pub(super) fn install_handlers() {
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
        // SAFETY: as above, and the handler is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = (on_signal as extern "C" fn(i32)) as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

#[expect(unsafe_code, reason = "signals have no safe form")]
extern "C" fn on_signal(signal: i32) {
    let (message, length) = MESSAGE.get();
    if message != 0 {
        // SAFETY: the message outlives the `TreeAccess` of this thread, and both calls are
        // async-signal-safe.
        unsafe {
            libc::write(2, message as *const libc::c_void, length);
            libc::_exit(EXIT_CODE);
        }
    }
    // Restores the earlier action. The instruction is then executed again and raises the same signal.
    let number = SIGNALS.iter().position(|other| *other == signal);
    if let (Some(before), Some(number)) = (BEFORE.get(), number) {
        // SAFETY: the action was read from the kernel.
        unsafe { libc::sigaction(signal, &raw const before[number], std::ptr::null_mut()) };
    }
}
