//! Checks of values that parse but cannot be used.

use std::collections::BTreeMap;

use api::auth::SECRET_BYTES_MIN;
use api::auth::password::{ITERATIONS_MAX, PasswordHash};

use super::problem::{Origin, Problem};
use super::{Config, schema};

impl Config {
    pub(super) fn problems(&self, origins: &BTreeMap<String, Origin>) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut check = |section: &str, result: Result<(), String>| {
            if let Err(what) = result {
                let key = blame(section, &what, origins);
                let origin = origins.get(&key).cloned().unwrap_or(Origin::Default);
                problems.push(Problem::new(origin, Some(&key), what));
            }
        };
        check("node", self.check_node());
        check("node_types", self.check_roles());
        check("store", self.check_store());
        check("log", self.log.check());
        check("couchdb", self.couchdb.legacy_host().map(drop));
        check("replicator", text(self.replicator.validate()));
        check("network", text(self.network.validate()));
        check("api", text(self.api.validate()));
        check("upstream", text(self.upstream.validate()));
        check("couch_jobs", self.couch_jobs.check());
        check("http", self.check_http());
        check(
            "metrics",
            self.metrics.listen.as_deref().map_or(Ok(()), listen),
        );
        match self.secrets.named() {
            Ok(_) => check("sources", self.sources().map(drop)),
            // Sources refer to them.
            Err(what) => check("secrets", Err(what)),
        }
        check("secrets", self.check_signing());
        check("webhooks", self.check_webhooks());
        check("jwt_keys", text(self.check_tokens()));
        check("chttpd_auth", self.check_secrets());
        for (name, password) in &self.admins.0 {
            if name.is_empty() || name.starts_with('_') || name.contains(':') {
                check("admins", Err(format!("`{name}` cannot be a name")));
            } else if password.is_empty() {
                check("admins", Err(format!("`{name}` has an empty password")));
            } else if PasswordHash::is_unusable(password) {
                check(
                    "admins",
                    Err(format!(
                        "`{name}` has an invalid password hash: it is damaged, or has more than \
                     {ITERATIONS_MAX} iterations; replace it with the output of `davenport hash-password`"
                    )),
                );
            }
        }
        problems
    }

    /// The servers that are followed. The error contains no credentials.
    pub(crate) fn sources(&self) -> Result<Vec<rules::source::Source>, String> {
        let secrets = self.secrets.named()?;
        let upstream = self.upstream.target().ok().flatten();
        let sources = self
            .sources
            .sources(upstream.as_ref().map(url::Url::as_str), &secrets);
        sources.map_err(|error| error.to_string())
    }

    fn check_node(&self) -> Result<(), String> {
        if let Some(name) = &self.node.name
            && (name.is_empty() || jobs::Holder::new(name).is_err())
        {
            let max = jobs::HOLDER_BYTES_MAX;
            return Err(format!("`name` must have 1 to {max} bytes"));
        }
        if self.node.document_memory_mb == 0 {
            return Err("`document_memory_mb` must be at least 1".to_owned());
        }
        Ok(())
    }

    fn check_roles(&self) -> Result<(), String> {
        if !self.node_types.api_frontend && !self.node_types.replication {
            return Err("all roles are turned off".to_owned());
        }
        Ok(())
    }

    fn check_store(&self) -> Result<(), String> {
        let url = &self.store.url;
        let known = match url.split_once(':') {
            Some(("lmdb" | "fdb", origin)) => !origin.is_empty(),
            Some(("memory", origin)) => origin.is_empty(),
            _ => false,
        };
        if !known {
            return Err(format!(
                "`url` is {url:?}; use lmdb:DIRECTORY, fdb:CLUSTER_FILE or memory:"
            ));
        }
        if self.store.map_size_gb == 0 {
            return Err("`map_size_gb` must be at least 1".to_owned());
        }
        Ok(())
    }

    fn check_http(&self) -> Result<(), String> {
        if self.http.cert_file.is_some() != self.http.key_file.is_some() {
            return Err("set both `cert_file` and `key_file`, or neither".to_owned());
        }
        listen(&self.http.listen)
    }

    fn check_webhooks(&self) -> Result<(), String> {
        let secret = &self.webhooks.events.secret;
        if !secret.is_empty() && !self.secrets.0.contains_key(secret) {
            return Err(format!(
                "`events.secret`: there is no section `[secrets.{secret}]`"
            ));
        }
        let secrets = self.secrets.named().unwrap_or_default();
        if let Ok(url) = url::Url::parse(&self.webhooks.events.url)
            && let Some(named) = secrets.get(secret)
            && !rules::deliver::signs(named, &url)
        {
            return Err(format!(
                "`events.secret`: `[secrets.{secret}]` cannot sign calls of `events.url`: it needs `signing`, and the server of the \
                 URL in `origins`"
            ));
        }
        self.webhooks.validate().map_err(str::to_owned)
    }

    /// The secrets that sign calls of webhooks.
    fn check_signing(&self) -> Result<(), String> {
        let mut secrets = self.secrets.0.iter();
        let is_wrong = |members: &serde_json::Map<String, serde_json::Value>| {
            (members.get("signing")).is_some_and(|signing| !rules::deliver::is_signing(signing))
        };
        secrets.find(|(_, members)| is_wrong(members)).map_or(Ok(()), |(name, _)| {
            Err(format!(
                "`{name}`: `signing` must be one or more texts of `whsec_` and base64, as `echo whsec_$(openssl rand -base64 32)` \
                 makes them"
            ))
        })
    }

    fn check_secrets(&self) -> Result<(), String> {
        let secrets = &self.chttpd_auth.proxy_secrets;
        if secrets.iter().any(|secret| secret.len() < SECRET_BYTES_MIN) {
            return Err(format!(
                "`proxy_secrets` has a secret shorter than {SECRET_BYTES_MIN} bytes, which can be \
                 guessed: use the output of `openssl rand -hex 32`"
            ));
        }
        Ok(())
    }

    fn check_tokens(&self) -> Result<(), api::auth::jwt::KeyError> {
        let roles = &self.jwt_auth.roles_claim_path;
        api::auth::jwt::Jwt::new(&self.jwt_keys.0, Vec::new(), roles).map(drop)
    }
}

/// Whether a node can listen there, as far as the text tells.
fn listen(address: &str) -> Result<(), String> {
    let parts = address.rsplit_once(':');
    let usable = parts
        .is_some_and(|(host, port)| port.parse::<u16>().is_ok() && url::Host::parse(host).is_ok());
    usable.then_some(()).ok_or_else(|| {
        format!("`listen` is {address:?}; give an address or a host name, and a port, like 127.0.0.1:5985 or localhost:5985")
    })
}

fn text<E: std::fmt::Display>(result: Result<(), E>) -> Result<(), String> {
    result.map_err(|error| error.to_string())
}

/// The option that a message in backticks is about.
fn blame(section: &str, what: &str, origins: &BTreeMap<String, Origin>) -> String {
    let mut quoted = what.split('`').skip(1).step_by(2);
    let inner = |name: &&schema::Section| {
        name.name == section || name.name.starts_with(&format!("{section}."))
    };
    let named = quoted.find_map(|word| {
        let open = format!("{section}.{word}");
        if origins.contains_key(&open) {
            return Some(open);
        }
        schema::sections().iter().filter(inner).find_map(|found| {
            let key = found.keys.iter().find(|key| key.name == word)?;
            Some(format!("{}.{}", found.name, key.name))
        })
    });
    named.unwrap_or_else(|| section.to_owned())
}
