//! Child processes that tests start, talk to and kill.
//!
//! A child is the test binary again, told by environment variables to run the test named `child`, which does what
//! [`role`] says. Its own lines start with `- `, unlike those of the test harness.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

const ROLE: &str = "TEST_CHILD_ROLE";
const URL: &str = "TEST_CHILD_URL";
/// Much longer than a child needs to respond on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// The role of this process, if it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The store for a child to open.
pub fn child_url() -> String {
    std::env::var(URL).unwrap()
}

/// How often a test kills processes: `TEST_KILL_CYCLES`, or 20 times.
pub fn kill_cycles() -> u32 {
    let cycles = std::env::var("TEST_KILL_CYCLES").ok();
    cycles.map_or(20, |cycles| cycles.parse().unwrap())
}

/// A command that runs a child; `before` are shell commands to run first.
pub fn child_command(role: &str, url: &str, before: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{before} exec \"$0\" --exact child --nocapture"))
        .arg(std::env::current_exe().unwrap())
        .env(ROLE, role)
        .env(URL, url);
    command
}

/// A running child, killed when it is dropped.
pub struct Child {
    process: std::process::Child,
    input: ChildStdin,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    said: Vec<String>,
}

impl Child {
    pub fn start(role: &str, url: &str) -> Self {
        Self::run(child_command(role, url, ""))
    }

    /// Starts a child in which writing a file beyond a size fails.
    pub fn start_with_file_size_max(role: &str, url: &str, bytes: u64) -> Self {
        // Without the trap the write would raise a signal.
        let limit = format!("trap '' XFSZ; ulimit -f {};", bytes / 512);
        Self::run(child_command(role, url, &limit))
    }

    fn run(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = sync_channel(1 << 20);
        let reader = std::thread::spawn(move || {
            let mut line = Vec::new();
            while (output.read_until(b'\n', &mut line)).is_ok_and(|read| read > 0) {
                // A line cut off by the end of the process does not count.
                let whole = line.pop() == Some(b'\n');
                let text = String::from_utf8_lossy(&line).into_owned();
                line.clear();
                if let Some(at) = text.find("- ").filter(|_| whole)
                    && send.send(text[at + 2..].to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self {
            input: process.stdin.take().unwrap(),
            process,
            lines,
            reader: Some(reader),
            said: Vec::new(),
        }
    }

    /// Sends a line and returns the next one received.
    pub fn ask(&mut self, order: &str) -> String {
        writeln!(self.input, "{order}").unwrap();
        self.line()
    }

    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the child has stalled"),
            Err(RecvTimeoutError::Disconnected) => panic!("the child has exited"),
        }
    }

    /// Waits for this many more lines, which [`Self::take_lines`] returns.
    pub fn wait_for_lines(&mut self, count: usize) {
        for _ in 0..count {
            let line = self.line();
            self.said.push(line);
        }
        self.said.extend(self.lines.try_iter());
    }

    pub fn signal(&self, signal: Signal) {
        send_signal(self.process.id(), signal).unwrap();
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// All lines of a child that was killed, except those that [`Self::line`] returned.
    pub fn take_lines(&mut self) -> Vec<String> {
        self.reader.take().unwrap().join().unwrap();
        self.said.extend(self.lines.try_iter());
        std::mem::take(&mut self.said)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn send_signal(pid: u32, signal: Signal) -> std::io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(std::io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, signal)?)
}

/// Pauses a process and continues it later, without blocking the caller.
pub fn pause(pid: u32, pause: Duration) -> std::io::Result<()> {
    send_signal(pid, Signal::STOP)?;
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        // It may have exited.
        drop(send_signal(pid, Signal::CONT));
    });
    Ok(())
}
