//! Texts with variables: URLs, and values of parameters.

use std::fmt;

use document::json::Json;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use super::fields::Invalid;
use super::pattern::Captures;

/// What `encodeURIComponent` encodes.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')');

/// Percent-encodes a value as a part of a URL, in which it separates nothing.
pub(super) fn encode(value: &str) -> String {
    utf8_percent_encode(value, VALUE).to_string()
}

/// What a change of a document gives to a rule.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The name of the source.
    pub source: &'a str,
    /// The name of the database, not encoded.
    pub db: &'a str,
    pub captures: &'a Captures,
    pub doc_id: &'a str,
    pub rev: &'a str,
    /// The document as the feed has it.
    pub doc: &'a Json,
    /// The sequence as the feed has it.
    pub seq: &'a Json,
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Var {
    DbName,
    /// The document.
    Change,
    Id,
    Rev,
    Seq,
    Capture(String),
}

/// Names that groups cannot have.
pub(super) const RESERVED: [&str; 3] = ["db_name", "change", "seq"];

impl Var {
    fn named(name: &str, captures: &[String]) -> Option<Self> {
        Some(match name {
            "db_name" => Self::DbName,
            "change" => Self::Change,
            "change.id" => Self::Id,
            "change.rev" => Self::Rev,
            "seq" => Self::Seq,
            name if captures.iter().any(|capture| capture == name) => {
                Self::Capture(name.to_owned())
            }
            _ => return None,
        })
    }

    /// The variable that is a whole text: `$name` or `${name}`. As in Spiegel, either brace may be missing.
    pub(super) fn whole(text: &str, captures: &[String]) -> Option<Self> {
        let name = text.strip_prefix('$')?;
        let name = name.strip_prefix('{').unwrap_or(name);
        Self::named(name.strip_suffix('}').unwrap_or(name), captures)
    }

    pub(super) fn json(&self, on: &Change<'_>) -> Json {
        let text = match self {
            Self::Change => return on.doc.clone(),
            Self::Seq => return on.seq.clone(),
            Self::DbName => on.db,
            Self::Id => on.doc_id,
            Self::Rev => on.rev,
            Self::Capture(name) => on.captures.get(name).map_or("", String::as_str),
        };
        Json::String(text.to_owned())
    }
}

/// A string without quotes, anything else as JSON.
pub(super) fn bare(value: &Json) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Which variables a URL may have.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    /// Those of a change.
    pub(super) changes: bool,
    /// Whether more can be defined, as groups.
    pub(super) groups: bool,
    pub(super) captures: &'a [String],
    /// Whether the URL has not been accepted before.
    pub(super) is_new: bool,
}

impl Scope<'_> {
    fn var(self, name: &str) -> Option<Var> {
        let var = Var::named(name, self.captures)?;
        let known = match var {
            Var::Change => false,
            Var::DbName | Var::Capture(_) => true,
            Var::Id | Var::Rev | Var::Seq => self.changes,
        };
        known.then_some(var)
    }

    fn unknown(self, path: &str, name: &str, at: usize) -> Invalid {
        let mut known = vec!["db_name"];
        if self.changes {
            known.extend(["change.id", "change.rev", "seq"]);
        }
        known.extend(self.captures.iter().map(String::as_str));
        let reason = if name == "change" {
            "a URL cannot contain the document; use `${change.id}`, or `$change` in `params`"
                .to_owned()
        } else {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            let may_be_a_group = self.groups
                && name.bytes().all(is_name)
                && !name.starts_with(|first: char| first.is_ascii_digit())
                && !name.is_empty()
                && !RESERVED.contains(&name);
            let group = format!(", or name a group `(?<{name}>…)` in `match.database`");
            format!(
                "`${{{name}}}` at character {} is unknown; use `${{{}}}`{}",
                at + 1,
                known.join("}`, `${"),
                if may_be_a_group { &*group } else { "" },
            )
        };
        Invalid::new(path, reason).at(at)
    }
}

/// A URL with variables, none of which can change which server it is on.
#[derive(Clone)]
pub(super) struct UrlTemplate {
    parts: Vec<Part>,
    /// The URL with a letter in place of each value.
    sample: Url,
}

#[derive(Clone)]
enum Part {
    Text(String),
    Var(Var),
}

/// Only the server: the rest may be a credential.
impl fmt::Debug for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sample.origin().ascii_serialization())
    }
}

/// Values that cannot stand where the URL has them: its path would not be the one that the rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the variables would change the path of the URL, as `..` does")]
pub struct Unsendable;

impl UrlTemplate {
    /// `path` is that of the member, for errors.
    pub(super) fn parse(path: &str, text: &str, scope: Scope<'_>) -> Result<Self, Invalid> {
        let chars_before = |at: usize| text[..at].chars().count();
        let (mut parts, mut rest) = (Vec::new(), 0);
        while let Some(found) = text[rest..].find("${") {
            let start = rest + found;
            let at = chars_before(start);
            let Some(length) = text[start..].find('}') else {
                let reason = format!("`${{` at character {} is not closed; add a `}}`", at + 1);
                return Err(Invalid::new(path, reason).at(at));
            };
            let name = &text[start + 2..start + length];
            let Some(var) = scope.var(name) else {
                return Err(scope.unknown(path, name, at));
            };
            if !authority_ends(&text[..start]) {
                let reason = format!(
                    "`${{{name}}}` at character {} could change the server; variables may stand only behind the first \
                     `/` after the host",
                    at + 1
                );
                return Err(Invalid::new(path, reason).at(at));
            }
            parts.push(Part::Text(text[rest..start].to_owned()));
            parts.push(Part::Var(var));
            rest = start + length + 1;
        }
        parts.push(Part::Text(text[rest..].to_owned()));
        let sample = joined(&parts, |_| "x".to_owned());
        let sample = Url::parse(&sample)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .filter(|_| !scope.is_new || names_host(text));
        let sample = sample.ok_or_else(|| {
            Invalid::new(
                path,
                "must be a URL that starts with `http://` or `https://` and names a host",
            )
        })?;
        Ok(Self { parts, sample })
    }

    pub(super) fn sample(&self) -> &Url {
        &self.sample
    }

    /// The URL with a letter in place of each value, as it is spelled.
    pub(super) fn sample_text(&self) -> String {
        joined(&self.parts, |_| "x".to_owned())
    }

    /// Whether it has variables.
    pub(super) fn varies(&self) -> bool {
        self.parts.len() > 1
    }

    /// The text before and after the only variable, from the last slash before it on.
    pub(super) fn around_the_variable(&self) -> Option<(&str, &str)> {
        let [Part::Text(start), Part::Var(_), Part::Text(end)] = self.parts.as_slice() else {
            return None;
        };
        let (_, start) = start.rsplit_once('/')?;
        Some((start, end.strip_suffix('/').unwrap_or(end)))
    }

    /// The text with its variables, without user and query.
    pub(super) fn shown(&self) -> String {
        let var = |var: &Var| match var {
            Var::Capture(name) => format!("${{{name}}}"),
            _ => "${db_name}".to_owned(),
        };
        let text = joined(&self.parts, var);
        let (scheme, rest) = text.split_once("://").unwrap_or(("", &text));
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let end = rest.find('/').unwrap_or(rest.len());
        let host = rest[..end].rfind('@').map_or(0, |at| at + 1);
        format!("{scheme}://{}", &rest[host..])
    }

    /// Whether variables stand only behind the last slash.
    pub(super) fn varies_at_the_end(&self) -> bool {
        let mut parts = self
            .parts
            .iter()
            .skip_while(|part| matches!(part, Part::Text(_)));
        parts.all(|part| !matches!(part, Part::Text(text) if text.contains(['/', '?', '#'])))
    }

    /// The text with these values.
    pub(super) fn expand(&self, value: impl Fn(&Var) -> Json) -> Result<(String, Url), Unsendable> {
        let text = joined(&self.parts, |var| encode(&bare(&value(var))));
        let url = Url::parse(&text).map_err(|_| Unsendable)?;
        let shape = |url: &Url| {
            let segments = url.path().split('/').count();
            let user = (url.username().to_owned(), url.password().map(str::to_owned));
            (url.origin(), user, segments)
        };
        // A last segment `.` is removed, and leaves as many segments.
        let path = text.split(['?', '#']).next().unwrap_or_default();
        let is_shorter = |url: &Url| url.path().ends_with('/') && !path.ends_with('/');
        if shape(&url) != shape(&self.sample) || is_shorter(&url) && !is_shorter(&self.sample) {
            return Err(Unsendable);
        }
        Ok((text, url))
    }
}

fn joined(parts: &[Part], value: impl Fn(&Var) -> String) -> String {
    let text = parts.iter().map(|part| match part {
        Part::Text(text) => text.clone(),
        Part::Var(var) => value(var),
    });
    text.collect()
}

/// Whether the host, and any credentials before it, follow `://` directly: credentials elsewhere would not be found and
/// sealed. The URL standard also accepts `http:///user:password@host`.
fn names_host(text: &str) -> bool {
    let (scheme, rest) = text.trim().split_once("://").unwrap_or_default();
    let is_known = ["http", "https"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known));
    is_known
        && !rest.starts_with(|next: char| matches!(next, '/' | '\\') || next.is_ascii_control())
}

/// Whether scheme and authority are complete.
fn authority_ends(start: &str) -> bool {
    let rest = start.split_once("://").map(|(_, rest)| rest);
    rest.is_some_and(|rest| rest.contains(['/', '?', '#']) && !rest.contains('\\'))
}
