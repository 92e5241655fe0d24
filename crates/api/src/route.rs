//! Parsing of paths, and access rules. The list is closed: a new route does not compile until [`Route::access`] covers
//! it.

mod queue;
mod rule;

use http::Method;

pub use queue::{JobPart, QueueRoute, TypePart};
pub use rule::RuleAction;

use ::queue::Right;

use crate::Error;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    Welcome,
    Up,
    Uuids,
    Session,
    AllDbs,
    DbsInfo,
    Membership,
    /// `/_metrics`, or `CouchDB`'s `/_node/{node}/_prometheus`
    Metrics,
    OpenApi,
    /// `/_dashboard`, which redirects, and the files below it
    Dashboard(String),
    /// `/_node/{node}/_config`, its sections and keys
    Config(Vec<String>),
    ActiveTasks,
    /// `/_sources`
    Sources,
    Replicate,
    Summary,
    /// `/_scheduler/replications`: all of them, and actions on many
    Replications,
    Causes,
    Nodes,
    History,
    Shares,
    /// `/_jobs` and all below it
    Queue(QueueRoute),
    Schedules,
    /// `/_schedules/{name}`
    Schedule(String),
    /// `/_schedules/{name}/_run`
    ScheduleRun(String),
    /// API tokens
    Tokens,
    /// `/_tokens/{name}`
    Token(String),
    /// `/_remotes`
    Remotes,
    /// `/_remotes/{name}`
    Remote(String),
    /// `/_remotes/_start`
    RemoteStart,
    Deliveries,
    /// `/_deliveries/_replay`: many
    DeliveryReplays,
    /// `/_deliveries/_remove`: many
    DeliveryRemovals,
    /// `/_deliveries/{id}`
    Delivery(String),
    /// `/_deliveries/{id}/_replay`
    DeliveryReplay(String),
    Jobs,
    /// `/_scheduler/jobs/{id}`
    Job(String),
    /// `/_scheduler/jobs/{id}/{_restart|_pause|_resume|failures}`
    JobAction(String, JobAction),
    /// `/_scheduler/docs` and `/_scheduler/docs/{db}`
    Docs(String),
    /// `/_scheduler/docs/{db}/{docid}`
    Doc(String, String),
    Db(String),
    /// `/{db}/_something`
    DbPart(String, DbPart),
    /// `/{db}/{docid}`; the id includes `_design/` and `_local/`
    Document(String, String),
    /// `/{db}/{docid}/{attachment}`
    Attachment(String, String, String),
    /// `/{rules}/{docid}/{_trigger|_pause|_resume|_rewind|_databases}`
    RuleAction(String, String, RuleAction),
}

/// An action on a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAction {
    /// Run it now and clear its errors.
    Restart,
    /// Write a checkpoint and wait.
    Pause,
    Resume,
    /// List rejected documents.
    Failures,
}

/// `/{db}/_all_docs` and the like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DbPart {
    AllDocs,
    AllDocsQueries,
    DesignDocs,
    LocalDocs,
    BulkDocs,
    BulkGet,
    Changes,
    RevsDiff,
    MissingRevs,
    Security,
    RevsLimit,
    Find,
    Explain,
    Index,
    EnsureFullCommit,
    /// `_test`, of databases of rules
    Test,
    /// `_compact` and `_view_cleanup`, which are no-ops
    Compact,
}

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Public,
    /// All callers, unless anonymous requests are turned off.
    Everyone,
    /// Authenticated callers.
    Authenticated,
    /// Server administrators, and callers with the role `_metrics`.
    Metrics,
    /// Callers with a role that gives this right to the job type in the path, and server administrators.
    Type(Right),
    /// Members of the database; the database's `_security` decides.
    Member,
    /// Administrators of the database or the server.
    DbAdmin,
    Admin,
}

impl Route {
    /// Parses a path that is still percent-encoded.
    pub fn parse(path: &str) -> Result<Self, Error> {
        let given = path.split('/').filter(|segment| !segment.is_empty());
        let mut segments: Vec<String> = Vec::new();
        for segment in given {
            let is_queue = segments.first().is_some_and(|first| first == "_jobs");
            segments.push(decode(segment, !is_queue)?);
        }
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        match parts.as_slice() {
            [] => Ok(Self::Welcome),
            ["_scheduler", "summary"] => Ok(Self::Summary),
            ["_scheduler", "replications"] => Ok(Self::Replications),
            ["_scheduler", "causes"] => Ok(Self::Causes),
            ["_scheduler", "nodes"] => Ok(Self::Nodes),
            ["_scheduler", "history"] => Ok(Self::History),
            ["_scheduler", "shares"] => Ok(Self::Shares),
            ["_scheduler", "docs", rest @ ..] => scheduler_docs(rest),
            ["_scheduler", "jobs", rest @ ..] => scheduler_jobs(rest),
            ["_dashboard"] if !path.ends_with('/') => Ok(Self::Dashboard(String::new())),
            [first, rest @ ..] if first.starts_with('_') && !is_database(first) => {
                server(first, rest)
            }
            parts => database(parts),
        }
    }

    /// The database in the path, if any.
    pub fn database(&self) -> Option<&str> {
        match self {
            Self::Db(db)
            | Self::DbPart(db, _)
            | Self::Document(db, _)
            | Self::Attachment(db, ..)
            | Self::RuleAction(db, ..)
            | Self::Docs(db)
            | Self::Doc(db, _) => Some(db),
            _ => None,
        }
    }

    /// Who may use the route with this method.
    pub fn access(&self, method: &Method) -> Access {
        let reads = matches!(*method, Method::GET | Method::HEAD);
        match self {
            // The dashboard's files contain no data; their requests have access rules of their own.
            Self::Welcome | Self::Up | Self::Session | Self::OpenApi | Self::Dashboard(_) => {
                Access::Public
            }
            Self::Uuids => Access::Everyone,
            Self::Metrics => Access::Metrics,
            Self::AllDbs
            | Self::DbsInfo
            | Self::Membership
            | Self::Config(_)
            | Self::ActiveTasks
            | Self::Sources
            | Self::Summary
            | Self::Replications
            | Self::Causes
            | Self::Nodes
            | Self::History
            | Self::Shares
            | Self::Schedules
            | Self::Schedule(_)
            | Self::ScheduleRun(_)
            | Self::Tokens
            | Self::Token(_)
            | Self::Remotes
            | Self::Remote(_)
            | Self::RemoteStart
            | Self::Deliveries
            | Self::DeliveryReplays
            | Self::DeliveryRemovals
            | Self::Delivery(_)
            | Self::DeliveryReplay(_)
            | Self::Jobs
            | Self::Job(_)
            | Self::JobAction(..)
            | Self::Docs(_)
            | Self::Doc(..) => Access::Admin,
            Self::Replicate => Access::Authenticated,
            Self::Queue(route) => route.access(method),
            Self::Db(_) if matches!(*method, Method::PUT | Method::DELETE) => Access::Admin,
            Self::Document(_, id) | Self::Attachment(_, id, _)
                if id.starts_with("_design/") && !reads =>
            {
                Access::DbAdmin
            }
            Self::Db(_) | Self::Attachment(..) | Self::Document(..) => Access::Member,
            Self::RuleAction(..) => Access::DbAdmin,
            Self::DbPart(_, part) => part.access(reads),
        }
    }
}

impl DbPart {
    fn access(self, reads: bool) -> Access {
        match self {
            Self::Security if reads => Access::Member,
            Self::Security
            | Self::RevsLimit
            | Self::Compact
            | Self::Index
            // Members must not see who replicates what, so listing a replicator database takes an administrator.
            | Self::AllDocs
            | Self::AllDocsQueries
            | Self::DesignDocs
            | Self::LocalDocs
            | Self::Test
            | Self::Changes
            | Self::Find => Access::DbAdmin,
            Self::BulkDocs
            | Self::BulkGet
            | Self::RevsDiff
            | Self::MissingRevs
            | Self::Explain
            | Self::EnsureFullCommit => Access::Member,
        }
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "_all_docs" => Self::AllDocs,
            "_design_docs" => Self::DesignDocs,
            "_local_docs" => Self::LocalDocs,
            "_bulk_docs" => Self::BulkDocs,
            "_bulk_get" => Self::BulkGet,
            "_changes" => Self::Changes,
            "_revs_diff" => Self::RevsDiff,
            "_missing_revs" => Self::MissingRevs,
            "_explain" => Self::Explain,
            "_security" => Self::Security,
            "_revs_limit" => Self::RevsLimit,
            "_find" => Self::Find,
            "_index" => Self::Index,
            "_ensure_full_commit" => Self::EnsureFullCommit,
            "_test" => Self::Test,
            "_compact" | "_view_cleanup" => Self::Compact,
            _ => return None,
        })
    }
}

fn is_database(name: &str) -> bool {
    matches!(name, "_replicator" | "_rules" | "_users") || has_prefix(name)
}

/// Whether it names a database of a kind that takes a prefix, and has one.
fn has_prefix(name: &str) -> bool {
    name.ends_with("/_replicator") || name.ends_with("/_rules")
}

fn server(first: &str, rest: &[&str]) -> Result<Route, Error> {
    let owned = |rest: &[&str]| rest.iter().map(|part| (*part).to_owned()).collect();
    Ok(match (first, rest) {
        ("_up", []) => Route::Up,
        ("_uuids", []) => Route::Uuids,
        ("_session", []) => Route::Session,
        ("_all_dbs", []) => Route::AllDbs,
        ("_dbs_info", []) => Route::DbsInfo,
        ("_membership", []) => Route::Membership,
        ("_metrics", []) | ("_node", [_, "_prometheus"]) => Route::Metrics,
        ("_openapi.json", []) => Route::OpenApi,
        ("_dashboard", []) => Route::Dashboard("index.html".to_owned()),
        ("_dashboard", file) => Route::Dashboard(file.join("/")),
        ("_node", [_, "_config", rest @ ..]) if rest.len() <= 2 => Route::Config(owned(rest)),
        ("_active_tasks", []) => Route::ActiveTasks,
        ("_sources", []) => Route::Sources,
        ("_jobs", rest) => Route::Queue(QueueRoute::parse(rest)?),
        ("_schedules", []) => Route::Schedules,
        ("_schedules", [name]) => Route::Schedule((*name).to_owned()),
        ("_schedules", [name, "_run"]) => Route::ScheduleRun((*name).to_owned()),
        ("_tokens", []) => Route::Tokens,
        ("_tokens", [name]) => Route::Token((*name).to_owned()),
        ("_remotes", []) => Route::Remotes,
        ("_remotes", ["_start"]) => Route::RemoteStart,
        // A name may have the name of a database in it.
        ("_remotes", name) => Route::Remote(name.join("/")),
        ("_deliveries", []) => Route::Deliveries,
        ("_deliveries", ["_replay"]) => Route::DeliveryReplays,
        ("_deliveries", ["_remove"]) => Route::DeliveryRemovals,
        ("_deliveries", [id]) => Route::Delivery((*id).to_owned()),
        ("_deliveries", [id, "_replay"]) => Route::DeliveryReplay((*id).to_owned()),
        ("_replicate", []) => Route::Replicate,
        _ => return Err(Error::not_found("missing")),
    })
}

fn scheduler_jobs(rest: &[&str]) -> Result<Route, Error> {
    let id = |id: &str| id.to_owned();
    Ok(match rest {
        [] => Route::Jobs,
        [job] => Route::Job(id(job)),
        [job, "_restart"] => Route::JobAction(id(job), JobAction::Restart),
        [job, "_pause"] => Route::JobAction(id(job), JobAction::Pause),
        [job, "_resume"] => Route::JobAction(id(job), JobAction::Resume),
        [job, "failures"] => Route::JobAction(id(job), JobAction::Failures),
        _ => return Err(Error::not_found("missing")),
    })
}

/// `CouchDB`'s rule: `_replicator` cannot be a document id, so its last occurrence ends the database name. Nor can `_rules`.
fn scheduler_docs(rest: &[&str]) -> Result<Route, Error> {
    if rest.is_empty() {
        return Ok(Route::Docs("_replicator".to_owned()));
    }
    let ends = |part: &&str| matches!(*part, "_replicator" | "_rules") || has_prefix(part);
    let invalid = || Error::bad_request("Invalid path");
    let spiegel = (rest[0] == "spiegel").then_some(0);
    let last = rest
        .iter()
        .rposition(ends)
        .or(spiegel)
        .ok_or_else(invalid)?;
    let db = rest[..=last].join("/");
    match &rest[last + 1..] {
        [] => Ok(Route::Docs(db)),
        [doc] => Ok(Route::Doc(db, (*doc).to_owned())),
        _ => Err(invalid()),
    }
}

fn database(parts: &[&str]) -> Result<Route, Error> {
    // The slash in `prefix/_replicator` may be unescaped.
    let (db, rest) = match parts {
        [prefix, kind @ ("_replicator" | "_rules"), rest @ ..] if !is_database(prefix) => {
            (format!("{prefix}/{kind}"), rest)
        }
        [db, rest @ ..] => ((*db).to_owned(), rest),
        [] => return Ok(Route::Welcome),
    };
    let document = |id: String| Route::Document(db.clone(), id);
    Ok(match rest {
        [] => Route::Db(db),
        ["_all_docs", "queries"] => Route::DbPart(db, DbPart::AllDocsQueries),
        ["_design" | "_local", id] => document(format!("{}/{id}", rest[0])),
        ["_design", id, attachment @ ..] => {
            Route::Attachment(db, format!("_design/{id}"), attachment.join("/"))
        }
        [
            "_all_docs" | "_bulk_docs" | "_bulk_get" | "_compact" | "_changes" | "_find" | "_index",
            _,
            ..,
        ] => {
            return Err(Error::not_found("missing"));
        }
        [part] => match DbPart::named(part) {
            Some(part) => Route::DbPart(db, part),
            // Other paths with an underscore are document ids that cannot exist.
            None => document((*part).to_owned()),
        },
        [id, attachment @ ..] => {
            let (id, attachment) = ((*id).to_owned(), attachment.join("/"));
            match RuleAction::of(&db, &attachment) {
                Some(action) => Route::RuleAction(db, id, action),
                None => Route::Attachment(db, id, attachment),
            }
        }
    })
}

/// In paths of CouchDB's, `+` decodes to a space, as there.
fn decode(segment: &str, plus_is_space: bool) -> Result<String, Error> {
    let segment = if plus_is_space {
        segment.replace('+', " ")
    } else {
        segment.to_owned()
    };
    match percent_encoding::percent_decode_str(&segment).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Error::bad_request("the path is not UTF-8")),
    }
}

#[cfg(test)]
mod tests;
