//! End-to-end tests are in `tests/`; this library has what they share: programs of this workspace
//! as processes, and a client.
//!
//! Nothing here sleeps to let something happen: programs print when they are ready, and conditions are
//! polled.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{Client, Method, StatusCode};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;
use testkit::send_signal;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use testkit::{Signal, fdb_url, pause};

/// Anything that takes longer hangs.
pub const PATIENCE: Duration = Duration::from_mins(4);
/// The polling interval of conditions.
const LOOK: Duration = Duration::from_millis(50);
/// The administrator of every node.
pub const ADMIN: (&str, &str) = ("root", "s3cr3t-of-root");

/// The path of a program of this workspace: cargo puts all of them into one directory.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let directory = test.parent().and_then(Path::parent);
    let program = directory.context("find the target directory")?.join(name);
    if !program.exists() {
        bail!(
            "{} is not there: cargo build --workspace --bins",
            program.display()
        );
    }
    Ok(program)
}

#[derive(Debug)]
pub struct Node {
    child: Child,
    /// Where it answers, if it does.
    pub url: String,
    log: Arc<Mutex<String>>,
    logging: JoinHandle<()>,
    _output: Lines<BufReader<ChildStdout>>,
}

/// How to start a node on a store that several may share.
#[derive(Debug, Clone)]
pub struct Start<'a> {
    program: &'a str,
    args: Vec<String>,
    variables: Vec<(String, String)>,
    directory: Option<PathBuf>,
}

impl<'a> Start<'a> {
    /// A program with its arguments, without the environment of the tests.
    pub fn new(program: &'a str, args: &[&str]) -> Self {
        Self {
            program,
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            variables: Vec::new(),
            directory: None,
        }
    }

    /// A node on a store in this directory.
    pub fn node(program: &'a str, directory: &Path) -> Self {
        let store = format!("lmdb:{}", directory.join("data").display());
        let start = match program {
            "davenport" => Self::new(program, &["serve"]),
            program => Self::new(program, &[]),
        };
        let start = Self {
            directory: Some(directory.to_owned()),
            ..start
        };
        start.args(&["--store", &store]).args(&[
            "--listen",
            "127.0.0.1:0",
            "--set",
            "replicator.stats_update_interval_sec=1",
        ])
    }

    /// On this store instead, with its keys in the directory.
    #[must_use]
    pub fn on(self, store: &str, directory: &Path) -> Self {
        let keys = format!("keys.file={}", directory.join("keys").display());
        self.args(&["--store", store, "--set", &keys])
    }

    #[must_use]
    pub fn admin(self) -> Self {
        let (name, password) = ADMIN;
        self.args(&["--admin", &format!("{name}:{password}")])
    }

    /// With a name, as jobs show it.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.args(&["--set", &format!("node.name={name}")])
    }

    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(program(self.program)?);
        command
            .args(&self.args)
            .env_clear()
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        Ok(command)
    }

    /// Waits until it exits: exit code, standard output and standard error.
    pub async fn output(&self) -> anyhow::Result<(Option<i32>, String, String)> {
        let output = timeout(PATIENCE, self.command()?.output())
            .await
            .context("it does not end")??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        Ok((output.status.code(), out, error))
    }

    /// Its output after reading this standard input.
    pub async fn output_of(&self, line: &str) -> anyhow::Result<String> {
        let mut child = self.command()?.stdin(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().context("take its standard input")?;
        input.write_all(format!("{line}\n").as_bytes()).await?;
        drop(input);
        let output = timeout(PATIENCE, child.wait_with_output()).await;
        let output = output.context("it does not end")??;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts it, and waits until it is ready.
    pub async fn start(&self) -> anyhow::Result<Node> {
        let mut child = self.command()?.spawn()?;
        let log = Arc::new(Mutex::new(String::new()));
        let errors = child.stderr.take().context("take its standard error")?;
        let logging = tokio::spawn(collect(errors, Arc::clone(&log)));
        let output = child.stdout.take().context("take its standard output")?;
        let mut output = BufReader::new(output).lines();
        let mut url = String::new();
        let ready = async {
            while let Some(line) = output.next_line().await? {
                if let Some(given) = line.strip_prefix("davenport listens on ") {
                    given.clone_into(&mut url);
                }
                if line == "davenport is ready" {
                    return Ok(());
                }
            }
            bail!("it ended before it was ready")
        };
        let ready = timeout(PATIENCE, ready).await;
        let ready = ready.context("it does not get ready").flatten();
        if let Err(error) = ready {
            drop(child.kill().await);
            logging.await?;
            return Err(error.context(read(&log)));
        }
        Ok(Node {
            child,
            url,
            log,
            logging,
            _output: output,
        })
    }
}

async fn collect(from: impl AsyncRead + Unpin, into: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut text = into.lock().unwrap_or_else(PoisonError::into_inner);
        text.push_str(&line);
        text.push('\n');
    }
}

fn read(log: &Mutex<String>) -> String {
    log.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Node {
    /// What it has logged so far.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(send_signal(self.pid()?, signal)?)
    }

    pub fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("it has ended")
    }

    /// Waits until it exits; returns the status and its log.
    pub async fn ended(mut self) -> anyhow::Result<(ExitStatus, String)> {
        let status = timeout(PATIENCE, self.child.wait()).await;
        let status = status.with_context(|| format!("it does not end\n{}", self.log()))??;
        self.logging.await?;
        Ok((status, read(&self.log)))
    }

    /// Has it stop in order.
    pub async fn stop(self) -> anyhow::Result<(ExitStatus, String)> {
        self.signal(Signal::TERM)?;
        self.ended().await
    }

    /// Kills it.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// A client that is the administrator.
    pub fn root(&self) -> User {
        self.user(ADMIN.0, ADMIN.1)
    }

    pub fn user(&self, name: &str, password: &str) -> User {
        User {
            client: Client::new(),
            url: self.url.clone(),
            name: name.to_owned(),
            password: password.to_owned(),
        }
    }
}

/// Limits a process to the memory that it has.
pub fn take_memory(pid: u32) -> anyhow::Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let size = status
        .lines()
        .find_map(|line| line.strip_prefix("VmData:"))
        .and_then(|size| size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let bytes = size.context("find out what it has")? * 1024;
    let pid = Pid::from_raw(i32::try_from(pid)?).context("it has no process id")?;
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    prlimit(Some(pid), Resource::Data, limit)?;
    Ok(())
}

/// A client of a node.
#[derive(Debug, Clone)]
pub struct User {
    client: Client,
    url: String,
    name: String,
    password: String,
}

impl User {
    /// Sends a request; returns status and JSON of the response.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let request = self.client.request(method, format!("{}{path}", self.url));
        let mut request = request.basic_auth(&self.name, Some(&self.password));
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = timeout(PATIENCE, request.send()).await;
        let response = response.with_context(|| format!("no answer to {path}"))??;
        let status = response.status();
        let text = response.text().await?;
        Ok((
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        ))
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<(StatusCode, Value)> {
        self.send(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<(StatusCode, Value)> {
        self.send(Method::POST, path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> anyhow::Result<(StatusCode, Value)> {
        self.send(Method::PUT, path, Some(body)).await
    }

    /// Polls a path until the response satisfies a condition.
    pub async fn until(&self, path: &str, such: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let mut last = Value::Null;
        let asked = async {
            loop {
                // A node that is being restarted does not respond.
                if let Ok((_, answer)) = self.get(path).await {
                    if such(&answer) {
                        return answer;
                    }
                    last = answer;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let asked = timeout(PATIENCE, asked).await;
        asked.with_context(|| format!("{path} stays {last:#}"))
    }
}

/// Polls until a condition is satisfied.
pub async fn until(what: &str, such: impl Fn() -> bool) -> anyhow::Result<()> {
    let looked = async {
        while !such() {
            tokio::time::sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, looked)
        .await
        .with_context(|| what.to_owned())
}
