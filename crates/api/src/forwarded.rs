//! Client addresses behind trusted proxies.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

#[derive(Debug, Clone, Default)]
pub(crate) struct Proxies(Vec<IpNet>);

impl Proxies {
    /// `None` if an entry is neither an address nor a network.
    pub(crate) fn parse(texts: &[String]) -> Option<Self> {
        let parse = |text: &String| {
            let address = text.parse::<IpAddr>().ok().map(IpNet::from);
            address.or_else(|| text.parse().ok())
        };
        texts.iter().map(parse).collect::<Option<_>>().map(Self)
    }

    fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The client's address: the last one in `X-Forwarded-For` that is not a trusted proxy, if the peer of the
    /// connection is one. Clients can forge the entries before it.
    pub(crate) fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let mut client = peer.to_canonical();
        let lines = headers.get_all(FORWARDED_FOR).iter().rev();
        let lines = lines.filter_map(|line| line.to_str().ok());
        let mut hops = lines.flat_map(|line| line.rsplit(',')).map(str::trim);
        while self.has(client) {
            let Some(hop) = hops.next().and_then(address) else {
                break;
            };
            client = hop.to_canonical();
        }
        client
    }
}

/// An address; some proxies append a port.
fn address(hop: &str) -> Option<IpAddr> {
    let with_port = || hop.parse().ok().map(|with_port: SocketAddr| with_port.ip());
    hop.parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::{FORWARDED_FOR, Proxies};

    #[test]
    fn only_trusted_proxies_are_believed() {
        let trusted = ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"].map(str::to_owned);
        let proxies = Proxies::parse(&trusted).unwrap();
        for (peer, chain, client) in [
            ("203.0.113.1", "198.51.100.7", "203.0.113.1"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1", "198.51.100.7", "198.51.100.7"),
            ("::ffff:10.0.0.1", "198.51.100.7:4711", "198.51.100.7"),
            (
                "10.0.0.1",
                "1.1.1.1, 198.51.100.7, 192.0.2.1",
                "198.51.100.7",
            ),
            ("10.0.0.1", "1.1.1.1, unknown, 192.0.2.1", "192.0.2.1"),
            ("2001:db8::1", "[2a00::7]:80", "2a00::7"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(FORWARDED_FOR, HeaderValue::from_str(chain).unwrap());
            let found = proxies.client(&headers, peer.parse().unwrap());
            assert_eq!(found.to_string(), client, "{peer} {chain}");
        }
        let mut lines = HeaderMap::new();
        for line in ["1.1.1.1", "198.51.100.7", "10.9.9.9"] {
            lines.append(FORWARDED_FOR, HeaderValue::from_static(line));
        }
        let found = proxies.client(&lines, "10.0.0.1".parse().unwrap());
        assert_eq!(found.to_string(), "198.51.100.7");
        assert!(Proxies::parse(&["proxy.example".to_owned()]).is_none());
    }
}
