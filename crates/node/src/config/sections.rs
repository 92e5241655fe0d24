//! The configuration sections that this crate reads; other sections are declared next to their readers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::{Durability, OpenOptions};
use zeroize::Zeroize;

use super::Role;

/// The section `[node]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NodeOptions {
    /// Node name shown in jobs. The default is `davenport@HOSTNAME`.
    pub name: Option<String>,
    /// Memory for documents in flight, in megabytes, shared by all jobs on the node.
    pub document_memory_mb: usize,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            name: None,
            document_memory_mb: 256,
        }
    }
}

/// The section `[node_types]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NodeTypes {
    /// Serve HTTP requests and create jobs from documents.
    pub api_frontend: bool,
    /// Run jobs.
    pub replication: bool,
}

impl Default for NodeTypes {
    fn default() -> Self {
        Self {
            api_frontend: true,
            replication: true,
        }
    }
}

impl NodeTypes {
    /// Applies the environment by CouchDB's rule: a variable turns a role off if it is `false` in any
    /// case, and on if it has any other value, even an empty one.
    #[must_use]
    pub fn with_environment(self, lookup: impl Fn(&str) -> Option<String>) -> Self {
        let role = |name: &str, file: bool| {
            let variable = lookup(&format!("COUCHDB_NODE_TYPE_{name}"));
            variable.map_or(file, |value| !value.eq_ignore_ascii_case("false"))
        };
        Self {
            api_frontend: role("API_FRONTEND", self.api_frontend),
            replication: role("REPLICATION", self.replication),
        }
    }

    /// Exactly these roles.
    pub fn only(roles: &[Role]) -> Self {
        Self {
            api_frontend: roles.contains(&Role::ApiFrontend),
            replication: roles.contains(&Role::Replication),
        }
    }
}

/// The section `[store]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StoreOptions {
    /// `lmdb:DIRECTORY`, `fdb:CLUSTER_FILE`, or `memory:` for tests.
    pub url: String,
    /// What a commit to an `lmdb:` store survives: with `sync`, everything; with `relaxed`,
    /// everything except a power failure, which can lose the most recent transactions.
    pub durability: DurabilityOption,
    /// Address space for an `lmdb:` store, in gigabytes. Must be the same for all processes that
    /// share the store.
    pub map_size_gb: u64,
}

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum DurabilityOption {
    /// Everything.
    Sync,
    /// Everything except a power failure.
    Relaxed,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            url: "lmdb:./data".to_owned(),
            durability: DurabilityOption::Sync,
            map_size_gb: 64,
        }
    }
}

impl StoreOptions {
    pub(crate) fn open_options(&self) -> OpenOptions {
        OpenOptions {
            durability: match self.durability {
                DurabilityOption::Sync => Durability::Sync,
                DurabilityOption::Relaxed => Durability::Relaxed,
            },
            map_size_bytes: self.map_size_gb.saturating_mul(1 << 30),
            ..OpenOptions::default()
        }
    }
}

/// The section `[keys]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KeyOptions {
    /// Key file, created at first start. All nodes of a store need the same file. The default is
    /// `DIRECTORY.keys` for `lmdb:DIRECTORY`; for other stores, `davenport.keys` next to the
    /// configuration file, in `$STATE_DIRECTORY`, or in the working directory.
    pub file: Option<PathBuf>,
}

/// The section `[log]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogOptions {
    /// `error`, `warn`, `info`, `debug` or `trace`, or a list by component, such as
    /// `info,couch=debug`.
    pub level: String,
    /// `text` or `json`. Both write one line per event.
    pub format: LogFormat,
    /// URL of an OpenTelemetry collector that accepts OTLP over HTTP, such as
    /// `http://127.0.0.1:4318`. If unset, spans are not exported. `OTEL_TRACES_SAMPLER` and the
    /// other variables of the OpenTelemetry SDKs apply. A change takes effect after a restart.
    pub otlp_url: Option<String>,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Text,
            otlp_url: None,
        }
    }
}

/// The section `[metrics]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsOptions {
    /// Address or host name, and port for `/_metrics` and `/_up`, without authentication. If unset,
    /// they are not served. Frontends always serve both on their own port. On a node without the
    /// frontend role, `--listen` sets this option.
    pub listen: Option<String>,
}

/// The section `[couchdb]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CouchdbOptions {
    /// Service UUID used in replication ids. Set it to the UUID of an existing CouchDB to reuse its
    /// checkpoints. If unset, one is generated and kept in the store.
    pub uuid: Option<String>,
    /// `HOST:PORT` of the CouchDB being replaced, if its checkpoints were written by a version
    /// before 1.2.
    pub legacy_address: Option<String>,
    /// Maximum size of a document, in bytes.
    pub max_document_size: usize,
}

impl Default for CouchdbOptions {
    fn default() -> Self {
        Self {
            uuid: None,
            legacy_address: None,
            max_document_size: 8_000_000,
        }
    }
}

impl CouchdbOptions {
    /// Host and port of `legacy_address`.
    pub(crate) fn legacy_host(&self) -> Result<Option<(String, u16)>, String> {
        let Some(address) = &self.legacy_address else {
            return Ok(None);
        };
        let parts = address.rsplit_once(':');
        let parsed = parts.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        parsed
            .map(Some)
            .ok_or_else(|| "`legacy_address` must be HOST:PORT".to_owned())
    }
}

/// The section `[http]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpOptions {
    /// Address or host name, and port to listen on. Port 0 picks a free port.
    pub listen: String,
    /// PEM file with the TLS certificate chain, the server's own certificate first. If unset, TLS
    /// is off.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    pub key_file: Option<PathBuf>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:5985".to_owned(),
            cert_file: None,
            key_file: None,
        }
    }
}

/// The section `[chttpd_auth]`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuthOptions {
    /// Seconds after which a session without requests expires.
    pub timeout: u64,
    /// Secrets shared with proxies that authenticate callers, at least 16 bytes each. Without a
    /// secret, proxy authentication is off. Any of the secrets is accepted, so they can be rotated.
    pub proxy_secrets: Vec<String>,
    /// Replace weak password hashes, such as those of older CouchDB versions, at the user's next
    /// login.
    pub upgrade_hash_on_auth: bool,
}

impl Default for AuthOptions {
    fn default() -> Self {
        Self {
            timeout: 600,
            proxy_secrets: Vec::new(),
            upgrade_hash_on_auth: true,
        }
    }
}

impl fmt::Debug for AuthOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthOptions")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The section `[jwt_auth]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JwtOptions {
    /// Claims that a token must have, each `NAME` or `NAME=VALUE`.
    pub required_claims: Vec<String>,
    /// Path of the claim that lists the roles, separated by dots. `\.` is a dot within a name.
    pub roles_claim_path: String,
}

impl Default for JwtOptions {
    fn default() -> Self {
        Self {
            required_claims: vec!["exp".to_owned()],
            roles_claim_path: "_couchdb\\.roles".to_owned(),
        }
    }
}

/// The section `[jwt_keys]`.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct JwtKeys(pub BTreeMap<String, String>);

impl fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The section `[admins]`: names, and hashes or passwords.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Admins(pub BTreeMap<String, String>);

impl Admins {
    /// Replaces the value given for this name with a hash.
    pub fn replace(&mut self, name: &str, hash: &str) {
        if let Some(given) = self.0.get_mut(name) {
            given.zeroize();
            given.push_str(hash);
        }
    }
}

impl Drop for Admins {
    fn drop(&mut self) {
        self.0.values_mut().for_each(Zeroize::zeroize);
    }
}

impl fmt::Debug for Admins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The section `[rules]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RulesOptions {
    /// JSON file with the passwords of user names in the URLs of webhooks and of the replications of rules:
    /// `{"HOST": {"USER": "PASSWORD"}}`, as for Spiegel. Read again on SIGHUP.
    pub passwords_file: Option<PathBuf>,
}

/// The section `[secrets]`.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secrets(pub BTreeMap<String, Map<String, Value>>);

impl Secrets {
    /// The secrets by name. The error contains no values.
    pub fn named(&self) -> Result<scheduler::Secrets, String> {
        let parse = |(name, members): (&String, &Map<String, Value>)| {
            let secret = couch::NamedSecret::parse(members);
            let secret = secret.map_err(|what| format!("`{name}` {what}"))?;
            Ok((name.clone(), secret))
        };
        self.0.iter().map(parse).collect()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_turns_a_role_off_or_on() {
        let types = |file, frontend: Option<&str>| {
            let file = NodeTypes {
                api_frontend: file,
                replication: true,
            };
            let with = file.with_environment(|name| {
                (name == "COUCHDB_NODE_TYPE_API_FRONTEND")
                    .then(|| frontend.map(str::to_owned))
                    .flatten()
            });
            assert!(with.replication);
            with.api_frontend
        };
        // fabric2_node_types.erl: unset is the file's; false in any case is off; all else is on.
        assert!(types(true, None));
        assert!(!types(false, None));
        for off in ["false", "FALSE", "False"] {
            assert!(!types(true, Some(off)), "{off}");
        }
        for on in ["true", "", "0", "no", " false"] {
            assert!(types(false, Some(on)), "{on}");
        }
    }

    #[test]
    fn debug_shows_names_only() {
        let admins = Admins([("anna".to_owned(), "s3cr3t".to_owned())].into());
        assert_eq!(format!("{admins:?}"), r#"{"anna"}"#);
        let secret = serde_json::json!({"basic": {"password": "s3cr3t"}});
        let secrets = Secrets([("a".to_owned(), secret.as_object().unwrap().clone())].into());
        assert_eq!(format!("{secrets:?}"), r#"{"a"}"#);
    }

    #[test]
    fn an_address_has_a_port() {
        let parse = |address: &str| {
            CouchdbOptions {
                legacy_address: Some(address.to_owned()),
                ..CouchdbOptions::default()
            }
            .legacy_host()
        };
        assert_eq!(parse("db:5984"), Ok(Some(("db".to_owned(), 5984))));
        assert!(parse("db").is_err() && parse("db:x").is_err());
    }
}
