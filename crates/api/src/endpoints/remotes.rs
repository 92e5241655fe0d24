//! `/_remotes`: replications of remotes, and starting them.

use std::time::Duration;

use document::json::Json;
use rules::rule::{Compiled, DatabaseNames, Remote, Watched};
use scheduler::{Asked, Candidate, Ended, RemoteState, ServiceError};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::deliveries;
use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};
use crate::route::Route;

/// Ids in the response.
const IDS_MAX: usize = 1_000;
/// How long a request waits for runs, by default and at most.
const WAIT_SEC: f64 = 60.0;
const WAIT_SEC_MAX: f64 = 3600.0;
/// Between two looks at whether the databases of a remote were looked up.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

pub(crate) async fn answer(call: &mut Call) -> Result<Reply, Error> {
    match call.route.clone() {
        Route::Remotes => Box::pin(list(call)).await,
        Route::Remote(name) => Box::pin(show(call, &name)).await,
        _ => Box::pin(start(call)).await,
    }
}

async fn list(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let limit = deliveries::page_length(call)?;
    let after = call.query.get("after").unwrap_or_default();
    let names = call.shared.replications.remotes().await?;
    let mut names = names.into_iter().map(|(name, _)| name);
    let mut rows = Vec::new();
    let mut last = None;
    for name in names.by_ref().filter(|name| name.as_str() > after) {
        if rows.len() == limit {
            let body = json!({"remotes": rows, "after": last});
            return Ok(reply::ok(&body));
        }
        if let Some(rule) = call.shared.rules.remote(&name).await? {
            rows.push(row(call, &name, &rule).await?);
            last = Some(name);
        }
    }
    Ok(reply::ok(&json!({"remotes": rows})))
}

async fn show(call: &Call, name: &str) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let only = call.query.get("state").filter(|text| !text.is_empty());
    let only = only.map(state).transpose()?;
    let (after, limit) = deliveries::page(call)?;
    let rule = find(call, name).await?;
    let mut body = row(call, name, &rule).await?;
    let replications = &call.shared.replications;
    let jobs = replications.remote_jobs(rule.remote_id(), only, after.as_ref(), limit);
    let (jobs, cursor) = jobs.await?;
    body["jobs"] = jobs.into();
    deliveries::add_after(&mut body, cursor.as_ref());
    Ok(reply::ok(&body))
}

async fn find(call: &Call, name: &str) -> Result<Compiled, Error> {
    let rule = call.shared.rules.remote(name).await?;
    rule.ok_or_else(|| Error::not_found(format!("there is no remote `{name}`")))
}

async fn row(call: &Call, name: &str, rule: &Compiled) -> Result<Value, Error> {
    let Some(remote) = rule.remote() else {
        return Err(Error::not_found("missing"));
    };
    let Watched {
        followed,
        looked_up,
    } = call.shared.rules.watched(rule).await?;
    let counts = call.shared.replications.remote_counts(rule.remote_id());
    let counts = counts.await?;
    Ok(json!({
        "name": name,
        "database": rule.db,
        "id": rule.id.doc,
        "enabled": rule.rule.enabled,
        "source": remote.source(),
        "urls": remote.urls().collect::<Vec<_>>(),
        "threads": remote.threads,
        "replication_delay_sec": remote.delay_sec,
        "random_delay_sec": remote.random_delay_sec,
        "retry": {"delay_sec": remote.retry_sec, "limit": remote.retries_max},
        "create_missing": remote.create_missing,
        "copy_security": remote.copy_security,
        "followed": followed,
        "looked_up": looked_up,
        "states": counts["states"],
        "waiting_for": counts["waiting_for"],
    }))
}

fn state(name: &str) -> Result<RemoteState, Error> {
    let known = RemoteState::ALL;
    let found = known.into_iter().find(|state| state.as_str() == name);
    found.ok_or_else(|| {
        let known = known.map(RemoteState::as_str).join(", ");
        Error::query(format!("`state` must be one of {known}"))
    })
}

/// The body of a request to start.
struct Request {
    /// None: all.
    remotes: Vec<String>,
    /// `None`: all.
    databases: Option<DatabaseNames>,
    url: String,
    now: bool,
    wait: bool,
    timeout: Duration,
}

impl Request {
    fn parse(body: &Json) -> Result<Self, Error> {
        let mut request = Self {
            remotes: Vec::new(),
            databases: None,
            url: String::new(),
            now: false,
            wait: false,
            timeout: Duration::from_secs_f64(WAIT_SEC),
        };
        let (mut all, mut seconds) = (false, WAIT_SEC);
        for (name, value) in body.as_object().unwrap_or_default() {
            match (&**name, value) {
                ("remotes", value) => request.remotes = texts(value)?,
                ("databases", value) => {
                    let names = DatabaseNames::of(value);
                    let names = names.map_err(|invalid| Error::bad_request(invalid.to_string()))?;
                    request.databases = Some(names);
                }
                ("url", Json::String(text)) => request.url.clone_from(text),
                ("all", Json::Bool(given)) => all = *given,
                ("now", Json::Bool(given)) => request.now = *given,
                ("wait", Json::Bool(given)) => request.wait = *given,
                ("timeout_sec", Json::Number(text)) => seconds = text.parse().unwrap_or(-1.0),
                ("url" | "all" | "now" | "wait" | "timeout_sec", _) => {
                    let kind = match &**name {
                        "url" => "a string",
                        "timeout_sec" => "a number",
                        _ => "true or false, without quotes",
                    };
                    return Err(Error::bad_request(format!("`{name}` must be {kind}")));
                }
                _ => {
                    let reason = format!(
                        "`{name}` is unknown; use `remotes`, `databases` or `all`, `url`, `now`, `wait` and `timeout_sec`"
                    );
                    return Err(Error::bad_request(reason));
                }
            }
        }
        if all == request.databases.is_some() {
            let reason =
                "give either `databases`, a list of names and patterns, or `\"all\": true`";
            return Err(Error::bad_request(reason));
        }
        if !(0.0..=WAIT_SEC_MAX).contains(&seconds) {
            let reason = format!("`timeout_sec` must be from 0 to {WAIT_SEC_MAX}");
            return Err(Error::bad_request(reason));
        }
        request.timeout = Duration::from_secs_f64(seconds);
        Ok(request)
    }
}

async fn start(call: &mut Call) -> Result<Reply, Error> {
    call.allow("POST")?;
    call.check_json()?;
    let request = Request::parse(&call.json_object().await?)?;
    let call = &*call;
    let until = Instant::now() + request.timeout;
    let mut asked = Vec::new();
    let mut rows = Vec::new();
    let mut is_known = true;
    for (name, mut rule) in remotes(call, &request).await? {
        let mut row = json!({"name": name});
        if request.wait {
            let looked_up;
            (rule, looked_up) = until_looked_up(call, &name, rule, until).await?;
            row["looked_up"] = looked_up.into();
            is_known &= looked_up;
        }
        let admits = |one: Candidate<'_>| {
            (request.databases.as_ref()).is_none_or(|names| names.matches(one.database))
                && (one.target.contains(&request.url)
                    || template_has(rule.remote(), one.url, &request.url))
        };
        let replications = &call.shared.replications;
        let started = replications.start_remote(rule.remote_id(), admits, request.now);
        let started = Box::pin(started).await?;
        row["started"] = started.len().into();
        rows.push(row);
        asked.extend(started);
    }
    let ids: Vec<_> = (asked.iter().take(IDS_MAX))
        .map(|asked| String::from_utf8_lossy(asked.job.as_bytes()))
        .collect();
    let mut body = json!({"ok": true, "started": asked.len(), "remotes": rows, "jobs": ids});
    if request.wait {
        let (ended, left) = wait(call, asked, until).await?;
        body["ok"] = (is_known && ended.failed == 0 && left == 0).into();
        body["completed"] = ended.completed.into();
        body["failed"] = ended.failed.into();
        body["unfinished"] = left.into();
    }
    Ok(reply::ok(&body))
}

/// The remotes that a request means. Paused ones do nothing, and are an error if the request names them.
async fn remotes(call: &Call, request: &Request) -> Result<Vec<(String, Compiled)>, Error> {
    let mut found = Vec::new();
    for name in &request.remotes {
        let rule = find(call, name).await?;
        if !rule.rule.enabled {
            let reason = format!("the remote `{name}` is paused; resume it first, with `_resume`");
            return Err(Error::bad_request(reason));
        }
        found.push((name.clone(), rule));
    }
    if request.remotes.is_empty() {
        for (name, _) in call.shared.replications.remotes().await? {
            let rule = call.shared.rules.remote(&name).await?;
            found.extend(
                rule.filter(|rule| rule.rule.enabled)
                    .map(|rule| (name, rule)),
            );
        }
    }
    Ok(found)
}

/// Waits until a remote that was just written has its replications, if its source is followed. Returns it as it is then,
/// and whether it has them.
async fn until_looked_up(
    call: &Call,
    name: &str,
    mut rule: Compiled,
    until: Instant,
) -> Result<(Compiled, bool), Error> {
    loop {
        let watched = call.shared.rules.watched(&rule).await?;
        if watched.looked_up || !watched.followed || Instant::now() >= until {
            return Ok((rule, watched.looked_up));
        }
        tokio::select! {
            () = sleep(LOOK_PAUSE) => {}
            () = call.shared.stop.cancelled() => return Err(ServiceError::Stopped.into()),
        }
        rule = find(call, name).await?;
    }
}

/// How many runs ended in time, and how many did not.
async fn wait(call: &Call, mut asked: Vec<Asked>, until: Instant) -> Result<(Ended, usize), Error> {
    let mut ended = Ended::default();
    let waiting = call
        .shared
        .replications
        .wait_for_runs(&mut asked, &mut ended);
    tokio::select! {
        biased;
        waited = timeout_at(until, waiting) => waited.unwrap_or(Ok(()))?,
        () = call.shared.stop.cancelled() => return Err(ServiceError::Stopped.into()),
    }
    Ok((ended, asked.len()))
}

/// A part of a URL may be one with `${name}`.
fn template_has(remote: Option<&Remote>, url: &str, part: &str) -> bool {
    let template = remote.and_then(|remote| remote.url(url));
    part.contains("${") && template.is_some_and(|template| template.contains(part))
}

fn texts(json: &Json) -> Result<Vec<String>, Error> {
    let items = json.as_array().filter(|items| !items.is_empty());
    let texts = items.and_then(|items| {
        let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
        texts.collect()
    });
    let reason = "`remotes` must be a list of names of remotes";
    texts.ok_or_else(|| Error::bad_request(reason))
}
