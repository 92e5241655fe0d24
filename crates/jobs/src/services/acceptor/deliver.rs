//! From claimed jobs to the workers that wait for them.

use std::collections::VecDeque;

use super::Acceptor;
use super::handle::{Delivery, Wanted};
use crate::operations::work::CLAIM_JOBS_MAX;
use crate::{Accepted, Finish, Holder, Job, telemetry};

impl Acceptor {
    /// Those that wait first, as many as one claim may serve, and how many jobs they want.
    pub(super) fn holders(&self) -> Vec<(Holder, usize)> {
        let mut before = 0;
        let first = self.waiting.iter().take_while(|wanted| {
            let serves = before < CLAIM_JOBS_MAX;
            before += wanted.count;
            serves
        });
        first
            .map(|wanted| {
                let holder = wanted.holder.as_ref().unwrap_or(&self.holder);
                (holder.clone(), wanted.count)
            })
            .collect()
    }

    /// Nothing is due: answers workers that do not wait.
    pub(super) fn answer_polls(&mut self) {
        let (polls, others): (VecDeque<Wanted>, _) =
            self.waiting.drain(..).partition(Wanted::is_poll);
        self.waiting = others;
        for poll in polls {
            let delivery = Delivery {
                jobs: Vec::new(),
                returns: self.returns.clone(),
            };
            // The caller may be gone.
            let _ = poll.reply.send(delivery);
        }
    }

    /// Hands jobs to waiting workers, first come, first served.
    pub(super) async fn deliver(&mut self, jobs: Vec<Accepted>) {
        let ready = jobs.iter().map(|job| job.ready_ms);
        telemetry::accepted(&self.ty, ready, self.jobs.clock().now_ms());
        let (mut jobs, mut others) = (jobs, Vec::new());
        while !jobs.is_empty() {
            let Some(request) = self.waiting.pop_front() else {
                self.give_back(jobs).await;
                break;
            };
            if request.reply.is_closed() {
                continue;
            }
            let holder = request.holder.as_ref().unwrap_or(&self.holder);
            let of_this = jobs.extract_if(.., |accepted| accepted.holder == *holder);
            let delivered: Vec<_> = of_this.take(request.count).collect();
            if delivered.is_empty() {
                others.push(request);
                continue;
            }
            let delivery = Delivery {
                jobs: delivered,
                returns: self.returns.clone(),
            };
            // If the worker has just stopped waiting, dropping the delivery returns the jobs.
            let _ = request.reply.send(delivery);
        }
        for request in others.into_iter().rev() {
            self.waiting.push_front(request);
        }
    }

    /// Makes jobs pending again that no worker waits for.
    pub(super) async fn give_back(&self, jobs: Vec<Accepted>) {
        let finishes: Vec<(Job, Finish)> = (jobs.into_iter())
            .map(|accepted| (accepted.job, Finish::returned(accepted.due_ms)))
            .collect();
        if let Err(error) = self.jobs.finish_many(&finishes).await {
            tracing::warn!(job.ty = %self.ty, error = %error.chain(), "cannot put jobs back");
        }
    }
}
