//! The parent of git: ends it, and all that it started, when the node dies, hangs, or says so.
//!
//! A push must have ended before another node may push to the same place. A node that loses a job kills the push at
//! once. One that is killed or stopped cannot, and git would go on. So git runs below a guard, in a process group of its
//! own. The node writes to the guard's standard input as long as it lives; when that ends, or there is silence, the
//! guard ends the group: with SIGTERM, because a git that is killed leaves locks of refs behind that no later push gets
//! past, and soon with SIGKILL.

use std::ffi::OsString;
use std::io::Read as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, kill_current_process_group};

/// The exit code if the program cannot be started, as of shells.
const NOT_STARTED: u8 = 127;

/// How long git may take to end: this part of the silence after one, since a node that hangs may lose its job a quarter
/// of the silence later; and 3/4 of it when the node has died, whose job is safe for longer.
const GRACE_AFTER_SILENCE: u32 = 8;
/// Then, how long what git has started may take, or half of git's time.
const SETTLE_MAX: Duration = Duration::from_millis(200);

enum Event {
    Alive,
    /// The node has closed its end.
    Gone,
    /// `None` if it was killed.
    Ended(Option<u8>),
}

/// Runs a program until it ends; kills it, and this process, after a silence.
pub(crate) fn run(silence: Duration, program: &[OsString]) -> ExitCode {
    let [name, arguments @ ..] = program else {
        return ExitCode::from(NOT_STARTED);
    };
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null());
    let child = match ignore_termination().and_then(|()| command.spawn()) {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot run {}: {error}", name.display());
            return ExitCode::from(NOT_STARTED);
        }
    };
    let (send, events) = channel();
    let sender = send.clone();
    thread::spawn(move || wait(child, &sender));
    thread::spawn(move || listen(&send));
    let grace = loop {
        match events.recv_timeout(silence) {
            Ok(Event::Ended(Some(code))) => return ExitCode::from(code),
            Ok(Event::Alive) => {}
            Ok(Event::Gone) => break silence / 4 * 3,
            // Processes that a killed git has started go on.
            Ok(Event::Ended(None)) | Err(_) => break silence / GRACE_AFTER_SILENCE,
        }
    };
    // Both include this process, which ignores the first.
    let _ = kill_current_process_group(Signal::TERM);
    while let Ok(Event::Alive | Event::Gone) = events.recv_timeout(grace) {}
    thread::park_timeout(SETTLE_MAX.min(grace / 2));
    let _ = kill_current_process_group(Signal::KILL);
    ExitCode::from(NOT_STARTED)
}

/// Lets this process survive the signal that it sends to its group. Dropping the runtime does not change that.
fn ignore_termination() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _inside = runtime.enter();
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map(drop)
}

fn wait(mut child: Child, events: &Sender<Event>) {
    let code = child.wait().ok().and_then(|status| status.code());
    let code = code.and_then(|code| u8::try_from(code).ok());
    // The main thread may have returned.
    let _ = events.send(Event::Ended(code));
}

fn listen(events: &Sender<Event>) {
    let mut bytes = [0; 64];
    while let Ok(1..) = std::io::stdin().read(&mut bytes) {
        let _ = events.send(Event::Alive);
    }
    let _ = events.send(Event::Gone);
}
