//! Secrets of the configuration that rules name.

use couch::Endpoint;
use docstore::Db;
use scheduler::Secrets;

use super::document::{Rule, Task};
use super::fields::Invalid;
use super::replicator::Replicate;
use super::store::Rules;
use crate::deliver::{signs, unsigned};

impl Rule {
    /// Checks the secrets that it names against those of this node. Returns a warning for each that this node does not have:
    /// only the nodes that run replications and make calls need it.
    pub fn check_secrets(&self, secrets: &Secrets) -> Result<Vec<String>, Invalid> {
        let mut warnings = Vec::new();
        match &self.task {
            Task::Call(webhook) => {
                if let Some((name, url)) = webhook.named_secret() {
                    match secrets.get(name) {
                        None => warnings.push(unknown("secret_ref", name)),
                        Some(secret) if signs(secret, url) => {}
                        Some(_) => return Err(Invalid::new("secret_ref", unsigned(name))),
                    }
                }
            }
            Task::Replicate(replicate) => {
                warnings.extend(of_replication(replicate, ["source", "target"], secrets)?);
            }
            Task::Copy(remote) => {
                for replicate in remote.replications() {
                    warnings.extend(of_replication(replicate, ["source", "url"], secrets)?);
                }
            }
        }
        warnings.sort();
        warnings.dedup();
        Ok(warnings)
    }
}

impl Rules {
    /// See [`Rule::check_secrets`].
    pub fn check_secrets(&self, rule: &Rule) -> Result<Vec<String>, Invalid> {
        rule.check_secrets(self.replications().secrets())
    }

    /// Checks the secrets of a rule that is written, unless it is off, and logs what to look at.
    pub(super) fn look_at_secrets(&self, db: &Db, id: &str, rule: &Rule) -> Result<(), Invalid> {
        if rule.enabled {
            for reason in self.check_secrets(rule)? {
                let db = db.name();
                tracing::warn!(%db, doc = id, reason, "a rule names a secret that this node does not have");
            }
        }
        Ok(())
    }
}

fn of_replication(
    replicate: &Replicate,
    paths: [&str; 2],
    secrets: &Secrets,
) -> Result<Vec<String>, Invalid> {
    let mut warnings = Vec::new();
    let endpoints = replicate.endpoints().into_iter().flatten();
    for (path, endpoint) in paths.into_iter().zip(endpoints) {
        warnings.extend(of_endpoint(&endpoint, path, secrets)?);
    }
    Ok(warnings)
}

fn of_endpoint(
    endpoint: &Endpoint,
    path: &str,
    secrets: &Secrets,
) -> Result<Option<String>, Invalid> {
    let Some(name) = endpoint.secret_ref() else {
        return Ok(None);
    };
    let Some(secret) = secrets.get(name) else {
        return Ok(Some(unknown(&format!("{path}.auth.secret_ref"), name)));
    };
    let resolved = endpoint.with_secret(secret);
    resolved.map_err(|error| Invalid::new(path, error.to_string()))?;
    Ok(None)
}

fn unknown(path: &str, name: &str) -> String {
    format!(
        "`{path}`: this node has no section `[secrets.{name}]`; add it to the configuration of all nodes with the role \
         `replication`"
    )
}

#[cfg(test)]
mod tests {
    use document::json::Json;
    use serde_json::{Value, json};

    use super::*;

    fn secrets() -> Secrets {
        let secret =
            |members: Value| couch::NamedSecret::parse(members.as_object().unwrap()).unwrap();
        let key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        Secrets::from([
            (
                "hook".to_owned(),
                secret(json!({"origins": ["https://h"], "signing": [key]})),
            ),
            (
                "bad".to_owned(),
                secret(json!({"origins": ["https://h"], "signing": "hunter2"})),
            ),
            (
                "copy".to_owned(),
                secret(
                    json!({"origins": ["https://c"], "basic": {"username": "u", "password": "p"}}),
                ),
            ),
        ])
    }

    fn checked(rule: &Value) -> Result<Vec<String>, String> {
        let rule = Rule::parse(&Json::parse(&rule.to_string()).unwrap());
        let rule = rule.unwrap().unwrap();
        rule.check_secrets(&secrets())
            .map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn a_secret_that_signs_calls_is_checked() {
        let hook = |url: &str, name: &str| {
            checked(&json!({"type": "on_change", "url": url, "secret_ref": name}))
        };
        assert_eq!(hook("https://h/${change.id}", "hook"), Ok(vec![]));
        for (url, name) in [
            ("https://other/", "hook"),
            ("https://h/", "bad"),
            ("https://h/", "copy"),
        ] {
            let told = hook(url, name).unwrap_err();
            let expected = format!(
                "`secret_ref`: the configuration has no valid `signing` in `[secrets.{name}]`"
            );
            assert!(
                told.starts_with(&expected) && !told.contains("hunter2"),
                "{told}"
            );
        }
        let warned = hook("https://h/", "none").unwrap();
        assert_eq!(
            warned,
            [
                "`secret_ref`: this node has no section `[secrets.none]`; add it to the configuration of all nodes with the role \
              `replication`"
            ]
        );
    }

    #[test]
    fn a_secret_of_a_replication_is_checked() {
        let side = |url: &str, name: &str| json!({"url": url, "auth": {"secret_ref": name}});
        let rule = |source: Value| {
            checked(&json!({"type": "replicator", "source": source, "target": "http://t/b"}))
        };
        assert_eq!(rule(side("https://c/a", "copy")), Ok(vec![]));
        let told = rule(side("https://other/a", "copy")).unwrap_err();
        assert!(
            told.starts_with("`source`: `auth.secret_ref` names a secret"),
            "{told}"
        );
        let warned = rule(side("https://c/a", "none")).unwrap();
        assert!(warned[0].starts_with("`source.auth.secret_ref`: this node has no section"));
        let remote = json!({
            "type": "remote", "source": "https://c/${name}",
            "url": [side("https://c/x_${name}", "copy"), side("https://d/${name}", "none"), side("https://e/${name}", "none")],
        });
        let warned = checked(&remote).unwrap();
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(warned[0].starts_with("`url.auth.secret_ref`"), "{warned:?}");
    }
}
