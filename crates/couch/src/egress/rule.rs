//! One rule of an egress list.

use std::fmt;
use std::net::IpAddr;

use super::address::Class;

/// A rule, with its text for messages.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    text: String,
    target: Target,
    port: Option<u16>,
}

#[derive(Debug, Clone)]
enum Target {
    Everything,
    Host(String),
    SubDomains(String),
    Network(IpAddr, u8),
    Class(Class),
    Special,
}

impl Rule {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (target, port) = match split_port(text) {
            Some((target, port)) => (target, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let target = Target::parse(&target.to_ascii_lowercase())?;
        Some(Self {
            text: text.to_owned(),
            target,
            port,
        })
    }

    pub(super) fn has_port(&self) -> bool {
        self.port.is_some()
    }

    /// Whether the rule names a host, whatever its address.
    pub(super) fn names(&self, host: &str, port: u16) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        self.port.is_none_or(|own| own == port)
            && match &self.target {
                Target::Everything => true,
                Target::Host(name) => host.eq_ignore_ascii_case(name),
                Target::SubDomains(suffix) => host.to_ascii_lowercase().ends_with(suffix.as_str()),
                Target::Network(..) | Target::Class(_) | Target::Special => false,
            }
    }

    /// Whether the rule covers an address, whatever its name.
    pub(super) fn covers(&self, ip: IpAddr, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
            && match &self.target {
                Target::Everything => true,
                Target::Host(_) | Target::SubDomains(_) => false,
                Target::Network(network, prefix) => contains(*network, *prefix, ip),
                Target::Class(class) => Class::of(ip) == Some(*class),
                Target::Special => Class::of(ip).is_some(),
            }
    }
}

/// Splits a port off: after a bracket, or after the only colon.
fn split_port(text: &str) -> Option<(&str, &str)> {
    let (target, port) = text.rsplit_once(':')?;
    let ends_address = target.ends_with(']') || target.contains("]/");
    (ends_address || !target.contains(':')).then_some((target, port))
}

impl Target {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Everything);
        }
        if text == "special" {
            return Some(Self::Special);
        }
        if let Some((_, class)) = Class::ALL.iter().find(|(name, _)| *name == text) {
            return Some(Self::Class(*class));
        }
        let bare: String = text.chars().filter(|c| !matches!(c, '[' | ']')).collect();
        if let Some((address, prefix)) = bare.split_once('/') {
            let address: IpAddr = address.parse().ok()?;
            let prefix: u8 = prefix.parse().ok()?;
            return (prefix <= bits(address)).then_some(Self::Network(address, prefix));
        }
        if let Ok(address) = bare.parse::<IpAddr>() {
            let address = address.to_canonical();
            return Some(Self::Network(address, bits(address)));
        }
        if let Some(suffix) = text.strip_prefix('*') {
            return (suffix.starts_with('.') && is_name(&suffix[1..]))
                .then(|| Self::SubDomains(suffix.to_owned()));
        }
        is_name(text).then(|| Self::Host(text.to_owned()))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        // `10.0.0` is an address in another spelling, and `10.0.0.256` nothing.
        && matches!(url::Host::parse(text), Ok(url::Host::Domain(_)))
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn contains(network: IpAddr, prefix: u8, ip: IpAddr) -> bool {
    let (network, ip) = match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => (
            u128::from(network.to_bits()) << 96,
            u128::from(ip.to_bits()) << 96,
        ),
        (IpAddr::V6(network), IpAddr::V6(ip)) => (network.to_bits(), ip.to_bits()),
        _ => return false,
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
    network & mask == ip & mask
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
