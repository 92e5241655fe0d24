//! `davenport-api-frontend`: serves HTTP requests, and creates jobs from documents.

use std::process::ExitCode;

use node::config::Role;

fn main() -> ExitCode {
    node::cli::main_of(Role::ApiFrontend)
}
