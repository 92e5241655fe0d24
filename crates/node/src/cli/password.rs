//! `davenport hash-password`: prints the hash for the section `[admins]`.

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::bail;
use api::auth::password::{ITERATIONS, PasswordHash};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::output;
use crate::random;

pub(crate) fn run() -> anyhow::Result<()> {
    let password = read()?;
    if password.is_empty() {
        bail!("the password is empty");
    }
    let hash = PasswordHash::make(&password, random(), ITERATIONS);
    output::line(&hash.to_config());
    Ok(())
}

/// A line of standard input; on a terminal, prompts for it without an echo.
fn read() -> anyhow::Result<String> {
    let input = std::io::stdin();
    let mut line = String::new();
    if !input.is_terminal() {
        input.lock().read_line(&mut line)?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    output::error("Password:");
    let shown = tcgetattr(&input)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&input, OptionalActions::Flush, &hidden)?;
    let read = input.lock().read_line(&mut line);
    tcsetattr(&input, OptionalActions::Flush, &shown)?;
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
