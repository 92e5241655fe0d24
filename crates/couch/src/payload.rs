//! Bodies of requests, and the progress of sending them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Small pieces are joined to writes of this size, and large ones cut: the progress of a body
/// is known by what the connection has taken.
const WRITE_BYTES: usize = 64 * 1024;

/// The body of a request, in a form that can be sent again.
#[derive(Clone, Default)]
pub(crate) enum Payload {
    #[default]
    Empty,
    Bytes(Bytes),
    /// Sent one after the other as one body.
    Pieces(Arc<[Bytes]>),
}

impl Payload {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
        }
    }

    /// A body that reports to `progress`.
    pub(crate) fn body(&self, progress: Arc<Progress>) -> Body {
        let source = match self {
            Self::Empty => Source::Once(Bytes::new()),
            Self::Bytes(bytes) => Source::Once(bytes.clone()),
            Self::Pieces(pieces) => Source::Pieces {
                pieces: Arc::clone(pieces),
                next: 0,
                rest: Bytes::new(),
            },
        };
        Body::new(source, self.len(), progress)
    }
}

/// A body in the hands of the HTTP client.
pub(crate) struct Body {
    source: Source,
    remaining: u64,
    progress: Arc<Progress>,
}

enum Source {
    Once(Bytes),
    Pieces {
        pieces: Arc<[Bytes]>,
        next: usize,
        rest: Bytes,
    },
    Stream(mpsc::Receiver<Bytes>),
}

impl Body {
    fn new(source: Source, length: u64, progress: Arc<Progress>) -> Self {
        if length == 0 {
            progress.set(State::Sent);
        }
        Self {
            source,
            remaining: length,
            progress,
        }
    }

    /// A body of exactly `length` bytes that arrive through a channel. If the channel closes early,
    /// the request is aborted, so that a truncated document never looks complete.
    pub(crate) fn stream(
        chunks: mpsc::Receiver<Bytes>,
        length: u64,
        progress: Arc<Progress>,
    ) -> Self {
        Self::new(Source::Stream(chunks), length, progress)
    }
}

/// Copies small pieces together, and slices large ones.
fn gather(pieces: &[Bytes], next: &mut usize, rest: &mut Bytes) -> Bytes {
    if rest.is_empty() {
        rest.clone_from(&pieces[*next]);
        *next += 1;
    }
    if rest.len() >= WRITE_BYTES || *next == pieces.len() {
        return rest.split_to(rest.len().min(WRITE_BYTES));
    }
    let mut gathered = BytesMut::with_capacity(WRITE_BYTES);
    gathered.put(std::mem::take(rest));
    while let Some(piece) = pieces.get(*next) {
        if gathered.len() + piece.len() > WRITE_BYTES {
            break;
        }
        gathered.put_slice(piece);
        *next += 1;
    }
    gathered.freeze()
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.remaining == 0 {
            self.progress.set(State::Sent);
            return Poll::Ready(None);
        }
        let chunk = match &mut self.source {
            Source::Once(bytes) => Some(bytes.split_to(bytes.len().min(WRITE_BYTES))),
            Source::Pieces { pieces, next, rest } => {
                (*next < pieces.len() || !rest.is_empty()).then(|| gather(pieces, next, rest))
            }
            Source::Stream(chunks) => match chunks.poll_recv(cx) {
                Poll::Ready(chunk) => chunk,
                Poll::Pending => {
                    self.progress.set(State::Waiting);
                    return Poll::Pending;
                }
            },
        };
        let Some(chunk) = chunk else {
            let problem = "the source of the body ended early";
            return Poll::Ready(Some(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                problem,
            ))));
        };
        let Some(remaining) = self.remaining.checked_sub(chunk.len() as u64) else {
            let problem = "the source of the body is longer than announced";
            return Poll::Ready(Some(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                problem,
            ))));
        };
        self.remaining = remaining;
        self.progress.sent(chunk.len() as u64);
        self.progress.set(if remaining == 0 {
            State::Sent
        } else {
            State::Sending
        });
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining)
    }
}

/// Whose turn it is while a request is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The server's, to take the bytes at hand.
    Sending = 0,
    /// Ours, to produce more.
    Waiting = 1,
    /// The server's, to answer.
    Sent = 2,
}

/// The progress of a body, which the HTTP client owns by then.
pub(crate) struct Progress {
    state: AtomicU8,
    since_ms: AtomicU64,
    bytes: AtomicU64,
    start: Instant,
}

impl Progress {
    pub(crate) fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(State::Sending as u8),
            since_ms: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            start: now,
        })
    }

    fn set(&self, state: State) {
        let elapsed_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.since_ms.store(elapsed_ms, Ordering::Relaxed);
        self.state.store(state as u8, Ordering::Relaxed);
    }

    fn sent(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of the body passed to the connection.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The state, and since when it applies.
    pub(crate) fn state(&self) -> (State, Instant) {
        let state = match self.state.load(Ordering::Relaxed) {
            0 => State::Sending,
            1 => State::Waiting,
            _ => State::Sent,
        };
        let since_ms = self.since_ms.load(Ordering::Relaxed);
        (
            state,
            self.start + std::time::Duration::from_millis(since_ms),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn collect(mut body: Body) -> (Vec<usize>, Vec<u8>) {
        let mut sizes = Vec::new();
        let mut all = Vec::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
        {
            let data = frame.unwrap().into_data().unwrap();
            sizes.push(data.len());
            all.extend_from_slice(&data);
        }
        assert!(body.is_end_stream());
        (sizes, all)
    }

    #[tokio::test]
    async fn small_pieces_are_gathered_and_large_ones_are_not() {
        let mut pieces = vec![Bytes::from_static(b"["); 1000];
        pieces.push(Bytes::from(vec![7; 100_000]));
        pieces.push(Bytes::from_static(b"]"));
        let payload = Payload::Pieces(pieces.clone().into());
        assert_eq!(payload.len(), 101_001);
        let (sizes, all) = collect(payload.body(Progress::new(Instant::now()))).await;
        assert_eq!(sizes, [1000, 65_536, 34_465]);
        assert_eq!(all, pieces.concat());
    }

    #[tokio::test]
    async fn a_stream_has_exactly_its_length() {
        for (sent, fails) in [(5, true), (6, false), (7, true)] {
            let (sender, receiver) = mpsc::channel(1);
            let progress = Progress::new(Instant::now());
            let mut body = Body::stream(receiver, 6, Arc::clone(&progress));
            assert_eq!(body.size_hint().exact(), Some(6));
            let sending = async {
                sender.send(Bytes::from(vec![0; sent])).await.unwrap();
                drop(sender);
            };
            let reading = async {
                loop {
                    match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                        Some(Ok(_)) => {}
                        Some(Err(_)) => return true,
                        None => return false,
                    }
                }
            };
            let (failed, ()) = tokio::join!(reading, sending);
            assert_eq!(failed, fails, "{sent}");
            assert_eq!(progress.state().0 == State::Sent, !fails);
        }
    }
}
