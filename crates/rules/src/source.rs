//! Servers whose databases are followed.

use couch::{Endpoint, InvalidEndpoint};

/// A server whose databases are followed, from `[sources.NAME]`.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    server: Endpoint,
}

impl Source {
    /// A source with a name and the address of the server, in which user and password may stand.
    pub fn new(name: impl Into<String>, url: &str) -> Result<Self, InvalidEndpoint> {
        Ok(Self {
            name: name.into(),
            server: Endpoint::from_url(url)?,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server, with the source's credentials.
    pub fn server(&self) -> &Endpoint {
        &self.server
    }
}
