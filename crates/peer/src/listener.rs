//! Connections that can be reset, and a server that can be restarted.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::either::Either;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The buffer of a connection within the process.
const WIRE_BYTES: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(crate) enum Transport {
    Port(SocketAddr),
    Memory(Door),
}

/// Connects to a server without a port ([`Peer::unplugged`](crate::Peer::unplugged)).
#[derive(Clone, Debug, Default)]
pub struct Door(Arc<Mutex<Option<mpsc::UnboundedSender<DuplexStream>>>>);

impl Door {
    /// Opens a connection.
    ///
    /// # Errors
    /// The server is down at the moment.
    pub fn connect(&self) -> io::Result<DuplexStream> {
        let door = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ours, theirs) = tokio::io::duplex(WIRE_BYTES);
        let accepted = door.as_ref().is_some_and(|door| door.send(theirs).is_ok());
        let refused = || io::ErrorKind::ConnectionRefused.into();
        accepted.then_some(ours).ok_or_else(refused)
    }

    pub(crate) fn open(&self) -> Listening {
        let (knock, knocks) = mpsc::unbounded_channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(knock);
        Listening::Memory(knocks)
    }
}

#[derive(Debug)]
pub(crate) enum Listening {
    Port(TcpListener),
    Memory(mpsc::UnboundedReceiver<DuplexStream>),
}

impl Transport {
    pub(crate) async fn listen(&self) -> io::Result<Listening> {
        match self {
            Self::Port(address) => TcpListener::bind(address).await.map(Listening::Port),
            Self::Memory(door) => Ok(door.open()),
        }
    }
}

/// Accepts connections until the server restarts.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) listener: Listening,
    pub(crate) address: SocketAddr,
    /// Resets all connections.
    pub(crate) running: CancellationToken,
}

/// The handle of a connection that its requests have.
#[derive(Clone, Debug)]
pub(crate) struct Connection(CancellationToken);

impl Connection {
    /// Sends nothing more.
    pub(crate) fn reset(&self) {
        self.0.cancel();
    }
}

#[derive(Debug)]
pub(crate) struct Socket {
    stream: Either<TcpStream, DuplexStream>,
    alive: CancellationToken,
    reset: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Listener for Sockets {
    type Io = Socket;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Socket, SocketAddr) {
        loop {
            let accepted = match &mut self.listener {
                Listening::Port(listener) => {
                    TcpListener::accept(listener)
                        .await
                        .map(|(stream, address)| {
                            // Small answers must not wait for an acknowledgement. Without the option they are only slower.
                            stream.set_nodelay(true).ok();
                            (Either::Left(stream), address)
                        })
                }
                Listening::Memory(knocks) => match knocks.recv().await {
                    Some(stream) => Ok((Either::Right(stream), self.address)),
                    // All doors are dropped, so no connection can come.
                    None => std::future::pending().await,
                },
            };
            match accepted {
                Ok((stream, address)) => {
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
                // Usually too many open files: retry once a connection may have closed.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
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
        // The client sees a reset instead of an orderly close.
        if let Either::Left(stream) = &self.stream {
            stream.set_zero_linger().ok();
        }
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

#[derive(Clone, Debug)]
pub(crate) struct Control(pub(crate) mpsc::Sender<Restart>);

#[derive(Debug)]
pub(crate) struct Restart {
    pub(crate) down: Duration,
    /// Notified when the server listens again.
    pub(crate) done: Option<oneshot::Sender<()>>,
}

impl Control {
    /// Restarts, unless a restart is already pending.
    pub(crate) fn restart(&self, down: Duration) {
        self.0.try_send(Restart { down, done: None }).ok();
    }
}
