//! The parameters of a replication: the fields of a `_replicator` document or of the body of `POST /_replicate`.
//!
//! One parser serves both. It ignores unknown fields. Errors are reported in CouchDB's words, as one [`Invalid`], which
//! the API maps to 403 for a document and 400 for a request.

mod fields;
mod filter;
mod invalid;
pub mod names;
mod options;
mod trigger;

use couch::Endpoint;
use document::json::Json;

use crate::names::ReplicationId;
use fields::Fields;
pub use filter::{Filter, SelectorFilter};
pub use invalid::Invalid;
pub use names::Grant;
pub use options::{Checkpoints, Defaults, FilterWhere, OnWriteFailure, Options, SocketOptions};
pub use trigger::Trigger;

/// A valid replication. Two are equal if CouchDB considers them the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Replication {
    pub source: Endpoint,
    pub target: Endpoint,
    pub options: Options,
}

/// A parsed `POST /_replicate`.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Start(Box<Replication>),
    /// Cancel the replication that this describes.
    Cancel(Box<Replication>),
    /// Cancel the replication with this replication id or job id.
    CancelId(ReplicationId),
}

impl Replication {
    /// Parses a `_replicator` document without plain names.
    pub fn from_document(body: &Json, defaults: &Defaults) -> Result<Self, Invalid> {
        Self::granted(body, None, defaults)
    }

    /// Parses a `_replicator` document; plain names use this grant.
    pub fn granted(
        body: &Json,
        grant: Option<&Grant>,
        defaults: &Defaults,
    ) -> Result<Self, Invalid> {
        let fields = Fields::new(body)?;
        let proxies = Proxies::read(&fields)?;
        let options = Options::read(&fields, defaults)?;
        Self::build(&fields, proxies, grant, options, defaults)
    }

    /// Parses the body of a `POST /_replicate`.
    pub fn from_request(
        body: &Json,
        grant: Option<&Grant>,
        defaults: &Defaults,
    ) -> Result<Request, Invalid> {
        let fields = Fields::new(body)?;
        let proxies = Proxies::read(&fields)?;
        let options = Options::read(&fields, defaults)?;
        let cancels = fields.boolean("cancel")?.unwrap_or(false);
        if let (true, Some(id)) = (cancels, fields.cancel_id()?) {
            return Ok(Request::CancelId(id));
        }
        if let Some(Json::Object(params)) = fields.get("query_params")
            && let Some((key, _)) = params.iter().find(|(_, value)| value.as_str().is_none())
        {
            return Err(Invalid::new(format!("{key} value must be a string.")));
        }
        let replication = Box::new(Self::build(&fields, proxies, grant, options, defaults)?);
        Ok(if cancels {
            Request::Cancel(replication)
        } else {
            Request::Start(replication)
        })
    }

    fn build(
        fields: &Fields<'_>,
        proxies: Proxies<'_>,
        grant: Option<&Grant>,
        options: Options,
        defaults: &Defaults,
    ) -> Result<Self, Invalid> {
        let source = fields
            .get("source")
            .ok_or_else(|| Invalid::new("Missing `source` field"))?;
        let target = fields
            .get("target")
            .ok_or_else(|| Invalid::new("Missing `target` field"))?;
        let source = names::endpoint(source, grant, proxies.source, &defaults.schemes)?;
        let target = names::endpoint(target, grant, proxies.target, &defaults.schemes)?;
        // Filters are validated after endpoints; the others were among the options.
        options.filter.check()?;
        Ok(Self {
            source,
            target,
            options,
        })
    }

    /// Whether only a server administrator may set it up: it changes TLS rules, reads files of the node, or uses a
    /// secret of the configuration.
    pub fn is_privileged(&self) -> bool {
        self.source.is_privileged() || self.target.is_privileged()
    }
}

#[derive(Clone, Copy)]
struct Proxies<'a> {
    source: Option<&'a str>,
    target: Option<&'a str>,
}

impl<'a> Proxies<'a> {
    fn read(fields: &Fields<'a>) -> Result<Self, Invalid> {
        let proxy = |name| match fields.get(name) {
            None => Ok(None),
            Some(Json::String(url)) => Ok(Some(url.as_str()).filter(|url| !url.is_empty())),
            Some(_) => Err(Invalid::new("Invalid proxy url")),
        };
        let (both, source, target) = (
            proxy("proxy")?,
            proxy("source_proxy")?,
            proxy("target_proxy")?,
        );
        match (both, source, target) {
            (Some(_), Some(_), _) => Err(Invalid::new(
                "`proxy` is mutually exclusive with `source_proxy`",
            )),
            (Some(_), _, Some(_)) => Err(Invalid::new(
                "`proxy` is mutually exclusive with `target_proxy`",
            )),
            (Some(both), None, None) => Ok(Self {
                source: Some(both),
                target: Some(both),
            }),
            (None, source, target) => Ok(Self { source, target }),
        }
    }
}

#[cfg(test)]
mod tests;
