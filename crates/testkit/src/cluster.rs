//! A throw-away `FoundationDB`, whose processes a test kills and stops.

use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::child::{Signal, send_signal};

/// Started by `fdb-cluster/start`; killed when it is dropped.
#[derive(Debug)]
pub struct FdbCluster(TempDir);

impl FdbCluster {
    /// `None`, with a message, if there is no `FoundationDB` on this machine. If `TEST_FDB_REQUIRED` is set, the test fails.
    pub fn start(processes: u32) -> Option<Self> {
        if Command::new("fdbserver").arg("--version").output().is_err() {
            assert!(
                std::env::var_os("TEST_FDB_REQUIRED").is_none(),
                "TEST_FDB_REQUIRED is set, but there is no fdbserver on the PATH"
            );
            println!("skipped: there is no fdbserver on the PATH");
            return None;
        }
        let cluster = Self(TempDir::new().unwrap());
        cluster.script("start", &["-n", &processes.to_string()], None);
        Some(cluster)
    }

    /// Starts the processes that do not run, and waits until the database answers.
    pub fn restart(&self) {
        self.script("start", &[], None);
    }

    /// Kills all processes.
    pub fn kill(&self) {
        self.script("stop", &["-k"], None);
    }

    /// Kills the process of a port.
    pub fn kill_one(&self, port: &str) {
        self.script("stop", &["-k"], Some(port));
    }

    /// Stops the process of a port, or continues it: to the others it looks as if the network was cut.
    pub fn signal(&self, port: &str, signal: Signal) {
        let pid = std::fs::read_to_string(self.0.path().join(port).join("pid")).unwrap();
        send_signal(pid.trim().parse().unwrap(), signal).unwrap();
    }

    /// The ports of the processes.
    pub fn ports(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.parse::<u16>().is_ok()).collect()
    }

    /// What `fdbcli` answers to a command.
    pub fn ask(&self, command: &str) -> String {
        let output = Command::new("fdbcli")
            .args(["--timeout", "30", "--exec", command, "-C"])
            .arg(self.file())
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    pub fn url(&self) -> String {
        format!("fdb:{}", self.file().display())
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("fdb.cluster")
    }

    fn script(&self, name: &str, arguments: &[&str], port: Option<&str>) {
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fdb-cluster");
        let status = Command::new(format!("{scripts}/{name}"))
            .args(arguments)
            .arg(self.0.path())
            .args(port)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "fdb-cluster/{name} {arguments:?}");
    }
}

impl Drop for FdbCluster {
    fn drop(&mut self) {
        self.kill();
    }
}
