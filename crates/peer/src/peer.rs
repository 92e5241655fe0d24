//! A running server, and how tests read and change it without HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use document::doc::Doc;
use document::rev::Rev;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::attachment::{Content, Sent};
use crate::auth::Password;
use crate::compare::Contents;
use crate::db::{Database, Incoming, Slot};
use crate::events::FeedFaults;
use crate::faults::{Faults, Injected};
use crate::functions::UserContext;
use crate::http::Context;
use crate::listener::{Control, Door, Listening, Restart, Transport};
use crate::options::{Limits, Options};
use crate::record::Recorded;
use crate::refusal::Refusal;
use crate::render::{self, Shown};
use crate::security::Security;
use crate::server::Server;
use crate::supervisor::Supervisor;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Cannot listen on the address: choose another.
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// The server refused the operation as it would refuse a client's request.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A running server, which stops when this is dropped.
#[derive(Debug)]
pub struct Peer {
    server: Arc<Server>,
    address: SocketAddr,
    door: Option<Door>,
    control: Control,
    /// Resets all connections when the peer is dropped.
    _running: tokio_util::sync::DropGuard,
    supervisor: AbortOnDropHandle<()>,
}

impl Peer {
    /// Starts a server.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub async fn start(options: Options) -> Result<Self, Error> {
        let wanted = options.listen;
        let listen = |source| Error::Listen {
            address: wanted,
            source,
        };
        let listening = Transport::Port(wanted).listen().await.map_err(listen)?;
        let address = match &listening {
            Listening::Port(listener) => listener.local_addr().map_err(listen)?,
            Listening::Memory(_) => wanted,
        };
        Ok(Self::serve(
            options,
            address,
            Transport::Port(address),
            listening,
        ))
    }

    /// Starts a server without a port: [`Self::door`] connects to it, and its address is only a name.
    pub fn unplugged(options: Options) -> Self {
        let (address, door) = (options.listen, Door::default());
        let listening = door.open();
        Self::serve(options, address, Transport::Memory(door), listening)
    }

    fn serve(
        options: Options,
        address: SocketAddr,
        transport: Transport,
        listening: Listening,
    ) -> Self {
        let seed = options.seed ^ (u64::from(address.port()) << 48);
        let server = Arc::new(Server::new(options, seed));
        let (restarts, wanted_restarts) = mpsc::channel(1);
        let control = Control(restarts);
        let running = CancellationToken::new();
        let context = Context {
            server: Arc::clone(&server),
            control: control.clone(),
        };
        let door = match &transport {
            Transport::Port(_) => None,
            Transport::Memory(door) => Some(door.clone()),
        };
        let supervisor = Supervisor {
            transport,
            address,
            restarts: wanted_restarts,
            running: running.clone(),
        };
        let supervisor = supervisor.supervise(listening, context);
        Self {
            server,
            address,
            door,
            control,
            _running: running.drop_guard(),
            supervisor: AbortOnDropHandle::new(tokio::spawn(supervisor)),
        }
    }

    /// Connects to a server without a port; one with a port is reached by its [address](Self::address).
    pub fn door(&self) -> Option<Door> {
        self.door.clone()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:12345`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The URL of a database, with the name percent-encoded.
    pub fn database_url(&self, name: &str) -> String {
        format!("{}/{}", self.url(), wire::quote(name))
    }

    /// Stops the server and waits until it has stopped.
    pub async fn stop(self) {
        let Self {
            supervisor,
            _running: running,
            ..
        } = self;
        drop(running);
        supervisor.await.ok();
    }

    /// Resets all connections, ends all sessions and listens again after `down`, like a restarted process.
    pub async fn restart(&self, down: Duration) {
        let (done, listens) = oneshot::channel();
        if self
            .control
            .0
            .send(Restart {
                down,
                done: Some(done),
            })
            .await
            .is_ok()
        {
            listens.await.ok();
        }
    }

    /// Replaces the plan of faults; counting starts over.
    pub fn set_faults(&self, faults: Faults) {
        self.server.faults.set(faults);
    }

    /// Makes `_db_updates` unreliable, or with the default reliable again.
    pub fn set_feed_faults(&self, seed: u64, faults: FeedFaults) {
        self.server.events.set_faults(seed, faults);
    }

    /// All faults that were injected.
    pub fn injected(&self) -> Vec<Injected> {
        self.server.faults.injected()
    }

    /// Skews the clock, which dates and the ends of sessions follow.
    pub fn set_clock_skew(&self, seconds: i64) {
        self.server.clock.set_skew(seconds);
    }

    pub fn set_limits(&self, limits: Limits) {
        *self
            .server
            .limits
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = limits;
    }

    pub fn requests(&self) -> Vec<Recorded> {
        self.server.recorder.all()
    }

    /// Counts the requests with this method and a path that matches the pattern, in which `*` stands for any text.
    pub fn count(&self, method: &str, pattern: &str) -> usize {
        self.requests()
            .iter()
            .filter(|request| request.is(method, pattern))
            .count()
    }

    pub fn clear_requests(&self) {
        self.server.recorder.clear();
    }

    pub fn set_admin(&self, name: &str, password: &str) {
        self.server.auth.set_admin(
            name,
            Some(Password::new(password, self.server.chance.uuid())),
        );
    }

    /// Adds a user.
    ///
    /// # Errors
    /// The user exists.
    pub fn add_user(&self, name: &str, password: &str, roles: &[&str]) -> Result<(), Error> {
        if self.server.database("_users").is_err() {
            self.server.create_database("_users")?;
        }
        let user = serde_json::json!({
            "_id": format!("org.couchdb.user:{name}"),
            "type": "user", "name": name, "password": password, "roles": roles,
        });
        self.put("_users", &user.to_string()).map(drop)
    }

    pub fn end_sessions(&self) {
        self.server.auth.end_sessions(self.server.chance.bytes());
    }

    /// Creates a database.
    ///
    /// # Errors
    /// The database exists, or its name is invalid.
    pub fn create_database(&self, name: &str) -> Result<(), Error> {
        self.server.create_database(name)?;
        Ok(())
    }

    /// Deletes a database.
    ///
    /// # Errors
    /// The database does not exist.
    pub fn delete_database(&self, name: &str) -> Result<(), Error> {
        Ok(self.server.delete_database(name)?)
    }

    /// Sets a database's security object.
    ///
    /// # Errors
    /// The database does not exist, or the object is invalid.
    pub fn set_security(&self, database: &str, security: &Value) -> Result<(), Error> {
        let parsed = Security::parse(&security.to_string())?;
        self.server.database(database)?.write().security = parsed;
        Ok(())
    }

    /// A database's security object.
    ///
    /// # Errors
    /// The database does not exist.
    pub fn security(&self, database: &str) -> Result<Value, Error> {
        let state = self.server.database(database)?;
        let json = &state.read().security.json;
        Ok(serde_json::from_str(json).unwrap_or_default())
    }

    /// Sets how many revisions of a branch are kept.
    ///
    /// # Errors
    /// The database does not exist.
    pub fn set_revs_limit(&self, database: &str, limit: usize) -> Result<(), Error> {
        self.server.database(database)?.write().revs_limit = limit.max(1);
        Ok(())
    }

    /// Edits a document as `PUT` does. Without `_id` it gets one.
    ///
    /// # Errors
    /// The error that a client would get.
    pub fn put(&self, database: &str, json: &str) -> Result<Rev, Error> {
        let db = self.server.database(database)?;
        let edit = self.incoming(&db, json, true)?;
        let outcome = db.edit(vec![edit], &UserContext::admin())?.pop();
        Ok(outcome.expect("one edit has one outcome")?)
    }

    /// Edits many documents, as `_bulk_docs` does.
    ///
    /// # Errors
    /// The error that a client would get for the first refused document.
    pub fn put_all<T: AsRef<str>>(
        &self,
        database: &str,
        documents: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Rev>, Error> {
        let db = self.server.database(database)?;
        let edits = documents
            .into_iter()
            .map(|json| self.incoming(&db, json.as_ref(), true));
        let edits = edits.collect::<Result<_, Refusal>>()?;
        let outcomes = db.edit(edits, &UserContext::admin())?;
        Ok(outcomes.into_iter().collect::<Result<_, _>>()?)
    }

    /// Adds replicated revisions, with `_rev` or `_revisions`, as `new_edits=false` does.
    ///
    /// # Errors
    /// The error that a client would get for the first refused document.
    pub fn put_replicas<T: AsRef<str>>(
        &self,
        database: &str,
        documents: impl IntoIterator<Item = T>,
    ) -> Result<(), Error> {
        let db = self.server.database(database)?;
        let documents = documents
            .into_iter()
            .map(|json| self.incoming(&db, json.as_ref(), false));
        let documents = documents.collect::<Result<_, Refusal>>()?;
        match db.replicate(documents, &UserContext::admin())?.pop() {
            Some((_, _, refusal)) => Err(refusal.into()),
            None => Ok(()),
        }
    }

    /// Adds or replaces an attachment; `rev` is the document's revision, if it exists.
    ///
    /// # Errors
    /// The error that a client would get.
    pub fn attach(
        &self,
        database: &str,
        id: &str,
        rev: Option<&Rev>,
        name: &str,
        content_type: &str,
        data: impl Into<Bytes>,
    ) -> Result<Rev, Error> {
        let db = self.server.database(database)?;
        let version = match rev {
            None => None,
            Some(rev) => {
                let found = db
                    .read()
                    .document(id)
                    .and_then(|document| document.tree.get(rev)?.value.cloned());
                Some(found.ok_or_else(Refusal::missing_rev)?)
            }
        };
        let sent = Sent {
            name: name.to_owned(),
            content_type: content_type.to_owned(),
            revpos: None,
            md5: None,
            length: None,
            encoded_length: None,
            gzip: false,
            content: Content::Here(data.into()),
        };
        let generation = rev.map_or(0, |rev| rev.generation);
        let mut attachments = Slot::store(&[sent], Some(generation), &self.server.rules())?;
        let others = version
            .iter()
            .flat_map(|version| &version.attachments)
            .filter(|part| *part.name != *name);
        attachments.extend(others.cloned().map(Slot::Stored));
        let body = version
            .as_ref()
            .map_or_else(|| "{}".to_owned(), |version| version.body.to_string());
        let revisions = rev.cloned().map(Into::into);
        let edit = Incoming {
            id: id.into(),
            revisions,
            deleted: false,
            body,
            attachments,
        };
        let outcome = db.edit(vec![edit], &UserContext::admin())?.pop();
        Ok(outcome.expect("one edit has one outcome")?)
    }

    /// A document's winner with attachment stubs; `None` if it is deleted or never existed.
    ///
    /// # Errors
    /// The database does not exist.
    pub fn get(&self, database: &str, id: &str) -> Result<Option<Value>, Error> {
        let db = self.server.database(database)?;
        let state = db.read();
        let mut json = Vec::new();
        if id.starts_with("_local/") {
            let Some(local) = state.locals.get(id) else {
                return Ok(None);
            };
            render::local(&mut json, id, local.generation, &local.body);
        } else {
            let winner = state
                .document(id)
                .map(crate::db::Document::winner)
                .filter(|winner| !winner.deleted);
            let Some(winner) = winner else {
                return Ok(None);
            };
            render::node(&mut json, id, winner, &Shown::default());
        }
        Ok(serde_json::from_slice(&json).ok())
    }

    /// Deletes the bodies of replaced revisions, as compaction does.
    ///
    /// # Errors
    /// The database does not exist.
    pub fn compact(&self, database: &str) -> Result<(), Error> {
        self.server.database(database)?.compact();
        Ok(())
    }

    /// The contents of a database, for comparison.
    ///
    /// # Errors
    /// The database does not exist.
    pub fn contents(&self, database: &str) -> Result<Contents, Error> {
        let db = self.server.database(database)?;
        Ok(Contents::of(&db))
    }

    fn incoming(&self, db: &Database, json: &str, edit: bool) -> Result<Incoming, Refusal> {
        let doc = Doc::parse(json)?;
        let sent = Sent::parse_all(&doc)?;
        self.server.prepare(db, doc, &sent, edit)
    }
}
