//! `davenport keys`: lists the keys that a store needs, and reseals what old keys sealed.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use scheduler::Scanned;
use seal::{KeysInUse, Resealing, keys_in_use};
use serde_json::{Value, json};
use store::Store;

use super::nodes::{self, NodesFlags};
use super::{Unusable, output};
use crate::config::Config;
use crate::keys::{Exposed, KeyRing};
use crate::running::{key_file, open_store, other_key};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the keys that the store needs, and those that can be removed from the key file
    List(Target),
    /// Reseal everything with the first key of the key file, as replication nodes do in the background
    Reseal(Target),
}

#[derive(Debug, Args)]
pub(crate) struct Target {
    #[command(flatten)]
    nodes: NodesFlags,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The keys of a key file and of its store.
struct Compared {
    file: PathBuf,
    known: KeysInUse,
    /// Key names in the file; the first one seals.
    here: Vec<String>,
    /// Names whose key in the file differs from the one that the store knows.
    others: Vec<String>,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(target) => list(&target).await,
        Command::Reseal(target) => reseal(&target).await,
    }
}

impl Target {
    /// Opens an existing store and key file. Neither is created.
    fn existing(&self) -> anyhow::Result<(Config, PathBuf)> {
        let sources = self.nodes.sources()?;
        let config = sources.load()?.config;
        if !Store::is_there(&config.store.url) {
            let what = format!("no store at {}", config.store.url);
            return Err(anyhow!("{what}; check --store").context(Unusable));
        }
        let file = key_file(&config, sources.file.as_deref());
        let file = file.context("the keys of an in-memory store are lost when its process ends")?;
        Ok((config, file))
    }
}

async fn list(target: &Target) -> anyhow::Result<()> {
    let (config, file) = target.existing()?;
    let compared = Compared::read(&config, file).await?;
    compared.report(target);
    compared.check()
}

async fn reseal(target: &Target) -> anyhow::Result<()> {
    let (config, file) = target.existing()?;
    Compared::read(&config, file.clone()).await?.check()?;
    let replications = nodes::open(&config, target.nodes.file()).await?;
    let mut told = 0;
    while replications.reseal_a_little().await? == Scanned::Some {
        let pass = keys_in_use(replications.jobs().store()).await?.pass;
        if let Some(pass) = pass.filter(|pass| pass.looked >= told) {
            told = pass.looked + 10_000;
            output::error(&sentence(&pass));
        }
    }
    let compared = Compared::read(&config, file).await?;
    compared.report(target);
    let old: Vec<_> = compared.known.old().collect();
    if !old.is_empty() {
        bail!(
            "{} may be in use again: restart every node with the new key first in its key file, then try again a minute later",
            old.join(", ")
        );
    }
    Ok(())
}

/// Checks whether the keys of a configuration match its store. Creates nothing.
pub(super) async fn look(config: &Config, file: Option<&Path>) -> anyhow::Result<()> {
    let Some(file) = key_file(config, file).filter(|_| Store::is_there(&config.store.url)) else {
        return Ok(());
    };
    let time_limit = std::time::Duration::from_secs(5);
    let read = tokio::time::timeout(time_limit, Compared::read(config, file));
    let read = read
        .await
        .unwrap_or_else(|_| Err(anyhow!("it does not respond")));
    let compared = match read {
        Ok(compared) => compared,
        Err(error) if error.is::<Exposed>() => return Err(error),
        Err(error) => {
            output::error(&format!("davenport: the store was not checked: {error:#}"));
            return Ok(());
        }
    };
    compared.check()?;
    for name in compared.spare() {
        let file = compared.file.display();
        output::error(&format!(
            "davenport: nothing is sealed with the key {name} of {file}; its line can be removed once another key is first on every node"
        ));
    }
    Ok(())
}

impl Compared {
    async fn read(config: &Config, file: PathBuf) -> anyhow::Result<Self> {
        let ring = KeyRing::read(&file)?;
        let here = ring.iter().flat_map(KeyRing::names).map(str::to_owned);
        let here = here.collect();
        let sealer = ring.as_ref().map(KeyRing::sealer).transpose()?;
        let known = keys_in_use(&open_store(config).await?).await?;
        let others = sealer.iter().flat_map(|sealer| known.others(sealer));
        Ok(Self {
            others: others.map(str::to_owned).collect(),
            known,
            here,
            file,
        })
    }

    /// Keys that the store needs and the file lacks.
    fn missing(&self) -> impl Iterator<Item = &String> {
        (self.known.used.iter()).filter(|name| !self.here.contains(name))
    }

    /// Keys in the file that the store does not need, without the first one, which will seal.
    fn spare(&self) -> impl Iterator<Item = &String> {
        (self.here.iter().skip(1)).filter(|name| !self.known.used.contains(name))
    }

    fn check(&self) -> anyhow::Result<()> {
        let missing: Vec<_> = self.missing().map(String::as_str).collect();
        if !missing.is_empty() {
            bail!(lost(&missing.join(", "), &self.file));
        }
        if !self.others.is_empty() {
            bail!(other_key(&self.others.join(", ")));
        }
        Ok(())
    }

    fn words(&self, name: &String) -> &'static str {
        if self.others.contains(name) {
            return "differs from the key of this name recorded in the store";
        }
        let used = self.known.used.contains(name);
        let newest = self.known.newest.as_ref() == Some(name);
        match (used, self.here.iter().position(|known| known == name)) {
            (true, None) => "needed, but not in the file",
            (true, Some(_)) if newest => "seals",
            (true, Some(_)) => "needed: something may be sealed with it",
            (false, Some(0)) => "will seal once a node is started",
            (false, _) => "not needed",
        }
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.here.iter().chain(self.missing())
    }

    fn report(&self, target: &Target) {
        if target.json {
            output::line(&self.to_json().to_string());
            return;
        }
        let rows = self.names().map(|name| {
            let words = self.words(name).to_owned();
            vec![name.clone(), words]
        });
        let rows: Vec<_> = rows.collect();
        output::text(&output::table(&["KEY", "USE"], &rows));
        if let Some(pass) = &self.known.pass {
            output::line(&sentence(pass));
        }
    }

    fn to_json(&self) -> Value {
        let keys = self.names().map(|name| {
            json!({
                "name": name, "in_file": self.here.contains(name), "needed": self.known.used.contains(name),
                "seals": self.known.newest.as_ref() == Some(name), "is_another": self.others.contains(name),
            })
        });
        let pass = self.known.pass.as_ref().map(|pass| {
            json!({
                "to": pass.to, "done": pass.ended_ms.is_some(), "looked": pass.looked,
                "resealed": pass.resealed, "unreadable": pass.unreadable,
            })
        });
        json!({
            "file": self.file.display().to_string(), "keys": keys.collect::<Vec<_>>(),
            "old": self.known.old().collect::<Vec<_>>(), "pass": pass,
        })
    }
}

/// What to do about missing keys.
pub(crate) fn lost(names: &str, file: &Path) -> String {
    format!(
        "credentials in this store may be sealed with {names}, which is not in the key file {}: give this node the key file \
         of the others, or restore the line below the first one. `davenport keys list` shows when a key can be removed",
        file.display()
    )
}

fn sentence(pass: &Resealing) -> String {
    let Resealing {
        to,
        looked,
        resealed,
        unreadable,
        ended_ms,
        ..
    } = pass;
    let verb = ended_ms.map_or("sealing", |_| "sealed");
    let so_far = ended_ms.map_or(" so far", |_| "");
    let left = match unreadable {
        0 => String::new(),
        left => format!("; {left} cannot be opened, see the log of the node that tried"),
    };
    format!("{verb} with {to}: {resealed} of {looked} documents and jobs{so_far}{left}")
}
