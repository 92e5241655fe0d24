//! `replicator`: a replication that runs when its source has changed.

use couch::Endpoint;
use document::json::Json;
use percent_encoding::percent_decode_str;
use replication::params::{Defaults, Replication, Request};
use url::Url;

use super::fields::{Fields, Invalid};
use super::pattern::Captures;
use super::template::{Scope, Unsendable, UrlTemplate, Var};
use super::webhook::delay;

/// Members that are not parameters of the replication.
const OWN: [&str; 6] = [
    "type",
    "match",
    "enabled",
    "dirty_after_milliseconds",
    "continuous",
    "cancel",
];
/// Members in which Spiegel keeps its own state.
pub const SPIEGELS_STATE: [&str; 6] = [
    "dirty",
    "dirty_at",
    "locked_at",
    "updated_at",
    "retries",
    "possibly_deleted_at",
];

#[derive(Debug)]
pub struct Replicate {
    source: Side,
    target: Side,
    /// The parameters, with these two.
    params: Vec<(String, Json)>,
}

/// `source` or `target`.
#[derive(Clone, Debug)]
pub(super) struct Side {
    url: UrlTemplate,
    /// The whole, if it is an object.
    object: Option<Vec<(String, Json)>>,
}

impl Replicate {
    pub(super) fn parse(fields: &Fields<'_>, captures: &[String]) -> Result<Self, Invalid> {
        let scope = Scope {
            changes: false,
            groups: true,
            captures,
            is_new: fields.are_new(),
        };
        let source = Side::of(fields, "source", scope)?;
        if !source.url.varies_at_the_end() {
            let reason = "may have variables only in the name of the database";
            return Err(fields.invalid("source", reason));
        }
        let is_own = |name: &str| OWN.contains(&name) || SPIEGELS_STATE.contains(&name);
        let is_param = |(name, _): &&(String, Json)| !is_own(name) && !name.starts_with('_');
        let mut params: Vec<_> = fields.members().iter().filter(is_param).cloned().collect();
        let delay = delay(fields)?;
        if fields.get("trigger").is_none() {
            params.retain(|(name, _)| name != "trigger");
            let trigger = delay.map_or_else(
                || Json::String("changes".to_owned()),
                |seconds| {
                    let seconds = Json::Number(seconds.to_string().into());
                    Json::Object(vec![("delay_sec".to_owned(), seconds)])
                },
            );
            params.push(("trigger".to_owned(), trigger));
        }
        let replicate = Self {
            source,
            target: Side::of(fields, "target", scope)?,
            params,
        };
        replicate.check("")?;
        Ok(replicate)
    }

    /// A replication with these parameters, which have members for both sides.
    pub(super) fn of(source: Side, target: Side, params: Vec<(String, Json)>) -> Self {
        Self {
            source,
            target,
            params,
        }
    }

    /// Checks the parameters; errors have this path.
    pub(super) fn check(&self, path: &str) -> Result<(), Invalid> {
        self.sample(path).map(drop)
    }

    /// The replication for samples of the variables.
    fn sample(&self, path: &str) -> Result<Request, Invalid> {
        let sample = self.with(|side| Ok(side.url.sample_text()));
        let sample = sample.map_err(|error| Invalid::new("source", error.to_string()))?;
        Replication::from_request(&sample, None, &Defaults::default())
            .map_err(|error| Invalid::new(path, error.to_string()))
    }

    /// Source and target, for samples of the variables.
    pub(super) fn endpoints(&self) -> Option<[Endpoint; 2]> {
        match self.sample("").ok()? {
            Request::Start(sample) => Some([sample.source, sample.target]),
            // `cancel` is not among the parameters.
            Request::Cancel(_) | Request::CancelId(_) => None,
        }
    }

    pub(super) fn source(&self) -> &Side {
        &self.source
    }

    pub(super) fn target(&self) -> &Side {
        &self.target
    }

    /// The address above the source, and the source's name.
    pub(super) fn place(&self) -> (Url, String) {
        self.source.split()
    }

    /// The body of a request for this replication, for the database with this name and these captures.
    pub fn body(&self, db: &str, captures: &Captures) -> Result<Json, Unsendable> {
        let value = |var: &Var| match var {
            Var::Capture(name) => captures.get(name).cloned().unwrap_or_default(),
            _ => db.to_owned(),
        };
        self.with(|side| Ok(side.url.expand(|var| Json::String(value(var)))?.0))
    }

    fn with(&self, url: impl Fn(&Side) -> Result<String, Unsendable>) -> Result<Json, Unsendable> {
        let member = |(name, value): &(String, Json)| {
            let value = match &**name {
                "source" => self.source.json(url(&self.source)?),
                "target" => self.target.json(url(&self.target)?),
                _ => value.clone(),
            };
            Ok((name.clone(), value))
        };
        self.params
            .iter()
            .map(member)
            .collect::<Result<_, _>>()
            .map(Json::Object)
    }
}

impl Side {
    fn of(fields: &Fields<'_>, name: &str, scope: Scope<'_>) -> Result<Self, Invalid> {
        let path = fields.path(name);
        if let Some(side @ Json::Object(_)) = fields.get(name) {
            return Self::parse(&path, side, scope);
        }
        let text = Json::String(fields.needed(name)?.to_owned());
        Self::parse(&path, &text, scope)
    }

    /// Reads a URL, or an object with one.
    pub(super) fn parse(path: &str, side: &Json, scope: Scope<'_>) -> Result<Self, Invalid> {
        let Some(members) = side.as_object() else {
            let reason = "must be a URL, or an object with a `url`";
            let text = side.as_str().ok_or_else(|| Invalid::new(path, reason))?;
            let url = UrlTemplate::parse(path, text, scope)?;
            return Ok(Self { url, object: None });
        };
        let path = format!("{path}.url");
        let url = side.get("url").and_then(Json::as_str);
        let url = url.ok_or_else(|| Invalid::new(&path, "is missing; add it"))?;
        Ok(Self {
            url: UrlTemplate::parse(&path, url, scope)?,
            object: Some(members.to_vec()),
        })
    }

    /// Whether it depends on the database.
    pub(super) fn varies(&self) -> bool {
        self.url.varies()
    }

    pub(super) fn sample(&self) -> &Url {
        self.url.sample()
    }

    /// The URL with its variables, without credentials.
    pub(super) fn shown(&self) -> String {
        self.url.shown()
    }

    /// What the name of a database begins and ends with, before and after the only variable.
    pub(super) fn around_the_variable(&self) -> Option<(String, String)> {
        let (start, end) = self.url.around_the_variable()?;
        let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
        Some((decoded(start), decoded(end)))
    }

    /// The address above it, and its name, if only its name has variables.
    pub(super) fn place(&self) -> Option<(Url, String)> {
        self.url.varies_at_the_end().then(|| self.split())
    }

    fn split(&self) -> (Url, String) {
        let mut above = self.url.sample().clone();
        let last = above
            .path_segments()
            .into_iter()
            .flatten()
            .rfind(|part| !part.is_empty());
        let name = percent_decode_str(last.unwrap_or_default())
            .decode_utf8_lossy()
            .into_owned();
        if let Ok(mut segments) = above.path_segments_mut() {
            segments.pop_if_empty().pop();
        }
        (address(above), name)
    }

    fn json(&self, mut url: String) -> Json {
        let Some(members) = &self.object else {
            add_password(&mut url);
            return Json::String(url);
        };
        let is_own = |(name, _): &(String, Json)| matches!(&**name, "auth" | "headers");
        if !members.iter().any(is_own) {
            add_password(&mut url);
        }
        let member = |(name, value): &(String, Json)| {
            let url = (name == "url").then(|| Json::String(url.clone()));
            (name.clone(), url.unwrap_or_else(|| value.clone()))
        };
        Json::Object(members.iter().map(member).collect())
    }
}

/// Gives a user without a password an empty one, which `passwords_file` may replace. Endpoints ignore users without any.
fn add_password(url: &mut String) {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let end = url[begin..].find(['/', '?', '#']);
    let end = end.map_or(url.len(), |at| begin + at);
    if let Some(at) = url[begin..end].rfind('@')
        && at > 0
        && !url[begin..begin + at].contains(':')
    {
        url.insert(begin + at, ':');
    }
}

/// The address of a server without credentials, query and the like, for comparisons.
pub(super) fn address(mut url: Url) -> Url {
    // A URL with a host can have both.
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().push("");
    }
    url
}
