//! Request handlers, one file per group.

mod all_docs;
mod attachment;
mod bulk;
mod changes;
mod config;
mod dashboard;
mod database;
mod deliveries;
mod document;
mod find;
pub(crate) mod jobs;
mod local;
mod multipart;
mod openapi;
mod reading;
mod remotes;
mod replicate;
mod replication;
mod rules;
mod scheduler;
pub(crate) mod server;
pub(crate) mod session;
mod table;
mod users;
mod writing;

use http::Method;

use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::reply::Reply;
use crate::route::{DbPart, Route};
use all_docs::Among;

/// Dispatches an authorized request, unless it is one of the queue ([`jobs::answer`]); `opened` is the database, for routes that need one.
pub(crate) async fn answer(call: &mut Call, opened: Option<Opened>) -> Result<Reply, Error> {
    match (call.route.clone(), opened) {
        (Route::Welcome, _) => server::welcome(call),
        (Route::Up, _) => server::up(call).await,
        (Route::Uuids, _) => server::uuids(call),
        (Route::Session, _) => session::session(call).await,
        (Route::AllDbs, _) => server::all_dbs(call).await,
        (Route::DbsInfo, _) => server::dbs_info(call).await,
        (Route::Membership, _) => server::membership(call),
        (Route::OpenApi, _) => openapi::openapi(call),
        (Route::Config(path), _) => config::config(call, &path),
        (Route::Dashboard(file), _) => dashboard::file(call, &file),
        (Route::Db(name), None) => match call.method {
            Method::PUT => database::create(call, &name).await,
            _ => database::delete(call, &name).await,
        },
        (Route::Db(_), Some(opened)) => match call.method {
            Method::GET => database::info(call, &opened).await,
            Method::POST => document::post(call, &opened).await,
            _ => Err(Error::method_not_allowed("DELETE,GET,HEAD,POST")),
        },
        (Route::DbPart(_, part), Some(opened)) => db_part(call, &opened, part).await,
        (Route::Document(_, id), Some(opened)) => document::document(call, &opened, &id).await,
        (Route::RuleAction(_, id, action), Some(opened)) => {
            Box::pin(rules::act(call, &opened, &id, action)).await
        }
        (Route::Attachment(_, id, name), Some(opened)) => {
            attachment::attachment(call, &opened, &id, &name).await
        }
        (
            Route::Replicate
            | Route::ActiveTasks
            | Route::Sources
            | Route::Metrics
            | Route::Summary
            | Route::Replications
            | Route::Causes
            | Route::Nodes
            | Route::History
            | Route::Shares
            | Route::Jobs
            | Route::Job(_)
            | Route::JobAction(..)
            | Route::Docs(_)
            | Route::Doc(..),
            _,
        ) => replication::answer(call).await,
        (Route::Schedules, _) => jobs::schedules::all(call).await,
        (Route::Schedule(name), _) => jobs::schedules::one(call, &name).await,
        (Route::ScheduleRun(name), _) => jobs::schedules::run(call, &name).await,
        (Route::Tokens, _) => jobs::tokens::all(call).await,
        (Route::Token(name), _) => jobs::tokens::one(call, &name).await,
        (
            Route::Deliveries
            | Route::DeliveryReplays
            | Route::DeliveryRemovals
            | Route::Delivery(_)
            | Route::DeliveryReplay(_),
            _,
        ) => deliveries::answer(call).await,
        (Route::Remotes | Route::Remote(_) | Route::RemoteStart, _) => remotes::answer(call).await,
        _ => Err(Error::not_found("missing")),
    }
}

async fn db_part(call: &mut Call, opened: &Opened, part: DbPart) -> Result<Reply, Error> {
    match part {
        DbPart::AllDocs => all_docs::all_docs(call, opened, Among::All).await,
        DbPart::AllDocsQueries => all_docs::queries(call, opened).await,
        DbPart::DesignDocs => all_docs::all_docs(call, opened, Among::Designs).await,
        DbPart::LocalDocs => Err(Error::not_implemented(
            "`_local` documents are not listed here; ask for them by id.",
        )),
        DbPart::BulkDocs => bulk::bulk_docs(call, opened).await,
        DbPart::BulkGet => bulk::bulk_get(call, opened).await,
        DbPart::Changes => changes::changes(call, opened).await,
        DbPart::RevsDiff => bulk::revs_diff(call, opened).await,
        DbPart::MissingRevs => bulk::missing_revs(call, opened).await,
        DbPart::Security => database::security(call, opened).await,
        DbPart::RevsLimit => database::revs_limit(call, opened).await,
        DbPart::Find => find::find(call, opened).await,
        DbPart::Explain => find::explain(call, opened).await,
        DbPart::Index => find::index(call),
        DbPart::EnsureFullCommit => database::ensure_full_commit(call),
        DbPart::Compact => database::compact(call),
        DbPart::Test => rules::test(call, opened).await,
    }
}
