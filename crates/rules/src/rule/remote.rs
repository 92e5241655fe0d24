//! `remote`: copies of many databases at one URL or several, after Gerrit's `replication.config`.

use std::collections::BTreeSet;

use document::json::Json;
use document::mango::Budget;
use jobs::LIMIT_SLOTS_MAX;
use sha2::{Digest as _, Sha256};
use url::Url;

use super::databases::Databases;
use super::fields::{Fields, Invalid};
use super::pattern::{Captures, Pattern};
use super::replicator::{Replicate, Side, address};
use super::template::{Scope, Unsendable};

const MEMBERS: [&str; 12] = [
    "type",
    "enabled",
    "source",
    "url",
    "databases",
    "exclude_databases",
    "replication_delay_sec",
    "random_delay_sec",
    "threads",
    "retry",
    "create_missing",
    "copy_security",
];
/// The variable for the name of a database, besides `db_name`.
const NAME: &str = "name";
/// As in Gerrit.
const DELAY_SEC: f64 = 15.0;
const RANDOM_DELAY_SEC: f64 = 1.0;
const RETRY_SEC: f64 = 60.0;
const THREADS: u32 = 4;
const URLS_MAX: usize = 100;
const NO_LIST: &str = "must be a list of names, of beginnings such as `app_*`, or of regular expressions such as `^app_[0-9]+$`";
/// Maximum bytes of the name, which limits and tenants have, too.
const NAME_BYTES_MAX: usize = 200;

#[derive(Debug)]
pub struct Remote {
    urls: Vec<(String, Replicate)>,
    /// Runs at a time on all nodes.
    pub threads: u32,
    pub delay_sec: f64,
    pub random_delay_sec: f64,
    pub retry_sec: f64,
    /// 0 is no limit.
    pub retries_max: u32,
    pub create_missing: bool,
    pub copy_security: bool,
}

/// Names of databases, and patterns for them.
#[derive(Debug)]
pub struct Names {
    /// Without any, all but those whose names start with `_`.
    include: Vec<Name>,
    exclude: Vec<Name>,
    /// What names of targets on the source's server begin and end with: they are not copied in turn.
    targets: Vec<(String, String)>,
}

#[derive(Debug)]
enum Name {
    Exact(String),
    Prefix(String),
    Matching(Pattern),
}

impl Remote {
    pub(super) fn parse(fields: &Fields<'_>) -> Result<(Self, Databases), Invalid> {
        fields.only(&MEMBERS)?;
        let mut names = Names::parse(fields)?;
        let captures = [NAME.to_owned()];
        let scope = Scope {
            changes: false,
            groups: false,
            captures: &captures,
            is_new: fields.are_new(),
        };
        let retry = fields.object("retry", &["delay_sec", "limit"])?;
        let seconds = |name, default| Ok(fields.seconds(name, 1.0)?.unwrap_or(default));
        let (retry_sec, retries_max) = match &retry {
            Some(retry) => (retry.seconds("delay_sec", 1.0)?, retry.count("limit")?),
            None => (None, None),
        };
        let mut remote = Self {
            urls: Vec::new(),
            threads: threads(fields)?,
            delay_sec: seconds("replication_delay_sec", DELAY_SEC)?,
            random_delay_sec: seconds("random_delay_sec", RANDOM_DELAY_SEC)?,
            retry_sec: retry_sec.unwrap_or(RETRY_SEC),
            retries_max: retries_max.unwrap_or_default(),
            create_missing: fields.boolean("create_missing", false)?,
            copy_security: fields.boolean("copy_security", false)?,
        };
        let source = fields.get("source");
        let source = source.ok_or_else(|| fields.invalid("source", "is missing; add it"))?;
        let source = Side::parse("source", source, scope)?;
        let one = names.exact().map(str::to_owned);
        let check = |path: &str, side: &Side| {
            if one.is_some() || side.varies() {
                return Ok(());
            }
            Err(Invalid::new(
                path,
                "must contain `${name}`, the name of the database, because `databases` may match several",
            ))
        };
        check("source", &source)?;
        let place = source.place();
        let place = place.ok_or_else(|| {
            let reason = "may have variables only in the name of the database";
            fields.invalid("source", reason)
        })?;
        if let Some(one) = one.as_ref().filter(|_| !source.varies())
            && *one != place.1
        {
            let of = &place.1;
            let reason =
                format!("is `{of}`, but `databases` has only `{one}`; end it with `${{name}}`");
            return Err(fields.invalid("source", reason));
        }
        let mut keys = BTreeSet::from([source.key()]);
        for (path, url) in urls(fields)? {
            let target = Side::parse(&path, url, scope)?;
            check(&path, &target)?;
            if !keys.insert(target.key()) {
                let reason = "is the source, or is listed twice; remove it";
                return Err(Invalid::new(path, reason));
            }
            names.targets.extend(target.name_below(&place.0));
            let key = wire::hex(&Sha256::digest(target.key())[..8]);
            let replicate = Replicate::of(source.clone(), target, remote.params());
            replicate.check(&path)?;
            remote.urls.push((key, replicate));
        }
        let name = one.unwrap_or(place.1);
        Ok((remote, Databases::listed(names).below(Some(place.0), name)))
    }

    /// Parameters of all its replications.
    fn params(&self) -> Vec<(String, Json)> {
        let number = |name: &str, seconds: f64| {
            let seconds = Json::Number(seconds.to_string().into());
            (name.to_owned(), seconds)
        };
        let trigger = vec![
            number("delay_sec", self.delay_sec),
            number("random_delay_sec", self.random_delay_sec),
        ];
        vec![
            ("source".to_owned(), Json::Null),
            ("target".to_owned(), Json::Null),
            ("create_target".to_owned(), Json::Bool(self.create_missing)),
            ("trigger".to_owned(), Json::Object(trigger)),
        ]
    }

    /// For each URL, what stands for it in ids of jobs, and the body of a request for the replication of a database.
    pub fn bodies<'a>(
        &'a self,
        db: &'a str,
    ) -> impl Iterator<Item = (&'a str, Result<Json, Unsendable>)> {
        let captures = captures(db);
        let urls = self.urls.iter();
        urls.map(move |(key, replicate)| (key.as_str(), replicate.body(db, &captures)))
    }

    /// The replication to each of its URLs.
    pub(super) fn replications(&self) -> impl Iterator<Item = &Replicate> {
        self.urls.iter().map(|(_, replicate)| replicate)
    }

    /// Its URLs, as they are spelled, without credentials.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.urls
            .iter()
            .map(|(_, replicate)| replicate.target().shown())
    }

    /// The URL with this key in ids of jobs.
    pub fn url(&self, key: &str) -> Option<String> {
        let (_, replicate) = self.urls.iter().find(|(known, _)| known == key)?;
        Some(replicate.target().shown())
    }

    /// The URL of its source, without credentials.
    pub fn source(&self) -> Option<String> {
        let (_, replicate) = self.urls.first()?;
        Some(replicate.source().shown())
    }

    /// What jobs know of it.
    pub fn job(&self, name: String, url: &str) -> scheduler::Remote {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is positive, and at most a year"
        )]
        let retry_ms = (self.retry_sec * 1000.0) as u64;
        scheduler::Remote {
            name,
            url: url.to_owned(),
            retry_ms,
            retries_max: self.retries_max,
            copy_security: self.copy_security,
        }
    }
}

/// Checks the id of a remote's document. The name is part of keys.
pub(super) fn check_id(db: &str, id: &str) -> Result<(), Invalid> {
    if id.contains('/') {
        let reason = "must not contain `/`, because it is the name of a remote";
        return Err(Invalid::new("_id", reason));
    }
    if scheduler::remote_name(db, id).len() > NAME_BYTES_MAX {
        let reason = format!(
            "is too long: the name of a remote, with its database, has {NAME_BYTES_MAX} bytes at most"
        );
        return Err(Invalid::new("_id", reason));
    }
    Ok(())
}

pub(super) fn captures(db: &str) -> Captures {
    Captures::from([(NAME.to_owned(), db.to_owned())])
}

fn threads(fields: &Fields<'_>) -> Result<u32, Invalid> {
    let threads = fields.count("threads")?.unwrap_or(THREADS);
    if !(1..=LIMIT_SLOTS_MAX).contains(&threads) {
        let reason = "must be a whole number from 1 to 10,000: runs at a time on all nodes";
        return Err(fields.invalid("threads", reason));
    }
    Ok(threads)
}

/// One or several, with their paths.
fn urls<'a>(fields: &Fields<'a>) -> Result<Vec<(String, &'a Json)>, Invalid> {
    let given = fields.get("url");
    let given = given.ok_or_else(|| fields.invalid("url", "is missing; add it"))?;
    let Some(list) = given.as_array() else {
        return Ok(vec![("url".to_owned(), given)]);
    };
    if list.is_empty() || list.len() > URLS_MAX {
        let reason = format!("must be a URL or a list of 1 to {URLS_MAX} URLs");
        return Err(fields.invalid("url", reason));
    }
    let named = |(nth, url)| (format!("url[{nth}]"), url);
    Ok(list.iter().enumerate().map(named).collect())
}

impl Names {
    /// Those of a list.
    pub fn of(list: &Json) -> Result<Self, Invalid> {
        let body = Json::Object(vec![("databases".to_owned(), list.clone())]);
        let fields = Fields::new(&body, false);
        let names = Self::parse(&fields)?;
        // `null` is as if it were missing.
        if names.include.is_empty() {
            return Err(fields.invalid("databases", NO_LIST));
        }
        Ok(names)
    }

    fn parse(fields: &Fields<'_>) -> Result<Self, Invalid> {
        let list = |name: &str| -> Result<Vec<Name>, Invalid> {
            let Some(given) = fields.get(name) else {
                return Ok(Vec::new());
            };
            let items = given.as_array().filter(|items| !items.is_empty());
            let items = items.ok_or_else(|| fields.invalid(name, NO_LIST))?;
            let items = items.iter().enumerate();
            let parsed =
                items.map(|(nth, item)| Name::parse(fields, &format!("{name}[{nth}]"), item));
            parsed.collect()
        };
        Ok(Self {
            include: list("databases")?,
            exclude: list("exclude_databases")?,
            targets: Vec::new(),
        })
    }

    /// The only database, if there is only one.
    pub(super) fn exact(&self) -> Option<&str> {
        match self.include.as_slice() {
            [Name::Exact(name)] => Some(name),
            [Name::Matching(pattern)] => pattern.exact(),
            _ => None,
        }
    }

    /// What all names start with.
    pub(super) fn prefix(&self) -> &str {
        match self.include.as_slice() {
            [Name::Exact(text) | Name::Prefix(text)] => text,
            [Name::Matching(pattern)] => pattern.prefix(),
            _ => "",
        }
    }

    pub fn matches(&self, db: &str) -> bool {
        let is_target = |(start, end): &(String, String)| {
            let inner = db.strip_prefix(start.as_str());
            let inner = inner.and_then(|rest| rest.strip_suffix(end.as_str()));
            inner.is_some_and(|inner| !inner.is_empty() && self.admits(inner))
        };
        self.admits(db) && !self.targets.iter().any(is_target)
    }

    fn admits(&self, db: &str) -> bool {
        let is_named = |names: &[Name]| names.iter().any(|name| name.matches(db));
        // `_users` and the like have to be named.
        let is_own = || db.starts_with('_');
        let named = |name: &Name| matches!(name, Name::Exact(exact) if exact == db);
        let included = if is_own() {
            self.include.iter().any(named)
        } else {
            self.include.is_empty() || is_named(&self.include)
        };
        included && !is_named(&self.exclude)
    }
}

impl Name {
    fn parse(fields: &Fields<'_>, path: &str, item: &Json) -> Result<Self, Invalid> {
        let text = item.as_str().filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| Invalid::new(path, "must be a string that is not empty"))?;
        if text.starts_with('^') {
            return fields.compiled(path, text).map(Self::Matching);
        }
        let prefix = text.strip_suffix('*');
        if let Some(at) = prefix.unwrap_or(text).chars().position(|c| c == '*')
            && fields.are_new()
        {
            let reason =
                "`*` is allowed only at the end; use a regular expression that begins with `^`";
            return Err(Invalid::new(path, reason).at(at));
        }
        Ok(match prefix {
            Some(start) => Self::Prefix(start.to_owned()),
            None => Self::Exact(text.to_owned()),
        })
    }

    fn matches(&self, db: &str) -> bool {
        match self {
            Self::Exact(name) => name == db,
            Self::Prefix(start) => db.starts_with(start.as_str()),
            Self::Matching(pattern) => {
                let found = pattern.is_match(db, &mut Budget::of_document());
                found.unwrap_or_else(|error| {
                    tracing::warn!(%error, "gave up matching a remote's pattern against a database name");
                    false
                })
            }
        }
    }
}

impl Side {
    /// Tells apart URLs, whatever their credentials.
    fn key(&self) -> String {
        address(self.sample().clone()).to_string()
    }

    /// What the name of a database at this URL begins and ends with, if it is below this address and has one variable.
    fn name_below(&self, server: &Url) -> Option<(String, String)> {
        let (above, _) = self.place()?;
        let (start, end) = self.around_the_variable()?;
        let is_own = above == *server && !(start.is_empty() && end.is_empty());
        is_own.then_some((start, end))
    }
}

#[cfg(test)]
mod tests;
