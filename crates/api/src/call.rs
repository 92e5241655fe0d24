//! A request whose head was read and whose caller was authenticated.

use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use docstore::DocStore;
use document::json::{self, Json};
use document::offload::offload;
use flate2::read::GzDecoder;
use futures::StreamExt as _;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use serde_json::value::RawValue;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::yield_now;
use tokio::time::timeout;
use wire::Collected;

use crate::auth::Identity;
use crate::auth::authenticator::Proven;
use crate::client::Client;
use crate::query::Query;
use crate::route::Route;
use crate::state::Shared;
use crate::waits::Permit;
use crate::{Error, Options, pace};

/// Estimated memory per value of a parsed body.
const VALUE_BYTES: usize = 96;
/// The unit of the semaphore for body memory.
pub(crate) const MEMORY_UNIT_BYTES: usize = 1024;

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Client,
    /// `HEAD` is mapped to `GET`.
    pub(crate) method: Method,
    pub(crate) route: Route,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) proven: Proven,
    /// Read only through `&mut Call`; the lock makes `Call` `Sync`.
    body: Mutex<Option<Body>>,
    /// Memory permits for the body, kept until the request ends or waits.
    body_memory: Option<OwnedSemaphorePermit>,
    /// The permit for the request, unless it needs none.
    pub(crate) permit: Option<Permit>,
}

impl Call {
    pub(crate) fn new(
        shared: Arc<Shared>,
        client: Client,
        route: Route,
        proven: Proven,
        parts: http::request::Parts,
        body: Body,
    ) -> Self {
        let method = match parts.method {
            Method::HEAD => Method::GET,
            method => method,
        };
        Self {
            shared,
            client,
            method,
            route,
            query: Query::parse(parts.uri.query().unwrap_or_default()),
            headers: parts.headers,
            proven,
            body: Mutex::new(Some(body)),
            body_memory: None,
            permit: None,
        }
    }

    /// Frees what a request that waits for long does not need. The headers share the buffer that the connection was read
    /// into.
    pub(crate) fn slim(&mut self) {
        self.headers = HeaderMap::new();
        self.body = Mutex::new(None);
        self.body_memory = None;
        self.query = Query::default();
    }

    pub(crate) fn caller(&self) -> &Identity {
        &self.proven.identity
    }

    pub(crate) fn docs(&self) -> &DocStore {
        self.shared.docs()
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Rejects other methods. The list is in CouchDB's form: `GET,HEAD`.
    pub(crate) fn allow(&self, methods: &'static str) -> Result<(), Error> {
        if methods
            .split(',')
            .any(|method| method == self.method.as_str())
        {
            return Ok(());
        }
        Err(Error::method_not_allowed(methods))
    }

    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn absolute(&self, path: &str) -> String {
        let scheme = if self.client.tls { "https" } else { "http" };
        let host = self.header(&HOST).unwrap_or("localhost");
        format!("{scheme}://{host}{path}")
    }

    pub(crate) fn accepts(&self, content_type: &str) -> bool {
        wire::accepts(self.header(&ACCEPT).unwrap_or("*/*"), content_type)
    }

    /// The media type of the body, without parameters.
    pub(crate) fn content_type(&self) -> &str {
        let given = self.header(&CONTENT_TYPE).unwrap_or_default();
        given.split(';').next().unwrap_or_default().trim()
    }

    /// Rejects bodies that are not declared as JSON, since forms on other sites cannot declare that.
    pub(crate) fn check_json(&self) -> Result<(), Error> {
        if self.content_type().eq_ignore_ascii_case("application/json") {
            return Ok(());
        }
        Err(Error::content_type())
    }

    pub(crate) async fn body(&mut self) -> Result<Bytes, Error> {
        let bytes_max = self.options().request_bytes_max;
        let declared = self
            .header(&CONTENT_LENGTH)
            .and_then(|length| length.parse().ok());
        let mut whole = Collected::sized(declared, bytes_max).map_err(|_| too_large())?;
        let time_limit = Duration::from_secs(self.options().body_timeout_sec);
        let body = self
            .body
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut pieces = body.unwrap_or_else(Body::empty).into_data_stream();
        loop {
            let piece = match timeout(time_limit, pieces.next()).await {
                Ok(Some(Ok(piece))) => piece,
                Ok(Some(Err(error))) => return Err(pace::refusal(error)),
                Ok(None) => return Ok(whole.finish()),
                Err(_) => {
                    let reason = "Timed out reading the request body.";
                    return Err(Error::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason));
                }
            };
            whole.push(piece).map_err(|_| too_large())?;
            self.make_room(whole.len())?;
        }
    }

    /// Reserves memory for a body of this size, or tells the client to retry.
    fn make_room(&mut self, bytes: usize) -> Result<(), Error> {
        let held = self
            .body_memory
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.div_ceil(MEMORY_UNIT_BYTES).saturating_sub(held);
        if more == 0 {
            return Ok(());
        }
        if bytes > self.options().bodies_bytes_max {
            return Err(too_large());
        }
        let body_memory = self.shared.reserve_units(more)?;
        match &mut self.body_memory {
            Some(held) => held.merge(body_memory),
            none => *none = Some(body_memory),
        }
        Ok(())
    }

    /// The body as text, decompressed.
    pub(crate) async fn text(&mut self) -> Result<String, Error> {
        let body = self.body().await?;
        let plain = match self.header(&CONTENT_ENCODING).unwrap_or("identity") {
            "identity" | "" => Vec::from(body),
            "gzip" => self.gunzip(&body).await?,
            other => {
                let reason = format!("{other} is not a supported content encoding.");
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                return Err(Error::new(status, "bad_content_type", reason));
            }
        };
        let text = offload(plain.len(), || String::from_utf8(plain)).await;
        text.map_err(|_| Error::not_json())
    }

    async fn gunzip(&mut self, body: &[u8]) -> Result<Vec<u8>, Error> {
        let bytes_max = self.options().request_bytes_max;
        let mut plain = Vec::new();
        let mut decoder = GzDecoder::new(body).take(bytes_max as u64 + 1);
        let mut piece = vec![0; 64 * MEMORY_UNIT_BYTES];
        loop {
            // A few kilobytes can decompress to a large body.
            yield_now().await;
            let read = decoder
                .read(&mut piece)
                .map_err(|_| Error::bad_request("Request body is not properly gzipped."))?;
            if read == 0 {
                return Ok(plain);
            }
            if plain.len() + read > bytes_max {
                return Err(too_large());
            }
            self.make_room(body.len() + plain.len() + read)?;
            plain.extend_from_slice(&piece[..read]);
        }
    }

    /// The body as a JSON object, members in order.
    pub(crate) async fn json_object(&mut self) -> Result<Json, Error> {
        match self.parse(Json::parse).await? {
            json @ Json::Object(_) => Ok(json),
            _ => Err(Error::not_object()),
        }
    }

    /// Refuses a body with members, for requests that have none. The body may also be empty, or `null`, which clients send
    /// for no value.
    pub(crate) async fn no_members(&mut self) -> Result<(), Error> {
        let text = self.text().await?;
        if text.trim().is_empty() {
            return Ok(());
        }
        let body = self.weighed(text).await?;
        let members = match body.read(|body| Json::parse(&body.text)).await? {
            Json::Null => return Ok(()),
            Json::Object(members) => members,
            _ => return Err(Error::not_object()),
        };
        members.first().map_or(Ok(()), |(name, _)| {
            Err(Error::bad_request(format!(
                "`{name}` is unknown: this request has no members; send `{{}}`, or no body"
            )))
        })
    }

    /// Also reserves memory for the parsed values, which may need far more than the text.
    pub(crate) async fn weighed(&mut self, text: String) -> Result<Weighed, Error> {
        let bytes = text.len();
        let count = move || (json::values(&text), text);
        let (values, text) = offload(bytes, count).await;
        self.make_room(text.len() + values.min(json::VALUES_MAX) * VALUE_BYTES)?;
        Ok(Weighed { text, values })
    }

    /// What is parsed from the JSON of the body.
    pub(crate) async fn parse<T, E>(
        &mut self,
        read: impl FnOnce(&str) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        E: Send + 'static,
        Error: From<E>,
    {
        let text = self.text().await?;
        let body = self.weighed(text).await?;
        Ok(body.read(|body| read(&body.text)).await?)
    }
}

/// The text of a body, with memory reserved for its values.
pub(crate) struct Weighed {
    pub(crate) text: String,
    /// An upper bound of the number of values.
    pub(crate) values: usize,
}

impl Weighed {
    /// Parses; a large body on a blocking thread, so that it does not delay other requests.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        read: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> T {
        offload(self.text.len(), move || read(&self)).await
    }
}

/// Refuses JSON that is no object: from an array, serde would read the members of a struct by their order.
pub(crate) fn check_object(text: &str) -> Result<(), Error> {
    if text.trim_start().starts_with('{') {
        return Ok(());
    }
    let valid = serde_json::from_str::<&RawValue>(text).is_ok();
    Err(if valid {
        Error::not_object()
    } else {
        Error::not_json()
    })
}

fn too_large() -> Error {
    Error::too_large("the request entity is too large")
}
