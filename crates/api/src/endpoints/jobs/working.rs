//! Requests of workers.

use std::time::Duration;

use queue::{Beat, BeatStatus, Claim, Ended, EndedStatus, IDS_MAX, Seconds, Type};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;

use super::claimed::{self, Job};
use super::{body, time};
use crate::call::Call;
use crate::reply::{self, Reply};
use crate::{Error, pipeline};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimBody {
    worker: String,
    #[serde(default = "one")]
    count: usize,
    #[serde(default)]
    wait_sec: Seconds,
}

fn one() -> usize {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BeatBody {
    jobs: Vec<Beat>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FinishBody {
    jobs: Vec<Ended>,
    claim: Option<usize>,
    worker: Option<String>,
    #[serde(default)]
    wait_sec: Seconds,
}

#[derive(Serialize)]
struct ClaimReply<'a> {
    jobs: Vec<Job<'a>>,
    timeout_sec: Seconds,
}

#[derive(Serialize)]
struct BeatReply<'a> {
    jobs: Vec<BeatRow<'a>>,
    timeout_sec: Seconds,
    drain: bool,
}

#[derive(Serialize)]
struct BeatRow<'a> {
    id: &'a str,
    status: BeatStatus,
    deadline: Option<String>,
    /// Why its progress was refused.
    #[serde(flatten)]
    refused: Option<Value>,
}

#[derive(Serialize)]
struct FinishReply<'a> {
    results: Vec<FinishRow<'a>>,
    jobs: Vec<Job<'a>>,
    timeout_sec: Seconds,
}

#[derive(Serialize)]
struct FinishRow<'a> {
    id: &'a str,
    status: EndedStatus,
}

pub(super) async fn claim(call: &mut Call, ty: &Type) -> Result<Reply, Error> {
    call.allow("POST")?;
    let body: ClaimBody = body(call).await?;
    let claim = claim_of(&body.worker, body.count, body.wait_sec)?;
    if body.wait_sec.ms() > 0 && !pipeline::exchange_to_wait(call) {
        return Err(pipeline::refused());
    }
    call.slim();
    let claiming = call.shared.queue.claim(ty, &claim);
    let claimed = waiting(call, body.wait_sec, claiming).await?;
    let told = ClaimReply {
        jobs: Job::all(&claimed),
        timeout_sec: claimed.timeout,
    };
    Ok(claimed::reply(json(&told)?, claimed))
}

pub(super) async fn beat(call: &mut Call, ty: &Type) -> Result<Reply, Error> {
    call.allow("POST")?;
    let body: BeatBody = body(call).await?;
    check_count(body.jobs.len())?;
    let (beaten, timeout_sec) = call.shared.queue.beat(ty, &body.jobs).await?;
    let rows = body.jobs.iter().zip(beaten).map(|(beat, beaten)| BeatRow {
        id: &beat.id,
        status: beaten.status,
        deadline: beaten.deadline_ms.map(time),
        refused: beaten.refused.map(|error| Error::from(error).to_json()),
    });
    Ok(reply::ok(&BeatReply {
        jobs: rows.collect(),
        timeout_sec,
        drain: ty.paused,
    }))
}

pub(super) async fn finish(call: &mut Call, ty: &Type) -> Result<Reply, Error> {
    call.allow("POST")?;
    let body: FinishBody = body(call).await?;
    check_count(body.jobs.len())?;
    let mut wait = body.wait_sec;
    let claim = match (body.claim, &body.worker) {
        (None | Some(0), _) => None,
        (Some(count), Some(worker)) => {
            // Also refuses a wait that is too long.
            let claim = claim_of(worker, count, wait)?;
            if wait.ms() == 0 || pipeline::exchange_to_wait(call) {
                Some(claim)
            } else {
                // Too many claims wait: the runs end, and the worker gets what is due now.
                wait = Seconds::new(0);
                Some(claim_of(worker, count, wait)?)
            }
        }
        (Some(_), None) => {
            return Err(Error::bad_request(
                "`claim` needs `worker`, the name of the worker",
            ));
        }
    };
    if wait.ms() > 0 {
        call.slim();
    }
    let ids: Vec<String> = body.jobs.iter().map(|ended| ended.id.clone()).collect();
    let ended = (call.shared.queue).finish(ty, body.jobs, claim.as_ref());
    let (statuses, claimed) = waiting(call, wait, ended).await?;
    let told = FinishReply {
        results: (ids.iter().zip(statuses))
            .map(|(id, status)| FinishRow { id, status })
            .collect(),
        jobs: Job::all(&claimed),
        timeout_sec: claimed.timeout,
    };
    Ok(claimed::reply(json(&told)?, claimed))
}

fn claim_of(worker: &str, count: usize, wait: Seconds) -> Result<Claim, Error> {
    if !(1..=IDS_MAX).contains(&count) {
        return Err(Error::bad_request(format!(
            "a claim must ask for 1 to {IDS_MAX} jobs"
        )));
    }
    Ok(Claim::new(worker, count, wait.duration())?)
}

fn check_count(count: usize) -> Result<(), Error> {
    if count <= IDS_MAX {
        return Ok(());
    }
    Err(Error::bad_request(format!(
        "`jobs` has {count} entries; send at most {IDS_MAX} per request"
    )))
}

/// Applies the time limit, from the end of the wait on.
async fn waiting<T>(
    call: &Call,
    wait: Seconds,
    work: impl Future<Output = queue::Result<T>>,
) -> Result<T, Error> {
    let done = timeout(wait.duration() + time_limit(call), work).await;
    done.map_err(|_| Error::busy("The request timed out; try again."))?
        .map_err(Error::from)
}

fn time_limit(call: &Call) -> Duration {
    Duration::from_secs(call.options().request_timeout_sec)
}

fn json(told: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(told).map_err(Error::internal)
}
