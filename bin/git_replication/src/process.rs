//! Runs git below a [guard](crate::guard).

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// How long the outputs may stay open after git has ended: a program in the background may hold them.
const OUTPUT_AFTER: Duration = Duration::from_secs(1);
/// How long a push may take to end when it is dropped.
const GRACE_MAX: Duration = Duration::from_secs(1);
/// Never asks for a password, and notices that a connection is gone.
const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=30";
const LOOK: Duration = Duration::from_millis(5);
/// Messages are kept up to this size, from the end.
const MESSAGES_BYTES: usize = 16 * 1024;

/// What git would take for the repository to work on, for example in a hook.
const OF_A_REPOSITORY: [&str; 12] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_PUSH_OPTION_COUNT",
    "GIT_QUARANTINE_PATH",
    "GIT_WORK_TREE",
];

/// A command that takes no repository from the environment.
pub(crate) fn without_repository(program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    for variable in OF_A_REPOSITORY {
        command.env_remove(variable);
    }
    command
}

/// Starts git.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    /// How long a node may hang before the guard ends the push.
    pub(crate) silence: Duration,
}

/// How git ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) success: bool,
    /// Killed, because it had written nothing for too long.
    pub(crate) silent: bool,
    /// The lines of standard output that were `wanted`.
    pub(crate) lines: Vec<String>,
    /// The end of standard error, without progress.
    pub(crate) messages: String,
}

/// A process group. Dropping it ends all processes in it, in a time that is short against that of a lock.
#[derive(Debug)]
struct Group {
    child: Child,
    id: Option<Pid>,
    grace: Duration,
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        // A git that is killed leaves locks of refs behind. The guard stays until the rest has ended.
        let _ = kill_process_group(id, Signal::TERM);
        let until = Instant::now() + self.grace;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::park_timeout(LOOK);
        }
        // Its processes may have ended.
        let _ = kill_process_group(id, Signal::KILL);
    }
}

impl Git {
    /// Runs git, and kills it after `idle` without output. If this future is dropped, git and all that it started
    /// have ended when that returns.
    pub(crate) async fn run(
        &self,
        repository: Option<&Path>,
        arguments: &[&str],
        wanted: impl FnMut(&str) -> bool,
        idle: Option<Duration>,
    ) -> io::Result<Ended> {
        let mut group = self.spawn(repository, arguments)?;
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
            () = beat(stdin, self.silence / 4) => None,
        };
        drop(outputs);
        // A guard that was killed could not kill git.
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

    fn spawn(&self, repository: Option<&Path>, arguments: &[&str]) -> io::Result<Group> {
        // The running program, also after an upgrade has replaced its file.
        let mut command = Command::from(without_repository("/proc/self/exe"));
        command.args(["guard", "--silence-ms"]);
        command.arg(self.silence.as_millis().to_string());
        // The directory is that of a known repository.
        command.args(["--", "git", "-c", "safe.bareRepository=all"]);
        command.args(arguments);
        if let Some(repository) = repository {
            // Not `GIT_DIR`: with that, git does not check who owns the repository, whose configuration may run commands.
            command.current_dir(repository);
            command.envs((repository.parent()).map(|above| ("GIT_CEILING_DIRECTORIES", above)));
        }
        if std::env::var_os("GIT_SSH_COMMAND").is_none() && std::env::var_os("GIT_SSH").is_none() {
            command.env("GIT_SSH_COMMAND", SSH);
        }
        // Helpers such as `ext` run any command.
        command.env("GIT_ALLOW_PROTOCOL", "file:git:http:https:ssh");
        command.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).kill_on_drop(true);
        let child = command.process_group(0).spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let grace = GRACE_MAX.min(self.silence / 2);
        Ok(Group { child, id, grace })
    }
}

/// Tells the guard that this node lives.
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

async fn read_lines(
    from: impl AsyncRead + Unpin,
    lines: &mut Vec<String>,
    mut wanted: impl FnMut(&str) -> bool,
    touched: &Notify,
) {
    let mut from = BufReader::new(from).split(b'\n');
    while let Ok(Some(line)) = from.next_segment().await {
        touched.notify_one();
        let line = String::from_utf8_lossy(&line);
        if wanted(&line) {
            lines.push(line.into_owned());
        }
    }
}

/// Keeps the last messages. Lines of progress end with a carriage return alone, and are overwritten.
async fn read_messages(mut from: impl AsyncRead + Unpin, kept: &mut Vec<u8>, touched: &Notify) {
    let (mut bytes, mut is_progress) = ([0; 4_096], false);
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        touched.notify_one();
        for byte in &bytes[..count] {
            if is_progress && !b"\r\n".contains(byte) {
                let end = kept.iter().rposition(|byte| *byte == b'\n');
                kept.truncate(end.map_or(0, |at| at + 1));
            }
            is_progress = *byte == b'\r';
            if !is_progress {
                kept.push(*byte);
            }
        }
        let surplus = kept.len().saturating_sub(MESSAGES_BYTES);
        kept.drain(..surplus);
    }
}
