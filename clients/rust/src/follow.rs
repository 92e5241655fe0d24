//! `_feed`: changes of jobs, read from server-sent events.

use reqwest::{Method, Response};

use crate::client::read;
use crate::{Change, Client, Error, Result};

/// The changes of some jobs; see [`Client::follow`]. Dropping it ends the request.
#[derive(Debug)]
pub struct Changes {
    response: Response,
    /// What has arrived after the last line that was read.
    text: Vec<u8>,
}

impl Client {
    /// Follows up to 100 jobs, whose ids have no comma: their present states, then each change, until all are finished, dead or removed.
    pub async fn follow(&self, ty: &str, ids: &[&str]) -> Result<Changes> {
        let query: Vec<_> = ids.iter().map(|id| ("ids", (*id).to_owned())).collect();
        let request = self.request(Method::GET, &["_jobs", ty, "_feed"], &query);
        let response = request.send().await.map_err(Error::Unreachable)?;
        if !response.status().is_success() {
            return Err(read(response).await.expect_err("its status is not a success"));
        }
        Ok(Changes { response, text: Vec::new() })
    }
}

impl Changes {
    /// The next change. `None` at the end: all jobs are over, or the service stops. A future that is dropped loses nothing.
    pub async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                if let Some(data) = line.strip_prefix(b"data:") {
                    return Ok(Some(serde_json::from_slice(data)?));
                }
            }
            match self.response.chunk().await.map_err(Error::Unreachable)? {
                Some(piece) => self.text.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }
}
