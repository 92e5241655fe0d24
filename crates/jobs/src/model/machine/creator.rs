//! A creator's `add` and `resubmit`.

use bytes::Bytes;

use super::{Context, Create, Reply, Step};
use crate::model::header::{Blob, Header, Next, Place};
use crate::model::run::Interrupt;
use crate::testing::planted::Bug;
use crate::{Error, Result, State};

pub(super) fn ask(
    old: Option<&Header>,
    op: u64,
    due_ms: Option<i64>,
    data: Option<Bytes>,
    same: bool,
    create: Option<Create>,
    cx: &Context,
) -> Result<Step> {
    // 0 means as soon as possible, and nothing is sooner.
    let mut due_ms = due_ms.map(|due_ms| due_ms.max(0));
    if due_ms.is_none() && cx.planted.is(Bug::ResubmitFarFuture) {
        due_ms = Some(1 << 46);
    }
    let Some(old) = old else {
        let create = create.ok_or(Error::NotFound)?;
        let new = created(op, due_ms, data, create, cx);
        return Ok(Step::put(new, Reply::Created));
    };
    if old.ops.contains(&op) && !cx.planted.is(Bug::AddNotIdempotent) {
        return Ok(Step::nothing(Reply::Repeated));
    }
    let mut new = old.clone();
    if let Some(create) = create {
        new.retention_ms = create.retention_ms;
        new.lane = create.lane;
        new.belong_to(&create);
        new.limit_by(create.key, create.pool, cx);
    }
    let reply = match old.state() {
        State::Pending => {
            let same_time = due_ms.is_none_or(|due_ms| due_ms == old.due_ms);
            if same_time && (data.is_none() || same) && new == *old {
                return Ok(Step::nothing(Reply::Unchanged));
            }
            new.stalls = 0;
            new.be_pending(due_ms.unwrap_or(old.due_ms), cx);
            new.rise_from(old.class());
            Reply::Replaced
        }
        State::Running => {
            let next = old.next.as_ref();
            // It includes the run that signals have requested.
            let signal_ms = new.take_signal();
            let next_ms = next.map(|next| next.due_ms);
            let due_ms =
                (due_ms.or([next_ms, signal_ms].into_iter().flatten().min())).unwrap_or(old.due_ms);
            if next.is_some_and(|next| next.by_creator && next.due_ms == due_ms)
                && (data.is_none() || same)
                && new == *old
            {
                return Ok(Step::nothing(Reply::Unchanged));
            }
            let kept = next.and_then(|next| next.data.clone());
            let data = data.filter(|_| !cx.planted.is(Bug::ReAddDropsData));
            new.next = Some(Next {
                due_ms,
                data: data.map(|data| new.blob(data)).or(kept),
                by_creator: true,
            });
            new.remember(op);
            return Ok(Step {
                interrupt: Some(Interrupt::Again),
                ..Step::put(new, Reply::Deferred)
            });
        }
        State::Finished | State::Dead => {
            if !cx.planted.is(Bug::RetryKeepsFailures) {
                new.stalls = 0;
            }
            new.be_pending(due_ms.unwrap_or(old.due_ms), cx);
            Reply::Revived
        }
    };
    if let Some(data) = data.filter(|_| !same) {
        new.data = new.blob(data);
    } else if cx.planted.is(Bug::ResubmitLosesData) && !same {
        new.data = new.blob(Bytes::new());
    }
    new.remember(op);
    Ok(Step::tell(new, reply))
}

/// A new job.
pub(super) fn created(
    op: u64,
    due_ms: Option<i64>,
    data: Option<Bytes>,
    create: Create,
    cx: &Context,
) -> Header {
    let mut new = Header {
        place: Place::Timed,
        due_ms: i64::MIN,
        created_ms: cx.now_ms,
        born: op,
        attempts: 0,
        stalls: 0,
        retention_ms: create.retention_ms,
        slots: 0,
        data: Blob::new(0, Bytes::new()),
        next: None,
        last: None,
        ops: vec![op],
        watchers: Vec::new(),
        lane: create.lane,
        rare: None,
    };
    new.belong_to(&create);
    new.limit_by(create.key, create.pool, cx);
    new.data = new.blob(data.unwrap_or_default());
    new.be_pending(due_ms.unwrap_or(0), cx);
    new
}
