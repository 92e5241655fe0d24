//! Ends the runs that workers have finished, many in one transaction.

use store::Durable;

use super::Acceptor;
use super::handle::Ended;
use crate::{Error, Finish, Held, Job, Result};

/// Maximum runs that one transaction ends.
const ENDED_MAX: usize = 250;
/// Bytes of data that one transaction ends runs with.
const ENDED_BYTES_MAX: usize = 1_000_000;

impl Acceptor {
    pub(super) fn take_ended(&mut self) -> Vec<Ended> {
        let mut bytes = 0;
        let fits = |ended: &&Ended| {
            bytes += ended.finish.data.as_ref().map_or(0, bytes::Bytes::len);
            bytes <= ENDED_BYTES_MAX
        };
        let count = self.ended.iter().take(ENDED_MAX).take_while(fits).count();
        self.ended.drain(..count).collect()
    }

    /// Ends runs, without a claim.
    pub(super) async fn end_runs(&mut self) {
        while !self.ended.is_empty() {
            let ended = self.take_ended();
            match self.jobs.finish_many(&finishes(&ended)).await {
                Ok(answers) => answer(ended, answers),
                Err(error) => self.end_separately(ended, &error).await,
            }
        }
    }

    /// The shared transaction failed: ends each run in its own, so that one bad request does not fail the others. If
    /// the store is unreachable, all callers get that error.
    pub(super) async fn end_separately(&self, ended: Vec<Ended>, error: &Error) {
        for run in ended {
            let answer = if error.is_retryable() {
                Err(error.clone())
            } else {
                self.jobs.finish(&run.job, run.finish).await
            };
            // The caller may be gone.
            let _ = run.reply.send(answer);
        }
    }
}

pub(super) fn finishes(ended: &[Ended]) -> Vec<(Job, Finish)> {
    let finish = |run: &Ended| (run.job.clone(), run.finish.clone());
    ended.iter().map(finish).collect()
}

/// Answers when the ends are durable. Meanwhile the acceptor goes on.
pub(super) fn answer_once(durable: Durable, ended: Vec<Ended>, answers: Vec<Result<Held>>) {
    if durable.is_now() || ended.is_empty() {
        answer(ended, answers);
        return;
    }
    tokio::spawn(async move {
        let answers = match durable.wait().await {
            Ok(()) => answers,
            Err(error) => vec![Err(error.into()); ended.len()],
        };
        answer(ended, answers);
    });
}

fn answer(ended: Vec<Ended>, answers: Vec<Result<Held>>) {
    for (run, answer) in ended.into_iter().zip(answers) {
        // The caller may be gone.
        let _ = run.reply.send(answer);
    }
}
