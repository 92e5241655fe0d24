//! Connections to the cluster.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// A cluster that is gone without a word is noticed after a few of these, also below a feed that waits for hours.
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
        // An option that cannot be set costs comfort, not correctness.
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        if !is_tls {
            return Ok(TokioIo::new(Stream(Box::new(stream))));
        }
        let no_tls = || io::Error::other("there are no certificates to believe in");
        let tls = self.tls.ok_or_else(no_tls)?;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = tls.connect(name, stream).await?;
        Ok(TokioIo::new(Stream(Box::new(stream))))
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

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection, with or without TLS.
pub(super) struct Stream(Box<dyn Io>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
