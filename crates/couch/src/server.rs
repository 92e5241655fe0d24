//! A server, above its databases.

use std::sync::Arc;

use http::Method;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use wire::FeedKind;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::feed::{Feed, Idle};
use crate::network::Network;
use crate::options::RequestOptions;
use crate::payload::Payload;
use crate::peer::{Call, Peer, encode};
use crate::types::Seq;

/// The root of a server. Clones are cheap and share one limit of connections.
#[derive(Clone)]
pub struct Server {
    peer: Arc<Peer>,
}

/// What a server says about one of its databases.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedDatabase {
    pub name: String,
    /// The last sequence, `None` if the database does not exist, or cannot be read at the moment.
    pub update_seq: Option<Seq>,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct DatabaseUpdate {
    #[serde(alias = "dbname")]
    pub db_name: String,
    /// `created`, `updated` or `deleted`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The sequence in the server's feed, not the database's.
    #[serde(default = "Seq::null")]
    pub seq: Seq,
}

#[derive(Deserialize)]
struct Info {
    update_seq: Option<Seq>,
}

/// A feed of updates being read.
pub struct DatabaseUpdates {
    feed: Feed,
    kind: FeedKind,
    last_seq: Option<Seq>,
    is_done: bool,
}

impl Network {
    /// Opens the root of a server.
    pub async fn server(
        &self,
        endpoint: Endpoint,
        options: RequestOptions,
    ) -> Result<Server, Error> {
        let peer = Peer::open(self, endpoint, options).await?;
        Ok(Server { peer })
    }
}

impl Server {
    pub(crate) fn above(database: &Peer) -> Self {
        Self {
            peer: Arc::new(database.above()),
        }
    }

    /// Information on databases, in the order of the names.
    pub async fn dbs_info(&self, names: &[String]) -> Result<Vec<ListedDatabase>, Error> {
        #[derive(Serialize)]
        struct Keys<'a> {
            keys: &'a [String],
        }
        #[derive(Deserialize)]
        struct Row {
            key: String,
            info: Option<Info>,
        }
        let json = serde_json::to_vec(&Keys { keys: names })
            .map_err(|error| Error::Config(format!("cannot write names as JSON: {error}")))?;
        let call = Call::new(Method::POST, "_dbs_info").json(Payload::Bytes(json.into()));
        let rows: Vec<Row> = self.peer.fetch(&call).await?.success().await?.parse()?;
        let listed = |row: Row| ListedDatabase {
            name: row.key,
            update_seq: row.info.and_then(|info| info.update_seq),
        };
        Ok(rows.into_iter().map(listed).collect())
    }

    /// The last sequence of a database, `None` if it does not exist.
    pub async fn update_seq(&self, name: &str) -> Result<Option<Seq>, Error> {
        let mut path = String::new();
        encode(name, &mut path);
        let found = self.peer.fetch(&Call::get(&path)).await?.success().await;
        match found {
            Ok(reply) => match reply.parse::<Info>()?.update_seq {
                Some(seq) => Ok(Some(seq)),
                None => Err(reply.bad("it is not a database")),
            },
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a database has changes after a sequence.
    pub async fn has_changes(&self, name: &str, since: &Seq) -> Result<bool, Error> {
        #[derive(Deserialize)]
        struct Page {
            results: Vec<IgnoredAny>,
        }
        let mut path = String::new();
        encode(name, &mut path);
        let call = Call::get(format!("{path}/_changes"))
            .param("since", &since.to_query())
            .param("limit", "1");
        let page: Page = self.peer.fetch(&call).await?.success().await?.parse()?;
        Ok(!page.results.is_empty())
    }

    /// The names of databases after one, in order.
    pub async fn all_dbs(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        let mut call = Call::get("_all_dbs").param("limit", &(limit + 1).to_string());
        if let Some(after) = after {
            call = call.param("startkey", &serde_json::Value::from(after).to_string());
        }
        let mut names: Vec<String> = self.peer.fetch(&call).await?.success().await?.parse()?;
        names.retain(|name| after.is_none_or(|after| name.as_str() > after));
        names.truncate(limit);
        Ok(names)
    }

    /// Opens a feed of updates to databases.
    pub async fn db_updates(
        &self,
        kind: FeedKind,
        since: &Seq,
        idle: Idle,
    ) -> Result<DatabaseUpdates, Error> {
        let mut call = Call::get("_db_updates")
            .param("feed", kind.name())
            .param("since", &since.to_query())
            .stream();
        if let Some((name, ms)) = idle.param() {
            call = call.param(name, &ms.to_string());
        }
        let reply = self.peer.send(&call).await?.success().await?;
        let feed = Feed::new(reply, kind.into());
        Ok(DatabaseUpdates {
            feed,
            kind,
            last_seq: None,
            is_done: false,
        })
    }
}

impl DatabaseUpdates {
    /// The next update, `None` at the end of the feed. May be cancelled and called again.
    pub async fn next(&mut self) -> Result<Option<DatabaseUpdate>, Error> {
        if self.is_done {
            return Ok(None);
        }
        let next = self.read_next().await;
        self.is_done = !matches!(next, Ok(Some(_)));
        next
    }

    async fn read_next(&mut self) -> Result<Option<DatabaseUpdate>, Error> {
        #[derive(Deserialize)]
        struct End {
            last_seq: Option<Seq>,
            results: Option<IgnoredAny>,
        }
        let Some(row) = self.feed.next_row().await? else {
            if self.kind.is_object() {
                self.last_seq = self.feed.envelope::<End>()?.last_seq;
            }
            return Ok(None);
        };
        let not_update = match serde_json::from_slice(&row) {
            Ok(update) => return Ok(Some(update)),
            Err(error) => error,
        };
        match serde_json::from_slice(&row) {
            Ok(End {
                results: Some(_), ..
            }) => Err(self.feed.bad("it is another kind of feed")),
            Ok(End {
                last_seq: Some(seq),
                results: None,
            }) => {
                self.last_seq = Some(seq);
                Ok(None)
            }
            _ => Err(self.feed.bad_row(&not_update)),
        }
    }

    /// The sequence at the end of the feed.
    pub fn last_seq(&self) -> Option<&Seq> {
        self.last_seq.as_ref()
    }
}
