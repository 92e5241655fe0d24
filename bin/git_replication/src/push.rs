//! One push: what git is asked, and what its answers mean.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::config::Target;
use crate::process::{Ended, Git};
use crate::refs::{self, Refs, Refspec};
use crate::target::redact;

/// The kinds of failures, each with retries of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Class {
    /// The target cannot be reached, does not let this node in, is too slow, or fails for a reason unknown here.
    Offline,
    /// Refs are locked at the target, or have just been changed there.
    Lock,
    /// The target does not accept these refs.
    Rejected,
    /// The repository does not exist at the target, and was not created.
    Missing,
    /// The configuration of this node does not have the target; that of another node may be newer.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The target has the refs, or does not get them, for this reason.
    Done(Option<&'static str>),
    Failed {
        class: Class,
        reason: String,
        /// What is left to be pushed.
        left: Refs,
    },
}

/// Pushes refs of a repository to a target. An error is one of starting git.
pub(crate) async fn push(
    git: &Git,
    repository: &Path,
    target: &Target<'_>,
    refs: &Refs,
) -> io::Result<Outcome> {
    let specs = if refs.all {
        of_all(git, repository, target).await?
    } else {
        of_names(git, repository, target, &refs.names).await?
    };
    if specs.is_empty() {
        return Ok(Outcome::Done(Some("the remote gets none of these refs")));
    }
    let outcome = once(git, repository, target, refs, &specs).await?;
    let Outcome::Failed {
        class: Class::Missing,
        reason,
        left,
    } = outcome
    else {
        return Ok(outcome);
    };
    let missing = |reason| Outcome::Failed {
        class: Class::Missing,
        reason,
        left,
    };
    if !target.remote.create_missing {
        return Ok(missing(reason));
    }
    match create(git, repository, target).await? {
        Ok(()) => {
            tracing::info!(
                remote = target.remote.name,
                project = target.project.as_str(),
                "created a repository"
            );
            once(git, repository, target, refs, &specs).await
        }
        Err(why) => Ok(missing(format!("{reason}; cannot create it: {why}"))),
    }
}

async fn once(
    git: &Git,
    repository: &Path,
    target: &Target<'_>,
    refs: &Refs,
    specs: &[String],
) -> io::Result<Outcome> {
    let mut arguments = git_dir(repository);
    arguments.extend(["push", "--porcelain", "--progress", "--no-verify"].map(OsString::from));
    arguments.extend(["--no-follow-tags", "--recurse-submodules=no"].map(OsString::from));
    if refs.all && target.remote.mirror {
        arguments.push("--prune".into());
    }
    arguments.extend(["--".into(), OsString::from(&target.url)]);
    arguments.extend(specs.iter().map(OsString::from));
    let ended = git
        .run(
            &arguments,
            |line| line.starts_with('!'),
            target.remote.timeout,
        )
        .await?;
    Ok(judge(&ended, target, refs))
}

fn git_dir(repository: &Path) -> Vec<OsString> {
    let mut option = OsString::from("--git-dir=");
    option.push(repository);
    vec![option]
}

/// The names of the refs of a repository that are `wanted`: of all, or of those with the given names.
async fn list(
    git: &Git,
    repository: &Path,
    names: &BTreeSet<String>,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<BTreeSet<String>> {
    let mut arguments = git_dir(repository);
    arguments.extend(["for-each-ref", "--format=%(refname)", "--"].map(OsString::from));
    arguments.extend(names.iter().map(OsString::from));
    let listed = git.run(&arguments, wanted, None).await?;
    if !listed.success {
        return Err(io::Error::other(listed.messages));
    }
    Ok(listed.lines.into_iter().collect())
}

/// The refspecs of a push of all refs; none if the remote gets none of those that exist. Then a mirror is not emptied
/// either: the repository may just have been made.
async fn of_all(git: &Git, repository: &Path, target: &Target<'_>) -> io::Result<Vec<String>> {
    let specs = &target.remote.push;
    let names: BTreeSet<&str> = specs.iter().filter_map(Refspec::name).collect();
    let pushed = AtomicBool::new(false);
    let all = BTreeSet::new();
    let there = list(git, repository, &all, |name| {
        if refs::one(specs, name, true).is_some() {
            pushed.store(true, Ordering::Relaxed);
        }
        names.contains(name)
    });
    let there = there.await?;
    if !pushed.into_inner() {
        return Ok(Vec::new());
    }
    // Git refuses the whole push if a ref that is named does not exist.
    let spec = |spec: &Refspec| match spec.name() {
        Some(name) if !there.contains(name) => target.remote.mirror.then(|| spec.deletion()),
        _ => Some(spec.whole()),
    };
    Ok(specs.iter().filter_map(spec).collect())
}

/// The refspecs of single refs: those that exist, and with `mirror` deletions of the others.
async fn of_names(
    git: &Git,
    repository: &Path,
    target: &Target<'_>,
    names: &BTreeSet<String>,
) -> io::Result<Vec<String>> {
    let there = list(git, repository, names, |name| names.contains(name)).await?;
    let spec = |name: &String| match there.contains(name) {
        false if !target.remote.mirror => None,
        exists => refs::one(&target.remote.push, name, exists),
    };
    Ok(names.iter().filter_map(spec).collect())
}

/// Creates the target's repository, with the branch that `HEAD` names here; the error is why not.
async fn create(
    git: &Git,
    repository: &Path,
    target: &Target<'_>,
) -> io::Result<Result<(), String>> {
    let mut arguments = git_dir(repository);
    arguments.extend(["symbolic-ref", "--quiet", "--short", "HEAD"].map(OsString::from));
    let head = git.run(&arguments, |_| true, None).await?;
    // It is also a word for the shell of an ssh server.
    let plain = |name: &&String| {
        !name.starts_with('-')
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c))
    };
    let branch = head.lines.first().filter(plain);
    let branch = branch.map(|name| format!("--initial-branch={name}"));
    let mut init: Vec<String> = ["init", "--quiet", "--bare"].map(str::to_owned).into();
    init.extend(branch);
    if let Some(path) = target.place.strip_prefix("file://") {
        let arguments = init.iter().map(String::as_str).chain(["--", path]);
        let ended = git
            .run(
                &arguments.map(OsString::from).collect::<Vec<_>>(),
                |_| false,
                None,
            )
            .await?;
        return Ok(if ended.success {
            Ok(())
        } else {
            Err(ended.messages)
        });
    }
    if !target.place.starts_with("ssh://") {
        return Ok(Err("only file and ssh targets can be created".to_owned()));
    }
    // Git calls ssh, as it does for a push, and quotes the path. The server runs this command instead of serving a
    // fetch, so that git itself always reports an error; the next push tells whether the repository is there.
    let command = format!("--upload-pack=git {}", init.join(" "));
    let arguments = ["ls-remote", command.as_str(), "--", target.url.as_str()].map(OsString::from);
    git.run(&arguments, |_| false, target.remote.timeout)
        .await?;
    Ok(Ok(()))
}

/// What the answer to a push means.
fn judge(ended: &Ended, target: &Target<'_>, refs: &Refs) -> Outcome {
    if ended.success {
        return Outcome::Done(None);
    }
    let failed = |class, reason, left| Outcome::Failed {
        class,
        reason,
        left,
    };
    if ended.silent {
        let timeout = target.remote.timeout.unwrap_or_default().as_secs();
        return failed(
            Class::Offline,
            format!("git push was silent for {timeout} s"),
            refs.clone(),
        );
    }
    let refused: Vec<Refusal> = ended
        .lines
        .iter()
        .filter_map(|line| Refusal::parse(line))
        .collect();
    if refused.is_empty() {
        let (class, reason) = unreachable(&ended.messages);
        // A URL may have credentials.
        return failed(class, redact(&reason), refs.clone());
    }
    // The class that is retried most decides: refs of the others are rejected again then.
    let is = |class| refused.iter().find(|refusal| refusal.class() == class);
    let first = is(Class::Offline)
        .or_else(|| is(Class::Lock))
        .unwrap_or(&refused[0]);
    // Deletions have no source.
    let left = if refused.iter().any(|refusal| refusal.from.is_empty()) {
        refs.clone()
    } else {
        Refs::of(refused.iter().map(|refusal| refusal.from))
    };
    let name = if first.from.is_empty() {
        first.to
    } else {
        first.from
    };
    let more = match refused.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    failed(
        first.class(),
        format!("{name}: {}{more}", first.reason),
        left,
    )
}

/// A line of `git push --porcelain` about a ref that was not accepted.
struct Refusal<'a> {
    from: &'a str,
    to: &'a str,
    reason: &'a str,
}

impl<'a> Refusal<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.strip_prefix("!\t")?.splitn(2, '\t');
        let (from, to) = fields.next()?.split_once(':')?;
        let reason = fields.next()?;
        Some(Self { from, to, reason })
    }

    fn class(&self) -> Class {
        // The server has ended before it answered, or has no room for the objects.
        const BROKEN: [&str; 2] = ["[remote failure]", "unpacker error"];
        const LOCKED: [&str; 7] = [
            "cannot lock",
            "failed to lock",
            "failed to update ref",
            "failed to write",
            "incorrect old value",
            "stale info",
            "unable to create",
        ];
        let tells = |texts: &[&str]| texts.iter().any(|text| self.reason.contains(text));
        match (tells(&BROKEN), tells(&LOCKED)) {
            (true, _) => Class::Offline,
            (_, true) => Class::Lock,
            _ => Class::Rejected,
        }
    }
}

/// The class of a failure before any ref was looked at, and the line that tells most.
fn unreachable(messages: &str) -> (Class, String) {
    const MISSING: [&str; 5] = [
        "does not appear to be a git repository",
        "not found",
        "no such repository",
        "access denied or repository not exported",
        "does not exist",
    ];
    const NOT_THERE: [&str; 3] = [
        "Could not resolve",
        "command not found",
        "git-receive-pack: ",
    ];
    let lines = messages
        .lines()
        .map(|line| line.trim_start_matches("remote: ").trim());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let tells = |texts: &[&str]| {
        lines
            .iter()
            .find(|line| texts.iter().any(|text| line.contains(text)))
    };
    let missing = tells(&MISSING).filter(|line| !NOT_THERE.iter().any(|text| line.contains(text)));
    if let Some(line) = missing {
        return (Class::Missing, (*line).to_owned());
    }
    let told = tells(&["fatal: ", "error: ", "ERROR"]).or(lines.last());
    (
        Class::Offline,
        told.map_or_else(
            || "git push failed without a message".to_owned(),
            |line| (*line).to_owned(),
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_a_class() {
        let class = |messages: &str| unreachable(messages).0;
        for missing in [
            "fatal: '/a/b.git' does not appear to be a git repository\nfatal: Could not read from remote repository.",
            "remote: Repository not found.\nfatal: repository 'https://h/a/' not found",
            "fatal: remote error: access denied or repository not exported: /a.git",
        ] {
            assert_eq!(class(missing), Class::Missing, "{missing}");
        }
        for offline in [
            "ssh: connect to host h port 22: Connection refused\nfatal: Could not read from remote repository.",
            "fatal: unable to access 'https://h/': Could not resolve host: h",
            "bash: git-receive-pack: command not found\nfatal: the remote end hung up unexpectedly",
            "sh: 1: git-receive-pack: not found\nfatal: the remote end hung up unexpectedly",
            "git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.",
            "",
        ] {
            assert_eq!(class(offline), Class::Offline, "{offline}");
        }
        assert_eq!(
            unreachable("warning: x\nfatal: early EOF\nmore").1,
            "fatal: early EOF"
        );
    }

    #[test]
    fn refusals_of_refs_are_told_apart() {
        for (reason, class) in [
            ("[rejected] (non-fast-forward)", Class::Rejected),
            (
                "[remote rejected] (pre-receive hook declined)",
                Class::Rejected,
            ),
            ("[remote rejected] (failed to update ref)", Class::Lock),
            (
                "[remote rejected] (cannot lock ref 'refs/heads/a': …)",
                Class::Lock,
            ),
            ("[remote rejected] (unpacker error)", Class::Offline),
            (
                "[remote failure] (remote failed to report status)",
                Class::Offline,
            ),
        ] {
            let line = format!("!\trefs/heads/a:refs/heads/a\t{reason}");
            assert_eq!(Refusal::parse(&line).unwrap().class(), class, "{reason}");
        }
        let deleted =
            Refusal::parse("!\t:refs/heads/a\t[remote rejected] (deletion prohibited)").unwrap();
        assert_eq!((deleted.from, deleted.to), ("", "refs/heads/a"));
        assert!(Refusal::parse("=\trefs/heads/a:refs/heads/a\t[up to date]").is_none());
    }
}
