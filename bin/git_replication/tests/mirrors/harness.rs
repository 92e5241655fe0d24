//! Repositories, targets and nodes in a directory of their own.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use store::Store;
use tempfile::TempDir;

/// Anything that takes longer hangs.
const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(50);
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_davenport-git");
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
/// Notes each push, and any that begins while another is in its hook. The holder of the lock is a process, so that the
/// lock of one that was killed is no overlap. A file `slow` in the target makes pushes take as long as it says.
const PRE_RECEIVE: &str = r#"#!/bin/sh
if ! ln -s $$ push.lock 2>/dev/null; then
    holder=$(readlink push.lock)
    state=$(cut -d' ' -f3 "/proc/$holder/stat" 2>/dev/null)
    case "$state" in '' | Z) ;; *) echo "$holder is pushing" >>overlaps ;; esac
    ln -sf $$ push.lock
fi
echo "$$" >>pushes
[ -e slow ] && sleep "$(cat slow)"
sleep 0.05
rm -f push.lock
exit 0
"#;

pub(crate) struct World {
    pub(crate) dir: TempDir,
    commits: AtomicUsize,
}

/// A node that is killed when it is dropped.
pub(crate) struct Node {
    child: Child,
    pub(crate) url: String,
}

impl World {
    /// A configuration, in which `$DIR` is the directory of the targets.
    pub(crate) fn new(config: &str) -> Self {
        let world = Self {
            dir: tempfile::tempdir().unwrap(),
            commits: AtomicUsize::new(0),
        };
        for name in ["repositories", "targets"] {
            fs::create_dir(world.path(name)).unwrap();
        }
        world.configure(config);
        // Otherwise, only a node would create it.
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(Store::open(&world.store())).unwrap();
        world
    }

    pub(crate) fn store(&self) -> String {
        format!("lmdb:{}", self.path("store").display())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn configure(&self, config: &str) {
        let targets = self.path("targets");
        let text = config.replace("$DIR", targets.to_str().unwrap());
        // Where targets are created.
        for part in config.split("$DIR/").skip(1) {
            let directory = part.split("${name}").next().unwrap();
            if directory
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '/')
            {
                fs::create_dir_all(targets.join(directory)).unwrap();
            }
        }
        fs::write(self.path("replication.config"), text).unwrap();
    }

    /// Makes the repository of a project.
    pub(crate) fn project(&self, name: &str) -> PathBuf {
        let path = self.path(&format!("repositories/{name}.git"));
        git(&[
            "init",
            "-q",
            "--bare",
            "--initial-branch=trunk",
            path.to_str().unwrap(),
        ]);
        path
    }

    pub(crate) fn repository(&self, name: &str) -> PathBuf {
        self.path(&format!("repositories/{name}.git"))
    }

    /// Makes a target's repository, which notes the pushes to it.
    pub(crate) fn target(&self, name: &str) -> PathBuf {
        let path = self.path(&format!("targets/{name}.git"));
        git(&["init", "-q", "--bare", path.to_str().unwrap()]);
        script(&path.join("hooks/pre-receive"), PRE_RECEIVE);
        path
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path(&format!("targets/{name}.git"))
    }

    /// Puts a new commit on a ref.
    pub(crate) fn commit(&self, project: &str, name: &str) -> String {
        self.commit_in(&self.repository(project), name)
    }

    pub(crate) fn commit_in(&self, repository: &Path, name: &str) -> String {
        let dir = format!("--git-dir={}", repository.display());
        let number = self.commits.fetch_add(1, Ordering::Relaxed).to_string();
        git(&[&dir, "hash-object", "-t", "tree", "-w", "/dev/null"]);
        let commit = git(&[&dir, "commit-tree", EMPTY_TREE, "-m", &number]);
        git(&[&dir, "update-ref", name, &commit]);
        commit
    }

    fn shared(&self) -> Vec<String> {
        let store = self.store();
        let config = self.path("replication.config").display().to_string();
        ["--store", &store, "--config", &config]
            .map(str::to_owned)
            .into()
    }

    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg(name)
            .args(self.shared())
            .env("DAVENPORT_LOG_LEVEL", "info");
        command
    }

    pub(crate) fn notify(&self, project: &str, refs: &[&str]) {
        let output = self
            .command("notify")
            .arg(project)
            .args(refs)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Output {
        let repositories = self.path("repositories");
        let mut command = self.command("start");
        command
            .arg("--repositories")
            .arg(repositories)
            .args(arguments)
            .output()
            .unwrap()
    }

    pub(crate) fn queue(&self) -> Vec<Value> {
        let store = self.store();
        let output = Command::new(PROGRAM)
            .args(["queue", "--all", "--json", "--store", &store])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let mut queue: Value = serde_json::from_slice(&output.stdout).unwrap();
        serde_json::from_value(queue["queue"].take()).unwrap()
    }

    /// The only row of the queue.
    pub(crate) fn row(&self) -> Value {
        let mut rows = self.queue();
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.remove(0)
    }

    /// Starts a node with a lock time-out of 3 s.
    pub(crate) fn node(&self, arguments: &[&str]) -> Node {
        self.node_with(arguments, &[])
    }

    pub(crate) fn node_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Node {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let mut child = (self
            .command("serve")
            .arg("--repositories")
            .arg(self.path("repositories")))
        .args(["--listen", "127.0.0.1:0"])
        .env("DAVENPORT_GIT_LOCK_TIMEOUT_SEC", "3")
        .args(arguments)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line
            .trim()
            .strip_prefix("davenport-git listens on ")
            .map(str::to_owned);
        let url = url.unwrap_or_else(|| panic!("the node did not start: {}", self.log()));
        Node { child, url }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits for a condition.
    pub(crate) fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        assert!(
            until(condition),
            "{what}\n{:#?}\n{}",
            self.queue(),
            self.log()
        );
    }

    pub(crate) fn until_equal(&self, project: &str, target: &str) {
        let (source, target) = (self.repository(project), self.at(target));
        self.until(&format!("{} has all refs", target.display()), || {
            refs(&source) == refs(&target)
        });
    }
}

impl Node {
    pub(crate) fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(id, signal).unwrap();
    }

    /// Whether the node ended well, after SIGTERM.
    pub(crate) fn stop(mut self) -> bool {
        self.signal(Signal::TERM);
        self.child.wait().unwrap().success()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn until(mut condition: impl FnMut() -> bool) -> bool {
    let looks = PATIENCE.as_millis() / LOOK.as_millis();
    (0..looks).any(|_| {
        let met = condition();
        if !met {
            pause(LOOK);
        }
        met
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "conditions in other processes are polled"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

#[expect(clippy::disallowed_methods, reason = "other processes take real time")]
pub(crate) fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
}

/// Runs git; returns what it printed.
pub(crate) fn git(arguments: &[&str]) -> String {
    let output = try_git(arguments);
    assert!(
        output.status.success(),
        "git {arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

pub(crate) fn try_git(arguments: &[&str]) -> Output {
    let (name, mail) = ("tester", "tester@localhost");
    (Command::new("git").args(arguments))
        .envs([("GIT_AUTHOR_NAME", name), ("GIT_AUTHOR_EMAIL", mail)])
        .envs([("GIT_COMMITTER_NAME", name), ("GIT_COMMITTER_EMAIL", mail)])
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// The refs of a repository; none if it does not exist.
pub(crate) fn refs(repository: &Path) -> BTreeMap<String, String> {
    let dir = format!("--git-dir={}", repository.display());
    let listed = try_git(&[&dir, "for-each-ref", "--format=%(refname) %(objectname)"]);
    let listed = text(&listed.stdout);
    let pairs = listed.lines().filter_map(|line| line.split_once(' '));
    pairs
        .map(|(name, commit)| (name.to_owned(), commit.to_owned()))
        .collect()
}

pub(crate) fn script(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Renamed, or another test that forks now could keep it open for writing.
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&new, path).unwrap();
}

/// Pushes that a target has had.
pub(crate) fn pushes(target: &Path) -> usize {
    fs::read_to_string(target.join("pushes"))
        .unwrap_or_default()
        .lines()
        .count()
}

/// Fails if pushes to a target overlapped, or if it is damaged.
pub(crate) fn check(target: &Path) {
    let overlaps = fs::read_to_string(target.join("overlaps")).unwrap_or_default();
    assert!(
        overlaps.is_empty(),
        "pushes to {} overlapped: {overlaps}",
        target.display()
    );
    let dir = format!("--git-dir={}", target.display());
    git(&[&dir, "fsck", "--full", "--strict"]);
}

/// Sends a request to a node; returns the status and the body.
pub(crate) fn request(
    url: &str,
    method: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Value) {
    let (status, body) = exchange(url, method, headers, body);
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

/// The same, with any body.
pub(crate) fn exchange(
    url: &str,
    method: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let (host, path) = url
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    let headers: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let headers = headers.concat();
    let length = body.len();
    write!(stream, "{method} /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, body.to_owned())
}
