//! Golden scripts: what each operation writes, row by row. `UPDATE_GOLDENFILES=1` rewrites the
//! expected output; review the difference before you keep it.
//!
//! A script is a list of commands, each followed by its answer and by the rows it added (`+`),
//! changed (`~`) and removed (`-`). The clock stands still until `time` moves it.

mod fixture;
mod show;

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use goldenscript::{Command, Context};
use store::{KeyRange, RangeOptions, Store};
use tokio::runtime::Runtime;

use crate::model::machine::Event;
use crate::{
    Add, Clock, Entropy, Error, Finish, Held, Holder, Job, JobId, JobType, Jobs, Result, Retention,
    Sharing, Signal, StallPolicy, Tenant, TypeConfig, Verdict,
};

type Answer<T> = std::result::Result<T, Box<dyn StdError>>;

/// An in-memory queue, and its running jobs.
struct Script {
    runtime: Runtime,
    jobs: Jobs,
    /// The last run of each job.
    held: BTreeMap<String, Job>,
    rows: BTreeMap<Bytes, Bytes>,
}

impl Script {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let jobs = runtime.block_on(async {
            let store = Store::open("memory:").await.unwrap();
            Jobs::new(store, Clock::simulated(1_000), Entropy::seeded(1))
        });
        let mut script = Self {
            runtime,
            jobs,
            held: BTreeMap::new(),
            rows: BTreeMap::new(),
        };
        script.rows = script.read();
        script
    }

    fn read(&self) -> BTreeMap<Bytes, Bytes> {
        let read = self.jobs.store().transact("read", |tx| async move {
            let rows = tx
                .snapshot()
                .get_range(KeyRange::all(), RangeOptions::default());
            rows.collect().await
        });
        let rows = self.runtime.block_on(read).unwrap();
        rows.into_iter().map(|row| (row.key, row.value)).collect()
    }

    /// The changes of rows since the last call.
    fn changes(&mut self) -> String {
        let now = self.read();
        let before = std::mem::replace(&mut self.rows, now);
        let mut keys: Vec<_> = before.keys().chain(self.rows.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut text = String::new();
        for key in keys {
            let shown = match (before.get(key), self.rows.get(key)) {
                (None, Some(new)) => format!("+ {}", show::row(key, new)),
                (Some(old), Some(new)) if old != new => format!("~ {}", show::row(key, new)),
                (Some(_), None) => format!("- {}", show::key(key)),
                _ => continue,
            };
            let _ = writeln!(text, "{shown}");
        }
        text
    }

    fn job(&self, id: &str) -> Answer<&Job> {
        self.held.get(id).ok_or_else(|| "it has no holder".into())
    }

    fn held(&self, answer: impl Future<Output = Result<Held>>) -> Answer<String> {
        let held = self.runtime.block_on(answer)?;
        Ok(format!(
            "again={}{}",
            held.again,
            if held.repeated { " repeated" } else { "" }
        ))
    }

    fn accept(&mut self, holder: &str, count: usize) -> Answer<String> {
        let ty = mail();
        let claimed =
            (self.runtime).block_on(self.jobs.accept(&ty, &Holder::new(holder)?, count))?;
        if claimed.jobs.is_empty() {
            return Ok(format!("nothing; next due {:?}", claimed.next_due_ms));
        }
        let mut text = Vec::new();
        for accepted in claimed.jobs {
            let id = accepted.job.id.to_string();
            text.push(format!(
                "{id}: run {}, data {:?}{}",
                accepted.job.attempt,
                show::data(&accepted.data),
                (accepted.asked_ms).map_or(String::new(), |ms| format!(", asked at {ms}")),
            ));
            self.held.insert(id, accepted.job);
        }
        text.sort_unstable();
        Ok(text.join("\n"))
    }

    /// Applies an event of the monitor, the sweeper or a notifier.
    fn step(&self, id: &str, event: &Event) -> Answer<String> {
        let (ty, id, op) = (&mail(), &JobId::try_from(id)?, self.jobs.op());
        let stepped = self.jobs.store().transact("step", |tx| {
            let event = event.clone();
            async move {
                let mut header = self.jobs.header(&tx, ty, id).await?;
                let mut effects = self.jobs.effects(&tx, op.now_ms).await?;
                let reply = effects.run(ty, id, &mut header, event)?;
                effects.flush(&op).await?;
                Ok::<_, Error>(format!("{reply:?}"))
            }
        });
        Ok(self.runtime.block_on(stepped)?)
    }

    fn ask(&mut self, command: &Command) -> Answer<String> {
        let mut args = command.consume_args();
        let mut pos = || args.next_pos().ok_or("one more argument is needed");
        let answer = match &*command.name {
            "add" => {
                let id = JobId::try_from(pos()?)?;
                let data = show::read_data(args.take_key("data").unwrap_or_default());
                let mut add = Add::new(id, data);
                if let Some(due) = args.take_key("due") {
                    add = add.due_ms(due.parse()?);
                }
                if let Some(tenant) = args.take_key("tenant") {
                    add = add.tenant(tenant.try_into()?);
                }
                if let Some(kept) = args.take_key("kept") {
                    add = add.retention(Retention::Ms(kept.parse()?));
                }
                let added = self.runtime.block_on(self.jobs.add(&mail(), add))?;
                format!("{added:?}")
            }
            "signal" => {
                let id = JobId::try_from(pos()?)?;
                let data = args.take_key("data").map(show::read_data);
                let signal = match data {
                    Some(data) => Add::new(id, data).into(),
                    None => Signal::new(id),
                };
                let signal = signal.due_ms(args.take_key("due").unwrap_or("0").parse()?);
                let added = self.runtime.block_on(self.jobs.signal(&mail(), signal))?;
                format!("{added:?}")
            }
            "resubmit" => {
                let id = JobId::try_from(pos()?)?;
                let due = args.take_key("due").map(str::parse).transpose()?;
                let data = args.take_key("data").map(show::read_data);
                let asked = (self.runtime).block_on(self.jobs.resubmit(&mail(), &id, due, data));
                format!("{:?}", asked?)
            }
            "retry" => {
                let id = JobId::try_from(pos()?)?;
                let retried = self.runtime.block_on(self.jobs.retry(&mail(), &id))?;
                format!("retried={retried}")
            }
            "retry_all" => {
                let all = self
                    .runtime
                    .block_on(self.jobs.retry_all(&mail(), |_| true));
                format!("{} jobs", all?)
            }
            "remove" => {
                let id = JobId::try_from(pos()?)?;
                self.runtime.block_on(self.jobs.remove(&mail(), &id))?;
                "removed".to_owned()
            }
            _ => return self.hold(command),
        };
        args.reject_next()?;
        Ok(answer)
    }

    /// Commands of holders.
    fn hold(&mut self, command: &Command) -> Answer<String> {
        let mut args = command.consume_args();
        let mut pos = || args.next_pos().ok_or("one more argument is needed");
        let answer = match &*command.name {
            "accept" => {
                let (holder, count) = (pos()?, args.take_key("count").unwrap_or("1"));
                self.accept(holder, count.parse()?)?
            }
            "update" => {
                let job = self.job(pos()?)?;
                let data = args.take_key("data").map(show::read_data);
                self.held(self.jobs.update(job, data))?
            }
            "run_again" => {
                let job = self.job(pos()?)?;
                let due = args.take_key("due").unwrap_or("0").parse()?;
                let data = args.take_key("data").map(show::read_data);
                self.held(self.jobs.run_again(job, due, data))?
            }
            "finish" => {
                let job = self.job(pos()?)?;
                let finish = Finish {
                    data: args.take_key("data").map(show::read_data),
                    again_ms: args.take_key("again").map(str::parse).transpose()?,
                    failed: args.take_key("failed").is_some(),
                    dead: args.take_key("dead").is_some(),
                    reason: args.take_key("reason").map(str::to_owned),
                    limits: None,
                    unused: args.take_key("unused").is_some(),
                };
                self.held(self.jobs.finish(job, finish))?
            }
            _ => return self.serve(command),
        };
        args.reject_next()?;
        Ok(answer)
    }

    /// Commands other than those of creators and holders.
    fn serve(&mut self, command: &Command) -> Answer<String> {
        let mut args = command.consume_args();
        let mut pos = || args.next_pos().ok_or("one more argument is needed");
        let answer = match &*command.name {
            "stall" => {
                let id = pos()?;
                let policy = policy(args.take_key("stalls_max"), args.take_key("backoff"))?;
                let verdict = Verdict::Policy;
                self.step(id, &Event::Stall { verdict, policy })?
            }
            "expire" => self.step(pos()?, &Event::Expire)?,
            "watch" => {
                let (id, nonce) = (pos()?, pos()?.parse()?);
                self.step(id, &Event::Watch { nonce })?
            }
            "sleep" => {
                let bell = pos()?.parse()?;
                let (jobs, ty) = (&self.jobs, &mail());
                self.runtime
                    .block_on(jobs.store().transact("sleep", |tx| async move {
                        jobs.add_sleeper_in(&tx, ty, bell, 1);
                        Ok::<_, Error>(())
                    }))?;
                "asleep".to_owned()
            }
            "time" => {
                let ms = pos()?.parse()?;
                let advance = tokio::time::advance(Duration::from_millis(ms));
                self.runtime.block_on(advance);
                format!("{} ms", self.jobs.clock().now_ms())
            }
            "type" => {
                let mut config = TypeConfig::new(args.take_key("timeout").unwrap_or("0").parse()?);
                config.retention_ms = args.take_key("retention").map(str::parse).transpose()?;
                config.stalls = policy(args.take_key("stalls_max"), args.take_key("backoff"))?;
                if args.take_key("shares").is_some() {
                    config.sharing = Sharing::On;
                }
                (self.runtime).block_on(self.jobs.set_type(&mail(), config))?;
                "registered".to_owned()
            }
            "no_type" => {
                self.runtime.block_on(self.jobs.clear_type(&mail()))?;
                "cleared".to_owned()
            }
            "shares" => {
                let (tenant, shares) = (Tenant::try_from(pos()?)?, pos()?.parse()?);
                let (ty, tenant) = (mail(), Some(&tenant));
                let set = (self.jobs).set_shares(&ty, tenant, Some(shares));
                self.runtime.block_on(set)?;
                "set".to_owned()
            }
            "check" => {
                let check = self.runtime.block_on(self.jobs.check(&mail()))?;
                format!("{} jobs, {} problems", check.jobs, check.problems.len())
            }
            "rows" => {
                let rows = self.rows.iter().map(|(key, value)| show::row(key, value));
                rows.collect::<Vec<_>>().join("\n")
            }
            other => return Err(format!("no command {other}").into()),
        };
        args.reject_next()?;
        Ok(answer)
    }
}

impl goldenscript::Runner for Script {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Answer<String> {
        // Every reading of the clock uses the paused one.
        let runtime = self.runtime.handle().clone();
        let _entered = runtime.enter();
        let answer = match self.ask(command) {
            Ok(answer) => answer,
            Err(error) => match error.downcast::<Error>() {
                Ok(error) => format!("error: {error}"),
                Err(error) => return Err(error),
            },
        };
        Ok(format!("{answer}\n{}", self.changes()))
    }
}

fn mail() -> JobType {
    JobType::new("mail").unwrap()
}

fn policy(stalls_max: Option<&str>, backoff: Option<&str>) -> Answer<StallPolicy> {
    let backoff_ms = backoff.unwrap_or("0").parse()?;
    Ok(StallPolicy {
        stalls_max: stalls_max.map(str::parse).transpose()?,
        backoff_ms,
        backoff_ms_max: backoff_ms.saturating_mul(8),
        healthy_ms: 0,
    })
}

#[test]
fn scripts() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut scripts: Vec<_> = (std::fs::read_dir(directory).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    scripts.sort_unstable();
    assert!(!scripts.is_empty(), "no scripts in {directory}");
    for script in scripts {
        goldenscript::run(&mut Script::new(), &script)
            .unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    }
}
