//! What answers requests: one file for each family.

mod database;
mod replication;
pub(crate) mod server;
pub(crate) mod session;

use http::Method;

use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::reply::Reply;
use crate::route::{DbPart, Route};

/// Answers a caller who may ask; `opened` is the database, of routes that need one.
pub(crate) async fn answer(call: &mut Call, opened: Option<Opened>) -> Result<Reply, Error> {
    match (call.route.clone(), opened) {
        (Route::Welcome, _) => server::welcome(call),
        (Route::Up, _) => server::up(call).await,
        (Route::Uuids, _) => server::uuids(call),
        (Route::Session, _) => session::session(call).await,
        (Route::AllDbs, _) => server::all_dbs(call).await,
        (Route::DbsInfo, _) => server::dbs_info(call).await,
        (Route::Membership, _) => server::membership(call),
        (Route::Db(name), None) => match call.method {
            Method::PUT => database::create(call, &name).await,
            _ => database::delete(call, &name).await,
        },
        (Route::Db(_), Some(opened)) => match call.method {
            Method::GET => database::info(call, &opened).await,
            _ => Err(Error::method_not_allowed("DELETE,GET,HEAD,POST")),
        },
        (Route::DbPart(_, part), Some(opened)) => db_part(call, &opened, part).await,
        (
            Route::Replicate
            | Route::ActiveTasks
            | Route::Metrics
            | Route::Jobs
            | Route::Job(_)
            | Route::JobAction(..)
            | Route::Docs(_)
            | Route::Doc(..),
            _,
        ) => replication::answer(call),
        _ => Err(Error::not_found("missing")),
    }
}

async fn db_part(call: &mut Call, opened: &Opened, part: DbPart) -> Result<Reply, Error> {
    match part {
        DbPart::Security => database::security(call, opened).await,
        DbPart::RevsLimit => database::revs_limit(call, opened).await,
        DbPart::EnsureFullCommit => database::ensure_full_commit(call),
        DbPart::Compact => database::compact(call),
        _ => Err(Error::not_found("missing")),
    }
}
