//! Child processes of this program, and CPU time and memory of processes, if the system reports them.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// The unit of CPU time in Linux, on every machine that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;
/// A server with less CPU usage is idle.
const QUIET: f64 = 0.1;
const QUIET_WINDOW: Duration = Duration::from_millis(500);
const SETTLE_WINDOWS_MAX: u32 = 120;

/// Runs this program with other arguments. Its parameters are sent on standard input, so that process lists do not show
/// them.
pub(crate) fn myself(args: &[&str]) -> anyhow::Result<Child> {
    Command::new(std::env::current_exe().context("cannot find this program")?)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start another process")
}

pub(crate) async fn first_line(child: &mut Child) -> anyhow::Result<String> {
    let stdout = child
        .stdout
        .take()
        .context("cannot read from a new process")?;
    let line = BufReader::new(stdout).lines().next_line().await?;
    line.context("the other process printed nothing")
}

/// An in-memory server in its own process, and its URL.
pub(crate) async fn start_peer() -> anyhow::Result<(Child, String)> {
    let mut child = myself(&["bench", "replicate-peer"])?;
    let url = first_line(&mut child).await?;
    Ok((child, url))
}

/// A process and its descendants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processes {
    root: u32,
}

impl Processes {
    pub(crate) fn of(root: u32) -> Self {
        Self { root }
    }

    /// The processes that listen on a port of this machine.
    pub(crate) fn listening(port: u16) -> Option<Self> {
        let mut sockets = HashSet::new();
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let table = fs::read_to_string(table).unwrap_or_default();
            sockets.extend(table.lines().filter_map(|line| listener(line, port)));
        }
        let owns = |pid: &u32| {
            let links = fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten();
            links
                .flatten()
                .filter_map(|link| fs::read_link(link.path()).ok())
                .any(|target| sockets.contains(target.to_string_lossy().as_ref()))
        };
        pids().find(owns).map(Self::of)
    }

    /// CPU seconds so far.
    pub(crate) fn cpu_s(self) -> Option<f64> {
        let all: Vec<Stat> = pids().filter_map(Stat::read).collect();
        let mut family = HashSet::from([self.root]);
        loop {
            let before = family.len();
            let children = all.iter().filter(|stat| family.contains(&stat.parent));
            let children: Vec<u32> = children.map(|stat| stat.pid).collect();
            family.extend(children);
            if family.len() == before {
                break;
            }
        }
        let ticks = all
            .iter()
            .filter(|stat| family.contains(&stat.pid))
            .map(|stat| stat.ticks);
        all.iter()
            .any(|stat| stat.pid == self.root)
            .then(|| seconds(ticks.sum()))
    }

    /// The current memory of the process, in megabytes.
    pub(crate) fn rss_mb(self) -> Option<f64> {
        memory_mb(&self.root.to_string(), "VmRSS:")
    }

    /// The part of it that no file backs. The rest, such as an LMDB store, the system reclaims when needed.
    pub(crate) fn private_mb(self) -> Option<f64> {
        memory_mb(&self.root.to_string(), "RssAnon:")
    }

    /// Waits until they are idle, or for a minute.
    pub(crate) async fn settle(self) {
        for _ in 0..SETTLE_WINDOWS_MAX {
            let before = self.cpu_s();
            tokio::time::sleep(QUIET_WINDOW).await;
            match (before, self.cpu_s()) {
                (Some(before), Some(after))
                    if after - before > QUIET * QUIET_WINDOW.as_secs_f64() => {}
                _ => return,
            }
        }
    }
}

/// CPU seconds of this process so far.
pub(crate) fn own_cpu_s() -> Option<f64> {
    Stat::read(std::process::id()).map(|stat| seconds(stat.ticks))
}

/// The peak memory of this process, in megabytes.
pub(crate) fn own_peak_mb() -> Option<f64> {
    memory_mb("self", "VmHWM:")
}

/// The current memory of this process.
pub(crate) fn own_rss_mb() -> Option<f64> {
    memory_mb("self", "VmRSS:")
}

fn memory_mb(process: &str, name: &str) -> Option<f64> {
    let status = fs::read_to_string(Path::new("/proc").join(process).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    parent: u32,
    /// Its own time, and that of exited children.
    ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(
            &fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?,
        )
    }

    fn parse(line: &str) -> Option<Self> {
        // The name is in parentheses and may contain anything, parentheses too.
        let (head, rest) = line.rsplit_once(')')?;
        let pid = head.split_once(' ')?.0.parse().ok()?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
        Some(Self {
            pid,
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)? + number(13)? + number(14)?,
        })
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The socket of a line of `/proc/net/tcp` that listens on a port, in the form of `/proc/PID/fd` links.
fn listener(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (address, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let (_, listens_on) = address.rsplit_once(':')?;
    let listens = *state == "0A" && u16::from_str_radix(listens_on, 16) == Ok(port);
    listens.then(|| format!("socket:[{inode}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_system() {
        let line = "4242 (a) b) S 17 4242 4242 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 9 0 77 1 2";
        let expected = Stat {
            pid: 4242,
            parent: 17,
            ticks: 124,
        };
        assert_eq!(Stat::parse(line), Some(expected));
        assert_eq!(Stat::parse("nonsense"), None);
        let line = "   0: 0100007F:1760 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 9876 1 0";
        assert_eq!(listener(line, 5984), Some("socket:[9876]".to_owned()));
        assert_eq!(listener(line, 5985), None);
        assert_eq!(listener(&line.replace(" 0A ", " 01 "), 5984), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_finds_itself() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let found = Processes::listening(port).unwrap();
        assert_eq!(found.root, std::process::id());
        assert!(found.cpu_s().unwrap() >= 0.0);
        assert!(own_cpu_s().is_some());
        assert!(own_peak_mb().unwrap() > 1.0);
    }
}
