//! `POST /_replicate`: start, wait, cancel.

use http::{HeaderName, StatusCode};
use scheduler::{Answer, Caller, Failure, ServiceError, Started};
use serde_json::{Value, json};

use super::local;
use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};

/// Contains the job id, also for clients that do not wait.
const JOB: &str = "x-couch-replication-job";

/// The caller, as the scheduler sees it.
pub(crate) fn caller(call: &Call) -> Caller {
    let identity = call.caller();
    Caller {
        name: identity.name.clone(),
        is_admin: identity.is_admin(),
    }
}

pub(crate) async fn replicate(call: &mut Call) -> Result<Reply, Error> {
    call.allow("POST")?;
    call.check_json()?;
    let body = call.json_object().await?;
    let replications = &call.shared.replications;
    let (caller, grant) = (caller(call), local::grant(call));
    let started = replications
        .request_granted(&body, &caller, grant.as_ref())
        .await;
    match started.map_err(request_error)? {
        Started::Cancelled { local_id } => {
            Ok(reply::ok(&json!({"ok": true, "_local_id": local_id})))
        }
        Started::Job { job, .. } => {
            let mut reply = if call.query.flag("async")? {
                reply::json(StatusCode::ACCEPTED, &json!({"ok": true, "job_id": job}))
            } else {
                wait(call, &job).await?
            };
            reply::set(&mut reply, HeaderName::from_static(JOB), &job);
            Ok(reply)
        }
    }
}

/// Waits without a limit. A client that disconnects stops only the wait.
async fn wait(call: &Call, job: &str) -> Result<Reply, Error> {
    let shared = &call.shared;
    let Some(follow) = &shared.follow else {
        return Err(ServiceError::Stopped.into());
    };
    let answer = tokio::select! {
        biased;
        answer = shared.replications.wait(follow, job) => answer?,
        () = shared.stop.cancelled() => return Err(ServiceError::Stopped.into()),
    };
    Ok(match answer {
        Answer::Running { local_id } => {
            let running = json!({"ok": true, "_local_id": local_id});
            reply::json(StatusCode::ACCEPTED, &running)
        }
        Answer::Completed { result } => {
            let mut body = json!({"ok": true});
            if let Value::Object(members) = &mut body {
                members.extend(result);
            }
            reply::ok(&body)
        }
        Answer::Failed(failure) => failed(&failure),
        Answer::Removed => return Err(Error::not_found("missing")),
    })
}

fn failed(failure: &Failure) -> Reply {
    let status = StatusCode::from_u16(failure.status);
    let body = json!({"error": failure.error, "reason": failure.reason});
    reply::json(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &body)
}

/// An invalid replication is 400 here, and 403 in a document.
fn request_error(error: ServiceError) -> Error {
    let ServiceError::Invalid(invalid) = error else {
        return error.into();
    };
    let reason = invalid.to_string();
    match reason.as_str() {
        "endpoint has an invalid url" | "proxy has an invalid url" => {
            Error::new(StatusCode::BAD_REQUEST, "invalid_replication", reason)
        }
        _ => Error::bad_request(reason),
    }
}
