//! One pass over the changes feed: the loop of a run.

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::watchdog::Answer;
use super::{Driver, write_checkpoint};
use crate::checkpoint::Checkpointer;
use crate::engine::progress::Phase;
use crate::engine::reader::{Batch, Event, read};
use crate::engine::through::Ticket;
use crate::engine::work::process;
use crate::error::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// The feed was read to its end and everything is done.
    Done,
    Stopped,
    Paused,
    FilterChanged,
}

/// A finished batch.
struct Finished {
    ticket: Ticket,
    worth: Result<u64, Error>,
}

/// Background work next to the batches.
pub(super) enum Aside {
    Checkpointed(Box<Checkpointer>, Result<Map<String, Value>, Error>),
    Answered(Answer),
}

/// The next event of the loop.
enum Occurrence {
    Stop,
    Pause,
    Finished(Finished),
    Event(Option<Event>),
    ReadingEnded(Result<(), Error>),
    Aside(Aside),
    GraceEnded,
    CheckpointDue,
    WatchDue,
}

type Reading<'a> = BoxFuture<'a, Result<(), Error>>;

pub(super) struct Pass<'d, 'a> {
    driver: &'d mut Driver<'a>,
    reader: Option<Reading<'a>>,
    /// `None` after the end of the feed, or when no more changes should be read.
    events: Option<mpsc::Receiver<Event>>,
    works: FuturesUnordered<BoxFuture<'a, Finished>>,
    asides: FuturesUnordered<BoxFuture<'a, Aside>>,
    /// Why the pass ends before the feed does, and how long batches in progress may continue.
    ending: Option<(Passed, Instant)>,
    is_caught_up: bool,
    watch_at: Instant,
}

impl<'d, 'a> Pass<'d, 'a> {
    pub(super) fn new(driver: &'d mut Driver<'a>) -> Self {
        // One batch waits while the reader fills the next.
        let (out, events) = mpsc::channel(1);
        driver.through.give_up();
        let reader = read(driver.cx, driver.through.through().clone(), out);
        let watch_at = driver.next_watch();
        let pass = Self {
            reader: Some(Box::pin(reader)),
            events: Some(events),
            works: FuturesUnordered::new(),
            asides: FuturesUnordered::new(),
            ending: None,
            is_caught_up: false,
            watch_at,
            driver,
        };
        // A repeated run is mostly short.
        if pass.driver.resume.is_none() {
            pass.asides.push(pass.driver.ask_pending());
        }
        pass
    }

    pub(super) async fn run(mut self) -> Result<Passed, Error> {
        loop {
            if let Some(passed) = self.ended() {
                return Ok(passed);
            }
            match self.next().await {
                Occurrence::Stop => self.end(Passed::Stopped),
                Occurrence::Pause => self.end(Passed::Paused),
                Occurrence::GraceEnded => self.works.clear(),
                Occurrence::Finished(finished) => self.finished(finished)?,
                Occurrence::Event(None) => self.events = None,
                Occurrence::Event(Some(Event::Batch(batch))) => self.begin(batch),
                Occurrence::Event(Some(Event::CaughtUp)) => {
                    self.is_caught_up = true;
                    self.publish();
                }
                Occurrence::ReadingEnded(outcome) => {
                    self.reader = None;
                    outcome?;
                }
                Occurrence::Aside(Aside::Checkpointed(checkpointer, written)) => {
                    self.driver.checkpointed(checkpointer, written)?;
                }
                Occurrence::Aside(Aside::Answered(answer)) => self.answered(answer)?,
                Occurrence::CheckpointDue => self.checkpoint_due(),
                Occurrence::WatchDue => self.watch_due()?,
            }
        }
    }

    fn ended(&self) -> Option<Passed> {
        let is_writing = self.driver.checkpointer.is_none();
        let is_idle = self.works.is_empty() && !is_writing;
        match self.ending {
            Some((passed, _)) => is_idle.then_some(passed),
            None => {
                (is_idle && self.reader.is_none() && self.events.is_none()).then_some(Passed::Done)
            }
        }
    }

    async fn next(&mut self) -> Occurrence {
        let Self {
            driver,
            reader,
            events,
            works,
            asides,
            ending,
            ..
        } = self;
        let is_going_on = ending.is_none();
        let takes = is_going_on && driver.concurrency.admits(works.len());
        let grace = ending.map(|(_, until)| until);
        let handles = &mut driver.handles;
        let paused = &mut handles.paused;
        let pause = async {
            if paused.wait_for(|paused| *paused).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = handles.stop.cancelled(), if is_going_on => Occurrence::Stop,
            () = pause, if is_going_on => Occurrence::Pause,
            Some(finished) = works.next(), if !works.is_empty() => Occurrence::Finished(finished),
            event = receive(events), if takes && events.is_some() => Occurrence::Event(event),
            outcome = go_on(reader), if reader.is_some() => Occurrence::ReadingEnded(outcome),
            Some(aside) = asides.next(), if !asides.is_empty() => Occurrence::Aside(aside),
            () = until(grace), if grace.is_some() && !works.is_empty() => Occurrence::GraceEnded,
            () = sleep_until(driver.checkpoint_at), if is_going_on => Occurrence::CheckpointDue,
            () = sleep_until(self.watch_at), if is_going_on => Occurrence::WatchDue,
        }
    }

    /// Stops reading.
    fn end(&mut self, passed: Passed) {
        self.ending = Some((passed, Instant::now() + self.driver.run.settings.stop_grace));
        self.reader = None;
        self.events = None;
    }

    fn begin(&mut self, batch: Batch) {
        let driver = &mut *self.driver;
        driver.changes_read += batch.changes.len() as u64;
        let ticket = driver.through.begin(batch.end.clone());
        if batch.changes.is_empty() {
            driver.through.finish(ticket);
            return self.publish();
        }
        let cx = driver.cx;
        self.works.push(Box::pin(async move {
            Finished {
                ticket,
                worth: process(cx, batch).await,
            }
        }));
        // Progress watchers must see that there is work again.
        if driver.handles.progress.borrow().phase == Phase::CaughtUp {
            self.publish();
        }
    }

    fn finished(&mut self, finished: Finished) -> Result<(), Error> {
        let worth = finished.worth?;
        self.driver.through.finish(finished.ticket);
        self.driver.concurrency.finished(worth, Instant::now());
        self.publish();
        Ok(())
    }

    fn publish(&mut self) {
        let is_idle = self.is_caught_up && self.works.is_empty();
        self.driver.publish(if is_idle {
            Phase::CaughtUp
        } else {
            Phase::CatchingUp
        });
    }

    fn checkpoint_due(&mut self) {
        let driver = &mut *self.driver;
        driver.checkpoint_at = Instant::now() + driver.checkpoint_interval();
        if let Some(question) = driver.ask_filter() {
            self.asides.push(question);
        }
        if !self.is_caught_up {
            self.asides.push(driver.ask_pending());
        }
        if driver.is_dirty()
            && let Some(checkpointer) = driver.checkpointer.take()
        {
            let (gate, through) = (
                driver.handles.gate.clone(),
                driver.through.through().clone(),
            );
            let stats = driver.cx.stats();
            self.asides.push(Box::pin(async move {
                let (checkpointer, written) =
                    write_checkpoint(checkpointer, &gate, through, stats).await;
                Aside::Checkpointed(checkpointer, written)
            }));
        }
    }

    fn watch_due(&mut self) -> Result<(), Error> {
        self.watch_at = self.driver.next_watch();
        let is_idle = self.is_caught_up && self.works.is_empty();
        if let Some(question) = self.driver.watch(is_idle)? {
            self.asides.push(question);
        }
        Ok(())
    }

    fn answered(&mut self, answer: Answer) -> Result<(), Error> {
        if self.driver.take_answer(answer)? {
            self.end(Passed::FilterChanged);
        }
        self.publish();
        Ok(())
    }
}

async fn receive(events: &mut Option<mpsc::Receiver<Event>>) -> Option<Event> {
    match events {
        Some(events) => events.recv().await,
        None => None,
    }
}

async fn go_on(reader: &mut Option<Reading<'_>>) -> Result<(), Error> {
    match reader {
        Some(reader) => reader.await,
        None => std::future::pending().await,
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
