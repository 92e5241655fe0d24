//! Replication ids, under which checkpoints are found.
//!
//! They are CouchDB's, byte for byte, so that a replication that moves here from CouchDB 3.x resumes where it was. The
//! current version is the fourth; ids of older versions, and of releases that normalised differently, are only used for
//! lookups.

use couch::Endpoint;
use document::json::Json;
use document::mango::Path;
use md5::{Digest as _, Md5};

use crate::etf::Term;
pub use crate::names::{BaseId, ReplicationId};
use crate::params::{Filter, Replication};

/// What an id depends on besides the replication itself.
#[derive(Clone, Debug)]
pub struct Service {
    /// The `[couchdb] uuid` of the service.
    pub uuid: String,
    /// Host name and port of the CouchDB that ran the replications before versions 3 and 4 of ids, if any.
    pub legacy_host: Option<(String, u16)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The id of its checkpoints.
    pub base: BaseId,
    pub replication: ReplicationId,
    /// Ids under which earlier releases may have left checkpoints, newest first.
    pub older: Vec<BaseId>,
}

impl Identity {
    /// Computes the ids. A `ddoc/name` filter is hashed by its code, which the caller fetches from the source.
    pub fn of(replication: &Replication, service: &Service, filter_code: Option<&str>) -> Self {
        let of_endpoints = |head: Vec<Term>, form| base_id(head, replication, filter_code, form);
        let uuid = Term::binary(&service.uuid);
        let v4 = || {
            vec![
                uuid.clone(),
                endpoint_v4(&replication.source),
                endpoint_v4(&replication.target),
            ]
        };
        let old = |mut head: Vec<Term>| {
            head.extend([
                endpoint_v3(&replication.source),
                endpoint_v3(&replication.target),
            ]);
            of_endpoints(head, Form::Current)
        };
        let base = of_endpoints(v4(), Form::Current).expect("the current form always exists");
        let mut older = vec![
            of_endpoints(v4(), Form::UnescapedPaths),
            of_endpoints(v4(), Form::PathLists),
            of_endpoints(v4(), Form::Maps),
            old(vec![uuid.clone()]),
        ];
        if let Some((name, port)) = &service.legacy_host {
            older.push(old(vec![
                Term::chars(name),
                Term::Integer(i64::from(*port)),
            ]));
            older.push(old(vec![Term::chars(name)]));
        }
        let older = older
            .into_iter()
            .flatten()
            .filter(|id| *id != base)
            .collect();
        Self {
            replication: suffixed(&base, replication),
            base,
            older,
        }
    }
}

/// The job id of a transient replication, computed without the source.
pub fn transient_job_id(
    replication: &Replication,
    service: &Service,
    user: Option<&str>,
) -> String {
    let head = vec![
        Term::binary(&service.uuid),
        endpoint_v4(&replication.source),
        endpoint_v4(&replication.target),
        user.map_or(Term::Atom("null"), Term::binary),
        Term::chars(&suffixes(replication)),
    ];
    transient_hash(head, replication)
}

fn transient_hash(mut terms: Vec<Term>, replication: &Replication) -> String {
    match &replication.options.filter {
        Filter::User {
            design_doc,
            name,
            query_params,
        } => {
            terms.extend([
                Term::binary(design_doc),
                Term::binary(name),
                Term::json(query_params),
            ]);
        }
        filter => terms.extend(filter_terms(filter, None, Form::Current).unwrap_or_default()),
    }
    terms.extend(extra_terms(replication));
    hash(terms)
}

/// How a release encoded what it hashed.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// 3.x: objects are lists of pairs, selectors have dotted names as the user wrote them.
    Current,
    /// Dotted names without the user's backslashes.
    UnescapedPaths,
    /// Names as lists of levels.
    PathLists,
    /// 4.x: query parameters are maps.
    Maps,
}

/// `None` if the form equals another one for this replication.
fn base_id(
    head: Vec<Term>,
    replication: &Replication,
    filter_code: Option<&str>,
    form: Form,
) -> Option<BaseId> {
    let mut terms = head;
    terms.extend(filter_terms(
        &replication.options.filter,
        filter_code,
        form,
    )?);
    terms.extend(extra_terms(replication));
    Some(BaseId::new(hash(terms)))
}

fn filter_terms(filter: &Filter, filter_code: Option<&str>, form: Form) -> Option<Vec<Term>> {
    let params = |params: &Json| match form {
        Form::Current => Some(Term::json(params)),
        Form::Maps => Term::json_map(params),
        Form::UnescapedPaths | Form::PathLists => None,
    };
    let current = |terms| (form == Form::Current).then_some(terms);
    match filter {
        Filter::None => current(Vec::new()),
        Filter::BuiltIn { name, query_params } => {
            Some(vec![Term::binary(name), params(query_params)?])
        }
        Filter::User { query_params, .. } => Some(vec![
            Term::binary(trim_code(filter_code.unwrap_or_default()).as_ref()),
            params(query_params)?,
        ]),
        Filter::DocIds(ids) => current(vec![Term::List(
            ids.iter().map(|id| Term::binary(id)).collect(),
        )]),
        Filter::Selector(selector) => {
            let names: &dyn Fn(&Path) -> Term = match form {
                Form::Current => &|path| Term::binary(&path.dotted()),
                Form::UnescapedPaths => &|path| Term::binary(&path.segments().join(".")),
                Form::PathLists => &|path| {
                    Term::List(
                        path.segments()
                            .iter()
                            .map(|name| Term::binary(name))
                            .collect(),
                    )
                },
                Form::Maps => return None,
            };
            Some(vec![Term::selector(selector.compiled().normal(), names)])
        }
    }
}

fn extra_terms(replication: &Replication) -> Vec<Term> {
    let options = &replication.options;
    let mut terms = Vec::new();
    if options.winning_revs_only {
        terms.push(Term::binary("winning_revs_only"));
    }
    if let Some(since) = &options.since_seq {
        terms.push(Term::json(since));
    }
    // CouchDB has no such options, so its own ids cannot collide with these.
    if options.skip_deleted {
        terms.push(Term::binary("skip_deleted"));
    }
    if options.skip_design_docs {
        terms.push(Term::binary("skip_design_docs"));
    }
    terms
}

fn endpoint_v4(endpoint: &Endpoint) -> Term {
    let port = match (endpoint.scheme(), endpoint.port()) {
        (_, None) | ("http", Some(80 | 5984)) | ("https", Some(443)) => Term::Atom("default"),
        (_, Some(port)) => Term::Integer(i64::from(port)),
    };
    Term::Tuple(vec![
        Term::Atom("remote"),
        endpoint
            .username()
            .map_or(Term::Atom("undefined"), Term::chars),
        Term::chars(endpoint.host()),
        port,
        Term::chars(endpoint.id_path()),
        headers(endpoint),
        Term::Atom("undefined"),
    ])
}

fn endpoint_v3(endpoint: &Endpoint) -> Term {
    Term::Tuple(vec![
        Term::Atom("remote"),
        Term::chars(endpoint.id_url()),
        headers(endpoint),
    ])
}

fn headers(endpoint: &Endpoint) -> Term {
    let pair = |(name, value): (&str, &couch::Secret)| {
        Term::Tuple(vec![Term::chars(name), Term::chars(value.expose())])
    };
    Term::List(endpoint.id_headers().map(pair).collect())
}

/// Trims a filter function of one line. CouchDB means to do so with every function, but its regular expression (`^
/// *(.*?) *$`) does not match across lines.
fn trim_code(code: &str) -> std::borrow::Cow<'_, str> {
    let (line, end) = match code.strip_suffix('\n') {
        Some(line) => (line, "\n"),
        None => (code, ""),
    };
    if line.contains('\n') {
        return code.into();
    }
    format!("{}{end}", line.trim_matches(' ')).into()
}

fn suffixed(base: &BaseId, replication: &Replication) -> ReplicationId {
    ReplicationId::new(format!("{base}{}", suffixes(replication)))
}

fn suffixes(replication: &Replication) -> String {
    let options = &replication.options;
    let continuous = if options.continuous {
        "+continuous"
    } else {
        ""
    };
    let create_target = if options.create_target {
        "+create_target"
    } else {
        ""
    };
    format!("{continuous}{create_target}")
}

fn hash(terms: Vec<Term>) -> String {
    wire::hex(&Md5::digest(Term::List(terms).encode()))
}

#[cfg(test)]
mod tests;
