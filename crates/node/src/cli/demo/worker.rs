//! A worker in Python, with the client that users' programs have.

use std::process::Stdio;

use anyhow::Context;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

const CLIENT: [(&str, &str); 5] = [
    (
        "__init__.py",
        include_str!("../../../../../clients/python/src/davenport_jobs/__init__.py"),
    ),
    (
        "_client.py",
        include_str!("../../../../../clients/python/src/davenport_jobs/_client.py"),
    ),
    (
        "_requests.py",
        include_str!("../../../../../clients/python/src/davenport_jobs/_requests.py"),
    ),
    (
        "_types.py",
        include_str!("../../../../../clients/python/src/davenport_jobs/_types.py"),
    ),
    (
        "_worker.py",
        include_str!("../../../../../clients/python/src/davenport_jobs/_worker.py"),
    ),
];
/// Exits with 0 if the client supports this version.
const CHECK: &str = "import sys; sys.exit(sys.version_info < (3, 11))";

/// Ends when it is dropped, and also if this process is killed: it reads its standard input to the end.
pub(super) struct Worker {
    _process: Child,
    _input: ChildStdin,
}

impl Worker {
    /// Starts it, if there is a Python for it.
    pub(super) async fn start(url: &str) -> anyhow::Result<Option<Self>> {
        let mut check = Command::new("python3");
        check.args(["-c", CHECK]).stdin(Stdio::null());
        let checked = check.stderr(Stdio::null()).status().await;
        if !checked.is_ok_and(|status| status.success()) {
            return Ok(None);
        }
        // Without `-P`, it would import modules from the present directory.
        let process = Command::new("python3")
            .args(["-P", "-c", include_str!("load.py")])
            .env("DAVENPORT_URL", url)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut process = process.context("cannot start the worker in Python")?;
        let mut input = process.stdin.take().context("the worker has no input")?;
        let program = json!([CLIENT, include_str!("worker.py")]).to_string() + "\n";
        let given = input.write_all(program.as_bytes()).await;
        given.context("cannot start the worker in Python")?;
        Ok(Some(Self {
            _process: process,
            _input: input,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_whole_client_is_there() {
        let directory = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../clients/python/src/davenport_jobs"
        );
        let files = fs::read_dir(directory).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut sources: Vec<String> = names
            .filter(|name| name.rsplit('.').next() == Some("py"))
            .collect();
        sources.sort();
        assert_eq!(sources, CLIENT.map(|(name, _)| name));
    }
}
