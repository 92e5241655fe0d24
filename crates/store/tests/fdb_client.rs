//! The errors at start when FoundationDB cannot be used. A process has one client
//! library, so each case is a process of its own, over a stand-in for `libfdb_c`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and the child tells its parent what it saw"
)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use store::{Error, Store};
use tempfile::TempDir;
use tokio::time::Instant;

const CHILD_URL: &str = "STORE_TEST_CHILD_URL";
const CHILD_SHUTDOWN: &str = "STORE_TEST_CHILD_SHUTDOWN";

/// Compiles the stand-in, in the variant that `flags` make, as the system's client library.
fn install_fake(directory: &Path, flags: &[&str]) {
    let manifest = env!("CARGO_MANIFEST_DIR");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-pthread", "-o"])
        .arg(directory.join("libfdb_c.so"))
        .args(flags)
        .arg(format!(
            "{manifest}/../foundationdb-sys/tests/fake_libfdb_c.c"
        ))
        .status()
        .expect("a C compiler, which LMDB needs too");
    assert!(status.success());
}

/// A process that opens a store, with a library there and a cluster file.
struct Child {
    directory: TempDir,
    command: Command,
}

impl Child {
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        let directory = TempDir::new().unwrap();
        prepare(directory.path());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture"])
            .env("LD_LIBRARY_PATH", directory.path());
        Self { directory, command }
    }

    /// What it says of a cluster file of this name.
    fn opens(mut self, name: &str) -> String {
        let cluster_file = self.directory.path().join(name);
        std::fs::write(&cluster_file, "davenport:local@127.0.0.1:1\n").unwrap();
        self.command
            .env(CHILD_URL, format!("fdb:{}", cluster_file.display()));
        let output = self.command.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        // 42 is what the stand-in ends with when its network is still running at the exit.
        assert!(output.status.success(), "{:?}: {said}", output.status);
        said
    }
}

fn told(prepare: impl FnOnce(&Path)) -> String {
    Child::new(prepare).opens("fdb.cluster")
}

/// Runs in the processes that the other tests start.
#[test]
fn child() {
    let Ok(url) = std::env::var(CHILD_URL) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for attempt in ["first", "second"] {
        let error = runtime.block_on(Store::open(&url)).unwrap_err();
        let class = match error {
            Error::Open { .. } => "Open",
            Error::Unavailable { .. } => "Unavailable",
            Error::Misuse(_) => "Misuse",
            _ => "another error",
        };
        println!("{attempt} {class}: {error}");
        if class == "Unavailable" {
            break;
        }
        if std::env::var_os(CHILD_SHUTDOWN).is_some() {
            store::shutdown();
        }
    }
}

fn has(said: &str, sentence: &str) {
    assert!(said.contains(sentence), "{said}");
}

#[test]
fn a_library_that_cannot_be_opened() {
    let said = told(|directory| {
        std::fs::write(directory.join("libfdb_c.so"), "no library").unwrap();
    });
    has(
        &said,
        "first Open: an fdb: store needs FoundationDB's client library, 7.3 or newer, and \
         libfdb_c.so cannot be opened: install the package foundationdb-clients in the cluster's \
         version",
    );
    has(&said, "second Open: an fdb: store needs");
}

#[test]
fn a_library_of_an_old_version() {
    let said = told(|directory| install_fake(directory, &["-DAPI_VERSION_MAX=710"]));
    has(
        &said,
        "libfdb_c.so is too old: its API version is 710: install the package foundationdb-clients",
    );
}

#[test]
fn a_library_of_something_else() {
    let said = told(|directory| install_fake(directory, &["-Dfdb_get_max_api_version=other"]));
    has(&said, "libfdb_c.so is something else: install the package");
}

#[test]
fn a_client_that_does_not_start() {
    let said = told(|directory| install_fake(directory, &["-DREFUSE_SETUP"]));
    has(
        &said,
        "first Open: FoundationDB's client library could not be started",
    );
    has(
        &said,
        "second Open: FoundationDB's client library could not be started",
    );
}

#[test]
fn a_cluster_file_that_the_client_refuses() {
    let said = Child::new(|directory| install_fake(directory, &[])).opens("refused.cluster");
    has(
        &said,
        "first Open: the FoundationDB client cannot use the cluster file",
    );
    has(
        &said,
        "refused.cluster (error 2104): compare it with the one on a machine",
    );
}

#[test]
fn a_cluster_that_does_not_answer() {
    let from = Instant::now();
    let said = told(|directory| install_fake(directory, &["-DSILENT"]));
    has(
        &said,
        "first Unavailable: the store is unavailable: the FoundationDB cluster of ",
    );
    has(
        &said,
        "fdb.cluster --exec status shows whether it runs, in the client's version",
    );
    // Ten seconds, and time for the machine to be busy.
    assert!(from.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_prefix_that_is_somebody_elses() {
    let said = told(|directory| install_fake(directory, &[]));
    has(
        &said,
        "first Open: this is not a Davenport store: its format record was written by another program",
    );
    has(&said, "second Open: this is not a Davenport store");
}

#[test]
fn a_process_that_has_shut_down() {
    let mut child = Child::new(|directory| install_fake(directory, &[]));
    child.command.env(CHILD_SHUTDOWN, "");
    let said = child.opens("fdb.cluster");
    has(&said, "first Open: this is not a Davenport store");
    has(
        &said,
        "second Misuse: misuse of the store: an fdb: store was opened after the shutdown",
    );
}

#[tokio::test]
async fn a_cluster_file_that_is_none() {
    let directory = TempDir::new().unwrap();
    let cluster_file = directory.path().join("fdb.cluster");
    let url = format!("fdb:{}", cluster_file.display());
    let missing = Store::open(&url).await.unwrap_err();
    assert!(matches!(missing, Error::Open { .. }));
    has(
        &missing.to_string(),
        "fdb.cluster\" cannot be read: copy it",
    );
    std::fs::write(&cluster_file, "nonsense").unwrap();
    let malformed = Store::open(&url).await.unwrap_err();
    has(
        &malformed.to_string(),
        "fdb.cluster\" is not a FoundationDB cluster file: one line NAME:ID@ADDRESS:PORT",
    );
    let option = Store::open(&format!("{url}?tenant=a")).await.unwrap_err();
    has(&option.to_string(), "the only one is prefix=NAME");
}
