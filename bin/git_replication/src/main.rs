//! `davenport-git`: pushes repositories to remotes.

use std::process::ExitCode;

fn main() -> ExitCode {
    git_replication::cli::main()
}
