//! Starting children, listening to them, and killing them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

const ROLE: &str = "JOBS_TEST_ROLE";
const URL: &str = "JOBS_TEST_URL";
/// Far longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

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

/// A child, killed when it is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    said: Vec<String>,
}

impl Child {
    pub(crate) fn start(role: &str, url: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(ROLE, role)
            .env(URL, url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = sync_channel(1 << 20);
        let reader = std::thread::spawn(move || {
            // The test harness talks too; a child's own lines begin with a dash. A line that ends
            // with the process and not with a line feed was not said.
            let mut output = output;
            let mut line = Vec::new();
            while output
                .read_until(b'\n', &mut line)
                .is_ok_and(|read| read > 0)
            {
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
            process,
            lines,
            reader: Some(reader),
            said: Vec::new(),
        }
    }

    /// Waits until it has said so many more lines.
    pub(crate) fn wait_for_lines(&mut self, count: usize) {
        for _ in 0..count {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("the child has stalled"),
                Err(RecvTimeoutError::Disconnected) => panic!("the child has ended by itself"),
            }
        }
        self.said.extend(self.lines.try_iter());
    }

    /// What it has said, when it is dead.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.reader.take().unwrap().join().unwrap();
        self.said.extend(self.lines.try_iter());
        std::mem::take(&mut self.said)
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
