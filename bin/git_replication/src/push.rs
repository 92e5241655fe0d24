//! One push: what git is asked, and what its answers mean.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use child::Ended;
use jobs::millis;
use serde::{Deserialize, Serialize};

use crate::config::Target;
use crate::process::Git;
use crate::refs::{self, Refs, Refspec};
use crate::target::redact;

/// The kinds of failures, each with retries of its own. The first ones are retried most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

impl Outcome {
    pub(crate) fn failed(class: Class, reason: impl Into<String>, left: &Refs) -> Self {
        let (reason, left) = (reason.into(), left.clone());
        Self::Failed {
            class,
            reason,
            left,
        }
    }
}

/// Refs of a repository that go to a target.
pub(crate) struct Push<'a> {
    /// In the repository.
    pub(crate) git: Git<'a>,
    pub(crate) target: &'a Target<'a>,
    pub(crate) refs: &'a Refs,
    /// Refs that were not found, and since when.
    pub(crate) absent: BTreeMap<String, i64>,
    pub(crate) now_ms: i64,
}

impl Push<'_> {
    /// Fails if git cannot be started, refs cannot be listed, or the target's directory is missing. Afterwards, `absent` has
    /// the refs to look for again, and those whose deletion failed.
    pub(crate) async fn run(&mut self) -> io::Result<Outcome> {
        let (specs, deletions) = if self.refs.all {
            self.absent.clear();
            (self.of_all().await?, Vec::new())
        } else {
            self.of_names(&self.refs.names).await?
        };
        if specs.is_empty() {
            let absent = "the repository does not have these refs; looking again later";
            let none = "no refs for this remote";
            let why = if self.absent.is_empty() { none } else { absent };
            return Ok(Outcome::Done(Some(why)));
        }
        let mut outcome = self.once(&specs, &deletions).await?;
        if let Outcome::Failed { class, reason, .. } = &mut outcome
            && *class == Class::Missing
            && self.target.remote.create_missing
        {
            match self.create().await? {
                None => {
                    outcome = self.once(&specs, &deletions).await?;
                    let (remote, project) = (&self.target.remote.name, self.target.project);
                    if matches!(outcome, Outcome::Done(_)) {
                        tracing::info!(remote, project = project.as_str(), "created a repository");
                    }
                }
                Some(why) => *reason = format!("{reason}; cannot create it: {why}"),
            }
        }
        for Deletion { name, .. } in &deletions {
            let is_left = match &outcome {
                Outcome::Done(_) => false,
                Outcome::Failed { left, .. } => left.names.contains(name),
            };
            if !is_left {
                self.absent.remove(name);
            }
        }
        Ok(outcome)
    }

    async fn once(&self, specs: &[String], deletions: &[Deletion]) -> io::Result<Outcome> {
        let mut words = vec!["push", "--porcelain", "--progress", "--no-verify"];
        words.extend(["--no-follow-tags", "--recurse-submodules=no"]);
        words.extend((self.refs.all && self.target.remote.mirror).then_some("--prune"));
        words.extend(["--", &self.target.url]);
        words.extend(specs.iter().map(String::as_str));
        let timeout = self.target.remote.timeout;
        let is_refused = |line: &str| line.starts_with('!');
        let ended = self.git.run(&words, is_refused, timeout).await?;
        Ok(judge(&ended, self.target, self.refs, deletions))
    }

    /// The names of the refs of the repository that are `wanted`: of all, or of those with the given names.
    async fn list(
        &self,
        names: &BTreeSet<String>,
        wanted: impl FnMut(&str) -> bool,
    ) -> io::Result<BTreeSet<String>> {
        let mut words = vec!["for-each-ref", "--format=%(refname)", "--"];
        words.extend(names.iter().map(String::as_str));
        let listed = self.git.run(&words, wanted, None).await?;
        // Damaged refs are not listed, and a mirror must not take them for deleted ones.
        let is_damaged = listed.messages.contains("ignoring broken ref");
        if !listed.success || (is_damaged && self.target.remote.mirror) {
            let told = dubious(&listed.messages).map(|line| {
                format!("{line}; run davenport-git as the user who owns it (User= in the unit), or add it to safe.directory in the git configuration of davenport-git's user")
            });
            return Err(io::Error::other(told.unwrap_or(listed.messages)));
        }
        Ok(listed.lines.into_iter().collect())
    }

    /// The refspecs of a push of all refs; none if the remote gets none of those that exist. Then a mirror is not emptied
    /// either: the repository may just have been made.
    async fn of_all(&self) -> io::Result<Vec<String>> {
        let specs = &self.target.remote.push;
        let names: BTreeSet<&str> = specs.iter().filter_map(Refspec::name).collect();
        let mut is_any_pushed = false;
        let wanted = |name: &str| {
            is_any_pushed |= refs::one(specs, name, true).next().is_some();
            names.contains(name)
        };
        let there = self.list(&BTreeSet::new(), wanted).await?;
        if !is_any_pushed {
            return Ok(Vec::new());
        }
        // Git refuses the whole push if a ref that is named does not exist.
        let mirror = self.target.remote.mirror;
        let spec = |spec: &Refspec| match spec.name() {
            Some(name) if !there.contains(name) => mirror.then(|| spec.deletion()),
            _ => Some(spec.whole()),
        };
        self.spare(specs.iter().filter_map(spec).collect()).await
    }

    /// Leaves out deletions of what the target gets from other refs.
    async fn spare(&self, mut specs: Vec<String>) -> io::Result<Vec<String>> {
        let positive = || self.target.remote.push.iter().filter(|spec| !spec.negative);
        if specs.iter().any(|spec| spec.starts_with(':')) {
            let spare = |name: &str| {
                for to in positive().filter_map(|spec| spec.target(name)) {
                    specs.retain(|spec| spec.strip_prefix(':') != Some(&*to));
                }
                false
            };
            self.list(&BTreeSet::new(), spare).await?;
        }
        Ok(specs)
    }

    /// The refspecs of single refs: those that exist, and with `mirror` deletions of the others. On NFS, a ref that another
    /// node has created may be visible only later, so one that is absent does not count as deleted at once.
    async fn of_names(
        &mut self,
        names: &BTreeSet<String>,
    ) -> io::Result<(Vec<String>, Vec<Deletion>)> {
        let named = self.target.remote.push.iter().filter_map(Refspec::name);
        let mut asked = names.clone();
        asked.extend(named.map(str::to_owned));
        let there = self.list(&asked, |name| asked.contains(name)).await?;
        // As in a push of all refs: a refspec of one ref that does not exist does not count.
        let mut valid = self.target.remote.push.clone();
        valid.retain(|spec| spec.name().is_none_or(|name| there.contains(name)));
        let (remote, now_ms) = (self.target.remote, self.now_ms);
        let (mut specs, mut absent) = (Vec::new(), BTreeMap::new());
        let mut deletions = Vec::new();
        for name in names {
            let exists = there.contains(name);
            let all = if exists { &valid } else { &remote.push };
            let chosen: Vec<_> = refs::one(all, name, exists).collect();
            let first_ms = self.absent.get(name);
            let is_gone = first_ms.is_some_and(|ms| now_ms >= ms + millis(remote.retry.delay));
            if exists {
                specs.extend(chosen);
            } else if !is_gone && !chosen.is_empty() {
                absent.insert(name.clone(), *first_ms.unwrap_or(&now_ms));
            } else if is_gone && remote.mirror {
                specs.extend(chosen.iter().cloned());
                for spec in chosen {
                    let name = name.clone();
                    deletions.push(Deletion { name, spec });
                }
            }
        }
        let specs = self.spare(specs).await?;
        deletions.retain(|deletion| specs.contains(&deletion.spec));
        for Deletion { name, .. } in &deletions {
            // If this push fails, the next one deletes the ref at once.
            absent.extend(self.absent.remove_entry(name));
        }
        self.absent = absent;
        Ok((specs, deletions))
    }

    /// Creates the target's repository, with the branch that `HEAD` names here; or tells why not.
    async fn create(&self) -> io::Result<Option<String>> {
        let (git, target) = (self.git, self.target);
        let head = ["symbolic-ref", "--quiet", "--short", "HEAD"];
        let head = git.run(&head, |_| true, None).await?;
        // It is also a word for the shell of an ssh server.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
        let branch = head.lines.first();
        let branch = branch.filter(|name| !name.starts_with('-') && name.chars().all(is_plain));
        let branch = branch.map(|name| format!("--initial-branch={name}"));
        let mut init = vec!["init", "--quiet", "--bare"];
        init.extend(branch.as_deref());
        if let Some(path) = target.place.strip_prefix("file://") {
            let root = target.template.root();
            if tokio::fs::metadata(&root).await.is_err() {
                let reason = format!("{root} does not exist; mount it or create it");
                return Err(io::Error::other(reason));
            }
            init.extend(["--", path]);
            let elsewhere = Git {
                repository: None,
                ..git
            };
            let ended = elsewhere.run(&init, |_| false, None).await?;
            return Ok((!ended.success).then_some(ended.messages));
        }
        if !target.place.starts_with("ssh://") {
            return Ok(Some("only file and ssh targets can be created".to_owned()));
        }
        // Git calls ssh, as it does for a push, and quotes the path. The server runs this command instead of serving a
        // fetch, so that git itself always reports an error; the next push tells whether the repository is there.
        let init = init.join(" ");
        let command = if has_any(&target.url, &[":~/", "/~/"]) {
            // Quoted, `~` is not the home directory, where the server begins anyway.
            format!("--upload-pack=init() {{ git {init} \"${{1#\\~/}}\"; }}; init")
        } else {
            format!("--upload-pack=git {init}")
        };
        let words = ["ls-remote", &command, "--", &target.url];
        // In the repository, as a push: its configuration may change the URL, or have the credentials.
        let asked = git.run(&words, |_| false, target.remote.timeout);
        asked.await.map(|_| None)
    }
}

/// The refspec that deletes a ref from the target, and the name of the ref here.
struct Deletion {
    name: String,
    spec: String,
}

/// What the answer to a push means.
fn judge(ended: &Ended, target: &Target<'_>, refs: &Refs, deletions: &[Deletion]) -> Outcome {
    if ended.success {
        return Outcome::Done(None);
    }
    if ended.silent {
        let timeout = target.remote.timeout.unwrap_or_default().as_secs();
        let reason = format!("git push was silent for {timeout} s");
        return Outcome::failed(Class::Offline, reason, refs);
    }
    let refused = ended.lines.iter().filter_map(|line| Refusal::parse(line));
    let refused: Vec<Refusal> = refused.collect();
    // The class that is retried most decides: refs of the others are rejected again then.
    let Some(first) = refused.iter().min_by_key(|refusal| refusal.class()) else {
        let (class, reason) = unreachable(&ended.messages);
        // A URL may have credentials.
        return Outcome::failed(class, redact(&reason), refs);
    };
    // Deletions have no source.
    let (deleted, pushed): (Vec<&Refusal>, Vec<_>) =
        refused.iter().partition(|refusal| refusal.from.is_empty());
    let is_refused = |deletion: &&Deletion| {
        let to = deletion.spec.strip_prefix(':');
        deleted.iter().any(|refusal| to == Some(refusal.to))
    };
    let names = deletions.iter().filter(is_refused);
    let names = names.map(|deletion| &*deletion.name);
    let names = Refs::of(names.chain(pushed.iter().map(|refusal| refusal.from)));
    let is_whole = refs.all && !deleted.is_empty();
    let left = if is_whole { refs } else { &names };
    let name = if first.from.is_empty() {
        first.to
    } else {
        first.from
    };
    let reason = match refused.len() - 1 {
        0 => format!("{name}: {}", first.reason),
        more => format!("{name}: {}, and {more} more", first.reason),
    };
    Outcome::failed(first.class(), reason, left)
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
        const LOCKED: [&str; 9] = [
            "cannot lock",
            "failed to lock",
            "failed to update ref",
            "failed to write",
            "incorrect old value",
            "reference already exists",
            "reference does not exist",
            "stale info",
            "unable to create",
        ];
        if has_any(self.reason, &BROKEN) {
            Class::Offline
        } else if has_any(self.reason, &LOCKED) {
            Class::Lock
        } else {
            Class::Rejected
        }
    }
}

/// What git says about a repository of another user.
fn dubious(messages: &str) -> Option<&str> {
    let mut lines = messages.lines();
    let line = lines.find(|line| line.contains("detected dubious ownership in repository at "))?;
    let line = line.trim_start_matches("remote: ");
    Some(line.trim_start_matches("fatal: "))
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
    // The last one matches ssh and any shell.
    const NOT_THERE: [&str; 4] = [
        "Could not resolve",
        "command not found",
        "git-receive-pack: ",
        "sh: ",
    ];
    if let Some(line) = dubious(messages) {
        let help = "push as the user who owns it, or add it to safe.directory there";
        return (Class::Offline, format!("{line}; {help}"));
    }
    let lines = messages.lines();
    let lines = lines.map(|line| line.trim_start_matches("remote: ").trim());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let tells = |texts: &[&str]| lines.iter().find(|line| has_any(line, texts));
    let missing = tells(&MISSING).filter(|line| !has_any(line, &NOT_THERE));
    let class = missing.map_or(Class::Offline, |_| Class::Missing);
    // Git's own line only says that ssh has failed.
    let is_generic = |line: &&str| line.starts_with("fatal: Could not read from");
    let generic = lines.iter().position(is_generic);
    let before = generic.and_then(|at| lines[..at].last());
    let told = missing.or(before);
    let told = told.or_else(|| tells(&["fatal: ", "error: ", "ERROR"]));
    let told = told.or(lines.last()).copied();
    let told = told.unwrap_or("git push failed without a message");
    (class, told.to_owned())
}

fn has_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
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
            "sh: 1: ssh: not found\nfatal: Could not read from remote repository.",
            "/bin/sh: 1: exec: nc: not found\nfatal: Could not read from remote repository.",
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
            ("[remote rejected] (reference already exists)", Class::Lock),
            ("[remote rejected] (reference does not exist)", Class::Lock),
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
