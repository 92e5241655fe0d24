//! Runs a program below a [guard](crate::guard).

use std::ffi::OsStr;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::guard;
use crate::output::{read_lines, read_messages};

/// How long the outputs may stay open after the program has ended: another in the background may hold them.
const OUTPUT_AFTER: Duration = Duration::from_secs(1);
/// How long a program may take to end when its run is dropped.
const GRACE_MAX: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

/// A program to run.
#[derive(Debug)]
pub struct Program {
    command: Command,
    silence: Duration,
}

/// How a program ended.
#[derive(Debug, Default)]
pub struct Ended {
    pub success: bool,
    /// Killed, because it had written nothing for too long.
    pub silent: bool,
    /// The lines of standard output that were `wanted`.
    pub lines: Vec<String>,
    /// The end of standard error, without progress.
    pub messages: String,
}

/// A process group. Dropping it ends all its processes, and blocks the thread for at most `grace`.
#[derive(Debug)]
struct Group {
    child: Child,
    id: Option<Pid>,
    grace: Duration,
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        // A program that is killed leaves its locks behind. The guard stays until the rest has ended.
        let _ = kill_process_group(id, Signal::TERM);
        let until = Instant::now() + self.grace;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::park_timeout(LOOK);
        }
        // Its processes may have ended.
        let _ = kill_process_group(id, Signal::KILL);
    }
}

impl Program {
    /// A program whose guard ends it once this process has been silent for this long. It has ended at most 5/4 of that time
    /// after this process hung or was killed.
    pub fn new(name: impl AsRef<OsStr>, silence: Duration) -> Self {
        let mut command = guard::command(silence);
        command.arg(name);
        Self { command, silence }
    }

    /// What starts the program: add its arguments, variables and directory. Its input is empty.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Runs the program, and kills it after `idle` without output. Dropping the future ends the program and all that it
    /// started, and blocks the thread for up to a second.
    pub async fn run(
        self,
        wanted: impl FnMut(&str) -> bool,
        idle: Option<Duration>,
    ) -> io::Result<Ended> {
        let silence = self.silence;
        let mut group = self.spawn()?;
        let child = &mut group.child;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("a pipe is missing"));
        };
        let touched = Notify::new();
        let (mut lines, mut messages) = (Vec::new(), Vec::new());
        let mut outputs = Box::pin(async {
            tokio::join!(
                read_lines(stdout, &mut lines, wanted, &touched),
                read_messages(stderr, &mut messages, &touched)
            );
        });
        let exit = async {
            tokio::select! {
                () = &mut outputs => child.wait().await,
                status = child.wait() => {
                    let _ = timeout(OUTPUT_AFTER, &mut outputs).await;
                    status
                }
            }
        };
        let ended = tokio::select! {
            ended = exit => Some(ended?),
            () = idle_for(idle, &touched) => None,
            () = beat(stdin, silence / 4) => None,
        };
        drop(outputs);
        // A guard that was killed could not kill the program.
        if ended.is_some_and(|status| status.code().is_some()) {
            group.id = None;
        }
        Ok(Ended {
            success: ended.is_some_and(|status| status.success()),
            silent: ended.is_none(),
            lines,
            messages: String::from_utf8_lossy(&messages).trim().to_owned(),
        })
    }

    fn spawn(self) -> io::Result<Group> {
        let mut command = tokio::process::Command::from(self.command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).kill_on_drop(true);
        let child = command.process_group(0).spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let grace = GRACE_MAX.min(self.silence / 2);
        Ok(Group { child, id, grace })
    }
}

/// Tells the guard that this process lives.
async fn beat(mut stdin: ChildStdin, every: Duration) {
    while stdin.write_all(b".").await.is_ok() {
        sleep(every).await;
    }
    // The guard has ended; `wait` tells how.
    std::future::pending::<()>().await;
}

async fn idle_for(idle: Option<Duration>, touched: &Notify) {
    let Some(idle) = idle else {
        return std::future::pending().await;
    };
    while timeout(idle, touched.notified()).await.is_ok() {}
}
