//! `_db_updates`: what happened to databases.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, stream};
use http::Method;
use http::header::{CACHE_CONTROL, ETAG};
use tokio::sync::watch;
use wire::FeedKind;

use super::changes::FeedWait;
use super::check_server_admin;
use crate::events::{Events, Kind};
use crate::refusal::Refusal;
use crate::render;
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::seq::Seqs;
use crate::server::Server;

struct Feed {
    events: Arc<Events>,
    updates: watch::Receiver<u64>,
    kind: FeedKind,
    wait_options: FeedWait,
    seqs: Seqs,
    since: u64,
    descending: bool,
    left: u64,
    any_rows: bool,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Head,
    Rows,
    Wait,
    Done,
}

pub(super) fn db_updates(server: &Arc<Server>, request: &Request) -> Result<Reply, Refusal> {
    check_server_admin(request)?;
    if request.method != Method::GET {
        return Err(Refusal::method("GET"));
    }
    let kind = FeedKind::parse(request.param("feed")).ok_or_else(|| {
        let forms = "normal, continuous, longpoll, eventsource";
        Refusal::bad_request(format!("Supported `feed` types: {forms}"))
    })?;
    let seqs = server.event_seqs();
    let now = server.events.seq();
    let since = match request.param("since") {
        None => 0,
        Some("now") => now,
        Some(text) => seqs.parse(text)?,
    };
    let left = request.param("limit").map_or(Ok(u64::MAX), str::parse);
    let feed = Feed {
        events: Arc::clone(&server.events),
        updates: server.events.watch(),
        kind,
        wait_options: FeedWait::parse(request)?,
        seqs,
        since,
        descending: request.flag("descending"),
        left: left.map_err(|_| Refusal::bad_request("invalid_integer"))?,
        any_rows: false,
        phase: Phase::Head,
    };
    let reply = reply::stream(kind.content_type(), feed.into_stream());
    Ok(match kind {
        FeedKind::Normal => reply::with(reply, &ETAG, &format!("\"{}\"", now + 1)),
        FeedKind::EventSource => reply::with(reply, &CACHE_CONTROL, "no-cache"),
        FeedKind::Longpoll | FeedKind::Continuous => reply,
    })
}

impl Feed {
    fn into_stream(self) -> impl Stream<Item = Bytes> + Send + 'static {
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
                    out.extend_from_slice(self.kind.head().as_bytes());
                }
                Phase::Rows => self.rows(&mut out),
                Phase::Wait => self.wait(&mut out).await,
                Phase::Done => return None,
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }

    fn rows(&mut self, out: &mut Vec<u8>) {
        let mut events = self
            .events
            .after(if self.descending { 0 } else { self.since }, u64::MAX);
        if self.descending {
            events.reverse();
        }
        for (seq, kind, database) in events {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            self.since = seq;
            self.row(out, seq, kind, &database);
        }
        let waits = !self.descending
            && self.left > 0
            && (!self.kind.is_object() || self.kind == FeedKind::Longpoll && !self.any_rows);
        if waits {
            self.phase = Phase::Wait;
        } else {
            self.tail(out);
        }
    }

    fn row(&mut self, out: &mut Vec<u8>, seq: u64, kind: Kind, database: &str) {
        out.extend_from_slice(self.kind.before_row(!self.any_rows).as_bytes());
        self.any_rows = true;
        let seq = self.seqs.json(seq);
        out.extend_from_slice(b"{\"db_name\":");
        render::string(out, database);
        out.extend_from_slice(
            format!(",\"type\":\"{}\",\"seq\":{seq}}}", kind.as_str()).as_bytes(),
        );
        out.extend_from_slice(self.kind.after_row(&seq).as_bytes());
    }

    async fn wait(&mut self, out: &mut Vec<u8>) {
        let since = self.since;
        let wait_options = self.wait_options;
        let updated =
            tokio::time::timeout(wait_options.wait, self.updates.wait_for(|seq| *seq > since))
                .await;
        let updated = updated.map(|updated| updated.is_ok());
        match updated {
            Ok(true) => self.phase = Phase::Rows,
            Ok(false) => self.phase = Phase::Done,
            Err(_) if !wait_options.heartbeat => self.tail(out),
            Err(_) => out.extend_from_slice(self.kind.heartbeat().as_bytes()),
        }
    }

    fn tail(&mut self, out: &mut Vec<u8>) {
        self.phase = Phase::Done;
        let last = self.seqs.json(self.since);
        let members = format!("\"last_seq\":{last}");
        out.extend_from_slice(self.kind.end(&members).as_bytes());
        out.push(b'\n');
    }
}
