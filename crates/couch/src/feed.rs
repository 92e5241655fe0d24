//! Reads the rows of a streamed response.

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::error::{Error, Failure};
use crate::peer::Reply;
use crate::rows::{Broken, Layout, Splitter};

/// What a server does while nothing happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Idle {
    /// Its own default.
    #[default]
    Default,
    /// It ends the feed after this many milliseconds (`timeout`).
    TimeoutMs(u64),
    /// It sends an empty line every so many milliseconds (`heartbeat`), even while a filter passes
    /// nothing.
    HeartbeatMs(u64),
}

impl Idle {
    /// The query parameter and its milliseconds.
    pub(crate) fn param(self) -> Option<(&'static str, u64)> {
        match self {
            Self::Default => None,
            Self::TimeoutMs(ms) => Some(("timeout", ms)),
            Self::HeartbeatMs(ms) => Some(("heartbeat", ms)),
        }
    }
}

/// A streamed response of JSON rows.
pub(crate) struct Feed {
    reply: Reply,
    splitter: Option<Splitter>,
    envelope: Vec<u8>,
}

impl Feed {
    /// The rows of a successful response.
    pub(crate) fn new(reply: Reply, layout: Layout) -> Self {
        let row_bytes_max = reply.peer.options.document_bytes_max;
        let splitter = Some(Splitter::new(layout, row_bytes_max));
        Self {
            reply,
            splitter,
            envelope: Vec::new(),
        }
    }

    /// The next row, `None` at the end. May be cancelled and called again.
    pub(crate) async fn next_row(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let Some(splitter) = &mut self.splitter else {
                return Ok(None);
            };
            match splitter.next_row() {
                Ok(Some(row)) => return Ok(Some(row)),
                Ok(None) => {}
                Err(broken) => return Err(self.broken(&broken)),
            }
            match self.reply.body.chunk().await {
                Ok(Some(chunk)) => splitter.feed(chunk),
                Ok(None) => self.finish()?,
                Err(failure) => {
                    self.splitter = None;
                    return Err(interrupted(&self.reply, failure));
                }
            }
        }
    }

    pub(crate) fn reply(&self) -> &Reply {
        &self.reply
    }

    /// The JSON around the rows, after the end.
    pub(crate) fn envelope<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.envelope).map_err(|error| self.reply.not_json(&error))
    }

    /// The error for a row that cannot be parsed; nothing is read after it.
    pub(crate) fn bad_row(&mut self, error: &serde_json::Error) -> Error {
        self.splitter = None;
        self.reply.not_json(error)
    }

    /// The error for invalid rows; nothing is read after it.
    pub(crate) fn bad(&mut self, problem: impl Into<String>) -> Error {
        self.splitter = None;
        self.reply.bad(problem)
    }

    /// The error for a failure that the server reports instead of a row.
    pub(crate) fn reported(&mut self, said: &str) -> Error {
        self.splitter = None;
        let said = self.reply.clean(said.to_owned());
        interrupted(
            &self.reply,
            Failure::Connection(format!("the server reports {said}")),
        )
    }

    fn finish(&mut self) -> Result<(), Error> {
        if let Some(splitter) = self.splitter.take() {
            self.envelope = splitter.finish().map_err(|broken| self.broken(&broken))?;
        }
        self.reply.release();
        Ok(())
    }

    fn broken(&mut self, broken: &Broken) -> Error {
        self.splitter = None;
        match broken {
            // The server or a proxy closed the connection early.
            Broken::Truncated => interrupted(&self.reply, Failure::Connection(broken.to_string())),
            _ => self.reply.bad(broken.to_string()),
        }
    }
}

/// The error for a response that breaks off.
pub(crate) fn interrupted(reply: &Reply, failure: Failure) -> Error {
    reply.peer.doubt(&failure);
    match failure {
        Failure::BadAnswer(problem) => reply.bad(problem),
        cause => Error::Interrupted {
            request: reply.request.clone(),
            cause,
        },
    }
}
