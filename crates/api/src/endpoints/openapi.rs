//! `/_openapi.json`: the service in `OpenAPI` 3.1, made of one table.
//!
//! Who may ask is not said twice: it comes from the routes themselves.

mod schemas;

use std::sync::LazyLock;

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};
use crate::route::{Access, Route};

/// `GET /_openapi.json`
pub(crate) fn openapi(call: &Call) -> Result<Reply, Error> {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());
    call.allow("GET,HEAD")?;
    Ok(reply::text(StatusCode::OK, DOCUMENT.as_str()))
}

const LISTING: &[&str] = &[
    "startkey",
    "endkey",
    "key",
    "keys",
    "inclusive_end",
    "descending",
    "limit",
    "skip",
    "include_docs",
    "conflicts",
    "update_seq",
];
const CHANGES: &[&str] = &[
    "feed",
    "since",
    "limit",
    "style",
    "include_docs",
    "conflicts",
    "descending",
    "filter",
    "doc_ids",
    "heartbeat",
    "timeout",
];
const DOCUMENT: &[&str] = &[
    "rev",
    "revs",
    "revs_info",
    "open_revs",
    "latest",
    "conflicts",
    "deleted_conflicts",
    "meta",
    "local_seq",
    "attachments",
    "atts_since",
    "new_edits",
    "batch",
];
const NONE: &[&str] = &[];

/// Parameters of `_scheduler/docs`, of all databases or of one.
const DOCS_QUERY: &[&str] = &[
    "limit",
    "skip",
    "states",
    "descending",
    "key",
    "startkey",
    "endkey",
    "inclusive_end",
];

/// Path, methods, what it is about, and parameters of the query.
const TABLE: &[(&str, &str, &str, &[&str])] = &[
    ("/", "get", "What the service is", NONE),
    ("/_up", "get", "Whether it lives", NONE),
    ("/_uuids", "get", "Names that nothing has", &["count"]),
    (
        "/_session",
        "get post delete",
        "Who the caller is; logging in and out",
        &["basic", "next"],
    ),
    (
        "/_all_dbs",
        "get",
        "Names of databases",
        &["startkey", "endkey", "limit", "skip", "descending"],
    ),
    (
        "/_dbs_info",
        "get post",
        "What databases say of themselves",
        &["startkey", "endkey", "limit", "skip"],
    ),
    ("/_membership", "get", "Nodes, as far as clients see", NONE),
    ("/_metrics", "get", "Metrics for Prometheus", NONE),
    ("/_openapi.json", "get", "This document", NONE),
    (
        "/_node/{node}/_config",
        "get",
        "Configuration, to be read only",
        NONE,
    ),
    (
        "/_node/{node}/_config/{section}",
        "get",
        "A section of it",
        NONE,
    ),
    (
        "/_node/{node}/_config/{section}/{key}",
        "get",
        "A value of it",
        NONE,
    ),
    ("/_active_tasks", "get", "Replications that run", NONE),
    (
        "/_replicate",
        "post",
        "Starts or cancels a replication",
        &["async"],
    ),
    (
        "/_scheduler/jobs",
        "get",
        "Replications that are not finished",
        &[
            "limit", "skip", "states", "database", "endpoint", "bookmark",
        ],
    ),
    ("/_scheduler/jobs/{id}", "get", "One of them", NONE),
    (
        "/_scheduler/jobs/{id}/_restart",
        "post",
        "Runs it now",
        NONE,
    ),
    ("/_scheduler/jobs/{id}/_pause", "post", "Has it wait", NONE),
    (
        "/_scheduler/jobs/{id}/_resume",
        "post",
        "Lets it go on",
        NONE,
    ),
    (
        "/_scheduler/jobs/{id}/failures",
        "get",
        "Documents that it could not write",
        NONE,
    ),
    (
        "/_scheduler/summary",
        "get",
        "How many replications there are, by state",
        NONE,
    ),
    (
        "/_scheduler/docs",
        "get",
        "Documents of `_replicator` and their states",
        DOCS_QUERY,
    ),
    (
        "/_scheduler/docs/{replicator}",
        "get",
        "Documents of a database and their states",
        DOCS_QUERY,
    ),
    (
        "/_scheduler/docs/{replicator}/{docid}",
        "get",
        "The state of a document",
        NONE,
    ),
    (
        "/{db}",
        "get put post delete",
        "A database; a document without an id",
        &["batch", "new_edits"],
    ),
    ("/{db}/_all_docs", "get post", "Documents by id", LISTING),
    (
        "/{db}/_all_docs/queries",
        "post",
        "Several listings at a time",
        NONE,
    ),
    (
        "/{db}/_design_docs",
        "get post",
        "Design documents by id",
        LISTING,
    ),
    ("/{db}/_bulk_docs", "post", "Writes documents", NONE),
    (
        "/{db}/_bulk_get",
        "post",
        "Reads revisions of documents",
        &["revs", "latest", "attachments"],
    ),
    (
        "/{db}/_changes",
        "get post",
        "Changes, as they come",
        CHANGES,
    ),
    (
        "/{db}/_revs_diff",
        "post",
        "Which revisions are missing",
        NONE,
    ),
    (
        "/{db}/_missing_revs",
        "post",
        "Which revisions are missing, in an older form",
        NONE,
    ),
    (
        "/{db}/_find",
        "post",
        "Documents that match a selector",
        NONE,
    ),
    ("/{db}/_explain", "post", "How they would be found", NONE),
    ("/{db}/_index", "get", "Indexes: that of ids", NONE),
    ("/{db}/_security", "get put", "Who may", NONE),
    (
        "/{db}/_revs_limit",
        "get put",
        "How many revisions are remembered",
        NONE,
    ),
    (
        "/{db}/_ensure_full_commit",
        "post",
        "Nothing: what was answered is kept",
        NONE,
    ),
    (
        "/{db}/_compact",
        "post",
        "Nothing: there is no garbage",
        NONE,
    ),
    (
        "/{db}/_view_cleanup",
        "post",
        "Nothing: there are no views",
        NONE,
    ),
    (
        "/{db}/_local/{docid}",
        "get put delete",
        "A document that is not replicated",
        &["rev"],
    ),
    (
        "/{db}/_design/{docid}",
        "get put delete",
        "A design document, whose functions are not run",
        DOCUMENT,
    ),
    ("/{db}/{docid}", "get put delete", "A document", DOCUMENT),
    (
        "/{db}/{docid}/{attachment}",
        "get put delete",
        "An attachment",
        &["rev"],
    ),
];

fn document() -> Value {
    let mut paths = Map::new();
    for (path, methods, summary, query) in TABLE {
        let mut operations = Map::new();
        for method in methods.split(' ') {
            operations.insert(method.to_owned(), operation(path, method, summary, query));
        }
        paths.insert((*path).to_owned(), Value::Object(operations));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Davenport",
            "description": "CouchDB's HTTP API for replication.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": {
                "type": "object",
                "required": ["error", "reason"],
                "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
            }},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "AuthSession"},
                "jwt": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    })
}

fn operation(path: &str, method: &str, summary: &str, query: &[&str]) -> Value {
    let in_path = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(
        |name| json!({"name": name, "in": "path", "required": true, "schema": schemas::parameter(name)}),
    );
    let in_query = query.iter().map(|name| {
        json!({"name": name, "in": "query", "required": false, "schema": schemas::parameter(name)})
    });
    let parameters: Vec<_> = in_path.chain(in_query).collect();
    let access = access(path, method);
    let error = json!({
        "description": "An error in CouchDB's form",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    });
    let mut operation = json!({
        "summary": summary,
        "description": format!("Who may: {}.", who(access)),
        "parameters": parameters,
        "responses": {
            "2XX": {"description": "Done", "content": {"application/json": {"schema": {}}}},
            "4XX": error,
            "503": error,
        },
    });
    if !matches!(access, Access::Public | Access::Anybody) {
        operation["security"] = json!([{"basic": []}, {"cookie": []}, {"jwt": []}]);
    }
    if matches!(method, "post" | "put") {
        let json = json!({"schema": schemas::body(path)});
        operation["requestBody"] = json!({"content": {"application/json": json}});
    }
    operation
}

fn access(path: &str, method: &str) -> Access {
    let example = path
        .replace("{db}", "_replicator")
        .replace("{replicator}", "_replicator")
        .replace(['{', '}'], "");
    let method = method.to_ascii_uppercase();
    let method = Method::from_bytes(method.as_bytes()).unwrap_or_default();
    Route::parse(&example).map_or(Access::Admin, |route| route.access(&method))
}

fn who(access: Access) -> &'static str {
    match access {
        Access::Public => "everybody",
        Access::Anybody => "everybody, unless `require_valid_user` is set",
        Access::Authenticated => "whoever has proven who they are",
        Access::Metrics => "server administrators, and those with the role `_metrics`",
        Access::Member => "members of the database, by its `_security`",
        Access::DbAdmin => "administrators of the database or the server",
        Access::Admin => "server administrators",
    }
}
