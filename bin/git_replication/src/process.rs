//! Runs git as a [program](Program) that ends with this node.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use child::{Ended, Program};

/// Never asks for a password, and notices that a connection is gone.
const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=30";

/// What git would take for the repository to work on, for example in a hook.
const OF_A_REPOSITORY: [&str; 12] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_PUSH_OPTION_COUNT",
    "GIT_QUARANTINE_PATH",
    "GIT_WORK_TREE",
];

/// Removes the variables that tell git which repository to use.
pub(crate) fn without_repository(command: &mut Command) -> &mut Command {
    for variable in OF_A_REPOSITORY {
        command.env_remove(variable);
    }
    command
}

/// Starts git.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Git<'a> {
    /// Where it runs.
    pub(crate) repository: Option<&'a Path>,
    /// How long a node may hang before the guard ends the push.
    pub(crate) silence: Duration,
}

impl Git<'_> {
    /// Runs git, and kills it after `idle` without output.
    pub(crate) async fn run(
        &self,
        arguments: &[&str],
        wanted: impl FnMut(&str) -> bool,
        idle: Option<Duration>,
    ) -> io::Result<Ended> {
        let mut git = Program::new("git", self.silence);
        let command = without_repository(git.command());
        // The directory is that of a known repository.
        command
            .args(["-c", "safe.bareRepository=all"])
            .args(arguments);
        if let Some(repository) = self.repository {
            // Not `GIT_DIR`: with that, git does not check who owns the repository, whose configuration may run commands.
            command.current_dir(repository);
            command.envs((repository.parent()).map(|above| ("GIT_CEILING_DIRECTORIES", above)));
        }
        if std::env::var_os("GIT_SSH_COMMAND").is_none() && std::env::var_os("GIT_SSH").is_none() {
            command.env("GIT_SSH_COMMAND", SSH);
        }
        // Helpers such as `ext` run any command.
        command.env("GIT_ALLOW_PROTOCOL", "file:git:http:https:ssh");
        command.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
        git.run(wanted, idle).await
    }
}
