//! Opens the connection for a request: address, proxy, TLS.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use wire::{Io, Stream};

use super::ProfileKey;
use super::dial::Dialer;
use super::proxy;
use super::tls::TlsSource;
use crate::egress::Reach;
use crate::endpoint::{Proxy, ProxyScheme};
use crate::error::{Error, Failure};

/// Why a request failed, by what its sender does next.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Tries again, if retries are left.
    Retry(Failure),
    /// Gives up, as another try would fail the same way.
    Final(Failure),
    /// Returns it to the caller.
    Fatal(Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Retry(failure)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// Carries a [`Trouble`] through the HTTP client, which only lends the sources of its errors: hence the mutex.
#[derive(Debug)]
pub(crate) struct ConnectError(Mutex<Option<Trouble>>);

impl ConnectError {
    /// Takes the trouble out of an error of the HTTP client.
    pub(crate) fn find(error: &(dyn StdError + 'static)) -> Option<Trouble> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(own) = error.downcast_ref::<Self>() {
                return own.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
            next = error.source();
        }
        None
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection")
    }
}

impl StdError for ConnectError {}

/// Opens connections for the HTTP client.
#[derive(Clone)]
pub(crate) struct Connector {
    dialer: Arc<Dialer>,
    tls: Arc<TlsSource>,
    proxy: Option<Proxy>,
    reach: Reach,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(dialer: Arc<Dialer>, tls: Arc<TlsSource>, key: &ProfileKey) -> Self {
        Self {
            dialer,
            tls,
            proxy: key.proxy.clone(),
            reach: key.reach,
            timeout: key.connect_timeout,
        }
    }

    async fn connect(self, uri: Uri) -> Result<TokioIo<Stream>, Trouble> {
        let host = uri.host().unwrap_or_default();
        let is_tls = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let (stream, absolute_form): (Box<dyn Io>, bool) = match &self.proxy {
            None => (self.dialer.dial(host, port, self.reach).await?, false),
            Some(proxy) => {
                (self.dialer.check_behind_proxy(host, port, self.reach)).await?;
                let stream = self.reach_proxy(proxy).await?;
                match proxy.scheme() {
                    ProxyScheme::Socks5 => (proxy::socks5(stream, proxy, host, port).await?, false),
                    _ if is_tls => (proxy::tunnel(stream, proxy, host, port).await?, false),
                    _ => (stream, true),
                }
            }
        };
        let (io, http2) = if is_tls {
            self.tls.handshake(stream, host).await?
        } else {
            (stream, false)
        };
        Ok(TokioIo::new(Stream {
            io,
            absolute_form,
            http2,
        }))
    }

    async fn reach_proxy(&self, proxy: &Proxy) -> Result<Box<dyn Io>, Trouble> {
        let (host, port) = (proxy.host(), proxy.port());
        let stream = (self.dialer.dial_exactly(host, port, Reach::Public)).await?;
        match proxy.scheme() {
            ProxyScheme::Https => self.tls.proxy_handshake(stream, proxy.host()).await,
            ProxyScheme::Http | ProxyScheme::Socks5 => Ok(stream),
        }
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (timeout, connecting) = (self.timeout, self.clone().connect(uri));
        Box::pin(async move {
            let connected = tokio::time::timeout(timeout, connecting).await;
            let timed_out = || Failure::connect(io::ErrorKind::TimedOut.into()).into();
            connected
                .unwrap_or_else(|_| Err(timed_out()))
                .map_err(|trouble| ConnectError(Mutex::new(Some(trouble))))
        })
    }
}
