//! A second process on the same store, which does what it is told, line by line.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use store::Store;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::latency::start_all;
use super::{failed, holder};
use jobs::{Acceptor, Clock, Entropy, Error, JobType, Jobs, Query, Result, State};

const PAGE: usize = 100;
/// How often each page is read.
const READS: usize = 21;

/// The second process, seen from the first.
pub(super) struct Second {
    process: Child,
    orders: ChildStdin,
    output: Option<Lines<BufReader<ChildStdout>>>,
}

fn fail(error: std::io::Error) -> Error {
    failed("the second process", error)
}

fn ended() -> Error {
    Error::Store(store::Error::Unavailable {
        message: "the second process has exited".into(),
        source: None,
    })
}

impl Second {
    /// Starts it, and waits until it has opened the store.
    pub(super) async fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(fail)?;
        let (Some(orders), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(ended());
        };
        let mut second = Self {
            process,
            orders,
            output: Some(BufReader::new(output).lines()),
        };
        second.line().await?;
        Ok(second)
    }

    pub(super) fn order(&mut self, order: &str) -> Result<()> {
        writeln!(self.orders, "{order}").map_err(fail)
    }

    /// Waits for a line; returns its time.
    pub(super) async fn line(&mut self) -> Result<(Instant, String)> {
        let mut output = self.output.take().ok_or_else(ended)?;
        let read = tokio::task::spawn_blocking(move || {
            let line = output.next();
            (Instant::now(), line, output)
        });
        let (at, line, output) = read
            .await
            .map_err(|error| failed("the second process", error))?;
        self.output = Some(output);
        match line {
            Some(line) => Ok((at, line.map_err(fail)?)),
            None => Err(ended()),
        }
    }

    pub(super) async fn stop(self) -> Result<()> {
        let Self {
            mut process,
            orders,
            ..
        } = self;
        // It exits at the end of its input.
        drop(orders);
        let stopped = tokio::task::spawn_blocking(move || process.wait());
        let stopped = stopped.await;
        stopped
            .map_err(|error| failed("the second process", error))?
            .map_err(fail)?;
        Ok(())
    }
}

/// The second process: opens the store, prints a line, and follows orders until there are no more.
pub(crate) async fn second(
    url: &str,
    orders: impl AsyncBufRead + Unpin,
    say: impl Fn(&str) -> std::io::Result<()>,
) -> Result<()> {
    let store = Store::open(url).await?;
    let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
    // A process that starts reads the types first.
    jobs.types().await?;
    say("ready").map_err(fail)?;
    let mut orders = orders.lines();
    while let Some(order) = orders.next_line().await.map_err(fail)? {
        match order.split_once(' ') {
            Some(("work", ty)) => {
                let ty = JobType::new(ty)?;
                let (service, handle) = Acceptor::new(jobs.clone(), ty, holder()?);
                let stop = CancellationToken::new();
                let _stopped = stop.clone().drop_guard();
                let work = start_all(&jobs, &handle, |id| say(id).map_err(fail));
                say("working").map_err(fail)?;
                tokio::select! {
                    () = service.run(stop) => return Ok(()),
                    ended = work => return ended,
                    end = orders.next_line() => return end.map(|_| ()).map_err(fail),
                }
            }
            Some(("list", ty)) => say(&pages(&jobs, &JobType::new(ty)?).await?).map_err(fail)?,
            _ => return Err(Error::Invalid("the second process got an unknown order")),
        }
    }
    Ok(())
}

/// The time to read the first page of each state: the median of several, in microseconds, and the number of jobs on
/// them.
async fn pages(jobs: &Jobs, ty: &JobType) -> Result<String> {
    let mut line = Vec::new();
    for state in [State::Pending, State::Running, State::Finished] {
        let query = Query {
            state: Some(state),
            ..Query::default()
        };
        let (mut times, mut listed) = (Vec::new(), 0);
        for _ in 0..READS {
            let begun = Instant::now();
            listed = jobs.list(ty, &query, None, PAGE).await?.jobs.len();
            times.push(begun.elapsed().as_micros());
        }
        times.sort_unstable();
        line.push(format!("{} {listed}", times[READS / 2]));
    }
    Ok(line.join(" "))
}
