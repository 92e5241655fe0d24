//! A small HTTP/1.1 client without TLS, pool or retries, for tools and tests.

use std::io;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::net::TcpStream;
use url::Url;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Without the URL, which may contain a password.
    #[error("not a URL of the form http://NAME:PASSWORD@HOST:PORT")]
    Url,
    #[error("cannot connect to {authority}")]
    Connect {
        authority: String,
        source: io::Error,
    },
    #[error("invalid request")]
    Request(#[from] http::Error),
    #[error("no answer")]
    Http(#[from] hyper::Error),
}

/// A connection to the server of an `http` URL, with the credentials in the URL.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    headers: HeaderMap,
}

impl Connection {
    pub async fn open(url: &Url) -> Result<Self, Error> {
        let host = url.host_str().filter(|_| url.scheme() == "http");
        let (host, port) = host.zip(url.port_or_known_default()).ok_or(Error::Url)?;
        let authority = format!("{host}:{port}");
        let connect = |source| Error::Connect {
            authority: authority.clone(),
            source,
        };
        let stream = TcpStream::connect(&authority).await.map_err(connect)?;
        stream.set_nodelay(true).map_err(connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // The connection task ends with its sender. A failure shows up as the error of a request.
        tokio::spawn(connection);
        let header = |text: &str| HeaderValue::from_str(text).map_err(http::Error::from);
        let mut headers = HeaderMap::from_iter([(ACCEPT, JSON), (HOST, header(&authority)?)]);
        if !url.username().is_empty() {
            let decoded = |text| percent_decode_str(text).decode_utf8_lossy();
            let password = decoded(url.password().unwrap_or_default());
            let pair = format!("{}:{password}", decoded(url.username()));
            let basic = format!("Basic {}", BASE64_STANDARD.encode(pair));
            headers.insert(AUTHORIZATION, header(&basic)?);
        }
        Ok(Self { sender, headers })
    }

    /// Sends a request and returns the head of its response. A body is declared as JSON.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<(StatusCode, Incoming), Error> {
        let has_body = !body.is_empty();
        let request = Request::builder().method(method).uri(path);
        let mut request = request.body(Full::from(body))?;
        *request.headers_mut() = self.headers.clone();
        if has_body {
            request.headers_mut().insert(CONTENT_TYPE, JSON);
        }
        self.sender.ready().await?;
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        Ok((head.status, body))
    }

    /// Sends a request and reads the whole response.
    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<(StatusCode, Bytes), Error> {
        let (status, body) = self.send(method, path, body).await?;
        Ok((status, body.collect().await?.to_bytes()))
    }
}

/// Fetches a URL over a new connection, because some servers close idle connections just when they are reused.
pub async fn get(url: &str) -> Result<(StatusCode, Bytes), Error> {
    let url = Url::parse(url).map_err(|_| Error::Url)?;
    let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let mut connection = Connection::open(&url).await?;
    connection.ask(Method::GET, path, String::new()).await
}
