//! Targets: URLs of remotes, and the place that a URL names, whatever its spelling.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::Path;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::project::Project;

/// What Gerrit escapes in a project's name within an HTTP URL: everything that may not stand in a segment.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'%')
    .add(b'|')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'}');
const SCHEMES: [&str; 5] = ["file", "ssh", "git", "http", "https"];
const NAME: &str = "${name}";
const HELP: &str = "give a URL of file, ssh, git, http or https, HOST:PATH, or an absolute path";
const AT: &str =
    "write `@` in a path as %40; if it ends a password, write the `/` in the password as %2F";
const PORT: &str = "a port is a number; if a password stands here, write its `/` as %2F, or use a credential helper";

/// How a project's name stands in a target's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum NameStyle {
    #[default]
    Slash,
    Dash,
    Underscore,
    BasenameOnly,
}

/// One value of `remote.NAME.url`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(String);

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        place(text)?;
        if text.chars().any(char::is_control) {
            return Err("a URL has no control characters");
        }
        // A project's name is never a part of the host or the user.
        let parts = Parts::of(text)?;
        if parts.host.contains(NAME) || parts.user.contains(NAME) {
            return Err("`${name}` stands in the path of a URL");
        }
        // What looks like a path may be the rest of a password, which belongs neither in the store nor in the log.
        if let Some((_, rest)) = text.split_once("://") {
            let (host, path) = rest.split_once('/').unwrap_or_default();
            if path.contains('@') && !host.is_empty() {
                return Err(AT);
            }
            if host.contains(['\'', '"']) {
                return Err("write quotes in a user or password as %27 and %22");
            }
        }
        Ok(Self(text.to_owned()))
    }

    pub(crate) fn has_name(&self) -> bool {
        self.0.contains(NAME)
    }

    /// The URL of a project's target.
    pub(crate) fn expand(&self, project: &Project, style: NameStyle) -> String {
        let name = project.as_str();
        let styled = match style {
            NameStyle::Slash => name.to_owned(),
            NameStyle::Dash => name.replace('/', "-"),
            NameStyle::Underscore => name.replace('/', "_"),
            // Without its end, as in Gerrit.
            NameStyle::BasenameOnly => {
                let stem = Path::new(name).file_stem().and_then(OsStr::to_str);
                stem.unwrap_or(name).to_owned()
            }
        };
        let name = if self.0.starts_with("http://") || self.0.starts_with("https://") {
            utf8_percent_encode(&styled, SEGMENT).to_string()
        } else {
            styled
        };
        self.0.replacen(NAME, &name, 1)
    }

    /// The directory before `${name}` of a target in the filesystem.
    pub(crate) fn root(&self) -> String {
        let place = place(&self.0).unwrap_or_default();
        let path = place.trim_start_matches("file://");
        let before = path.split(NAME).next().unwrap_or_default();
        before[..=before.rfind('/').unwrap_or_default()].to_owned()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The parts of a URL, as it is written.
struct Parts<'a> {
    scheme: String,
    /// With the password.
    user: &'a str,
    /// With the port.
    host: &'a str,
    path: Cow<'a, str>,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self, &'static str> {
        let (scheme, authority, path) = if let Some((scheme, rest)) = url.split_once("://") {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let scheme = scheme.to_ascii_lowercase();
            // Git decodes these URLs itself, and leaves those of HTTP to the server.
            let is_decoded = !scheme.starts_with("http");
            let decoded = is_decoded.then(|| percent_decode_str(path).decode_utf8().ok());
            (scheme, authority, decoded.flatten().unwrap_or(path.into()))
        } else if url.starts_with('/') {
            ("file".to_owned(), "", url.into())
        } else {
            let (host, path) = url.split_once(':').unwrap_or_default();
            let path = match path.chars().next() {
                // `ext::…` runs commands, and a relative path depends on the node.
                None | Some(':') => return Err(HELP),
                Some('/') => path.into(),
                Some('~') => format!("/{path}").into(),
                Some(_) => format!("/~/{path}").into(),
            };
            ("ssh".to_owned(), host, path)
        };
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let port = host.rsplit_once(']').map_or(host, |(_, port)| port);
        let port = port.rsplit_once(':').map_or("", |(_, port)| port);
        // What is read as a port here may be the start of a password, and its rest would be a part of the path.
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(PORT);
        }
        let is_host = authority.is_empty() == (scheme == "file") && !authority.contains('/');
        if !SCHEMES.contains(&scheme.as_str()) || path.is_empty() || !is_host {
            return Err(HELP);
        }
        Ok(Self {
            scheme,
            user,
            host,
            path,
        })
    }
}

/// The place that a URL names: the same for all spellings of it, and without credentials, which do not belong in a
/// store. Pushes to one place never overlap.
pub(crate) fn place(url: &str) -> Result<String, &'static str> {
    let parts = Parts::of(url)?;
    let names = parts.path.split('/');
    let names = names.filter(|name| !matches!(*name, "" | "."));
    let path: String = names.flat_map(|name| ["/", name]).collect();
    let host = parts.host.to_ascii_lowercase();
    let scheme = parts.scheme.as_str();
    let port = match scheme {
        "ssh" => ":22",
        "git" => ":9418",
        "http" => ":80",
        _ => ":443",
    };
    let host = host.strip_suffix(port).unwrap_or(&host);
    let is_host = !host.starts_with('-') && !host.contains(char::is_whitespace);
    if !is_host || path.is_empty() || (host.is_empty() && scheme != "file") {
        return Err(HELP);
    }
    // Paths below `~` depend on the user, whose password does not belong in the store.
    let user = parts.user.split(':').next().unwrap_or_default();
    if scheme == "ssh" && path.starts_with("/~/") && !user.is_empty() {
        return Ok(format!("ssh://{user}@{host}{path}"));
    }
    Ok(format!("{scheme}://{host}{path}"))
}

/// What keeps pushes to a place apart. Servers find `NAME.git` as `NAME`, too, and ssh may be configured with a user.
pub(crate) fn lock_of(place: &str) -> String {
    redact(place.strip_suffix(".git").unwrap_or(place))
}

/// Text for people, with URLs that have lost their users and passwords.
pub(crate) fn redact(text: &str) -> String {
    let mut parts = text.split("://");
    let mut redacted = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c == '\'' || c == '"' || c.is_whitespace());
        let url = &part[..end.unwrap_or(part.len())];
        let at = url.split('/').next().unwrap_or_default().rfind('@');
        redacted = redacted + "://" + at.map_or(part, |at| &part[at + 1..]);
    }
    redacted
}

/// The URL of a configuration without user and password, however they are written.
pub(crate) fn without_user(url: &str) -> String {
    let parts = url.split_once("://").zip(url.rsplit_once('@'));
    parts.map_or_else(
        || url.to_owned(),
        |((scheme, _), (_, rest))| format!("{scheme}://{rest}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_has_one_name() {
        let same = [
            ["/a/b.git", "file:///a//./b.git/"],
            [
                "git@Host:team/app.git",
                "ssh://git:secret@host:22/~/team/app.git",
            ],
            ["git@host:/a", "ssh://other@host/a"],
            ["host:~/a.git", "ssh://host/~/a.git"],
            ["host:~/a.git", "host:a.git"],
            ["host:~me/a", "ssh://host/~me/a"],
            ["/srv/my m/x", "file:///srv/my%20m/x"],
            ["host:/a b", "ssh://host/a%20b"],
            ["host:/a.git", "ssh://HOST/a.git/"],
            ["https://user:secret@host:443/a", "HTTPS://host/a/"],
            ["git://host:9418/a", "git://host/a"],
        ];
        for [a, b] in same {
            assert_eq!(place(a).unwrap(), place(b).unwrap(), "{a} {b}");
        }
        for [a, b] in [
            ["a@host:x", "b@host:x"],
            ["/a%20b", "/a b"],
            ["https://host/a%20b", "https://host/a b"],
        ] {
            assert_ne!(place(a).unwrap(), place(b).unwrap(), "{a} {b}");
        }
        assert_ne!(
            place("https://host/a").unwrap(),
            place("http://host/a").unwrap()
        );
        for other in ["host:~/a.git", "other@host:a"] {
            let [user, other] = ["git@host:a", other].map(|url| lock_of(&place(url).unwrap()));
            assert_eq!(user, other);
        }
        assert!(
            !place("https://user:secret@host/a")
                .unwrap()
                .contains("secret")
        );
    }

    #[test]
    fn users_and_passwords_are_not_shown() {
        for (text, shown) in [
            ("https://me:a@b@host/x", "https://host/x"),
            (
                "unable to access 'https://me:s3cret@host/': see http://host/a@b",
                "unable to access 'https://host/': see http://host/a@b",
            ),
            ("git@host:x", "git@host:x"),
            ("https://me@[::1]:8443/a@b", "https://[::1]:8443/a@b"),
        ] {
            assert_eq!(redact(text), shown);
        }
    }

    #[test]
    fn urls_that_run_commands_or_depend_on_the_node_are_refused() {
        for bad in [
            "ext::sh -c x",
            "fd::17",
            "a/b.git",
            "../b.git",
            "--upload-pack=x",
            "-x:y",
            "ssh://-oProxyCommand=x/y",
            "ftp://host/a",
            "ssh://host",
            "file://",
            "host:",
            ":x",
            "https://",
            "",
            "file://host/a",
            "https://me:pa/ss@host/x",
        ] {
            assert!(place(bad).is_err(), "{bad}");
        }
        for bad in [
            "https://${name}/x",
            "${name}:x",
            "https://${name}@host/x",
            "ext::${name}",
            // A `/` in a password looks like the end of the host, and a quote like the end of the URL.
            "https://me:12/34@host/${name}",
            "https://to/ken@host/${name}",
            "ssh://me:a@b/c@host/${name}",
            "https://me:pa'ss@host/${name}",
        ] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn gr_t250_to_t252_names_are_escaped_in_http_urls_only() {
        let expand = |template: &str, name: &str| {
            Template::parse(template)
                .unwrap()
                .expand(&Project::new(name).unwrap(), NameStyle::Slash)
        };
        assert_eq!(
            expand("https://host/a/${name}.git", "a b/ü+%?c"),
            "https://host/a/a%20b/%C3%BC+%25%3Fc.git"
        );
        assert_eq!(
            expand("ssh://host/a/${name}.git", "a b/c"),
            "ssh://host/a/a b/c.git"
        );
        assert_eq!(expand("host:${name}.git", "a b"), "host:a b.git");
        assert_eq!(expand("/srv/${name}.git", "a%20b"), "/srv/a%20b.git");
        // What stands in a name is not expanded again.
        assert_eq!(expand("/srv/${name}.git", "${name}"), "/srv/${name}.git");
    }

    #[test]
    fn name_styles() {
        let named = |name, style| {
            let template = Template::parse("/s/${name}").unwrap();
            template.expand(&Project::new(name).unwrap(), style)
        };
        let expand = |style| named("a/b/c", style);
        assert_eq!(named("a.x/b.c.js", NameStyle::BasenameOnly), "/s/b.c");
        assert_eq!(named("a/.b", NameStyle::BasenameOnly), "/s/.b");
        assert_eq!(expand(NameStyle::Slash), "/s/a/b/c");
        assert_eq!(expand(NameStyle::Dash), "/s/a-b-c");
        assert_eq!(expand(NameStyle::Underscore), "/s/a_b_c");
        assert_eq!(expand(NameStyle::BasenameOnly), "/s/c");
    }
}
