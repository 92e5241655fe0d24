//! `_changes`: writing the feed page by page and waiting for changes.

use std::time::Duration;

use bytes::Bytes;
use docstore::{ChangeRow, ChangesQuery, Filter, Listener, Seq};
use futures::{StreamExt as _, stream};
use http::header::CACHE_CONTROL;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use wire::FeedKind;

use super::guard::Guard;
use crate::Error;
use crate::endpoints::reading::Reading;
use crate::reply::{self, Reply};

/// The state of a feed.
pub(super) struct Feed {
    reading: Reading,
    guard: Guard,
    kind: FeedKind,
    /// The query for the next page; its `limit` is the rows that are left.
    query: ChangesQuery,
    /// The next query; `None` while waiting.
    next: Option<ChangesQuery>,
    last_seq: Seq,
    heartbeat: Option<Duration>,
    timeout: Duration,
    /// The deadline of a longpoll or a heartbeat.
    deadline: Instant,
    stop: CancellationToken,
    listener: Option<Listener>,
    told: bool,
    ended: bool,
}

impl Feed {
    pub(super) fn new(reading: Reading, guard: Guard, kind: FeedKind, query: ChangesQuery) -> Self {
        Self {
            reading,
            guard,
            kind,
            next: Some(query.clone()),
            query,
            last_seq: Seq::ZERO,
            heartbeat: None,
            timeout: Duration::ZERO,
            deadline: Instant::now(),
            stop: CancellationToken::new(),
            listener: None,
            told: false,
            ended: false,
        }
    }

    /// With a heartbeat, the feed waits forever.
    pub(super) fn waiting(
        self,
        heartbeat: Option<Duration>,
        timeout: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self {
            heartbeat,
            timeout,
            stop,
            ..self
        }
    }

    pub(super) async fn answer(mut self) -> Result<Reply, Error> {
        // Errors before the first row still get their own status.
        let mut first = self.kind.head().to_owned();
        if let Some(query) = self.next.take() {
            first.push_str(&self.page(query).await?);
        }
        let kind = self.kind;
        let first = stream::once(async move { Ok(Bytes::from(first)) });
        let rest = stream::try_unfold(self, |mut feed| async move {
            Ok(feed.next().await?.map(|piece| (Bytes::from(piece), feed)))
        });
        let mut reply = reply::stream(kind.content_type(), Box::pin(first.chain(Box::pin(rest))));
        if kind == FeedKind::EventSource {
            reply::set(&mut reply, CACHE_CONTROL, "no-cache");
        }
        Ok(reply)
    }

    /// The next chunk; `None` at the end.
    async fn next(&mut self) -> Result<Option<String>, Error> {
        loop {
            if self.ended {
                return Ok(None);
            }
            if !self.guard.lets(self.next.is_some()).await? {
                return Ok(Some(self.end().await?));
            }
            let piece = match self.next.take() {
                Some(query) => self.page(query).await?,
                None if self.is_over() => self.end().await?,
                None => self.wait().await?,
            };
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.query.limit == Some(0)
            || match self.kind {
                FeedKind::Normal => true,
                FeedKind::Longpoll => self.told,
                FeedKind::Continuous | FeedKind::EventSource => self.query.descending,
            }
    }

    async fn page(&mut self, query: ChangesQuery) -> Result<String, Error> {
        let reading = &self.reading;
        let view = |stored| reading.view(stored);
        let page = reading
            .docs()
            .changes_page(reading.db(), &query, &view)
            .await?;
        let mut piece = String::new();
        let told = page.rows.len() as u64;
        for row in &page.rows {
            self.push(&mut piece, row);
        }
        self.query.limit = self.query.limit.map(|left| left.saturating_sub(told));
        self.last_seq = page.last_seq;
        self.next = page.rest;
        self.deadline = Instant::now() + self.timeout;
        Ok(piece)
    }

    fn push(&mut self, piece: &mut String, row: &ChangeRow) {
        piece.push_str(self.kind.before_row(!self.told));
        piece.push_str(&row.to_json());
        piece.push_str(&self.kind.after_row(&format!("\"{}\"", row.seq)));
        self.told = true;
    }

    /// Waits for a change, at most until the next heartbeat.
    async fn wait(&mut self) -> Result<String, Error> {
        if let Filter::Selector(matcher) = &self.query.filter {
            matcher.renew();
        }
        let (docs, db) = (self.reading.docs(), self.reading.db());
        let listener = self.listener.get_or_insert_with(|| docs.listen(db));
        let until = match self.heartbeat {
            Some(heartbeat) => Instant::now() + heartbeat,
            None => self.deadline,
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => self.end().await,
            news = listener.changed_since(self.last_seq) => match news {
                Ok(()) => {
                    self.next = Some(ChangesQuery {
                        since: self.last_seq.into(),
                        ..self.query.clone()
                    });
                    Ok(String::new())
                }
                // The database was deleted; what was sent remains valid.
                Err(docstore::Error::NoDatabase) => self.end().await,
                Err(error) => Err(error.into()),
            },
            () = sleep_until(until) => match self.heartbeat {
                None => self.end().await,
                Some(_) => Ok(self.kind.heartbeat().to_owned()),
            },
        }
    }

    async fn end(&mut self) -> Result<String, Error> {
        self.ended = true;
        let (docs, db) = (self.reading.docs(), self.reading.db());
        let pending = match self.query.limit {
            Some(0) if !self.query.descending => docs.changes_pending(db, self.last_seq).await?,
            _ => 0,
        };
        let last = format!("\"last_seq\":\"{}\",\"pending\":{pending}", self.last_seq);
        Ok(self.kind.end(&last))
    }
}
