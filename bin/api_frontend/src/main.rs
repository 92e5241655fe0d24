//! `davenport-api-frontend`: answers HTTP requests, and makes jobs of documents.

use std::process::ExitCode;

use node::config::Role;

fn main() -> ExitCode {
    node::cli::main_of(Role::ApiFrontend)
}
