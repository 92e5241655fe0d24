//! Connections that can be reset, and a server that can be restarted.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Accepts connections until the server restarts.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) listener: TcpListener,
    /// Resets all connections.
    pub(crate) running: CancellationToken,
}

/// One connection, as far as its requests may see it.
#[derive(Clone, Debug)]
pub(crate) struct Connection(CancellationToken);

impl Connection {
    /// Resets it; nothing more is sent.
    pub(crate) fn reset(&self) {
        self.0.cancel();
    }
}

/// One connection's bytes.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    alive: CancellationToken,
    reset: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Listener for Sockets {
    type Io = Socket;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Socket, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // Small answers shall not wait for company; without the option they are only slower.
                    stream.set_nodelay(true).ok();
                    let alive = self.running.child_token();
                    let reset = Box::pin(alive.clone().cancelled_owned());
                    return (
                        Socket {
                            stream,
                            alive,
                            reset,
                        },
                        address,
                    );
                }
                // Usually too many open files: some connection will close.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected<IncomingStream<'_, Sockets>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Sockets>) -> Self {
        Self(stream.io().alive.clone())
    }
}

impl Socket {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.reset.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        // The peer sees a reset instead of an orderly end.
        self.stream.set_zero_linger().ok();
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Restarts the server.
#[derive(Clone, Debug)]
pub(crate) struct Control(pub(crate) mpsc::Sender<Restart>);

/// A restart that somebody wants.
#[derive(Debug)]
pub(crate) struct Restart {
    pub(crate) down: Duration,
    /// Told when the server listens again.
    pub(crate) done: Option<oneshot::Sender<()>>,
}

impl Control {
    /// Restarts soon, unless a restart is coming anyway.
    pub(crate) fn restart(&self, down: Duration) {
        self.0.try_send(Restart { down, done: None }).ok();
    }
}
