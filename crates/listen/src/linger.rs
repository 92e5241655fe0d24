//! Lets a response arrive although the service did not read all of the request's body. Closing a connection with unread
//! bytes resets it, and a client that is still sending may never see the response. So when such a connection has been shut
//! down, what else arrives is discarded for a moment.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a client may take to close the connection, and how much it may still send.
const TIME_MAX: Duration = Duration::from_secs(1);
const BYTES_MAX: usize = 1024 * 1024;

/// Whether the last body of a connection was dropped before its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<AtomicBool>);

impl Unread {
    pub(super) fn watch(&self, body: Incoming) -> Body {
        self.0.store(false, Ordering::Relaxed);
        Body::new(Watched {
            body,
            has_ended: false,
            unread: self.clone(),
        })
    }
}

struct Watched {
    body: Incoming,
    has_ended: bool,
    unread: Unread,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.has_ended |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.has_ended && !self.body.is_end_stream() {
            self.unread.0.store(true, Ordering::Relaxed);
        }
    }
}

/// A connection whose shutdown waits for a client that may still be sending.
pub(super) struct Linger<S> {
    stream: S,
    unread: Unread,
    bytes_left: usize,
    /// The end of the wait, once the stream is shut down.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Linger<S> {
    pub(super) fn new(stream: S, unread: Unread) -> Self {
        Self {
            stream,
            unread,
            bytes_left: BYTES_MAX,
            until: None,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Linger<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Linger<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.until.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            if !this.unread.0.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let until = (this.until).get_or_insert_with(|| Box::pin(sleep(TIME_MAX)));
        let mut bytes = [0; 4_096];
        while this.bytes_left > 0 && until.as_mut().poll(cx).is_pending() {
            let mut rest = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut rest));
            if read.is_err() || rest.filled().is_empty() {
                break;
            }
            this.bytes_left = this.bytes_left.saturating_sub(rest.filled().len());
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
