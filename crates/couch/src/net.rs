//! Connections: names, addresses, proxies and TLS below HTTP.
//!
//! There is one HTTP client per [`Profile`], that is per TLS identity and proxy, because a pooled
//! connection is handed to any request for the same host. Nearly all endpoints of a node share
//! one profile; a profile goes away, with its idle connections, when its last endpoint does.

mod connector;
mod dial;
mod proxy;
mod tls;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioTimer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use dial::{ConnectFn, ResolveFn, Resolver, Transport};

pub(crate) use connector::{ConnectError, Trouble};
pub(crate) use dial::Dialer;
pub(crate) use tls::{ClientIdentity, Roots, TlsIdentity, TlsSource};

use crate::egress::Reach;
use crate::endpoint::{Proxy, ProxyScheme};
use crate::error::Error;
use crate::payload::Body;
use crate::secret::{Basic, Secret, sensitive};
use connector::Connector;

/// How long connections to endpoints may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections kept per host and profile.
const IDLE_PER_HOST_MAX: usize = 32;
/// How much a server may send on an HTTP/2 stream before we read it.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// HTTP/2 connections with open streams are probed, because nothing else detects a dead peer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// What must be equal for two endpoints to share connections.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ProfileKey {
    pub(crate) tls: TlsIdentity,
    pub(crate) proxy: Option<Proxy>,
    /// A pooled connection is not checked again.
    pub(crate) reach: Reach,
    /// For address, proxy and TLS together.
    pub(crate) connect_timeout: Duration,
}

/// One pool of connections.
pub(crate) struct Profile {
    pub(crate) key: ProfileKey,
    pub(crate) client: Client<Connector, Body>,
}

impl Profile {
    pub(crate) fn new(
        key: ProfileKey,
        dialer: Arc<Dialer>,
        tls: TlsSource,
        idle: Duration,
        tasks: Tasks,
    ) -> Self {
        let connector = Connector::new(dialer, Arc::new(tls), &key);
        let client = Client::builder(tasks)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle)
            .pool_max_idle_per_host(IDLE_PER_HOST_MAX)
            .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
            .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .build(connector);
        Self { key, client }
    }

    /// The secrets that a proxy could repeat.
    pub(crate) fn secrets(&self) -> Vec<Secret> {
        let proxy = self.key.proxy.as_ref();
        let credentials = proxy.and_then(Proxy::credentials);
        credentials.map(Basic::spellings).unwrap_or_default()
    }

    /// Adds the credentials of an HTTP proxy to a request that the proxy reads itself.
    pub(crate) fn authorize_proxy(&self, request: &mut http::Request<Body>) -> Result<(), Error> {
        let is_http = request.uri().scheme() == Some(&http::uri::Scheme::HTTP);
        let Some(proxy) = self.key.proxy.as_ref().filter(|_| is_http) else {
            return Ok(());
        };
        if let (ProxyScheme::Http | ProxyScheme::Https, Some(credentials)) =
            (proxy.scheme(), proxy.credentials())
        {
            let value = sensitive(&credentials.header())?;
            request
                .headers_mut()
                .insert(http::header::PROXY_AUTHORIZATION, value);
        }
        Ok(())
    }
}

/// Owns the tasks that drive connections and end when the network is dropped.
#[derive(Clone)]
pub(crate) struct Tasks {
    pub(crate) tracker: TaskTracker,
    pub(crate) token: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let token = self.token.clone();
        self.tracker
            .spawn(async move { token.run_until_cancelled_owned(task).await.map(drop) });
    }
}
