//! A server, above its databases.

use std::sync::Arc;

use http::Method;
use serde::{Deserialize, Serialize};

use crate::database::{FeedKind, Idle};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::feed::Feed;
use crate::payload::Payload;
use crate::peer::{Call, Peer};
use crate::traffic::Traffic;
use crate::types::Seq;

/// The root of a server. A cheap handle; all clones share one limit of connections.
#[derive(Clone)]
pub struct Server {
    peer: Arc<Peer>,
}

/// What a server says about itself.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ServerInfo {
    /// `CouchDB`'s welcome.
    pub couchdb: Option<String>,
    pub version: Option<String>,
    #[serde(default)]
    pub features: Vec<String>,
    /// Who made it.
    #[serde(default)]
    pub vendor: Option<Vendor>,
}

/// Who made a server.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Vendor {
    pub name: Option<String>,
}

impl ServerInfo {
    /// The first number of the version.
    pub fn major_version(&self) -> Option<u32> {
        self.version.as_ref()?.split('.').next()?.parse().ok()
    }
}

/// Who the server thinks we are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// The user, `None` for nobody.
    pub name: Option<String>,
    pub roles: Vec<String>,
}

/// What a server says about one of its databases.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedDatabase {
    pub name: String,
    /// Its last sequence, `None` when there is no such database.
    pub update_seq: Option<Seq>,
}

/// Something happened to a database.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct DatabaseUpdate {
    #[serde(alias = "dbname")]
    pub db_name: String,
    /// `created`, `updated` or `deleted`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The sequence, of the server and not of the database.
    #[serde(default = "Seq::null")]
    pub seq: Seq,
}

/// A feed of updates being read.
pub struct DatabaseUpdates {
    feed: Feed,
    kind: FeedKind,
    last_seq: Option<Seq>,
    is_done: bool,
}

impl Server {
    pub(crate) fn new(peer: Arc<Peer>) -> Self {
        Self { peer }
    }

    /// The server of a database.
    pub(crate) fn above(database: &Peer) -> Self {
        Self {
            peer: Arc::new(database.above()),
        }
    }

    /// Where it is; displays without credentials.
    pub fn endpoint(&self) -> &Endpoint {
        &self.peer.endpoint
    }

    /// What its requests have moved.
    pub fn traffic(&self) -> Traffic {
        self.peer.counters.sums()
    }

    /// What it says about itself.
    pub async fn info(&self) -> Result<ServerInfo, Error> {
        self.peer
            .fetch(&Call::get(""))
            .await?
            .success()
            .await?
            .parse()
    }

    /// Who it thinks we are.
    pub async fn session(&self) -> Result<SessionInfo, Error> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(rename = "userCtx")]
            user: RawUser,
        }
        #[derive(Deserialize)]
        struct RawUser {
            name: Option<String>,
            #[serde(default)]
            roles: Vec<String>,
        }
        let reply = self
            .peer
            .fetch(&Call::get("_session"))
            .await?
            .success()
            .await?;
        let RawUser { name, roles } = reply.parse::<Raw>()?.user;
        Ok(SessionInfo { name, roles })
    }

    /// Names of databases in order, after `after`, at most `limit`.
    pub async fn all_dbs(&self, after: Option<&str>, limit: u64) -> Result<Vec<String>, Error> {
        let mut call = Call::get("_all_dbs").param("limit", &limit.to_string());
        if let Some(after) = after {
            // The first name that is greater.
            let key = serde_json::Value::from(format!("{after}\u{0}"));
            call = call.param("start_key", &key.to_string());
        }
        self.peer.fetch(&call).await?.success().await?.parse()
    }

    /// What it says about databases, in the order of the names.
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
        #[derive(Deserialize)]
        struct Info {
            update_seq: Option<Seq>,
        }
        let json = serde_json::to_vec(&Keys { keys: names })
            .map_err(|error| Error::Config(format!("names are no JSON: {error}")))?;
        let call = Call::new(Method::POST, "_dbs_info").json(Payload::Bytes(json.into()));
        let rows: Vec<Row> = self.peer.fetch(&call).await?.success().await?.parse()?;
        let listed = |row: Row| ListedDatabase {
            name: row.key,
            update_seq: row.info.and_then(|info| info.update_seq),
        };
        Ok(rows.into_iter().map(listed).collect())
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
        match idle {
            Idle::Default => {}
            Idle::TimeoutMs(ms) => call = call.param("timeout", &ms.to_string()),
            Idle::HeartbeatMs(ms) => call = call.param("heartbeat", &ms.to_string()),
        }
        let reply = self.peer.send(&call).await?.success().await?;
        let feed = Feed::new(reply, kind.layout());
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
        }
        let Some(row) = self.feed.next_row().await? else {
            if self.kind.has_envelope() {
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
                last_seq: Some(seq),
            }) => {
                self.last_seq = Some(seq);
                Ok(None)
            }
            _ => Err(self.feed.bad_row(&not_update)),
        }
    }

    /// The sequence that the server named at the end of the feed.
    pub fn last_seq(&self) -> Option<&Seq> {
        self.last_seq.as_ref()
    }
}
