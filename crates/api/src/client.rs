use std::net::SocketAddr;

/// The origin of a request.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// The peer of the connection.
    pub address: SocketAddr,
    pub tls: bool,
}
