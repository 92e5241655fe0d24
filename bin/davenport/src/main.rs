//! `davenport`: both roles in one process, and the operator's tools.

use std::process::ExitCode;

fn main() -> ExitCode {
    node::cli::main()
}
