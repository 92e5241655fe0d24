//! Replications: `_replicate`, `_scheduler`, `_active_tasks`, `_metrics`.

use ::scheduler::ServiceError;
use axum::body::Body;
use http::StatusCode;
use serde_json::json;

use super::{replicate, scheduler, table};
use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};
use crate::route::Route;

pub(crate) async fn answer(call: &mut Call) -> Result<Reply, Error> {
    match call.route.clone() {
        Route::Replicate => replicate::replicate(call).await,
        Route::ActiveTasks => scheduler::active_tasks(call).await,
        Route::Sources => sources(call).await,
        Route::Metrics => metrics(call),
        Route::Summary => table::summary(call).await,
        Route::Replications => table::replications(call).await,
        Route::Causes => table::causes(call).await,
        Route::Nodes => table::nodes(call).await,
        Route::History => table::history(call).await,
        Route::Shares => table::shares(call).await,
        Route::Jobs => scheduler::jobs(call).await,
        Route::Job(id) => scheduler::job(call, &id).await,
        Route::JobAction(id, action) => scheduler::job_action(call, &id, action).await,
        Route::Docs(db) => scheduler::docs(call, &db).await,
        Route::Doc(db, id) => scheduler::doc(call, &db, &id).await,
        _ => Err(Error::not_found("missing")),
    }
}

/// `GET /_sources`
async fn sources(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let jobs = call.shared.replications.jobs();
    let sources = rules::source::list(jobs)
        .await
        .map_err(ServiceError::from)?;
    Ok(reply::ok(&json!({"sources": sources})))
}

fn metrics(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let Some(metrics) = &call.shared.metrics else {
        return Err(Error::not_found("missing"));
    };
    let text = Body::from(metrics.render());
    Ok(reply::body(
        StatusCode::OK,
        "text/plain; version=0.0.4",
        text,
    ))
}
