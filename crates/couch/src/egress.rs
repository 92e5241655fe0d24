//! The egress policy: which addresses requests may go to.
//!
//! Users who write replication documents make this node send requests, so every address that
//! is connected to is checked here: of endpoints, proxies, token servers and redirects, resolved names
//! as well as literal addresses. A name is resolved once, **all** its addresses are checked, and a
//! checked address is connected to, so that the resolver cannot return another one later (DNS rebinding).
//!
//! A rule is `target` or `target:port`, where the target is
//!
//! - a host name (`db.example.com`) or its sub-domains (`*.example.com`),
//! - an address or a network (`10.0.0.7`, `10.0.0.0/8`, `[fd00::]/8`; with a port `[::1]:5984`),
//! - a class of addresses: `loopback`, `private`, `cgnat`, `link_local`, `multicast`,
//!   `unspecified`, `reserved`, or `special` for all of these,
//! - `*` for everything.
//!
//! What an `allow` rule names is allowed; of the rest, what a `deny` rule names is not. An address
//! that wraps an IPv4 address (mapped, NAT64, 6to4, Teredo) is denied when either of the two is.

mod address;
mod rule;

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::Error;
use rule::Rule;

/// The section `[network.egress]`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressOptions {
    /// Rules for allowed addresses. They take precedence over `deny`.
    pub allow: Vec<String>,
    /// Rules for denied addresses.
    pub deny: Vec<String>,
}

impl Default for EgressOptions {
    /// Public addresses only.
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: vec!["special".to_owned()],
        }
    }
}

impl EgressOptions {
    /// Everything is allowed: for command lines, where the user is the operator, and for tests.
    pub fn open() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
        }
    }
}

/// The lists, parsed.
#[derive(Debug, Clone)]
pub(crate) struct Egress {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

impl Egress {
    pub(crate) fn new(options: &EgressOptions) -> Result<Self, Error> {
        Ok(Self {
            allow: parse("allow", &options.allow)?,
            deny: parse("deny", &options.deny)?,
        })
    }

    /// Checks a name before it is resolved, so that the resolver never gets a denied one.
    pub(crate) fn check_name(&self, host: &str, port: u16) -> Result<(), Error> {
        if self.allow.iter().any(|rule| rule.names(host, port)) {
            return Ok(());
        }
        match self.deny.iter().find(|rule| rule.names(host, port)) {
            Some(rule) => Err(denied(host, rule)),
            None => Ok(()),
        }
    }

    /// Checks the addresses of a host: one denied address denies all.
    pub(crate) fn check_addresses(&self, host: &str, found: &[SocketAddr]) -> Result<(), Error> {
        for address in found {
            self.check_address(host, address.ip(), address.port())?;
        }
        Ok(())
    }

    fn check_address(&self, host: &str, ip: IpAddr, port: u16) -> Result<(), Error> {
        let ip = address::canonical(ip);
        let allowed = |ip| self.allow.iter().any(|rule| rule.covers(ip, port));
        if self.allow.iter().any(|rule| rule.names(host, port)) || allowed(ip) {
            return Ok(());
        }
        let wrapped = address::wrapped(ip).map(IpAddr::V4);
        for candidate in [Some(ip), wrapped.filter(|ip| !allowed(*ip))]
            .into_iter()
            .flatten()
        {
            if let Some(rule) = self.deny.iter().find(|rule| rule.covers(candidate, port)) {
                return Err(denied(host, rule));
            }
        }
        Ok(())
    }
}

fn parse(list: &str, texts: &[String]) -> Result<Vec<Rule>, Error> {
    texts
        .iter()
        .map(|text| {
            Rule::parse(text).ok_or_else(|| {
                Error::Config(format!("`{list}`: the egress rule `{text}` is not valid"))
            })
        })
        .collect()
}

fn denied(host: &str, rule: &Rule) -> Error {
    Error::Egress {
        host: host.to_owned(),
        rule: rule.to_string(),
    }
}

#[cfg(test)]
mod tests;
