//! Opens the endpoints of a run and finds its starting position.

use std::time::Duration;

use couch::{Database, DatabaseInfo, Endpoint, Network, RequestOptions, Seq};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::progress::StartedFrom;
use super::{Run, Settings};
use crate::checkpoint::{
    Checkpointer, Log, Resume, SOURCE_STARTED, Session, Side, Start, compare, same_instance,
};
use crate::error::{Error, Step};
use crate::id::{BaseId, Identity};
use crate::params::{Checkpoints, Filter, Options};
use crate::stats::Stats;

/// A run that is ready to start.
pub(super) struct Opened {
    pub(super) source: Database,
    pub(super) target: Database,
    pub(super) checkpointer: Checkpointer,
    pub(super) start: Seq,
    pub(super) started_from: StartedFrom,
    pub(super) stats: Stats,
    pub(super) target_is_empty: bool,
    /// What the job kept, if it still applies.
    pub(super) resume: Option<Resume>,
    /// The checkpoint found, which is the result if there is nothing to do.
    pub(super) last_result: Map<String, Value>,
}

pub(super) async fn open(run: &Run, now: Timestamp) -> Result<Opened, Error> {
    let replication = &run.replication;
    let options = &replication.options;
    let connect = |endpoint, connections| {
        connect(&run.network, endpoint, options, &run.settings, connections)
    };
    // Feed and documents are read from the source concurrently.
    let (source, target) = tokio::join!(
        connect(&replication.source, options.http_connections.max(2)),
        connect(&replication.target, options.http_connections),
    );
    // If both fail, the source's error is reported.
    let (source, target) = (source?, target?);
    let both = options.checkpoints == Checkpoints::Both;
    let resume = run.resume.as_ref();
    let resume = resume.filter(|resume| options.use_checkpoints && resume.has_source() == both);
    let warm = match resume {
        Some(resume) => warm(resume, &source, &target, &run.identity.base).await?,
        None => None,
    };
    let (resume, sides) = match warm {
        Some(sides) => (resume.cloned(), sides),
        None => (None, cold(run, &source, &target, both).await?),
    };
    let Sides {
        logs: (source_log, target_log),
        started: (source_started, target_started),
        target_is_empty,
    } = sides;
    let (found, last_result) = if both {
        (compare(&source_log, &target_log), source_log.body())
    } else {
        let found = match target_log.get(SOURCE_STARTED) {
            Some(recorded) => start_at_target(&target_log, recorded, &source_started),
            // It was written together with one at the source.
            None => compare(&old_log(&source, &run.identity).await?, &target_log),
        };
        (found, target_log.body())
    };
    let newest = found
        .history
        .first()
        .map(Stats::from_history)
        .unwrap_or_default();
    let (start, started_from) = start(&found, options);
    let session = Session {
        id: run.session_id.clone(),
        started: now,
        start: start.clone(),
        history: found.history,
        has_totals: matches!(options.filter, Filter::DocIds(_)),
    };
    let checkpointer = Checkpointer {
        base: run.identity.base.clone(),
        session,
        source: Side::new("source", &source, source_started, source_log),
        target: Side::new("target", &target, target_started, target_log),
        both,
        committed: start.clone(),
        written: None,
    };
    Ok(Opened {
        source,
        target,
        checkpointer,
        start,
        started_from,
        stats: run.stats.max(newest),
        target_is_empty,
        resume,
        last_result,
    })
}

/// What is known of source and target when a run starts.
struct Sides {
    logs: (Log, Log),
    /// The instances of the databases.
    started: (String, String),
    target_is_empty: bool,
}

/// Opens databases whose checkpoints the job knows. `None` if those have changed, or a database does not exist.
async fn warm(
    resume: &Resume,
    source: &Database,
    target: &Database,
    base: &BaseId,
) -> Result<Option<Sides>, Error> {
    let read = async |database: &Database| {
        let body = database.local(base.as_str()).await;
        let body = body.map_err(|cause| Error::opening(database.endpoint().url_text(), cause))?;
        Ok::<_, Error>(Log::new(body.unwrap_or_default()))
    };
    let source_side = async {
        if resume.has_source() {
            Ok((read(source).await?, None))
        } else {
            let started = info(source).await?.instance_start_time;
            Ok::<_, Error>((Log::default(), Some(started)))
        }
    };
    let ((source_log, asked), target_log) = tokio::try_join!(source_side, read(target))?;
    let Some((known, target_started)) = resume.started(&source_log, &target_log) else {
        tracing::info!("the checkpoints are no longer those of the last run");
        return Ok(None);
    };
    let source_started = asked.or(known.map(str::to_owned)).unwrap_or_default();
    Ok(Some(Sides {
        logs: (source_log, target_log),
        started: (source_started, target_started.to_owned()),
        target_is_empty: false,
    }))
}

/// Opens databases of which nothing is known.
async fn cold(run: &Run, source: &Database, target: &Database, both: bool) -> Result<Sides, Error> {
    let options = &run.replication.options;
    let (source_info, target_info) = if options.create_target {
        // The target is not created if the source cannot be read.
        let source_info = info(source).await?;
        create(target, options).await?;
        (source_info, info(target).await?)
    } else {
        let (source_info, target_info) = tokio::join!(info(source), info(target));
        (source_info?, target_info?)
    };
    let source_log = async {
        if both {
            read_log(source, &run.identity, options).await
        } else {
            Ok(Log::default())
        }
    };
    let target_log = read_log(target, &run.identity, options);
    Ok(Sides {
        logs: tokio::try_join!(source_log, target_log)?,
        target_is_empty: target_info.doc_count == Some(0) && target_info.doc_del_count == Some(0),
        started: (
            source_info.instance_start_time,
            target_info.instance_start_time,
        ),
    })
}

/// A sequence set by the user is used only if there is no checkpoint.
fn start(found: &Start, options: &Options) -> (Seq, StartedFrom) {
    if found.start != Seq::zero() {
        return (found.start.clone(), StartedFrom::Checkpoint);
    }
    match options
        .since_seq
        .as_ref()
        .and_then(|since| Seq::from_json(&since.to_string()))
    {
        Some(since) => (since, StartedFrom::SinceSeq),
        None => (Seq::zero(), StartedFrom::Zero),
    }
}

/// If only the target has checkpoints, they identify the source.
fn start_at_target(log: &Log, recorded: &Value, source_started: &str) -> Start {
    let recorded = recorded.as_str().unwrap_or("0");
    if same_instance(recorded, source_started) {
        compare(log, log)
    } else {
        Start {
            start: Seq::zero(),
            history: Vec::new(),
        }
    }
}

/// The checkpoint that an earlier replication may have left at a source that gets none. Not every source lets it be read.
async fn old_log(source: &Database, identity: &Identity) -> Result<Log, Error> {
    match source.local(identity.base.as_str()).await {
        Ok(body) => Ok(body.map(Log::new).unwrap_or_default()),
        Err(error) if error.is_refusal() => {
            tracing::debug!(%error, "cannot read the checkpoint at the source");
            Ok(Log::default())
        }
        Err(error) => Err(Error::at(Step::Checkpoint)(error)),
    }
}

pub(super) async fn connect(
    network: &Network,
    endpoint: &Endpoint,
    options: &Options,
    settings: &Settings,
    connections: usize,
) -> Result<Database, Error> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let requests = RequestOptions {
        http_connections: connections,
        inactivity_ms: ms(options.connection_timeout),
        request_timeout_ms: settings.request_timeout.map(ms),
        retries: options.retries_per_request,
        retry_window_ms: ms(settings.retry_window),
        ..RequestOptions::default()
    };
    network
        .database(endpoint.clone(), requests)
        .await
        .map_err(|cause| Error::opening(endpoint.url_text(), cause))
}

/// Other errors show up when the database is opened.
async fn create(target: &Database, options: &Options) -> Result<(), Error> {
    match target.create(&options.create_target_params).await {
        Err(cause @ (couch::Error::Unauthorized(_) | couch::Error::Forbidden(_))) => {
            Err(Error::opening(target.endpoint().url_text(), cause))
        }
        Err(error) => {
            tracing::debug!(%error, "cannot create the target");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

async fn info(database: &Database) -> Result<DatabaseInfo, Error> {
    let url = database.endpoint().url_text();
    database.info().await.map_err(|cause| match cause {
        couch::Error::BadAnswer { .. } => Error::DbNotFound {
            url: url.to_owned(),
        },
        cause => Error::opening(url, cause),
    })
}

/// Reads a side's checkpoint. One found under an id of an earlier release is saved under the current one.
async fn read_log(
    database: &Database,
    identity: &Identity,
    options: &Options,
) -> Result<Log, Error> {
    let read = async |base: &BaseId| {
        let body: Option<Map<String, Value>> = database
            .local(base.as_str())
            .await
            .map_err(Error::at(Step::Checkpoint))?;
        Ok::<_, Error>(body.map(Log::new))
    };
    if let Some(log) = read(&identity.base).await? {
        return Ok(log);
    }
    for base in &identity.older {
        let Some(old) = read(base).await? else {
            continue;
        };
        let body = old.body();
        if !options.use_checkpoints {
            return Ok(Log::new(body));
        }
        let rev = database
            .put_local(identity.base.as_str(), &body)
            .await
            .map_err(Error::at(Step::Checkpoint))?;
        let rev = ("_rev".to_owned(), Value::from(rev.as_str()));
        return Ok(Log::new(body.into_iter().chain([rev]).collect()));
    }
    Ok(Log::default())
}

/// Fetches the function of a `ddoc/name` filter from the source.
pub(super) async fn fetch_filter(
    source: &Database,
    design_doc: &str,
    name: &str,
) -> Result<String, Error> {
    let url = source.endpoint().url_text();
    let id = format!("_design/{design_doc}");
    let open = |error: String| {
        Error::FilterFetch(format!(
            "Couldn't open document `{id}` from source database `{url}`: {error}"
        ))
    };
    let document = match source.document(&couch::DocId::from(id.as_str())).await {
        Ok(Some(document)) => document,
        Ok(None) => return Err(open("not_found: missing".to_owned())),
        Err(error) => return Err(open(error.to_string())),
    };
    let parse = |error: &str| {
        Error::FilterFetch(format!(
            "Couldn't parse filter code from document {design_doc} on `{url}`  Error: {error}"
        ))
    };
    let body: Value =
        serde_json::from_slice(document.json()).map_err(|error| parse(&error.to_string()))?;
    let code = body
        .get("filters")
        .and_then(|filters| filters.get(name))
        .and_then(Value::as_str);
    code.map(str::to_owned)
        .ok_or_else(|| parse(&format!("it has no function `filters.{name}`")))
}

/// Opens the source to read filter functions.
pub(super) async fn open_source(
    run_network: &Network,
    source: &Endpoint,
    options: &Options,
    settings: &Settings,
) -> Result<Database, Error> {
    connect(run_network, source, options, settings, 2)
        .await
        .map_err(|error| {
            Error::FilterFetch(format!(
                "Could not open source database `{}`: {}",
                source.url_text(),
                error.reason()
            ))
        })
}
