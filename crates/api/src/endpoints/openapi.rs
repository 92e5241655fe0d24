//! `/_openapi.json`: the service in `OpenAPI` 3.1, generated from one table. Access rules come from the routes.

mod schemas;

use std::sync::LazyLock;

use http::{Method, StatusCode};
use queue::Right;
use scheduler::EventKind;
use serde_json::{Map, Value, json};

use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};
use crate::route::{Access, Route};

pub(crate) fn openapi(call: &Call) -> Result<Reply, Error> {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());
    call.allow("GET,HEAD")?;
    Ok(reply::text(StatusCode::OK, DOCUMENT.as_str()))
}

/// Path, methods, summary, and query parameters; those in capitals are lists in [`QUERIES`].
const TABLE: &str = "\
/                                     | get                 | Service information                                  |
/_up                                  | get                 | Health check                                         |
/_uuids                               | get                 | Random UUIDs                                         | count
/_session                             | get post delete     | The current session; log in and out                  | basic next
/_all_dbs                             | get                 | List databases                                       | startkey endkey limit skip descending
/_dbs_info                            | get post            | Information on several databases                     | startkey endkey limit skip
/_membership                          | get                 | Cluster nodes                                        |
/_metrics                             | get                 | Metrics for Prometheus                               |
/_openapi.json                        | get                 | This document                                        |
/_node/{node}/_config                 | get                 | Configuration (read-only)                            |
/_node/{node}/_config/{section}       | get                 | A section of the configuration                       |
/_node/{node}/_config/{section}/{key} | get                 | A value of the configuration                         |
/_active_tasks                        | get                 | Running replications                                 |
/_sources                             | get                 | Servers that are followed                            |
/_replicate                           | post                | Start or cancel a replication                        | async
/_scheduler/jobs                      | get                 | Unfinished replications                              | limit skip states database endpoint bookmark
/_scheduler/jobs/{id}                 | get delete          | One replication job; cancel a request                |
/_scheduler/jobs/{id}/_restart        | post                | Run a job now                                        |
/_scheduler/jobs/{id}/_pause          | post                | Pause a job                                          |
/_scheduler/jobs/{id}/_resume         | post                | Resume a job                                         |
/_scheduler/jobs/{id}/failures        | get                 | Rejected documents of a job                          |
/_scheduler/summary                   | get                 | Number of replications by state                      |
/_scheduler/replications              | get post            | All replications; actions on many of them            | states database q cause sort descending limit bookmark
/_scheduler/causes                    | get                 | Replications that need attention, by cause           | limit
/_scheduler/nodes                     | get                 | Nodes and their work                                 |
/_scheduler/history                   | get                 | The last hour, minute by minute                      |
/_scheduler/shares                    | get                 | Shares of the nodes' time, and their use             | limit after
/_scheduler/docs                      | get                 | Replication documents and their states               | DOCS
/_scheduler/docs/{replicator}         | get                 | Replication documents of a database and their states | DOCS
/_scheduler/docs/{replicator}/{docid} | get                 | State of a replication document                      |
/_jobs                                | get                 | Types of jobs, with their settings and numbers       | q limit after
/_jobs/{type}                         | get put post delete | Jobs of a type; its settings; new jobs               | state limit after data
/_jobs/{type}/_type                   | get                 | One type of jobs                                     |
/_jobs/{type}/_claim                  | post                | Claim jobs                                           |
/_jobs/{type}/_beat                   | post                | Keep claimed jobs, and store their progress          |
/_jobs/{type}/_finish                 | post                | End runs, and claim further jobs                     |
/_jobs/{type}/_retry                  | post                | Retry dead jobs                                      |
/_jobs/{type}/_pause                  | post                | Stop giving jobs to workers                          |
/_jobs/{type}/_resume                 | post                | Give jobs to workers again                           |
/_jobs/{type}/_feed                   | get                 | Changes of jobs, as server-sent events               | ids
/_jobs/{type}/_failures               | get                 | Failed jobs of a type, grouped by error              | state
/_jobs/{type}/{id}                    | get delete          | One job                                              |
/_jobs/{type}/{id}/_wait              | get                 | One job, once it is finished or dead                 | timeout_sec
/_jobs/{type}/{id}/_retry             | post                | Retry a dead job                                     |
/_schedules                           | get                 | Schedules                                            | limit after
/_schedules/{schedule}                | get put delete      | A schedule, which adds jobs at times                 |
/_schedules/{schedule}/_run           | post                | Add a job of a schedule now                          |
/_tokens                              | get post            | API tokens; a new token                              |
/_tokens/{token}                      | delete              | Revoke a token                                       |
/_remotes                             | get                 | Remotes, and their replications by state              | limit after
/_remotes/_start                      | post                | Start replications of remotes                        |
/_remotes/{remote}                    | get                 | One remote, and its replications                     | state limit after
/_deliveries                          | get                 | Calls of webhooks                                    | rule rule_database state after limit
/_deliveries/_replay                  | post                | Make many calls of webhooks again                    |
/_deliveries/_remove                  | post                | Remove many calls of webhooks                        |
/_deliveries/{id}                     | get delete          | One call of a webhook, its response and its runs     |
/_deliveries/{id}/_replay             | post                | Make a call of a webhook again                       |
/{db}                                 | get put post delete | A database; a document without an id                 | batch new_edits
/{db}/_all_docs                       | get post            | Documents by id                                      | LISTING
/{db}/_all_docs/queries               | post                | Several listings in one request                      |
/{db}/_design_docs                    | get post            | Design documents by id                               | LISTING
/{db}/_bulk_docs                      | post                | Write documents                                      |
/{db}/_bulk_get                       | post                | Read revisions of documents                          | revs latest attachments
/{db}/_changes                        | get post            | Changes feed                                         | CHANGES
/{db}/_revs_diff                      | post                | Find missing revisions                               |
/{db}/_missing_revs                   | post                | Find missing revisions (older form)                  |
/{db}/_find                           | post                | Find documents by selector                           |
/{db}/_explain                        | post                | Explain a query                                      |
/{db}/_index                          | get                 | Indexes                                              |
/{db}/_security                       | get put             | Access control of the database                       |
/{db}/_revs_limit                     | get put             | Number of revisions kept per document                |
/{db}/_ensure_full_commit             | post                | No-op: acknowledged writes are durable               |
/{db}/_compact                        | post                | No-op: there is no garbage                           |
/{db}/_view_cleanup                   | post                | No-op: there are no views                            |
/{rules}/_test                        | post                | Try a rule on names of databases and on a change     |
/{rules}/{docid}/_trigger             | post                | Run a rule's replications, or look for changes, now  |
/{rules}/{docid}/_pause               | post                | Pause a rule                                         |
/{rules}/{docid}/_resume              | post                | Resume a rule                                        |
/{rules}/{docid}/_rewind              | post                | Let a rule go on from another update sequence        |
/{rules}/{docid}/_databases           | get                 | How far a rule that calls is in each database        | source database after limit
/{db}/_local/{docid}                  | get put delete      | A document that is not replicated                    | rev
/{db}/_design/{docid}                 | get put delete      | A design document; its functions are not run         | DOCUMENT
/{db}/{docid}                         | get put delete      | A document                                           | DOCUMENT
/{db}/{docid}/{attachment}            | get put delete      | An attachment                                        | rev
";

const QUERIES: &[(&str, &str)] = &[
    (
        "LISTING",
        "startkey endkey key keys inclusive_end descending limit skip include_docs conflicts update_seq",
    ),
    (
        "CHANGES",
        "feed since limit style include_docs conflicts descending filter doc_ids heartbeat timeout",
    ),
    (
        "DOCUMENT",
        "rev revs revs_info open_revs latest conflicts deleted_conflicts meta local_seq attachments atts_since new_edits batch",
    ),
    (
        "DOCS",
        "limit skip states descending key startkey endkey inclusive_end",
    ),
];

fn document() -> Value {
    let mut paths = Map::new();
    for row in TABLE.lines() {
        let mut columns = row.split('|').map(str::trim);
        let [path, methods, summary, query] =
            std::array::from_fn(|_| columns.next().unwrap_or_default());
        let listed = QUERIES.iter().find(|(name, _)| *name == query);
        let query = listed.map_or(query, |(_, query)| query);
        let operations = methods
            .split(' ')
            .map(|method| (method.to_owned(), operation(path, method, summary, query)));
        paths.insert(path.to_owned(), Value::Object(operations.collect()));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Davenport",
            "description": "CouchDB's HTTP API for replication, and jobs for workers in any language.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "webhooks": events(),
        "components": {
            "schemas": {"Error": {
                "type": "object",
                "required": ["error", "reason"],
                "properties": {"error": {"type": "string"}, "reason": {"type": "string"}, "hint": {"type": "string"}},
            }},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "AuthSession"},
                "jwt": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "API token, for /_jobs only"},
            },
        },
    })
}

/// The calls about replications.
fn events() -> Value {
    let members = [
        "state", "job", "id", "database", "doc_id", "source", "target", "reason",
    ];
    let members = members.map(|name| (name.to_owned(), json!({"type": ["string", "null"]})));
    let members: Map<_, _> = members.into_iter().collect();
    let events = EventKind::ALL.map(|kind| {
        let body = json!({
            "type": "object",
            "required": ["type", "timestamp", "data"],
            "properties": {
                "type": {"const": kind.as_str()},
                "timestamp": {"type": "string", "format": "date-time"},
                "data": {"type": "object", "properties": &members},
            },
        });
        let call = json!({
            "summary": kind.summary(),
            "requestBody": {"content": {"application/json": {"schema": body}}},
            "responses": {"2XX": {"description": "Received"}},
        });
        (kind.as_str().to_owned(), json!({"post": call}))
    });
    Value::Object(events.into_iter().collect())
}

fn operation(path: &str, method: &str, summary: &str, query: &str) -> Value {
    let in_path = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(
        |name| json!({"name": name, "in": "path", "required": true, "schema": schemas::parameter(name)}),
    );
    let in_query = query.split_whitespace().map(|name| {
        let schema = match name {
            "state" if path.starts_with("/_jobs") => "job_state",
            "state" if path.starts_with("/_remotes") => "remote_state",
            name => name,
        };
        json!({"name": name, "in": "query", "required": false, "schema": schemas::parameter(schema)})
    });
    let in_headers = schemas::headers(path, method);
    let parameters: Vec<_> = in_path.chain(in_query).chain(in_headers).collect();
    let access = access(path, method);
    let error = json!({
        "description": "An error in CouchDB's form",
        "content": {"application/json": {"schema": schemas::error()}},
    });
    let mut responses = schemas::answers(path, method);
    responses.insert("4XX".to_owned(), error.clone());
    responses.insert("503".to_owned(), error);
    let mut operation = json!({
        "summary": summary,
        "description": format!("Access: {}.", access_text(access)),
        "parameters": parameters,
        "responses": responses,
    });
    if !matches!(access, Access::Public | Access::Everyone) {
        let mut security = vec!["basic", "cookie", "jwt"];
        if matches!(access, Access::Type(_)) || path == "/_jobs" {
            security.push("token");
        }
        let security = security.iter().map(|name| json!({*name: []}));
        operation["security"] = security.collect();
    }
    if matches!(method, "post" | "put") {
        let json = json!({"schema": schemas::body(path, method)});
        operation["requestBody"] = json!({"content": {"application/json": json}});
    }
    operation
}

fn access(path: &str, method: &str) -> Access {
    let example = path
        .replace("{db}", "_replicator")
        .replace("{replicator}", "_replicator")
        .replace("{rules}", "_rules")
        .replace(['{', '}'], "");
    let method = method.to_ascii_uppercase();
    let method = Method::from_bytes(method.as_bytes()).unwrap_or_default();
    Route::parse(&example).map_or(Access::Admin, |route| route.access(&method))
}

fn access_text(access: Access) -> &'static str {
    match access {
        Access::Public => "everybody",
        Access::Everyone => "all callers, unless `require_valid_user` is set",
        Access::Authenticated => "authenticated callers",
        Access::Metrics => "server administrators and callers with the role `_metrics`",
        Access::Type(Right::Enqueue) => "roles in `roles.enqueue` of the job type",
        Access::Type(Right::Work) => "roles in `roles.work` of the job type",
        Access::Type(Right::Read) => "roles in `roles.read` of the job type",
        Access::Member => "members of the database",
        Access::DbAdmin => "administrators of the database or the server",
        Access::Admin => "server administrators",
    }
}
