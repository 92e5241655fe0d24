//! Flags that the program accepts and rejects; its behaviour is tested with other nodes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_davenport-api-frontend"));
    command.env_clear().args(args).output().unwrap()
}

#[test]
fn a_frontend_needs_an_administrator_and_has_one_role() {
    let refused = run(&["--check-config"]);
    assert_eq!(refused.status.code(), Some(2));
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("no administrator is configured"), "{error}");
    let usable = run(&["--check-config", "--admin", "anna:s3cr3t"]);
    assert_eq!(usable.status.code(), Some(0));
    let roles = run(&["--check-config", "--roles", "replication"]);
    assert_eq!(roles.status.code(), Some(2));
    let help = run(&["--help"]);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("davenport-api-frontend"), "{help}");
}
