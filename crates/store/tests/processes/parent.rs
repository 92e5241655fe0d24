//! Starting children and talking to them.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;

const ROLE: &str = "STORE_TEST_ROLE";
const URL: &str = "STORE_TEST_URL";
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long killing one process may hold up another: a fraction of it on a machine of its own.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(4);

/// What this process is, if it is a child.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The store that a child opens.
pub(crate) fn child_url() -> String {
    std::env::var(URL).unwrap()
}

/// How often processes are killed; more for those who have the time.
pub(crate) fn kill_cycles() -> u32 {
    let cycles = std::env::var("TEST_KILL_CYCLES").ok();
    cycles.map_or(20, |cycles| cycles.parse().unwrap())
}

pub(crate) fn url(directory: &TempDir) -> String {
    format!("lmdb:{}", directory.path().display())
}

/// A child, killed when it is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    input: ChildStdin,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    acknowledged: Vec<String>,
}

impl Child {
    /// A child that does what it is told.
    pub(crate) fn puppet(directory: &TempDir) -> Self {
        Self::start("puppet", directory, "")
    }

    pub(crate) fn puppet_with_file_size_max(directory: &TempDir, bytes: u64) -> Self {
        // Writing more is an error then, and not a signal.
        let limit = format!("trap '' XFSZ; ulimit -f {};", bytes / 512);
        Self::start("puppet", directory, &limit)
    }

    /// A child that moves money.
    pub(crate) fn transfers(directory: &TempDir) -> Self {
        Self::start("transfers", directory, "")
    }

    fn start(role: &str, directory: &TempDir, before: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut process = Command::new("sh")
            .arg("-c")
            .arg(format!("{before} exec \"$0\" --exact child --nocapture"))
            .arg(program)
            .env(ROLE, role)
            .env(URL, url(directory))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = sync_channel(1 << 20);
        let reader = std::thread::spawn(move || {
            // The test harness talks too; a child's own lines begin with a dash. A line that ends
            // with the process was not said.
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8(line).unwrap_or_default();
                if let Some(said) = line.find("- ").map(|at| line[at + 2..].to_owned())
                    && send.send(said).is_err()
                {
                    return;
                }
            }
        });
        let mut child = Self {
            process,
            input,
            lines,
            reader: Some(reader),
            acknowledged: Vec::new(),
        };
        if role == "puppet" {
            assert_eq!(child.line(), "ready");
        }
        child
    }

    /// Tells a puppet what to do, and hears what became of it.
    pub(crate) fn ask(&mut self, order: &str) -> String {
        writeln!(self.input, "{order}").unwrap();
        self.line()
    }

    pub(crate) fn line(&mut self) -> String {
        self.lines
            .recv_timeout(PATIENCE)
            .expect("the child says something")
    }

    /// Waits until so many more transfers are acknowledged.
    pub(crate) fn wait_for_lines(&mut self, count: usize) {
        for _ in 0..count {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.heard(&line),
                Err(RecvTimeoutError::Timeout) => panic!("the child has stalled"),
                Err(RecvTimeoutError::Disconnected) => panic!("the child has ended by itself"),
            }
        }
        while let Ok(line) = self.lines.try_recv() {
            self.heard(&line);
        }
    }

    /// What the child has acknowledged until it was killed.
    pub(crate) fn take_acknowledged(&mut self) -> Vec<String> {
        self.reader.take().unwrap().join().unwrap();
        while let Ok(line) = self.lines.try_recv() {
            self.heard(&line);
        }
        std::mem::take(&mut self.acknowledged)
    }

    fn heard(&mut self, line: &str) {
        match line.strip_prefix("ack ") {
            Some(id) => self.acknowledged.push(id.to_owned()),
            None => panic!("the child says: {line}"),
        }
    }

    pub(crate) fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.process.id()).unwrap();
        let process = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(process, signal).unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
