//! A feed of changes as a stream.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, stream};
use tokio::sync::watch;
use wire::FeedKind;

use super::Query;
use crate::db::{Database, Document, State};
use crate::render::{self, Shown};
use crate::seq::Seqs;

/// A piece is sent when it is this long.
const PIECE_BYTES: usize = 64 * 1024;

/// The lock is released after this many changes, even if the filter passes none of them.
const EXAMINED_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Feed {
    query: Query,
    seqs: Seqs,
    db: Arc<Database>,
    updates: watch::Receiver<u64>,
    /// The last sequence examined; in a descending feed, the next to examine.
    since: u64,
    /// A normal feed ends here.
    until: u64,
    /// Rows left within the limit.
    left: u64,
    any_rows: bool,
    /// Whether it has waited for changes.
    waited: bool,
    /// The sequence of the last row of a descending feed.
    lowest: Option<u64>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Head,
    Rows,
    /// There are no more changes; a newline is due if nothing was sent.
    Idle,
    Wait,
    Tail,
    Done,
}

impl Feed {
    pub(super) fn new(db: Arc<Database>, seqs: Seqs, query: Query, now: u64) -> Self {
        Self {
            seqs,
            updates: db.watch(),
            db,
            since: query.since,
            until: now,
            left: query.limit,
            any_rows: false,
            waited: false,
            lowest: None,
            phase: Phase::Head,
            query,
        }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = Bytes> + Send + 'static {
        stream::unfold(self, |mut feed| async move {
            let piece = feed.next().await?;
            Some((piece, feed))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let mut out = Vec::new();
            match self.phase {
                Phase::Head => {
                    self.phase = Phase::Rows;
                    out.extend_from_slice(self.query.kind.head().as_bytes());
                    self.rows(&mut out);
                    if self.phase == Phase::Tail {
                        self.tail(&mut out);
                    }
                }
                Phase::Rows => {
                    self.rows(&mut out);
                    if self.phase == Phase::Tail {
                        self.tail(&mut out);
                    }
                    // Other tasks need the thread, too, when a filter passes nothing.
                    tokio::task::yield_now().await;
                }
                Phase::Idle => {
                    self.phase = Phase::Wait;
                    if !self.any_rows {
                        out.push(b'\n');
                    }
                }
                Phase::Wait => {
                    self.waited = true;
                    self.wait(&mut out).await;
                }
                Phase::Tail => self.tail(&mut out),
                Phase::Done => return None,
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }

    /// Appends the rows of one piece and moves to the next phase.
    fn rows(&mut self, out: &mut Vec<u8>) {
        let db = Arc::clone(&self.db);
        let state = db.read();
        let exhausted = if self.query.descending {
            let mut changes = state.changes(0, self.since).rev();
            self.some_rows(out, &mut changes)
        } else {
            let until = if self.query.kind == FeedKind::Normal {
                self.until
            } else {
                state.seq
            };
            let mut changes = state.changes(self.since, until);
            self.some_rows(out, &mut changes)
        };
        let endless = !self.query.kind.is_object() && !self.query.descending;
        self.phase = match self.query.kind {
            _ if self.left == 0 => Phase::Tail,
            _ if !exhausted => Phase::Rows,
            FeedKind::Longpoll if !self.any_rows && !self.query.descending => Phase::Idle,
            _ if endless => Phase::Idle,
            _ => Phase::Tail,
        };
    }

    /// Returns whether there are no more changes.
    fn some_rows<'a>(
        &mut self,
        out: &mut Vec<u8>,
        changes: &mut dyn Iterator<Item = (u64, &'a Arc<str>, &'a Document)>,
    ) -> bool {
        let mut examined = 0;
        while self.left > 0 && out.len() < PIECE_BYTES && examined < EXAMINED_MAX {
            let Some((seq, id, document)) = changes.next() else {
                return true;
            };
            examined += 1;
            self.since = if self.query.descending { seq - 1 } else { seq };
            self.lowest = Some(seq);
            let revs = self
                .query
                .filter
                .passing(id, document, self.query.all_leaves);
            if !revs.is_empty() {
                self.row(out, seq, id, document, &revs);
                self.any_rows = true;
                self.left -= 1;
            }
        }
        false
    }

    fn row(
        &self,
        out: &mut Vec<u8>,
        seq: u64,
        id: &str,
        document: &Document,
        revs: &[&document::rev::Rev],
    ) {
        let winner = document.winner();
        let kind = self.query.kind;
        out.extend_from_slice(kind.before_row(!self.any_rows).as_bytes());
        let packed = self
            .query
            .seq_interval
            .is_none_or(|interval| self.left.is_multiple_of(interval));
        let packed = if packed {
            self.seqs.json(seq)
        } else {
            "null".to_owned()
        };
        out.extend_from_slice(b"{\"seq\":");
        out.extend_from_slice(packed.as_bytes());
        out.extend_from_slice(b",\"id\":");
        render::string(out, id);
        out.extend_from_slice(b",\"changes\":");
        render::list(out, revs, |out, rev| {
            out.extend_from_slice(b"{\"rev\":");
            render::rev(out, rev);
            out.push(b'}');
        });
        if winner.deleted {
            out.extend_from_slice(b",\"deleted\":true");
        }
        if let Some(docs) = self.query.docs {
            let shown = Shown {
                attachments: docs.attachments,
                encoding: docs.encoding,
                ..Shown::default()
            };
            let shown = if docs.conflicts {
                shown.with_conflicts(document)
            } else {
                shown
            };
            out.extend_from_slice(b",\"doc\":");
            render::node(out, id, winner, &shown);
        }
        out.push(b'}');
        out.extend_from_slice(kind.after_row(&packed).as_bytes());
    }

    async fn wait(&mut self, out: &mut Vec<u8>) {
        let gone = self.db.gone.clone();
        let since = self.since;
        let heartbeat = self.query.wait_options.heartbeat;
        tokio::select! {
            biased;
            updated = self.updates.wait_for(|seq| *seq > since) => {
                self.phase = if updated.is_ok() { Phase::Rows } else { Phase::Tail };
            }
            () = gone.cancelled() => self.phase = Phase::Tail,
            () = tokio::time::sleep(self.query.wait_options.wait) => if heartbeat {
                out.extend_from_slice(self.query.kind.heartbeat().as_bytes());
            } else {
                self.phase = Phase::Tail;
            },
        }
    }

    /// When CouchDB looks documents up by id, it counts all others as pending.
    fn overlooked(&self, state: &State) -> Option<usize> {
        if self.waited || !self.query.filter.looks_up() {
            return None;
        }
        let (since, until) = if self.query.descending {
            (0, self.query.since)
        } else {
            (self.query.since, self.until)
        };
        let sent = usize::try_from(self.query.limit - self.left).unwrap_or(usize::MAX);
        Some(state.count_changes(since, until).saturating_sub(sent))
    }

    fn tail(&mut self, out: &mut Vec<u8>) {
        self.phase = Phase::Done;
        let state = self.db.read();
        let (last, pending) = if self.query.descending {
            (
                self.lowest.unwrap_or(self.since),
                state.count_changes(0, self.since),
            )
        } else {
            let until = if self.query.kind == FeedKind::Normal {
                self.until
            } else {
                state.seq
            };
            (self.since, state.count_changes(self.since, until))
        };
        let pending = self.overlooked(&state).unwrap_or(pending);
        let last = self.seqs.json(last);
        let members = format!("\"last_seq\":{last},\"pending\":{pending}");
        out.extend_from_slice(self.query.kind.end(&members).as_bytes());
        // CouchDB ends every streamed answer with an extra newline.
        out.push(b'\n');
    }
}
