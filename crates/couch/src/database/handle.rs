//! A database's handle, and the calls that take one response.

use std::sync::Arc;

use http::Method;
use http::header::{self, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::network::Network;
use crate::options::RequestOptions;
use crate::payload::Payload;
use crate::peer::{Call, Peer, Reply, encode};
use crate::server::Server;
use crate::traffic::Traffic;
use crate::types::{DocId, Rev, Seq, text_of};

/// Spares the server a sync per write: a full commit follows.
pub(super) const FULL_COMMIT: HeaderName = HeaderName::from_static("x-couch-full-commit");

/// An opened database. Clones are cheap and share one limit of connections.
#[derive(Clone)]
pub struct Database {
    pub(crate) peer: Arc<Peer>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatabaseInfo {
    pub update_seq: Seq,
    /// When the database was created; `0` if the server does not say.
    pub instance_start_time: String,
    /// Documents that are not deleted.
    pub doc_count: Option<u64>,
    pub doc_del_count: Option<u64>,
}

#[derive(Deserialize)]
struct RawInfo {
    update_seq: Option<Seq>,
    instance_start_time: Option<serde_json::Value>,
    doc_count: Option<u64>,
    doc_del_count: Option<u64>,
}

#[derive(Deserialize)]
struct Written {
    rev: Rev,
}

impl Network {
    /// Opens a database: logs in if there are credentials and the server has sessions. Whether the database exists is not
    /// checked here but by [`Database::info`].
    pub async fn database(
        &self,
        endpoint: Endpoint,
        options: RequestOptions,
    ) -> Result<Database, Error> {
        let peer = Peer::open(self, endpoint, options).await?;
        Ok(Database { peer })
    }
}

impl Database {
    pub fn endpoint(&self) -> &Endpoint {
        &self.peer.endpoint
    }

    pub fn traffic(&self) -> Traffic {
        self.peer.counters.sums()
    }

    /// Its server, assumed to be one path segment above.
    pub fn server(&self) -> Server {
        Server::above(&self.peer)
    }

    /// Creates it with query parameters such as `q`. Any status from 400 on is an error, 412 is
    /// [`Error::Refused`].
    pub async fn create(&self, params: &[(String, String)]) -> Result<(), Error> {
        let call = Call::new(Method::PUT, "");
        let call = params
            .iter()
            .fold(call, |call, (name, value)| call.param(name, value));
        self.peer.fetch(&call).await?.success().await.map(drop)
    }

    /// What it says about itself. A response without `update_seq` and `instance_start_time` is not
    /// that of a database: [`Error::BadAnswer`].
    pub async fn info(&self) -> Result<DatabaseInfo, Error> {
        let reply = self.peer.fetch(&Call::get("")).await?.success().await?;
        let raw: RawInfo = reply.parse()?;
        let (Some(update_seq), Some(started)) = (raw.update_seq, raw.instance_start_time) else {
            return Err(reply.bad("it is not a database"));
        };
        Ok(DatabaseInfo {
            update_seq,
            instance_start_time: text_of(started),
            doc_count: raw.doc_count,
            doc_del_count: raw.doc_del_count,
        })
    }

    /// The number of changes after a sequence, without a filter, if the server reports it.
    pub async fn pending(&self, since: &Seq) -> Result<Option<u64>, Error> {
        #[derive(Deserialize)]
        struct Pending {
            pending: Option<u64>,
        }
        if let Some(since) = since.as_number()
            && let Some(last) = self.info().await?.update_seq.as_number()
        {
            return Ok(Some(last.saturating_sub(since)));
        }
        let call = Call::get("_changes")
            .param("since", &since.to_query())
            .param("limit", "0");
        let reply = self.peer.fetch(&call).await?.success().await?;
        reply.parse::<Pending>().map(|pending| pending.pending)
    }

    /// Makes all writes durable; returns `instance_start_time`.
    pub async fn ensure_full_commit(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Committed {
            instance_start_time: Option<serde_json::Value>,
        }
        let call = Call::new(Method::POST, "_ensure_full_commit").json(Payload::Empty);
        let reply = self.peer.fetch(&call).await?.success().await?;
        let committed: Committed = reply.parse()?;
        match committed.instance_start_time {
            Some(started) => Ok(text_of(started)),
            None => Err(reply.bad("it has no instance_start_time")),
        }
    }

    /// A document's winning revision, `None` if there is none.
    pub async fn document(&self, id: &DocId) -> Result<Option<Document>, Error> {
        let Some(reply) = found(self.peer.fetch(&Call::get(path(id))).await?).await? else {
            return Ok(None);
        };
        let whole = bytes::Bytes::copy_from_slice(reply.whole());
        Document::parse(whole)
            .map(Some)
            .map_err(|error| reply.not_json(&error))
    }

    /// Its `_security` object; an empty one if the server has none.
    pub async fn security(&self) -> Result<serde_json::Value, Error> {
        let security = self.security_if_any().await?;
        Ok(security.unwrap_or_else(|| serde_json::Value::Object(serde_json::Map::new())))
    }

    /// Its `_security` object; `None` if the server has none.
    pub async fn security_if_any(&self) -> Result<Option<serde_json::Value>, Error> {
        match found(self.peer.fetch(&Call::get("_security")).await?).await? {
            Some(reply) => reply.parse().map(Some),
            None => Ok(None),
        }
    }

    /// Replaces its `_security` object.
    pub async fn put_security(&self, security: &serde_json::Value) -> Result<(), Error> {
        let call = Call::new(Method::PUT, "_security".to_owned())
            .json(Payload::Bytes(security.to_string().into()));
        self.peer.fetch(&call).await?.success().await.map(drop)
    }

    /// A local document, `None` if there is none.
    pub async fn local<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>, Error> {
        let reply = self.peer.fetch(&Call::get(local_path(id))).await?;
        match found(reply).await? {
            Some(reply) => reply.parse().map(Some),
            None => Ok(None),
        }
    }

    /// Writes a local document, whose `_rev` must be that of the last one; returns the new one.
    pub async fn put_local<T: Serialize>(&self, id: &str, body: &T) -> Result<Rev, Error> {
        let json = serde_json::to_vec(body).map_err(|error| {
            Error::Config(format!("cannot write a local document as JSON: {error}"))
        })?;
        let call = Call::new(Method::PUT, local_path(id))
            .header(FULL_COMMIT, "false")
            .json(Payload::Bytes(json.into()));
        let reply = self.peer.fetch(&call).await?.success().await?;
        reply.parse::<Written>().map(|written| written.rev)
    }
}

/// A successful response, or `None` for 404.
async fn found(reply: Reply) -> Result<Option<Reply>, Error> {
    match reply.success().await {
        Ok(reply) => Ok(Some(reply)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn local_path(id: &str) -> String {
    let mut path = "_local/".to_owned();
    encode(id, &mut path);
    path
}

/// The path of a document; design and local documents keep their slash.
pub(super) fn path(id: &DocId) -> String {
    let id = id.as_str();
    let mut path = String::with_capacity(id.len() + 8);
    let (kind, name) = ["_design/", "_local/"]
        .into_iter()
        .find_map(|kind| Some((kind, id.strip_prefix(kind)?)))
        .unwrap_or(("", id));
    path.push_str(kind);
    match name {
        // Servers and proxies resolve `.` and `..` in paths.
        "." | ".." => path.push_str(&name.replace('.', "%2E")),
        _ => encode(name, &mut path),
    }
    path
}

pub(super) fn content_type(value: &str) -> Result<(HeaderName, HeaderValue), Error> {
    let value = HeaderValue::from_str(value)
        .map_err(|_| Error::Config("a content type is not a valid header value".to_owned()))?;
    Ok((header::CONTENT_TYPE, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_documents() {
        for (id, expected) in [
            ("abc", "abc"),
            ("a/b c+d?#%", "a%2Fb%20c%2Bd%3F%23%25"),
            ("_design/x/y", "_design/x%2Fy"),
            ("_local/x", "_local/x"),
            ("é", "%C3%A9"),
            ("..", "%2E%2E"),
            ("a..b", "a..b"),
        ] {
            assert_eq!(path(&DocId::from(id)), expected);
        }
    }
}
