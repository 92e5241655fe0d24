//! Flags that the program accepts and rejects; its behaviour is tested with other nodes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_davenport-replication"));
    command.env_clear().args(args).output().unwrap()
}

#[test]
fn a_node_that_only_replicates_needs_no_administrator() {
    let usable = run(&["--check-config"]);
    let error = String::from_utf8_lossy(&usable.stderr).into_owned();
    assert_eq!(usable.status.code(), Some(0), "{error}");
    let refused = run(&["--check-config", "--set", "network.cert_file=/nowhere"]);
    assert_eq!(refused.status.code(), Some(2));
    let help = run(&["--help"]);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("davenport-replication"), "{help}");
}
