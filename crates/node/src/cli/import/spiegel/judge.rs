//! What becomes of a document of Spiegel.

use std::collections::{BTreeMap, BTreeSet};

use document::json::Json;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rules::rule::{Rule, SPIEGELS_STATE};
use scheduler::Passwords;
use url::Url;

type Members = Vec<(String, Json)>;

pub(super) enum Verdict {
    Accepted {
        /// Of the document to write.
        members: Members,
        /// What is different from Spiegel's document, in words.
        changes: Vec<String>,
    },
    Rejected {
        /// The member, empty if none is to blame.
        path: String,
        reason: String,
    },
    /// Spiegel's own documents; their kind.
    Ignored(String),
}

/// Judges documents one after the other, and gathers what they have in common.
pub(super) struct Judge {
    /// Those of the first file that has one apply.
    passwords: Vec<Passwords>,
    /// Servers of the sources of replications, with the number of rules.
    pub(super) servers: BTreeMap<String, u64>,
    /// Hosts of webhooks, with the number of rules.
    pub(super) hosts: BTreeMap<String, u64>,
    /// Users without a password, with their hosts.
    pub(super) missing: BTreeSet<(String, String)>,
}

impl Judge {
    pub(super) fn new(passwords: Vec<Passwords>) -> Self {
        Self {
            passwords,
            servers: BTreeMap::new(),
            hosts: BTreeMap::new(),
            missing: BTreeSet::new(),
        }
    }

    pub(super) fn judge(&mut self, id: &str, document: &Json) -> Verdict {
        let kind = document.get("type").and_then(Json::as_str);
        let is_rule = matches!(kind, Some("replicator" | "on_change"));
        if id.starts_with("_design/") {
            if is_rule {
                let reason =
                    "Spiegel and Davenport ignore rules in design documents; give it another id";
                return Verdict::Rejected {
                    path: "_id".to_owned(),
                    reason: reason.to_owned(),
                };
            }
            return Verdict::Ignored("design documents".to_owned());
        }
        match Rule::parse(document) {
            Ok(Some(_)) => {}
            Ok(None) => return Verdict::Ignored(kind.unwrap_or_default().to_owned()),
            Err(invalid) => {
                return Verdict::Rejected {
                    path: invalid.path,
                    reason: invalid.reason,
                };
            }
        }
        let (mut members, mut changes) = (own_members(document), Vec::new());
        if kind == Some("on_change") {
            block(&mut members, &mut changes);
            self.call(document);
        } else {
            self.replication(&mut members, &mut changes);
        }
        Verdict::Accepted { members, changes }
    }

    fn call(&mut self, document: &Json) {
        let url = document.get("url").and_then(Json::as_str);
        let Some(url) = url.and_then(|url| Url::parse(url).ok()) else {
            return;
        };
        *self.hosts.entry(host(&url)).or_default() += 1;
        // The file itself serves calls, by `rules.passwords_file`.
        if url.password().is_none() {
            self.password(&url);
        }
    }

    /// The passwords go into the documents, where they are sealed, so that no file is needed.
    fn replication(&mut self, members: &mut Members, changes: &mut Vec<String>) {
        for name in ["continuous", "cancel"] {
            let before = members.len();
            members.retain(|(member, value)| member != name || *value == Json::Bool(false));
            if members.len() < before {
                changes.push(format!(
                    "`{name}` left out: replications run once after each change"
                ));
            }
        }
        for (name, side) in members.iter_mut() {
            if !matches!(&**name, "source" | "target") {
                continue;
            }
            let has_own = ["auth", "headers"]
                .iter()
                .any(|own| side.get(own).is_some());
            let text = match side {
                Json::Object(members) => {
                    let url = members.iter_mut().find(|(member, _)| member == "url");
                    url.map(|(_, url)| url)
                }
                side => Some(side),
            };
            let Some(Json::String(text)) = text else {
                continue;
            };
            let Ok(url) = Url::parse(text) else {
                continue;
            };
            if name == "source" {
                *self.servers.entry(server(&url)).or_default() += 1;
            }
            if url.password().is_some() || has_own {
                continue;
            }
            if let Some(password) = self.password(&url) {
                *text = with_password(text, &password);
                changes.push(format!("`{name}` has the password of the file"));
            }
        }
    }

    /// The password of the user in a URL; a missing one is noted.
    fn password(&mut self, url: &Url) -> Option<String> {
        let user = percent_encoding::percent_decode_str(url.username());
        let user = user.decode_utf8_lossy();
        if user.is_empty() {
            return None;
        }
        let mut files = self.passwords.iter();
        let found = files.find_map(|file| file.find(url, &user));
        let found = found.map(|password| password.expose().to_owned());
        if found.is_none() {
            self.missing.insert((user.into_owned(), host(url)));
        }
        found
    }
}

/// The members that are the user's.
pub(super) fn own_members(document: &Json) -> Members {
    let members = document.as_object().unwrap_or_default().iter();
    let own = members
        .filter(|(name, _)| !name.starts_with('_') && !SPIEGELS_STATE.contains(&name.as_str()));
    own.cloned().collect()
}

/// Spiegel's documentation says that `block` is true unless it is said, but its code took a missing one for false.
fn block(members: &mut Members, changes: &mut Vec<String>) {
    let given = members
        .iter()
        .any(|(name, value)| name == "block" && *value != Json::Null);
    if !given {
        members.retain(|(name, _)| name != "block");
        members.push(("block".to_owned(), Json::Bool(false)));
        changes.push("`block`: false, as Spiegel behaved without it".to_owned());
    }
}

fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default();
    port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The server that a database is at.
fn server(url: &Url) -> String {
    let mut above = url[url::Position::BeforePath..url::Position::AfterPath]
        .trim_end_matches('/')
        .to_owned();
    above.truncate(above.rfind('/').unwrap_or(0));
    let scheme = url.scheme();
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    format!("{scheme}://{host}{above}")
}

/// A URL with a password for its user. The rest stays as it is spelled.
fn with_password(url: &str, password: &str) -> String {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let end = url[begin..].find(['/', '?', '#']);
    let end = end.map_or(url.len(), |at| begin + at);
    let at = url[begin..end].rfind('@').map_or(begin, |at| begin + at);
    let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
    format!(
        "{}:{password}{}",
        url[..at].trim_end_matches(':'),
        &url[at..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(document: &str) -> (Judge, Verdict) {
        let passwords = [
            r#"{"a.example": {"u": "p@:1"}}"#,
            r#"{"b.example:5984": {"u": "of the port"}}"#,
        ];
        let load = |text: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            Passwords::load(file.path()).unwrap()
        };
        let mut judge = Judge::new(passwords.map(load).into());
        let document = Json::parse(document).unwrap();
        let verdict = judge.judge("id", &document);
        (judge, verdict)
    }

    fn accepted(document: &str) -> (Judge, String, usize) {
        match judged(document) {
            (judge, Verdict::Accepted { members, changes }) => {
                (judge, Json::Object(members).to_string(), changes.len())
            }
            _ => panic!("it is not accepted"),
        }
    }

    #[test]
    fn spiegels_state_is_left_out_and_numbers_stay() {
        let (_, written, changes) = accepted(
            r#"{"_id":"x","_rev":"1-a","type":"on_change","url":"http://h/","params":{"n":1.10},"block":true,
                "dirty":true,"locked_at":null,"retries":1}"#,
        );
        let expected = r#"{"type":"on_change","url":"http://h/","params":{"n":1.10},"block":true}"#;
        assert_eq!((&*written, changes), (expected, 0));
    }

    #[test]
    fn a_missing_block_is_false_as_in_spiegels_code() {
        for block in ["", r#","block":null"#] {
            let document = format!(r#"{{"type":"on_change","url":"http://v@h/"{block}}}"#);
            let (judge, written, changes) = accepted(&document);
            let expected = r#"{"type":"on_change","url":"http://v@h/","block":false}"#;
            assert_eq!((&*written, changes), (expected, 1));
            assert_eq!(judge.hosts, BTreeMap::from([("h:80".to_owned(), 1)]));
            let missing = ("v".to_owned(), "h:80".to_owned());
            assert_eq!(judge.missing, BTreeSet::from([missing]));
        }
    }

    #[test]
    fn replications_get_passwords_and_lose_what_has_no_meaning() {
        let (judge, written, changes) = accepted(
            r#"{"type":"replicator","source":"http://u@a.example:5984/x/a%2Fb","cancel":false,
                "target":{"url":"http://u@b.example:5984/c"},"continuous":true}"#,
        );
        let expected = r#"{"type":"replicator","source":"http://u:p%40%3A1@a.example:5984/x/a%2Fb","cancel":false,"target":{"url":"http://u:of%20the%20port@b.example:5984/c"}}"#;
        assert_eq!((&*written, changes), (expected, 3));
        let server = "http://a.example:5984/x".to_owned();
        assert_eq!(judge.servers, BTreeMap::from([(server, 1)]));
        assert!(judge.missing.is_empty());
    }

    #[test]
    fn what_is_no_rule_is_rejected_or_ignored() {
        let (_, verdict) = judged(r#"{"type":"on_change","url":"http://h/","db_name":"("}"#);
        assert!(matches!(verdict, Verdict::Rejected { path, .. } if path == "db_name"));
        let (_, verdict) = judged(r#"{"type":"change_listener","db_name":"x"}"#);
        assert!(matches!(verdict, Verdict::Ignored(kind) if kind == "change_listener"));
    }
}
