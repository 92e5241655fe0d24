//! `on_change`: calls for changes of documents.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use document::json::Json;
use document::mango::{Budget, Selector, TooExpensive};
use url::Url;
use url::form_urlencoded::Serializer;

use super::call::{CALL_HEADERS, Call, Hidden, Retry, Sign, Target};
use super::condition::Condition;
use super::fields::{Fields, Invalid};
use super::javascript::{property, push_query};
use super::template::{Change, Scope, Unsendable, UrlTemplate, Var, bare};

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
/// Headers that belong to the sender.
const OWN_HEADERS: [&str; 8] = [
    "connection",
    "content-length",
    "host",
    "te",
    "transfer-encoding",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
];
/// The member of a document in which receivers pass on `webhook-hop`, unless the rule names another.
const HOPS: &str = "webhook_hop";
/// Bytes of a secret, as Standard Webhooks demand.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Where a rule begins in a database that it has not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// At the change that it first hears of.
    Now,
    /// Behind this sequence, in the form of a query; `0` for all changes.
    Seq(String),
}

/// When changes that were heard of are read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// From the first change on, which gathers others.
    pub delay_sec: f64,
    /// From the last run on.
    pub min_interval_sec: f64,
}

#[derive(Debug)]
pub struct Webhook {
    url: UrlTemplate,
    method: &'static str,
    params: Option<Json>,
    captures: Vec<String>,
    headers: Vec<(String, String)>,
    condition: Condition,
    selector: Option<Arc<Selector>>,
    sign: Option<Sign>,
    retry: Retry,
    timeout_sec: Option<f64>,
    debounce: bool,
    /// The member of a document that has the number of calls that led to it.
    hops: String,
    pub since: Since,
    pub pace: Pace,
    /// Calls are made in the order of the changes, one at a time.
    pub block: bool,
}

impl Webhook {
    pub(super) fn parse(fields: &Fields<'_>, captures: Vec<String>) -> Result<Self, Invalid> {
        let scope = Scope {
            changes: true,
            groups: true,
            captures: &captures,
            is_new: fields.are_new(),
        };
        let url = UrlTemplate::parse(&fields.path("url"), fields.needed("url")?, scope)?;
        let method = fields.text("method")?.unwrap_or("GET").to_ascii_uppercase();
        let method = METHODS.into_iter().find(|known| *known == method);
        let method = method.ok_or_else(|| {
            fields.invalid("method", format!("must be one of {}", METHODS.join(", ")))
        })?;
        let params = fields.get("params").cloned();
        if sends_query(method)
            && params
                .as_ref()
                .is_some_and(|params| params.as_object().is_none())
        {
            let reason =
                format!("must be an object, because a {method} request sends it in the query");
            return Err(fields.invalid("params", reason));
        }
        let selector = fields.get("selector").map(Selector::new).transpose();
        let selector = selector.map_err(|error| fields.invalid("selector", error.to_string()))?;
        Ok(Self {
            url,
            method,
            params,
            headers: headers(fields)?,
            condition: Condition::parse(fields)?,
            selector: selector.map(Arc::new),
            sign: sign(fields)?,
            retry: retry(fields)?,
            timeout_sec: timeout_sec(fields)?,
            debounce: fields.boolean("debounce", false)?,
            hops: fields.text("hops")?.unwrap_or(HOPS).to_owned(),
            since: since(fields)?,
            pace: Pace::parse(fields)?,
            block: fields.boolean("block", true)?,
            captures,
        })
    }

    /// Whether `if` matches a document.
    pub fn accepts(&self, document: &Json) -> Result<bool, TooExpensive> {
        self.condition.matches(document, &mut Budget::of_document())
    }

    /// The endpoint whose responses a run of the rule waits for.
    pub(super) fn waits_for(&self) -> Option<String> {
        let origin = || self.url.sample().origin().ascii_serialization();
        self.block.then(origin)
    }

    /// The secret of the configuration that signs its calls, and the URL with samples for variables.
    pub(super) fn named_secret(&self) -> Option<(&str, &Url)> {
        match &self.sign {
            Some(Sign::SecretRef(name)) => Some((name, self.url.sample())),
            Some(Sign::Secret(_)) | None => None,
        }
    }

    pub fn selector(&self) -> Option<&Arc<Selector>> {
        self.selector.as_ref()
    }

    pub fn retry(&self) -> Retry {
        self.retry
    }

    /// Where a call for a change goes; it does not depend on the document.
    pub fn target(&self, change: &Change<'_>) -> Result<Target, Unsendable> {
        let (_, mut url) = self.url.expand(|var| var.json(change))?;
        url.set_fragment(None);
        Ok(Target {
            url,
            headers: self.headers.clone(),
            sign: self.sign.clone(),
        })
    }

    /// The call for a change. `rules` is the name of the database that the rule's document is in, and `rule` its id.
    pub fn call(&self, rules: &str, rule: &str, change: &Change<'_>) -> Result<Call, Unsendable> {
        let target = self.target(change)?;
        let params = self
            .params
            .as_ref()
            .map(|params| self.expanded(params, change));
        let (mut body, mut query) = (None, None);
        if sends_query(self.method) {
            let mut pairs = Vec::new();
            for (name, value) in params
                .as_ref()
                .and_then(Json::as_object)
                .unwrap_or_default()
            {
                push_query(&mut pairs, name, value);
            }
            if !pairs.is_empty() {
                query = Some(Serializer::new(String::new()).extend_pairs(pairs).finish());
            }
        } else {
            body = Some(params.map_or_else(|| "{}".to_owned(), |params| params.to_string()));
        }
        Ok(Call {
            rule: rule.to_owned(),
            rules: rules.to_owned(),
            method: self.method.to_owned(),
            url: target.shown(),
            query,
            body,
            source: change.source.to_owned(),
            db: change.db.to_owned(),
            doc_id: change.doc_id.to_owned(),
            rev: change.rev.to_owned(),
            seq: bare(change.seq),
            retry: self.retry,
            timeout_sec: self.timeout_sec,
            debounce: self.debounce,
            hops: self.hops(change.doc),
            left_out: 0,
            generation: None,
            target: Some(target),
        })
    }

    /// How many calls led to a document, as its writer says.
    fn hops(&self, document: &Json) -> u32 {
        let hops = match property(document, &self.hops) {
            // Copied from the header.
            Some(Json::String(digits)) => digits.parse().ok(),
            value => value.and_then(Json::as_integer),
        };
        u32::try_from(hops.unwrap_or(0).max(0)).unwrap_or(u32::MAX)
    }

    /// Strings that are a variable become its value. As in Spiegel, variables within a text are text.
    fn expanded(&self, params: &Json, change: &Change<'_>) -> Json {
        match params {
            Json::String(text) => match Var::whole(text, &self.captures) {
                Some(var) => var.json(change),
                None => params.clone(),
            },
            Json::Array(elements) => Json::Array(
                elements
                    .iter()
                    .map(|element| self.expanded(element, change))
                    .collect(),
            ),
            Json::Object(members) => {
                let member =
                    |(name, value): &(String, Json)| (name.clone(), self.expanded(value, change));
                Json::Object(members.iter().map(member).collect())
            }
            scalar => scalar.clone(),
        }
    }
}

impl Pace {
    fn parse(fields: &Fields<'_>) -> Result<Self, Invalid> {
        let delay = delay(fields)?;
        let Some(given) = fields.object("trigger", &["delay_sec", "min_interval_sec"])? else {
            return Ok(Self {
                delay_sec: delay.unwrap_or_default(),
                ..Self::default()
            });
        };
        Ok(Self {
            delay_sec: given.seconds("delay_sec", 1.0)?.unwrap_or_default(),
            min_interval_sec: given.seconds("min_interval_sec", 1.0)?.unwrap_or_default(),
        })
    }
}

/// Spiegel's `dirty_after_milliseconds`, which `trigger` replaces.
pub(super) fn delay(fields: &Fields<'_>) -> Result<Option<f64>, Invalid> {
    let delay = fields.seconds("dirty_after_milliseconds", 1000.0)?;
    if delay.is_some() && fields.get("trigger").is_some() {
        let reason = "is `trigger.delay_sec` in other words; leave out one of them";
        return Err(fields.invalid("dirty_after_milliseconds", reason));
    }
    Ok(delay)
}

/// Whether parameters are sent in the query, not as a body.
fn sends_query(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "DELETE")
}

fn since(fields: &Fields<'_>) -> Result<Since, Invalid> {
    let Some(given) = fields.get("since") else {
        return Ok(Since::Now);
    };
    let read = if fields.are_new() {
        Since::parse
    } else {
        Since::read
    };
    read(given).ok_or_else(|| fields.invalid("since", Since::REASON))
}

impl Since {
    /// Why `parse` refused a value.
    pub const REASON: &str =
        "must be \"now\", 0, or an update sequence, which begins with a digit, as in \"42-g1AAAA\"";

    /// A value that a server may know.
    pub fn parse(given: &Json) -> Option<Self> {
        Self::read(given).filter(Self::may_work)
    }

    fn read(given: &Json) -> Option<Self> {
        match given {
            Json::String(text) if text == "now" => Some(Self::Now),
            Json::String(text) if !text.is_empty() => Some(Self::Seq(text.clone())),
            number @ Json::Number(_) if number.is_integer() => Some(Self::Seq(number.to_string())),
            _ => None,
        }
    }

    /// Whether a server may have written it. CouchDB 1 and PouchDB have numbers.
    fn may_work(&self) -> bool {
        match self {
            Self::Now => true,
            Self::Seq(seq) => seq.starts_with(|first: char| first.is_ascii_digit()),
        }
    }
}

fn timeout_sec(fields: &Fields<'_>) -> Result<Option<f64>, Invalid> {
    let given = fields.seconds("timeout_sec", 1.0)?;
    let positive = given.filter(|seconds| *seconds > 0.0);
    if fields.are_new() && given.is_some() && positive.is_none() {
        let reason = "must be above 0; leave it out for the configuration's";
        return Err(fields.invalid("timeout_sec", reason));
    }
    Ok(positive)
}

fn headers(fields: &Fields<'_>) -> Result<Vec<(String, String)>, Invalid> {
    let Some(given) = fields.get("headers") else {
        return Ok(Vec::new());
    };
    let Some(members) = given.as_object() else {
        return Err(fields.invalid(
            "headers",
            "must be an object: names of headers with their values",
        ));
    };
    let header = |(name, value): &(String, Json)| {
        let path = format!("headers.{name}");
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(Invalid::new(path, "is not the name of a header"));
        }
        // Earlier versions accepted these.
        let more: &[_] = if fields.are_new() { &CALL_HEADERS } else { &[] };
        let mut own = OWN_HEADERS.iter().chain(more);
        if own.any(|own| name.eq_ignore_ascii_case(own)) {
            return Err(Invalid::new(path, "is set by the service; leave it out"));
        }
        let text = value
            .as_str()
            .filter(|text| text.bytes().all(|byte| matches!(byte, b' '..=b'~')));
        let text = text
            .ok_or_else(|| Invalid::new(path, "must be a string of printable ASCII characters"))?;
        Ok((name.clone(), text.to_owned()))
    };
    members.iter().map(header).collect()
}

fn sign(fields: &Fields<'_>) -> Result<Option<Sign>, Invalid> {
    let by_name = fields.text("secret_ref")?;
    let sign = match (fields.text("secret")?, by_name) {
        (Some(_), Some(_)) => {
            return Err(
                fields.invalid("secret_ref", "names a second secret; leave out one of them")
            );
        }
        (Some(secret), None) => {
            let encoded = secret.strip_prefix("whsec_");
            let bytes = encoded.and_then(|encoded| BASE64_STANDARD.decode(encoded).ok());
            if !bytes.is_some_and(|bytes| SECRET_BYTES.contains(&bytes.len())) {
                let reason = "must be `whsec_` and 24 to 64 random bytes in base64, as `echo whsec_$(openssl rand \
                              -base64 32)` makes them";
                return Err(fields.invalid("secret", reason));
            }
            Some(Sign::Secret(Hidden(secret.to_owned())))
        }
        (None, Some(name)) => Some(Sign::SecretRef(name.to_owned())),
        (None, None) => None,
    };
    match (fields.text("sign")?, &sign) {
        (None, _) | (Some("v1"), Some(_)) | (Some("none"), None) => Ok(sign),
        (Some("v1"), None) => {
            Err(fields.invalid("sign", "needs a secret; add `secret` or `secret_ref`"))
        }
        (Some("none"), Some(_)) => {
            Err(fields.invalid("sign", "leaves the secret unused; remove one of them"))
        }
        (Some(_), _) => Err(fields.invalid("sign", "must be \"v1\" or \"none\"")),
    }
}

fn retry(fields: &Fields<'_>) -> Result<Retry, Invalid> {
    let default = Retry::default();
    let known = ["delay_sec", "multiplier", "max_delay_sec", "limit"];
    let Some(given) = fields.object("retry", &known)? else {
        return Ok(default);
    };
    let delay_sec = given
        .seconds("delay_sec", 1.0)?
        .unwrap_or(default.delay_sec);
    Ok(Retry {
        delay_sec,
        multiplier: given
            .number("multiplier", 1.0, 100.0)?
            .unwrap_or(default.multiplier),
        max_delay_sec: given
            .seconds("max_delay_sec", 1.0)?
            .unwrap_or(default.max_delay_sec.max(delay_sec)),
        // As in Spiegel, 0 is no limit.
        limit: given.count("limit")?.filter(|limit| *limit > 0),
    })
}
