//! The parent of a program: ends it, and all that it started, when the worker dies, hangs, or says so.

use std::ffi::OsString;
use std::io::Read as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, kill_current_process_group};

/// A guard's command line is `guard --silence-ms MILLISECONDS -- PROGRAM ARGUMENTS…`.
const SUBCOMMAND: &str = "guard";
const OPTION: &str = "--silence-ms";
const SEPARATOR: &str = "--";

/// The exit code if the program cannot be started, as of shells.
const NOT_STARTED: u8 = 127;

/// After a silence, the program has this part of its length to end: a hung worker may lose its job a quarter of it later.
/// After the worker's death it has 3/4, because the job then stays claimed for longer.
const GRACE_AFTER_SILENCE: u32 = 8;
/// After that, the program's descendants have this long, but at most half of the program's time.
const SETTLE_MAX: Duration = Duration::from_millis(200);

enum Event {
    Alive,
    /// The worker has closed its end.
    Gone,
    /// `None` if it was killed.
    Ended(Option<u8>),
}

/// A command that starts a guard, to which the program is to be added.
pub(crate) fn command(silence: Duration) -> Command {
    // The running executable, also after an upgrade has replaced its file.
    let mut command = Command::new("/proc/self/exe");
    command.args([SUBCOMMAND, OPTION]);
    command.args([&silence.as_millis().to_string(), SEPARATOR]);
    command
}

/// Runs the program of a guard, if this process was started as one, and returns its exit code.
pub fn guard() -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [subcommand, option, silence, separator, program @ ..] = &words[..] else {
        return None;
    };
    if subcommand != SUBCOMMAND || option != OPTION || separator != SEPARATOR {
        return None;
    }
    let silence = silence.to_str()?.parse().ok()?;
    Some(run(Duration::from_millis(silence), program))
}

/// Runs a program until it ends; kills it, and this process, after a silence.
fn run(silence: Duration, program: &[OsString]) -> ExitCode {
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
            // Processes that a killed program has started go on.
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
