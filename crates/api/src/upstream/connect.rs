//! Connections to the cluster.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use wire::{Io, Stream};

/// A cluster that vanished is noticed after a few of these, even by a feed that waits for hours.
const KEEPALIVE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct Connector {
    tls: Option<TlsConnector>,
    patience: Duration,
}

impl Connector {
    pub(super) fn new(tls: Option<Arc<ClientConfig>>, patience: Duration) -> Self {
        Self {
            tls: tls.map(TlsConnector::from),
            patience,
        }
    }

    async fn connect(self, uri: Uri) -> io::Result<TokioIo<Stream>> {
        let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        let _ = stream.set_nodelay(true);
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE);
        // Without the option dead connections are only noticed later.
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        let io: Box<dyn Io> = if is_tls {
            let no_tls = || io::Error::other("no trust roots for TLS");
            let tls = self.tls.ok_or_else(no_tls)?;
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            Box::new(tls.connect(name, stream).await?)
        } else {
            Box::new(stream)
        };
        Ok(TokioIo::new(Stream {
            io,
            absolute_form: false,
            http2: false,
        }))
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TokioIo<Stream>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (patience, connecting) = (self.patience, self.clone().connect(uri));
        Box::pin(async move {
            let connected = timeout(patience, connecting).await;
            connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        })
    }
}
