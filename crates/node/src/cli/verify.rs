//! `davenport verify`: compares two databases, without writing to them.
//!
//! Exit codes, as of `diff`: 0 means that they are the same, 1 that they differ, 2 that nothing was compared, and 3 that
//! the comparison stopped before its end, or left its state file behind.

mod compare;

use std::io::{ErrorKind, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use couch::{Database, Endpoint, RequestOptions};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Unusable, one, output};
use compare::{Difference, Pair};

const DIFFERENT: u8 = 1;
const STOPPED: u8 = 3;

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// URL of a database
    source: String,
    /// URL of the database that should be the same
    target: String,
    /// File that keeps how far a run got: the next run with it continues there. Deleted at the end
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Seconds after which a document that differs is compared once more, for databases that are being replicated
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    settle_sec: u64,
    /// Do not compare attachments, which takes reading all documents
    #[arg(long)]
    no_attachments: bool,
    /// Do not compare `_security`
    #[arg(long)]
    no_security: bool,
    #[command(flatten)]
    trust: one::Trust,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

/// How far a comparison got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// Without credentials, as is the target.
    source: String,
    target: String,
    /// Whether the target is read, for what only it has.
    reversed: bool,
    /// The last sequence that was compared.
    since: Option<Value>,
    documents: u64,
    differences: u64,
    /// Changes that were read of this side. Files of earlier versions lack this and the following members.
    #[serde(default)]
    read: u64,
    /// What is not compared.
    no_attachments: Option<bool>,
    no_security: Option<bool>,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    let pair = open(&command).await.context(Unusable)?;
    let mut state = State::load(&command, &pair).context(Unusable)?;
    let compared = tokio::select! {
        compared = Box::pin(command.verify(&pair, &mut state)) => compared,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    let (documents, differences) = (state.documents, state.differences);
    let (all, found) = (
        counted(documents, "document"),
        counted(differences, "difference"),
    );
    if let Err(error) = compared {
        let next = match &command.state {
            Some(file) => format!("continue with --state {}", file.display()),
            None => "with --state FILE the next run could continue".to_owned(),
        };
        output::error(&format!(
            "davenport: stopped after {all}, {found}: {error:#}; {next}"
        ));
        return Ok(ExitCode::from(STOPPED));
    }
    output::line(&match (command.json, differences) {
        (true, _) => json!({"documents": documents, "differences": differences}).to_string(),
        (_, 0) => format!("No differences in {all}"),
        _ => format!("{found} in {all}"),
    });
    if let Some(file) = &command.state
        && let Err(error) = std::fs::remove_file(file)
        && error.kind() != ErrorKind::NotFound
    {
        let file = file.display();
        output::error(&format!(
            "davenport: cannot delete {file}: {error}; delete it yourself, or the next run with it compares nothing"
        ));
        return Ok(ExitCode::from(STOPPED));
    }
    Ok(ExitCode::from(if differences > 0 { DIFFERENT } else { 0 }))
}

pub(super) fn counted(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", output::number(number))
}

async fn open(command: &Command) -> anyhow::Result<Pair> {
    let network = command.trust.network()?;
    let open = async |name: &str, url: &str| -> anyhow::Result<(Database, Option<u64>)> {
        let endpoint = Endpoint::from_url(url).with_context(|| format!("{name} cannot be used"))?;
        let shown = format!("cannot read {name} {}", endpoint.url_text());
        let database = network.database(endpoint, RequestOptions::default()).await;
        let database = database.with_context(|| shown.clone())?;
        let info = database.info().await.context(shown)?;
        let counts = info.doc_count.zip(info.doc_del_count);
        Ok((database, counts.map(|(live, deleted)| live + deleted)))
    };
    let (source, in_source) = open("SOURCE", &command.source).await?;
    let (target, in_target) = open("TARGET", &command.target).await?;
    Ok(Pair {
        sides: [source, target],
        documents: [in_source, in_target],
        attachments: !command.no_attachments,
        settle: Duration::from_secs(command.settle_sec),
    })
}

impl Command {
    async fn verify(&self, pair: &Pair, state: &mut State) -> anyhow::Result<()> {
        let is_shown = !self.json && std::io::stderr().is_terminal();
        let bar = is_shown.then(ProgressBar::new_spinner);
        let is_new = !state.reversed && state.since.is_none();
        if is_new && !self.no_security && !pair.is_security_same().await? {
            self.tell(state, &Difference::Security);
        }
        loop {
            let since = state.since.clone().unwrap_or_else(|| json!(0));
            let page = pair.next(state.reversed, &since).await?;
            for difference in &page.differences {
                self.tell(state, difference);
            }
            state.read += page.documents;
            let is_last = state.reversed;
            let is_read = pair.is_read(is_last, &page, state.read);
            let has_grown = !is_read && pair.has_grown(is_last, state.read);
            if has_grown {
                // The next run counts from here.
                state.read = 0;
            }
            if !is_last {
                state.documents += page.documents;
            }
            state.since = Some(page.last);
            if is_read && !is_last {
                (state.reversed, state.since, state.read) = (true, None, 0);
            }
            if let Some(file) = self.state.as_ref().filter(|_| page.documents > 0) {
                state.save(file)?;
            }
            if has_grown {
                let side = if is_last { "TARGET" } else { "SOURCE" };
                bail!(
                    "{side} grows while it is read, and has more than twice the documents that it had"
                );
            }
            if let Some(bar) = &bar {
                let documents = output::number(state.documents);
                bar.set_message(format!("{documents} documents compared"));
                bar.tick();
            }
            if is_read && is_last {
                break;
            }
        }
        if let Some(bar) = &bar {
            bar.finish_and_clear();
        }
        Ok(())
    }

    fn tell(&self, state: &mut State, difference: &Difference) {
        state.differences += 1;
        let line = if self.json {
            json!(difference).to_string()
        } else {
            difference.to_string()
        };
        output::line(&line);
    }
}

impl State {
    fn load(command: &Command, pair: &Pair) -> anyhow::Result<Self> {
        let [source, target] =
            (pair.sides.each_ref()).map(|side| side.endpoint().url_text().to_owned());
        let new = Self {
            source,
            target,
            reversed: false,
            since: None,
            documents: 0,
            differences: 0,
            read: 0,
            no_attachments: Some(command.no_attachments),
            no_security: Some(command.no_security),
        };
        let Some(file) = &command.state else {
            return Ok(new);
        };
        let shown = file.display();
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                new.save(file)?;
                return Ok(new);
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        let mut state: Self = serde_json::from_str(&text)
            .with_context(|| format!("{shown} is not a state of davenport verify"))?;
        if (&state.source, &state.target) != (&new.source, &new.target) {
            let (source, target) = (&state.source, &state.target);
            bail!("{shown} is the state for {source} and {target}; give another file");
        }
        for (name, before, given) in [
            ("--no-attachments", state.no_attachments, new.no_attachments),
            ("--no-security", state.no_security, new.no_security),
        ] {
            if let Some(before) = before
                && Some(before) != given
            {
                let how = if before { "with" } else { "without" };
                bail!(
                    "{shown} is the state of a comparison {how} `{name}`; continue it {how} this option, or give another file"
                );
            }
        }
        (state.no_attachments, state.no_security) = (new.no_attachments, new.no_security);
        Ok(state)
    }

    fn save(&self, file: &Path) -> anyhow::Result<()> {
        // Renamed, so that a run that is killed leaves a whole file.
        let mut new = file.as_os_str().to_owned();
        new.push(".new");
        std::fs::write(&new, serde_json::to_vec(self)?)
            .and_then(|()| std::fs::rename(&new, file))
            .with_context(|| format!("cannot write {}", file.display()))
    }
}
