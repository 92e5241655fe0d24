//! A client that costs next to nothing, so that the frontend is what is measured.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use memchr::memmem;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A kept connection.
pub(super) struct Connection {
    stream: TcpStream,
    authorization: String,
    read: Vec<u8>,
}

impl Connection {
    pub(super) async fn new(
        address: SocketAddr,
        name: &str,
        password: &str,
    ) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.context("connect to the frontend")?;
        stream.set_nodelay(true)?;
        let pair = BASE64_STANDARD.encode(format!("{name}:{password}"));
        Ok(Self {
            stream,
            authorization: format!("authorization: Basic {pair}\r\n"),
            read: Vec::new(),
        })
    }

    /// Writes a new document.
    pub(super) async fn put(&mut self, path: &str, body: &str) -> anyhow::Result<()> {
        let (status, answer) = self.ask("PUT", path, body).await?;
        if status != 201 {
            let answer = String::from_utf8_lossy(&answer).into_owned();
            bail!("PUT {path} is answered with {status}: {answer}");
        }
        Ok(())
    }

    pub(super) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let (status, answer) = self.ask("GET", path, "").await?;
        if status != 200 {
            let answer = String::from_utf8_lossy(&answer).into_owned();
            bail!("GET {path} is answered with {status}: {answer}");
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Begins to wait for a change; done when the feed has begun.
    pub(super) async fn listen(&mut self, since: &str) -> anyhow::Result<()> {
        let path = format!("/_replicator/_changes?feed=longpoll&since={since}");
        self.send("GET", &path, "").await?;
        self.hear("results").await
    }

    /// Reads until this was sent.
    pub(super) async fn hear(&mut self, word: &str) -> anyhow::Result<()> {
        while memmem::find(&self.read, word.as_bytes()).is_none() {
            self.more().await?;
        }
        Ok(())
    }

    async fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> anyhow::Result<(u16, Vec<u8>)> {
        self.send(method, path, body).await?;
        let head = loop {
            if let Some(end) = memmem::find(&self.read, b"\r\n\r\n") {
                break end + 4;
            }
            self.more().await?;
        };
        let text = String::from_utf8_lossy(&self.read[..head]).into_owned();
        let status = text.get(9..12).and_then(|status| status.parse().ok());
        let status = status.context("the answer has no status")?;
        let mut lines = text.lines();
        let length = lines.find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.context("the answer has no length")?.parse()?;
        while self.read.len() < head + length {
            self.more().await?;
        }
        let answer = self.read[head..head + length].to_vec();
        self.read.drain(..head + length);
        Ok((status, answer))
    }

    async fn send(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let typed = match body.len() {
            0 => String::new(),
            length => {
                format!("content-type: application/json\r\ncontent-length: {length}\r\n")
            }
        };
        let own = &self.authorization;
        let request = format!("{method} {path} HTTP/1.1\r\nhost: bench\r\n{own}{typed}\r\n{body}");
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    async fn more(&mut self) -> anyhow::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => bail!("the frontend has closed the connection"),
            _ => Ok(()),
        }
    }
}
