//! A worker in Python, with the client that users' programs have.

use std::fs;
use std::process::Stdio;

use anyhow::Context;
use tempfile::TempDir;
use tokio::process::{Child, Command};

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
    _directory: TempDir,
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
        let directory = TempDir::with_prefix("davenport-demo-")?;
        let package = directory.path().join("davenport_jobs");
        fs::create_dir(&package)?;
        for (name, text) in CLIENT {
            fs::write(package.join(name), text)?;
        }
        fs::write(
            directory.path().join("worker.py"),
            include_str!("worker.py"),
        )?;
        let process = Command::new("python3")
            .arg("worker.py")
            .current_dir(directory.path())
            .env("DAVENPORT_URL", url)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        Ok(Some(Self {
            _process: process.context("cannot start the worker in Python")?,
            _directory: directory,
        }))
    }
}

#[cfg(test)]
mod tests {
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
