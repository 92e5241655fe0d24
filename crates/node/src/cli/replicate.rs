//! `davenport replicate`: one replication in the foreground, without a service.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use document::json::Json;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use replication::engine::{self, Control, Ending, Gate, Handles, Phase, Progress, Report};
use replication::{Error, Stats};
use serde_json::{Map, Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::{Unusable, one, output};

/// Part of the checkpoint ids of runs from the command line, so that the next run resumes where the last one ended.
const UUID: &str = "0000000000000000davenport000cli0";

/// Fields of a replication document that no flag sets.
const FIELDS: [&str; 24] = [
    "checkpoint_interval",
    "checkpoints",
    "connection_timeout",
    "create_target_params",
    "doc_ids",
    "filter",
    "filter_where",
    "http_connections",
    "on_write_failure",
    "proxy",
    "query_params",
    "retries_per_request",
    "selector",
    "since_seq",
    "skip_deleted",
    "skip_design_docs",
    "socket_options",
    "source_proxy",
    "target_proxy",
    "use_bulk_get",
    "use_checkpoints",
    "winning_revs_only",
    "worker_batch_size",
    "worker_processes",
];

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// URL of the source database
    source: String,
    /// URL of the target database
    target: String,
    /// Keep replicating until Ctrl-C
    #[arg(long)]
    continuous: bool,
    /// Create the target database
    #[arg(long)]
    create_target: bool,
    #[arg(
        long,
        value_name = "DDOC/NAME",
        help = "Replicate only documents that pass this filter function at the source"
    )]
    filter: Option<String>,
    /// Replicate only these documents, separated by commas
    #[arg(long, value_name = "ID,ID…", value_delimiter = ',')]
    doc_ids: Option<Vec<String>>,
    /// Replicate only documents that match this Mango selector
    #[arg(long, value_name = "JSON")]
    selector: Option<String>,
    #[arg(
        long = "option",
        value_name = "FIELD=JSON",
        help = "Set any other field of a replication document, such as worker_processes=8"
    )]
    options: Vec<String>,
    #[arg(long, default_value = UUID, help = "Service UUID used in replication ids; set a CouchDB's UUID to reuse its checkpoints")]
    uuid: String,
    #[command(flatten)]
    trust: one::Trust,
    /// Print progress and result as JSON, one object per line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    for (name, url) in [("SOURCE", &command.source), ("TARGET", &command.target)] {
        // The value is not shown: it may contain a password.
        if !["http://", "https://"]
            .iter()
            .any(|scheme| url.starts_with(scheme))
        {
            bail!("{name} is not the URL of a database; use http://HOST:5984/NAME");
        }
    }
    let document = document(&command)?;
    let run = one::prepare(&document, &command.uuid, command.trust.network()?).await?;
    let target = run.replication.target.url_text().to_owned();
    let (control, handles) = Handles::new(Gate::open());
    let reporter = Reporter::new(command.json);
    let outcome = attend(Box::pin(engine::run(run, handles)), &control, &reporter).await;
    match outcome {
        Ok(outcome) => reporter.end(&outcome, command.continuous),
        Err(error) => {
            let creatable = (!command.create_target).then_some(&target);
            Err(reporter.failed(&error, creatable))
        }
    }
}

/// Waits for the run, shows its progress, and stops it in order on Ctrl-C.
async fn attend(
    run: impl Future<Output = Result<Report, Error>>,
    control: &Control,
    reporter: &Reporter,
) -> Result<Report, Error> {
    let progress = control.progress();
    let mut ticks = interval(reporter.interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (mut interrupts, mut run) = (0, std::pin::pin!(run));
    loop {
        tokio::select! {
            biased;
            outcome = &mut run => return outcome,
            _ = tokio::signal::ctrl_c() => {
                interrupts += 1;
                if interrupts == 1 { control.stop() } else { control.abort() }
            }
            _ = ticks.tick() => reporter.show(&progress.borrow()),
        }
    }
}

/// The replication document for the command line.
fn document(command: &Command) -> anyhow::Result<Json> {
    let mut fields = Map::new();
    fields.insert("source".to_owned(), json!(command.source));
    fields.insert("target".to_owned(), json!(command.target));
    fields.insert("continuous".to_owned(), json!(command.continuous));
    fields.insert("create_target".to_owned(), json!(command.create_target));
    if let Some(filter) = &command.filter {
        fields.insert("filter".to_owned(), json!(filter));
    }
    if let Some(ids) = &command.doc_ids {
        fields.insert("doc_ids".to_owned(), json!(ids));
    }
    if let Some(selector) = &command.selector {
        let selector: Value = serde_json::from_str(selector).context("--selector is not JSON")?;
        fields.insert("selector".to_owned(), selector);
    }
    for option in &command.options {
        let Some((field, value)) = option.split_once('=') else {
            bail!("--option {option}: must be FIELD=JSON");
        };
        if !FIELDS.contains(&field) {
            let known = FIELDS.join(", ");
            let what = format!("--option {field}: no such field; choose from: {known}");
            return Err(anyhow!(what).context(Unusable));
        }
        // Other values are strings, so that words need no quotes.
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        fields.insert(field.to_owned(), value);
    }
    Ok(Json::parse(&Value::Object(fields).to_string())?)
}

/// Shows a run: a bar on a terminal, JSON lines with `--json`, otherwise only the result.
struct Reporter {
    json: bool,
    bar: Option<ProgressBar>,
}

impl Reporter {
    fn new(json: bool) -> Self {
        let bar = (!json && std::io::stderr().is_terminal()).then(|| {
            let style = "{spinner} {msg} [{wide_bar}] {pos}/{len} changes, {prefix}";
            let bar = ProgressBar::new(0);
            bar.set_style(
                ProgressStyle::with_template(style)
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
        Self { json, bar }
    }

    fn interval(&self) -> Duration {
        if self.json {
            Duration::from_secs(1)
        } else {
            Duration::from_millis(100)
        }
    }

    fn show(&self, progress: &Progress) {
        if self.json {
            output::line(&json!({"progress": progress.to_info(Timestamp::now())}).to_string());
        }
        let Some(bar) = &self.bar else { return };
        let (done, pending) = (progress.stats.missing_checked, progress.changes_pending);
        bar.set_length(done + pending.unwrap_or(0));
        bar.set_position(done);
        let written = progress.stats.docs_written;
        bar.set_prefix(if progress.bytes_per_second > 0.0 {
            format!(
                "{written} written, {:.0}/s, {:.1} MB/s",
                progress.docs_per_second,
                progress.bytes_per_second / 1e6
            )
        } else {
            // Too early for a rate.
            format!("{written} written")
        });
        bar.set_message(match progress.phase {
            Phase::Starting => "starting",
            Phase::CatchingUp => "copying",
            Phase::CaughtUp => "caught up",
            Phase::Paused => "paused",
            Phase::Ended => "done",
        });
    }

    /// Prints a failure in the selected format and returns it as the command's error. `creatable` is the target if it could be
    /// created.
    fn failed(&self, error: &Error, creatable: Option<&String>) -> anyhow::Error {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.json {
            let line = json!({"ok": false, "error": error.tag(), "reason": error.reason()});
            output::line(&line.to_string());
        }
        let failure = one::failure(error);
        match error {
            Error::DbNotFound { url } if Some(url) == creatable => {
                anyhow!("{failure}; --create-target creates a missing target")
            }
            _ => failure,
        }
    }

    fn end(&self, outcome: &Report, is_continuous: bool) -> anyhow::Result<()> {
        self.show(&outcome.progress);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        for failed in outcome.progress.failures.iter() {
            output::error(&format!(
                "rejected: {}: {}: {}",
                failed.id, failed.error, failed.reason
            ));
        }
        let stats = outcome.progress.own_stats();
        if self.json {
            output::line(&json!({"ok": true, "result": outcome.result}).to_string());
        } else {
            output::line(&summary(outcome, &stats));
        }
        if stats.doc_write_failures > 0 {
            bail!("the target rejected {} documents", stats.doc_write_failures);
        }
        // An incomplete run is a failure.
        if !is_continuous && outcome.ending != Ending::Completed {
            bail!("stopped before it was complete");
        }
        Ok(())
    }
}

fn summary(outcome: &Report, stats: &Stats) -> String {
    let copied = format!(
        "{} documents; {} rejected",
        output::number(stats.docs_written),
        output::number(stats.doc_write_failures)
    );
    match outcome.ending {
        Ending::Completed if outcome.result.contains_key("no_changes") => {
            "Nothing has changed since the last run".to_owned()
        }
        Ending::Completed => format!("Copied {copied}"),
        Ending::Stopped => format!("Stopped after {copied}; run it again to resume"),
        Ending::FilterChanged => {
            format!("Stopped after {copied}: the filter was changed; run it again")
        }
    }
}
