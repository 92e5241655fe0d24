//! Opens tunnels through proxies.

use std::io;

use hyper_util::client::legacy::connect::proxy::SocksV5;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower::{Service as _, service_fn};
use wire::Io;

use super::connector::Trouble;
use crate::endpoint::Proxy;
use crate::error::Failure;

/// The most bytes in the head of a proxy's response.
const HEAD_BYTES_MAX: usize = 8192;

/// Asks an HTTP proxy for a tunnel (`CONNECT`).
pub(super) async fn tunnel(
    mut stream: Box<dyn Io>,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<Box<dyn Io>, Trouble> {
    let mut head = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some(credentials) = proxy.credentials() {
        head.push_str("Proxy-Authorization: ");
        head.push_str(credentials.header().expose());
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    stream
        .write_all(head.as_bytes())
        .await
        .map_err(Failure::connect)?;
    stream.flush().await.map_err(Failure::connect)?;

    let status = read_status(&mut stream).await.map_err(Failure::connect)?;
    match status.as_deref() {
        Some([b'2', ..]) => Ok(stream),
        Some(b"407") => Err(Trouble::Final(Failure::Proxy(format!("407 from {proxy}")))),
        Some(status) => {
            Err(Failure::Proxy(format!("{} from {proxy}", String::from_utf8_lossy(status))).into())
        }
        None => Err(Failure::Proxy(format!("{proxy} does not speak HTTP")).into()),
    }
}

/// Reads up to the empty line, byte by byte, because what follows belongs to the tunnel.
async fn read_status(stream: &mut Box<dyn Io>) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_BYTES_MAX {
            return Ok(None);
        }
        head.push(stream.read_u8().await?);
    }
    let is_http = head.starts_with(b"HTTP/1.");
    let digits = head
        .get(9..12)
        .filter(|digits| digits.iter().all(u8::is_ascii_digit));
    Ok(digits.filter(|_| is_http).map(<[u8]>::to_vec))
}

/// Asks a SOCKS 5 proxy for a connection; the proxy resolves the name.
pub(super) async fn socks5(
    stream: Box<dyn Io>,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<Box<dyn Io>, Trouble> {
    let authority = format!("socks5://{host}:{port}");
    let target: http::Uri = authority
        .parse()
        .map_err(|_| Failure::Proxy(format!("{proxy} cannot be asked for this host")))?;
    let mut stream = Some(TokioIo::new(stream));
    let once = service_fn(move |_: http::Uri| {
        std::future::ready(
            stream
                .take()
                .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)),
        )
    });
    let mut socks = SocksV5::new(target.clone(), once);
    if let Some(credentials) = proxy.credentials() {
        let password = credentials.password.expose().to_owned();
        socks = socks.with_auth(credentials.username.clone(), password);
    }
    match socks.call(target).await {
        Ok(stream) => Ok(stream.into_inner()),
        Err(error) => Err(Failure::Proxy(format!("{proxy}: {error}")).into()),
    }
}
