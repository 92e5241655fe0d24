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
//! - a class of addresses: `loopback`, `private`, `cgnat`, `link_local`, `metadata`, `multicast`,
//!   `unspecified`, `reserved`, or `special` for all of these,
//! - `*` for everything.
//!
//! What a `deny` rule names is denied. Of the rest, what an `allow` rule names is allowed, but the service's own addresses
//! only by a rule with a port. All other public addresses are allowed, and [`Reach::Private`] ones to those who have that
//! reach. An address that wraps an IPv4 address (mapped, NAT64, 6to4, Teredo) is denied when either of the two is.

mod address;
pub(crate) mod blocked;
mod rule;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::Error;
use address::Class;
pub use blocked::Blocked;
use rule::Rule;

/// The section `[network.egress]`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressOptions {
    /// Rules for addresses that all replications may reach, in addition to public addresses.
    pub allow: Vec<String>,
    /// Rules for addresses that no replication may reach. They take precedence over `allow`.
    pub deny: Vec<String>,
    /// The addresses that the service and its store listen on.
    #[serde(skip)]
    pub own: Vec<SocketAddr>,
}

impl EgressOptions {
    /// Everything is allowed: for command lines, where the user is the operator, and for tests.
    pub fn open() -> Self {
        Self {
            allow: vec!["*".to_owned()],
            ..Self::default()
        }
    }
}

/// What an endpoint's author may reach without a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Public addresses.
    #[default]
    Public,
    /// Also loopback, private, shared and unique local addresses.
    Private,
}

/// The policy, parsed. Clones share what was logged.
#[derive(Debug, Clone)]
pub(crate) struct Egress {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    own: Vec<SocketAddr>,
    /// Private addresses whose use was logged.
    logged: Arc<Mutex<HashSet<SocketAddr>>>,
}

impl Egress {
    pub(crate) fn new(options: &EgressOptions) -> Result<Self, Error> {
        Ok(Self {
            allow: parse("allow", &options.allow)?,
            deny: parse("deny", &options.deny)?,
            own: options.own.clone(),
            logged: Arc::default(),
        })
    }

    /// Checks a name before it is resolved, so that the resolver never gets a denied one.
    pub(crate) fn check_name(&self, host: &str, port: u16) -> Result<(), Error> {
        match self.deny.iter().find(|rule| rule.names(host, port)) {
            Some(rule) => Err(blocked(host, Blocked::Denied(rule.to_string()))),
            None => Ok(()),
        }
    }

    /// Checks the addresses of a host before they are connected to: one denied address denies all.
    pub(crate) fn check_addresses(
        &self,
        host: &str,
        found: &[SocketAddr],
        reach: Reach,
    ) -> Result<(), Error> {
        for address in found {
            let by_reach = self.check_address(host, address.ip(), address.port(), reach)?;
            if by_reach && self.logged().insert(*address) {
                tracing::info!(host, %address, "replications of server administrators reach a private address");
            }
        }
        Ok(())
    }

    /// Checks an address; true if it is allowed only because of the reach.
    pub(crate) fn check_address(
        &self,
        host: &str,
        ip: IpAddr,
        port: u16,
        reach: Reach,
    ) -> Result<bool, Error> {
        let ip = address::canonical(ip);
        let wrapped = address::wrapped(ip).map(IpAddr::V4);
        let both = || [Some(ip), wrapped].into_iter().flatten();
        let denies = |rule: &&Rule| both().any(|ip| rule.covers(ip, port));
        if let Some(rule) = self.deny.iter().find(denies) {
            return Err(blocked(host, Blocked::Denied(rule.to_string())));
        }
        let is_own = both().any(|ip| self.is_own(ip, port));
        let may_allow = || (self.allow.iter()).filter(|rule| !is_own || rule.has_port());
        let allowed = |ip| may_allow().any(|rule| rule.covers(ip, port));
        if may_allow().any(|rule| rule.names(host, port)) || allowed(ip) {
            return Ok(false);
        }
        if is_own {
            return Err(blocked(host, Blocked::Own));
        }
        let mut by_reach = false;
        for class in both().filter(|ip| !allowed(*ip)).filter_map(Class::of) {
            if reach == Reach::Public || !class.is_private() {
                return Err(blocked(
                    host,
                    Blocked::Class(class.name(), class.is_private()),
                ));
            }
            by_reach = true;
        }
        Ok(by_reach)
    }

    /// Whether the service or its store listens there.
    fn is_own(&self, ip: IpAddr, port: u16) -> bool {
        let mut own = self.own.iter().filter(|own| own.port() == port);
        own.any(|own| own.ip() == ip || (own.ip().is_unspecified() && is_of_this_host(ip)))
    }

    fn logged(&self) -> std::sync::MutexGuard<'_, HashSet<SocketAddr>> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Only addresses of this host can be bound.
fn is_of_this_host(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

fn parse(list: &str, texts: &[String]) -> Result<Vec<Rule>, Error> {
    texts
        .iter()
        .map(|text| {
            Rule::parse(text).ok_or_else(|| {
                Error::Config(format!(
                    "`{list}`: the egress rule `{text}` is not valid; a rule is a host name, `*.domain`, an address, a network or \
                     a class of addresses, each optionally with `:port`"
                ))
            })
        })
        .collect()
}

fn blocked(host: &str, cause: Blocked) -> Error {
    Error::Egress {
        host: host.to_owned(),
        cause,
    }
}

#[cfg(test)]
mod tests;
