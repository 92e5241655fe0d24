//! Projects: their names, and their repositories below one directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fancy_regex::Regex;

const NAME_BYTES_MAX: usize = 512;

/// The name of a project: what is safe as a part of a path, of a URL and of a command line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Project(String);

impl Project {
    /// A name as events have it: with or without `.git` at its end.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let name = name.strip_suffix(".git").unwrap_or(name);
        let component = |part: &str| {
            !matches!(part, "" | "." | "..")
                && !part.starts_with('-')
                // Or a name could lead into another repository.
                && Path::new(part).extension().is_none_or(|end| !end.eq_ignore_ascii_case("git"))
        };
        let forbidden = |c: char| c.is_control() || c == '\\';
        if name.len() > NAME_BYTES_MAX
            || name.contains(forbidden)
            || !name.split('/').all(component)
        {
            return Err(format!(
                "{name:?} is not the name of a project; give its path below the repositories, without .git, as in team/app"
            ));
        }
        Ok(Self(name.to_owned()))
    }

    /// As Gitea calls its directory.
    pub(crate) fn to_lowercase(&self) -> Self {
        Self(self.0.to_lowercase())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Its repository, if it has one: `NAME.git`, or `NAME` itself. An error if that cannot be told.
    pub(crate) fn repository(&self, root: &Path) -> io::Result<Option<PathBuf>> {
        for name in [&format!("{}.git", self.0), &self.0] {
            let path = root.join(name);
            if is_repository(&path)? {
                let path = path.canonicalize()?;
                // Links do not lead elsewhere.
                if !path.starts_with(root.canonicalize()?) {
                    return Ok(None);
                }
                is_found_by_git(&path)?;
                return Ok(Some(path));
            }
        }
        is_mounted(root).map(|()| None)
    }
}

/// An error if git, started in a repository, could take another one.
fn is_found_by_git(path: &Path) -> io::Result<()> {
    let above = path.parent().map(Path::as_os_str).unwrap_or_default();
    let reason = if path.join(".git").symlink_metadata().is_ok() {
        "contains .git, which git would push instead; remove that"
    } else if above.as_encoded_bytes().contains(&b':') {
        // A colon separates the directories in GIT_CEILING_DIRECTORIES.
        "is in a directory with a colon in its name; rename that"
    } else {
        return Ok(());
    };
    Err(io::Error::other(format!("{} {reason}", path.display())))
}

fn is_repository(path: &Path) -> io::Result<bool> {
    let found = |name: &str| match fs::metadata(path.join(name)) {
        Err(error) if is_absence(&error) => Ok(None),
        found => found.map(Some),
    };
    Ok(found("HEAD")?.is_some_and(|head| head.is_file())
        && found("objects")?.is_some_and(|objects| objects.is_dir()))
}

/// An error if a directory is empty.
fn is_mounted(root: &Path) -> io::Result<()> {
    match fs::read_dir(root)?.next() {
        Some(_) => Ok(()),
        None => Err(io::Error::other(format!(
            "{} is empty; check that it is mounted",
            root.display()
        ))),
    }
}

/// Whether an error says that a file does not exist.
pub(crate) fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
}

/// All projects that have a repository below a directory. Of what is in it, whatever cannot be read is left out.
pub(crate) fn all(root: &Path) -> io::Result<Vec<Project>> {
    is_mounted(root)?;
    let (mut found, mut left) = (Vec::new(), directories(root)?);
    while let Some(path) = left.pop() {
        let below = match is_repository(&path) {
            Ok(true) => {
                let name = path.strip_prefix(root).ok().and_then(Path::to_str);
                if let Some(Ok(project)) = name.map(Project::new) {
                    found.push(project);
                } else {
                    tracing::warn!(path = %path.display(), "skipped a repository: its name is not a valid project name");
                }
                continue;
            }
            Ok(false) => directories(&path),
            Err(error) => Err(error),
        };
        match below {
            Ok(below) => left.extend(below),
            // It may just have been removed.
            Err(error) if is_absence(&error) => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "skipped a directory: it cannot be read");
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The directories in a directory, not those that links lead to.
fn directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    let is_directory = |entry: &fs::DirEntry| entry.file_type().map_or(true, |kind| kind.is_dir());
    let directories = entries.iter().filter(|entry| is_directory(entry));
    Ok(directories.map(fs::DirEntry::path).collect())
}

/// Which projects are meant: `^regex`, matching the whole name, `prefix*`, or a name.
#[derive(Debug, Clone)]
pub(crate) enum Pattern {
    Regex(Box<Regex>),
    Prefix(String),
    Exact(String),
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with('^') {
            // As it was given first: errors name a position.
            let regex = Regex::new(text).and_then(|_| Regex::new(&format!("^(?:{text})$")));
            return regex
                .map(|regex| Self::Regex(Box::new(regex)))
                .map_err(|error| error.to_string());
        }
        Ok(match text.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.to_owned()),
            None => Self::Exact(text.to_owned()),
        })
    }

    /// Whether a project is meant by any of these, or `unknown` if a regex takes too long to tell.
    pub(crate) fn any(patterns: &[Self], project: &Project, unknown: bool) -> bool {
        let mut patterns = patterns.iter();
        patterns.any(|pattern| pattern.matches_or(project, unknown))
    }

    fn matches_or(&self, project: &Project, unknown: bool) -> bool {
        match self {
            Self::Regex(regex) => regex.is_match(&project.0).unwrap_or_else(|error| {
                let project = project.as_str();
                tracing::warn!(project, pattern = regex.as_str(), %error, "cannot match a project");
                unknown
            }),
            Self::Prefix(prefix) => project.0.starts_with(prefix),
            Self::Exact(name) => project.0 == *name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_escape_or_be_options() {
        for good in ["a", "team/app", "a.b/c-d", "with space", "ä"] {
            assert_eq!(Project::new(good).unwrap().as_str(), good);
        }
        assert_eq!(Project::new("team/app.git").unwrap().as_str(), "team/app");
        for bad in [
            "",
            "/etc",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            "-a",
            "a/--upload-pack=x",
            "a.git/hooks",
            "a\nb",
            "a\\b",
            ".git",
        ] {
            assert!(Project::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn gr_t129_to_t131_patterns() {
        let matches = |pattern: &str, name: &str| {
            Pattern::parse(pattern)
                .unwrap()
                .matches_or(&Project::new(name).unwrap(), false)
        };
        assert!(matches("^foo/(bar|baz)", "foo/bar") && !matches("^foo/(bar|baz)", "foo/bar2"));
        assert!(
            matches("^(?:(?!secret).)*$", "open") && !matches("^(?:(?!secret).)*$", "a/secret")
        );
        assert!(
            matches("foo/b*", "foo/bar")
                && matches("foo/b*", "foo/b")
                && !matches("foo/b*", "bar/foo/baz")
        );
        assert!(matches("foo/bar", "foo/bar") && !matches("foo/bar", "foo/barn"));
        assert!(matches("*", "anything"));
        assert!(Pattern::parse("^(").is_err());
    }

    /// Whether it matches is unknown then. A project that may be excluded is not published.
    #[test]
    fn a_regex_that_takes_too_long_excludes() {
        let project = Project::new(&"a".repeat(60)).unwrap();
        let slow = Pattern::parse(r"^(?:(a)|a)*(?=\1)b").unwrap();
        assert!(slow.matches_or(&project, true) && !slow.matches_or(&project, false));
    }

    #[test]
    fn repositories_are_found_below_the_directory_only() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.join("objects")).unwrap();
            fs::write(path.join("HEAD"), "").unwrap();
        };
        make("dir/team/app.git");
        make("dir/plain");
        make("outside.git");
        let dir = root.path().join("dir");
        std::os::unix::fs::symlink(root.path().join("outside.git"), dir.join("link.git")).unwrap();
        // Its path is too long, so that not even root can read it.
        let make = "name=$(printf %0255d 0); for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do mkdir $name && cd $name || exit; done; mkdir $name";
        let made = std::process::Command::new("sh")
            .args(["-c", make])
            .current_dir(&dir)
            .status();
        assert!(made.unwrap().success());
        let names: Vec<_> = all(&dir)
            .unwrap()
            .into_iter()
            .map(|project| project.0)
            .collect();
        assert_eq!(names, ["plain", "team/app"]);
        let repository = |name: &str| Project::new(name).unwrap().repository(&dir);
        let found = repository("team/app").unwrap();
        assert_eq!(found.unwrap(), dir.join("team/app.git"));
        assert!(repository("plain").unwrap().is_some());
        for none in ["link", "absent", "plain/HEAD/x", &"x".repeat(300)] {
            assert_eq!(repository(none).unwrap(), None, "{none}");
        }
        std::os::unix::fs::symlink("loop.git", dir.join("loop.git")).unwrap();
        assert!(repository("loop").is_err());
    }
}
