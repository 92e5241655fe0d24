//! The egress policy as it can be asked without connecting: when a document is written.

use url::Host;

use crate::connect_to::ConnectTo;
use crate::egress::{Egress, Reach};
use crate::endpoint::{AuthMethod, Endpoint, Proxy};
use crate::error::Error;
use crate::options::NetworkOptions;

/// Tells which endpoints are refused before a connection is tried: those whose host is a literal address.
#[derive(Clone, Debug)]
pub struct Policy {
    egress: Egress,
    connect_to: ConnectTo,
}

impl Policy {
    pub fn new(options: &NetworkOptions) -> Result<Self, Error> {
        Ok(Self {
            egress: Egress::new(&options.egress)?,
            connect_to: ConnectTo::parse(&options.connect_to),
        })
    }

    /// Checks the hosts of an endpoint, its proxy and its token server. Names are resolved by connections only.
    pub fn check(&self, endpoint: &Endpoint) -> Result<(), Error> {
        let url = endpoint.base();
        let port = url.port_or_known_default().unwrap_or_default();
        let host = url.host_str().unwrap_or_default();
        if self.connect_to.resolve(host, port).is_none() {
            self.check_host(host, port, endpoint.reach())?;
        }
        if let Some(proxy) = endpoint.proxy() {
            self.check_proxy(proxy)?;
        }
        if let Some(url) = endpoint.auth_method().and_then(AuthMethod::token_url) {
            let port = url.port_or_known_default().unwrap_or_default();
            self.check_host(url.host_str().unwrap_or_default(), port, Reach::Public)?;
        }
        Ok(())
    }

    fn check_proxy(&self, proxy: &Proxy) -> Result<(), Error> {
        self.check_host(proxy.host(), proxy.port(), Reach::Public)
    }

    fn check_host(&self, host: &str, port: u16, reach: Reach) -> Result<(), Error> {
        self.egress.check_name(host, port)?;
        let ip = match Host::parse(host) {
            Ok(Host::Ipv4(ip)) => ip.into(),
            Ok(Host::Ipv6(ip)) => ip.into(),
            Ok(Host::Domain(_)) | Err(_) => return Ok(()),
        };
        self.egress.check_address(host, ip, port, reach).map(drop)
    }
}
