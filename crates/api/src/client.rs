//! The client of a request.

use std::net::SocketAddr;

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// The other end of the connection.
    pub address: SocketAddr,
    /// The connection is encrypted.
    pub tls: bool,
}
