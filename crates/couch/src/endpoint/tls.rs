//! TLS settings of one endpoint.

use serde_json::Value;

use super::invalid::InvalidEndpoint;
use crate::secret::Secret;

/// The `tls` member of an endpoint object. Only a server administrator may set it, which the code that
/// accepts the document checks by [`Endpoint::is_privileged`](super::Endpoint::is_privileged).
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct TlsOverrides {
    /// `false` accepts any certificate of this endpoint; `true` requires a valid one, whatever the node's setting.
    pub verify: Option<bool>,
    /// Certificates (PEM) that this endpoint's chain must end in, instead of the node's.
    pub ca_pem: Option<String>,
    /// Client certificate chain (PEM).
    pub cert_pem: Option<String>,
    /// Key of the client certificate (PEM).
    pub key_pem: Option<Secret>,
}

impl TlsOverrides {
    pub(super) fn parse(value: Option<&Value>) -> Result<Self, InvalidEndpoint> {
        let members = match value {
            None => return Ok(Self::default()),
            Some(Value::Object(members)) => members,
            Some(_) => return Err(InvalidEndpoint::Tls),
        };
        let mut tls = Self::default();
        for (name, value) in members {
            match (name.as_str(), value) {
                ("verify", Value::Bool(verify)) => tls.verify = Some(*verify),
                ("ca", Value::String(pem)) => tls.ca_pem = Some(pem.clone()),
                ("cert", Value::String(pem)) => tls.cert_pem = Some(pem.clone()),
                ("key", Value::String(pem)) => tls.key_pem = Some(Secret::from(pem.as_str())),
                // A misspelt `verify` must not be ignored.
                _ => return Err(InvalidEndpoint::Tls),
            }
        }
        if tls.cert_pem.is_some() != tls.key_pem.is_some() {
            return Err(InvalidEndpoint::Tls);
        }
        Ok(tls)
    }
}
