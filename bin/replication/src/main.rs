//! `davenport-replication`: runs jobs.

use std::process::ExitCode;

use node::config::Role;

fn main() -> ExitCode {
    node::cli::main_of(Role::Replication)
}
