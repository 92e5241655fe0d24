//! Calls: a step of a script as a request to the queue at that moment, and the answer.

use store::Transaction;

use super::script::{Act, At, HOLDERS, IDS, Kept, Request, TYPES};
use crate::testing::rules::{self, Ask, Ended, Token, data_of, token_of};
use crate::{
    Accepted, Add, Added, Claim, Error, Finish, Held, Holder, Job, JobId, JobType, Jobs, Op,
    Result, Retention, Signal, Tenant,
};

/// The names that a script's numbers refer to.
pub(super) struct Names {
    pub(super) types: [JobType; TYPES],
    pub(super) ids: [JobId; IDS],
    pub(super) holders: [Holder; HOLDERS],
}

/// A run whose holder may have lost the job.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) at: At,
    pub(super) job: Job,
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Add {
        ty: usize,
        asks: Vec<Asked>,
    },
    Resubmit {
        at: At,
        due_ms: Option<i64>,
        data: Option<Token>,
    },
    Signal {
        ty: usize,
        asks: Vec<Asked>,
        create: bool,
    },
    Retry(At),
    Remove(At),
    Accept(Wanted),
    Update(Run, Option<Token>),
    RunAgain(Run, i64, Option<Token>),
    Finish(Vec<(Run, Ended)>),
}

#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) id: usize,
    pub(super) due_ms: i64,
    pub(super) data: Token,
    pub(super) kept: Kept,
}

#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) ty: usize,
    pub(super) holder: usize,
    pub(super) count: usize,
    pub(super) horizon_ms: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    Added(Vec<Added>),
    Retried(bool),
    Removed,
    Claimed(Vec<(At, Accepted, Token)>, Option<i64>),
    Held(Held),
    Ended(Vec<std::result::Result<Held, Refusal>>),
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Refusal {
    Halt,
    NotFound,
    NoType,
    Other(String),
}

/// The circumstances of a call.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each may be so without the others"
)]
#[derive(Clone, Copy, Default)]
pub(super) struct Circumstances {
    /// An earlier try was committed, but its answer was lost.
    pub(super) again: bool,
    /// The answer of an earlier try was lost.
    pub(super) unsure: bool,
    /// It was one of several calls in a transaction.
    pub(super) together: bool,
    /// Other calls ran concurrently, so it may have missed changes.
    pub(super) racing: bool,
}

/// Values drawn before a transaction for one call in it.
pub(super) struct Drawn {
    op: Op,
    claim: Option<Claim>,
}

impl Call {
    /// The call for an act now; `None` if it refers to a run and there is none yet.
    pub(super) fn of(act: &Act, now_ms: i64, runs: &[Run]) -> Option<Self> {
        let run = |number: usize| newest(runs, number).cloned();
        Some(match act {
            Act::Add { ty, requests } => Self::Add {
                ty: *ty,
                asks: Asked::all(requests, now_ms),
            },
            Act::Signal {
                ty,
                requests,
                create,
            } => Self::Signal {
                ty: *ty,
                asks: Asked::all(requests, now_ms),
                create: *create,
            },
            Act::Resubmit { at, due, data } => Self::Resubmit {
                at: *at,
                due_ms: due.map(|due| due.ms(now_ms)),
                data: *data,
            },
            Act::Retry(at) => Self::Retry(*at),
            Act::Remove(at) => Self::Remove(*at),
            Act::Accept {
                ty,
                holder,
                count,
                horizon,
            } => Self::Accept(Wanted {
                ty: *ty,
                holder: *holder,
                count: *count,
                horizon_ms: now_ms + horizon.unwrap_or(0),
            }),
            Act::Update(number, data) => Self::Update(run(*number)?, *data),
            Act::RunAgain(number, when, data) => {
                Self::RunAgain(run(*number)?, when.ms(now_ms), *data)
            }
            Act::Finish(ends) => {
                let ends = ends.iter().map(|(number, end)| {
                    let ended = Ended {
                        failed: end.failed,
                        dead: end.dead,
                        again_ms: end.again.map(|when| when.ms(now_ms)),
                        data: end.data,
                        unused: end.unused,
                    };
                    Some((run(*number)?, ended))
                });
                Self::Finish(ends.collect::<Option<_>>()?)
            }
        })
    }

    /// The name of the transaction.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Add { .. } => "add",
            Self::Resubmit { .. } => "resubmit",
            Self::Signal { .. } => "signal",
            Self::Retry(_) => "retry",
            Self::Remove(_) => "remove",
            Self::Accept(_) => "accept",
            Self::Update(..) => "update",
            Self::RunAgain(..) => "run_again",
            Self::Finish(_) => "finish",
        }
    }
}

impl Asked {
    /// The same in the words of the rules.
    pub(super) fn wanted(&self, of_type_ms: Option<u64>) -> Ask {
        let kept_ms = match self.kept {
            Kept::AsType => of_type_ms,
            Kept::Forever => None,
            Kept::Ms(ms) => Some(ms),
        };
        Ask {
            create: Some(rules::Kept(kept_ms)),
            due_ms: Some(self.due_ms),
            data: Some(self.data),
        }
    }

    fn all(requests: &[Request], now_ms: i64) -> Vec<Self> {
        let asks = requests.iter().map(|request| Self {
            id: request.id,
            due_ms: request.due.ms(now_ms),
            data: request.data,
            kept: request.kept,
        });
        asks.collect()
    }
}

/// The run that was started `number` runs before the newest.
pub(super) fn newest(runs: &[Run], number: usize) -> Option<&Run> {
    let number = number.checked_rem(runs.len())?;
    runs.get(runs.len() - 1 - number)
}

impl Names {
    pub(super) fn drawn(&self, jobs: &Jobs, act: &Act, now_ms: i64) -> Drawn {
        let claim = match act {
            Act::Accept {
                ty,
                holder,
                count,
                horizon,
            } => {
                let (ty, holder) = (&self.types[*ty], &self.holders[*holder]);
                Some(match horizon {
                    Some(ms) => jobs.claim_by(ty, holder, *count, now_ms + ms),
                    None => jobs.claim(ty, holder, *count),
                })
            }
            _ => None,
        };
        Drawn {
            op: jobs.op(),
            claim,
        }
    }

    fn adds(&self, asks: &[Asked]) -> Vec<Add> {
        let adds = asks.iter().map(|ask| {
            let kept = match ask.kept {
                Kept::AsType => Retention::OfType,
                Kept::Forever => Retention::Forever,
                Kept::Ms(ms) => Retention::Ms(ms),
            };
            let mut add = Add::new(self.ids[ask.id].clone(), data_of(ask.data))
                .due_ms(ask.due_ms)
                .retention(kept);
            // The first has none.
            add.tenant = Tenant::new(vec![b'a'; ask.id]).ok();
            add
        });
        adds.collect()
    }

    fn signals(&self, asks: &[Asked], create: bool) -> Vec<Signal> {
        let adds = self.adds(asks).into_iter();
        adds.map(|add| Signal {
            create,
            ..add.into()
        })
        .collect()
    }

    /// Makes the call in its own transaction.
    pub(super) async fn call(&self, jobs: &Jobs, call: &Call, drawn: &Drawn) -> Result<Reply> {
        Ok(match call {
            Call::Add { ty, asks } => {
                let (ty, mut adds) = (&self.types[*ty], self.adds(asks));
                Reply::Added(if adds.len() == 1 {
                    vec![jobs.add(ty, adds.remove(0)).await?]
                } else {
                    jobs.add_many(ty, &adds).await?
                })
            }
            Call::Resubmit { at, due_ms, data } => {
                let (ty, id) = (&self.types[at.ty], &self.ids[at.id]);
                Reply::Added(vec![
                    jobs.resubmit(ty, id, *due_ms, data.map(data_of)).await?,
                ])
            }
            Call::Signal { ty, asks, create } => {
                let (ty, signals) = (&self.types[*ty], self.signals(asks, *create));
                Reply::Added(match &*signals {
                    [signal] => vec![jobs.signal(ty, signal.clone()).await?],
                    signals => jobs.signal_many(ty, signals).await?,
                })
            }
            Call::Retry(at) => {
                Reply::Retried(jobs.retry(&self.types[at.ty], &self.ids[at.id]).await?)
            }
            Call::Remove(at) => {
                (jobs.remove(&self.types[at.ty], &self.ids[at.id])).await?;
                Reply::Removed
            }
            Call::Accept(wanted) => {
                let claim = drawn.claim.as_ref().expect("a claim was drawn");
                let claimed = jobs.accept_claim(claim).await?;
                self.claimed(wanted.ty, claimed.jobs, claimed.next_due_ms)
            }
            Call::Update(run, data) => Reply::Held(jobs.update(&run.job, data.map(data_of)).await?),
            Call::RunAgain(run, due_ms, data) => {
                Reply::Held((jobs.run_again(&run.job, *due_ms, data.map(data_of))).await?)
            }
            Call::Finish(ends) => match &**ends {
                [(run, end)] => Reply::Ended(vec![Ok(jobs.finish(&run.job, end.finish()).await?)]),
                ends => {
                    let ends: Vec<_> = (ends.iter())
                        .map(|(run, end)| (run.job.clone(), end.finish()))
                        .collect();
                    ended(jobs.finish_many(&ends).await?)
                }
            },
        })
    }

    /// Makes the call in the caller's transaction. `own` is drawn once for all calls of holders in
    /// it, which count themselves there.
    pub(super) async fn call_in(
        &self,
        jobs: &Jobs,
        tx: &Transaction,
        call: &Call,
        drawn: &Drawn,
        own: &Op,
    ) -> Result<Reply> {
        Ok(match call {
            Call::Add { ty, asks } => {
                let (ty, adds) = (&self.types[*ty], self.adds(asks));
                Reply::Added(jobs.add_many_in(tx, &drawn.op, ty, &adds).await?)
            }
            Call::Resubmit { at, due_ms, data } => {
                let (ty, id, data) = (&self.types[at.ty], &self.ids[at.id], data.map(data_of));
                let added = jobs.resubmit_in(tx, &drawn.op, ty, id, *due_ms, data);
                Reply::Added(vec![added.await?])
            }
            Call::Signal { ty, asks, create } => {
                let (ty, signals) = (&self.types[*ty], self.signals(asks, *create));
                Reply::Added((jobs.signal_many_in(tx, &drawn.op, ty, &signals)).await?)
            }
            Call::Retry(at) => {
                let (ty, id) = (&self.types[at.ty], &self.ids[at.id]);
                Reply::Retried(jobs.retry_in(tx, &drawn.op, ty, id).await?)
            }
            Call::Remove(at) => {
                let (ty, id) = (&self.types[at.ty], &self.ids[at.id]);
                jobs.remove_in(tx, &drawn.op, ty, id).await?;
                Reply::Removed
            }
            Call::Accept(wanted) => {
                let claim = drawn.claim.as_ref().expect("a claim was drawn");
                let claimed = jobs.accept_in(tx, claim).await?;
                self.claimed(wanted.ty, claimed.jobs, claimed.next_due_ms)
            }
            Call::Update(run, data) => {
                Reply::Held((jobs.update_in(tx, own, &run.job, data.map(data_of))).await?)
            }
            Call::RunAgain(run, due_ms, data) => {
                let data = data.map(data_of);
                Reply::Held((jobs.run_again_in(tx, own, &run.job, *due_ms, data)).await?)
            }
            Call::Finish(ends) => match &**ends {
                [(run, end)] => {
                    Reply::Ended(vec![Ok(
                        (jobs.finish_in(tx, own, &run.job, end.finish())).await?
                    )])
                }
                ends => {
                    let ends: Vec<_> = (ends.iter())
                        .map(|(run, end)| (run.job.clone(), end.finish()))
                        .collect();
                    ended(jobs.finish_many_in(tx, own, &ends).await?)
                }
            },
        })
    }

    fn claimed(&self, ty: usize, jobs: Vec<Accepted>, next_due_ms: Option<i64>) -> Reply {
        let place = |accepted: Accepted| {
            let id = self.ids.iter().position(|id| *id == accepted.job.id);
            let id = id.expect("a job that the script knows");
            let data = token_of(&accepted.data).expect("data that the script has given");
            (At { ty, id }, accepted, data)
        };
        Reply::Claimed(jobs.into_iter().map(place).collect(), next_due_ms)
    }
}

impl Reply {
    /// The runs that the reply starts.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        let jobs = match self {
            Self::Claimed(jobs, _) => &**jobs,
            _ => &[],
        };
        jobs.iter().map(|(at, accepted, _)| Run {
            at: *at,
            job: accepted.job.clone(),
        })
    }

    /// The number of holders' calls that took effect, without repeated ones.
    pub(super) fn effects(&self) -> i64 {
        let done = |held: &Held| i64::from(!held.repeated);
        match self {
            Self::Held(held) => done(held),
            Self::Ended(answers) => answers.iter().flatten().map(done).sum(),
            _ => 0,
        }
    }
}

impl Reply {
    /// The same reply, ignoring whether the job runs again, or is dead.
    pub(super) fn ignoring_again(&self) -> Self {
        let once = |held: Held| Held {
            again: false,
            ..held
        };
        match self {
            Self::Held(held) => Self::Held(once(*held)),
            Self::Ended(answers) => {
                let answers = answers.iter().cloned().map(|answer| answer.map(once));
                Self::Ended(answers.collect())
            }
            Self::Added(added) => {
                let added = added.iter().map(|added| match added {
                    Added::Ignored => Added::Unchanged,
                    other => *other,
                });
                Self::Added(added.collect())
            }
            other => other.clone(),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::Halt => Self::Halt,
            Error::NotFound => Self::NotFound,
            Error::NoTypeTimeout(_) => Self::NoType,
            other => Self::Other(format!("{other:?}")),
        }
    }
}

impl Ended {
    fn finish(&self) -> Finish {
        Finish {
            data: self.data.map(data_of),
            again_ms: self.again_ms,
            failed: self.failed,
            dead: self.dead,
            unused: self.unused,
            ..Finish::default()
        }
    }
}

fn ended(answers: Vec<Result<Held>>) -> Reply {
    let answers = answers.into_iter().map(|held| held.map_err(Refusal::from));
    Reply::Ended(answers.collect())
}
