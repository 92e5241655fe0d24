//! Resolves host names and opens TCP connections, subject to the egress policy.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use url::Host;
use wire::Io;

use super::connector::Trouble;
use crate::connect_to::ConnectTo;
use crate::egress::{Egress, Reach};
use crate::error::Failure;
use crate::metrics;

/// Concurrent lookups: the system's resolver blocks a thread for each.
const LOOKUPS_MAX: usize = 32;
/// How long to wait for an address before the next is tried concurrently (RFC 8305).
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(300);
/// The most addresses tried per name.
const ADDRESSES_MAX: usize = 16;

pub type ResolveFn = dyn Fn(String) -> Pin<Box<dyn Future<Output = io::Result<Vec<std::net::IpAddr>>> + Send>>
    + Send
    + Sync;

#[derive(Clone, Default)]
pub enum Resolver {
    #[default]
    System,
    /// Of a simulation.
    Custom(Arc<ResolveFn>),
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Custom(_) => "Custom",
        })
    }
}

pub type ConnectFn = dyn Fn(SocketAddr) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send>>
    + Send
    + Sync;

/// Connects to addresses, once they are resolved and allowed.
#[derive(Clone, Default)]
pub enum Transport {
    /// The operating system.
    #[default]
    Tcp,
    /// Of a simulation.
    Custom(Arc<ConnectFn>),
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "Tcp",
            Self::Custom(_) => "Custom",
        })
    }
}

/// Opens every connection of a node.
pub(crate) struct Dialer {
    egress: Egress,
    connect_to: ConnectTo,
    resolver: Resolver,
    transport: Transport,
    lookups: Semaphore,
}

impl Dialer {
    pub(crate) fn new(
        egress: Egress,
        connect_to: ConnectTo,
        resolver: Resolver,
        transport: Transport,
    ) -> Self {
        Self {
            egress,
            connect_to,
            resolver,
            transport,
            lookups: Semaphore::new(LOOKUPS_MAX),
        }
    }

    /// Connects to the host of a URL, or to where `connect_to` says.
    pub(super) async fn dial(
        &self,
        host: &str,
        port: u16,
        reach: Reach,
    ) -> Result<Box<dyn Io>, Trouble> {
        let Some((target, target_port)) = self.connect_to.resolve(host, port) else {
            return self.dial_exactly(host, port, reach).await;
        };
        self.egress.check_name(host, port)?;
        metrics::connect_to_applied();
        self.dial_exactly(target, target_port, reach).await
    }

    /// Checks what [`Self::dial`] would connect to.
    pub(crate) async fn check(&self, host: &str, port: u16, reach: Reach) -> Result<(), Trouble> {
        let (host, port) = self.connect_to.resolve(host, port).unwrap_or((host, port));
        self.resolve(host, port, reach).await.map(drop)
    }

    /// Connects to a host, whatever `connect_to` says.
    pub(super) async fn dial_exactly(
        &self,
        host: &str,
        port: u16,
        reach: Reach,
    ) -> Result<Box<dyn Io>, Trouble> {
        let found = self.resolve(host, port, reach).await?;
        let stream: Box<dyn Io> = match &self.transport {
            Transport::Tcp => Box::new(tcp(found).await.map_err(Failure::connect)?),
            Transport::Custom(connect) => connect(found[0]).await.map_err(Failure::connect)?,
        };
        metrics::connection_created();
        Ok(stream)
    }

    /// Checks a host that a proxy will connect to. The proxy resolves the name itself, so what
    /// we resolve is a hint; a name that only the proxy knows passes.
    pub(super) async fn check_behind_proxy(
        &self,
        host: &str,
        port: u16,
        reach: Reach,
    ) -> Result<(), Trouble> {
        match self.resolve(host, port, reach).await {
            Ok(_) | Err(Trouble::Retry(_)) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// All addresses of a host, if all of them are allowed.
    async fn resolve(
        &self,
        host: &str,
        port: u16,
        reach: Reach,
    ) -> Result<Vec<SocketAddr>, Trouble> {
        self.egress.check_name(host, port)?;
        let found = match Host::parse(host) {
            Ok(Host::Ipv4(ip)) => vec![SocketAddr::from((ip, port))],
            Ok(Host::Ipv6(ip)) => vec![SocketAddr::from((ip, port))],
            Ok(Host::Domain(name)) => self.look_up(&name, port).await,
            Err(_) => Vec::new(),
        };
        if found.is_empty() {
            return Err(Failure::Unresolvable {
                host: host.to_owned(),
            }
            .into());
        }
        self.egress.check_addresses(host, &found, reach)?;
        Ok(found)
    }

    async fn look_up(&self, name: &str, port: u16) -> Vec<SocketAddr> {
        let _permit = self.lookups.acquire().await;
        let found = match &self.resolver {
            Resolver::System => tokio::net::lookup_host((name, port))
                .await
                .map(Vec::from_iter),
            Resolver::Custom(resolve) => resolve(name.to_owned()).await.map(|ips| {
                ips.into_iter()
                    .map(|ip| SocketAddr::from((ip, port)))
                    .collect()
            }),
        };
        found.unwrap_or_else(|error| {
            tracing::debug!(host = name, %error, "name does not resolve");
            Vec::new()
        })
    }
}

async fn tcp(found: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let stream = connect_any(found).await?;
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_mins(1))
        .with_interval(Duration::from_secs(15));
    // Without the options dead connections are only noticed later, and small writes are slower.
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Tries the addresses in turn, alternating families; a slow one does not hold up the next.
async fn connect_any(found: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut waiting = alternate(found).into_iter();
    let mut trying = FuturesUnordered::new();
    trying.extend(waiting.next().map(TcpStream::connect));
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        tokio::select! {
            biased;
            done = trying.next() => match done {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => {
                    last = error;
                    trying.extend(waiting.next().map(TcpStream::connect));
                }
                None => return Err(last),
            },
            () = tokio::time::sleep(NEXT_ADDRESS_AFTER), if waiting.len() > 0 => {
                trying.extend(waiting.next().map(TcpStream::connect));
            }
        }
    }
}

fn alternate(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let prefers_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|address| address.is_ipv6() == prefers_v6);
    let mut second = second.into_iter();
    let mut mixed = Vec::new();
    for address in first {
        mixed.push(address);
        mixed.extend(second.next());
    }
    mixed.extend(second);
    mixed.truncate(ADDRESSES_MAX);
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let given = ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"]
            .map(parse)
            .to_vec();
        let mixed = ["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"]
            .map(parse)
            .to_vec();
        assert_eq!(alternate(given), mixed);
    }
}
