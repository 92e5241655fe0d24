//! `davenport import replicator`: the replication documents of a `CouchDB` cluster, taken over with their history and owners.
//!
//! Documents come with their revisions, so that they can be replicated back, and importing again takes over what has changed
//! since. Without `--apply` nothing is written: it is said what would be, and what would be refused, and why. Replications of the
//! cluster's administrators may reach private addresses, as if they had been written here.

mod blocked;
mod cluster;
mod config;
mod spiegel;

use std::collections::HashSet;

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use couch::Reach;
use docstore::{Db, DocStore, Edit, EditMode, Rev};
use document::doc::Doc;
use document::json::Json;
use replication::params::{Grant, Replication};
use scheduler::{Replications, Writer};
use serde_json::{Value, json};

use super::nodes::{self, NodesFlags};
use super::{Unusable, output};
use blocked::Blocked;
use cluster::{Cluster, Leaf};

const NO_FUNCTIONS: &str = "it has `validate_doc_update`, and functions are not run here";
const PLAIN_NAME: &str = "it names a database instead of a URL; only its owner can supply the credentials, by importing or writing the \
                          document";
const PRIVILEGED: &str = "only server administrators of this service may set `tls`, `auth.jwt` or `auth.secret_ref`; write the document \
                          here as a server administrator";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Import the replication documents of a CouchDB cluster; a dry run without --apply
    Replicator(Box<Import>),
    /// Convert CouchDB's [replicator], [replicator.shares] and [chttpd], and print the result
    Config(config::ImportConfig),
    /// Import the rules of a Spiegel; a dry run without --apply
    Spiegel(Box<spiegel::ImportSpiegel>),
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// URL of the cluster [default: upstream.url]
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// Name and password of an administrator of the cluster
    #[arg(
        long,
        value_name = "NAME:PASSWORD",
        env = "DAVENPORT_USER",
        hide_env_values = true
    )]
    user: String,
    /// Write the documents; their replications start at once
    #[arg(long)]
    apply: bool,
    /// Import even if the cluster has another UUID and its checkpoints cannot be found
    #[arg(long)]
    new_checkpoints: bool,
    #[command(flatten)]
    nodes: NodesFlags,
    /// Print one line of JSON per database
    #[arg(long)]
    json: bool,
}

/// The result for the documents of one database.
#[derive(Debug, Default)]
struct Outcome {
    /// Leaves that start a replication.
    runs: u64,
    /// Leaves whose replication has ended.
    ended: u64,
    /// Deletions of documents that exist here.
    deleted: u64,
    designs: u64,
    /// Leaves that exist here already.
    present: u64,
    /// Leaves without an owner, which only administrators may change.
    ownerless: u64,
    /// Ids and reasons.
    refused: Vec<(String, String)>,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let import = match command {
        Command::Replicator(import) => import,
        Command::Config(import) => return import.run().await,
        Command::Spiegel(import) => return import.run().await,
    };
    let sources = import.nodes.sources()?;
    let config = sources.load()?.config;
    let from = import.from.clone().unwrap_or(config.upstream.url.clone());
    if from.is_empty() {
        let how = "name the cluster by --from, or by url in [upstream]";
        return Err(anyhow!(how).context(Unusable));
    }
    let cluster = Cluster::new(&from, &import.user)?;
    let uuid = cluster.check().await?;
    let replications = nodes::open(&config, sources.file.as_deref()).await?;
    import.check_uuid(&replications, &uuid)?;
    let mut left_out = 0;
    let mut world = World {
        admins: cluster.admins().await,
        blocked: Blocked::new(&config)?,
        cluster,
        replications,
    };
    let databases = world.cluster.databases().await?;
    if databases.is_empty() {
        output::error("the cluster has no replicator databases");
    }
    for name in databases {
        let outcome = database(&import, &mut world, &name).await;
        let outcome = outcome.with_context(|| format!("cannot import {name}"))?;
        left_out += outcome.refused.len();
        report(&import, &name, &outcome);
    }
    world.blocked.report(import.json);
    if !import.apply {
        output::error("nothing was written; use --apply to write");
    } else if left_out > 0 {
        bail!("{left_out} documents were left out, for the reasons above");
    }
    Ok(())
}

/// What an import works with.
struct World {
    cluster: Cluster,
    replications: Replications,
    /// Names of the cluster's administrators.
    admins: HashSet<String>,
    blocked: Blocked,
}

impl Import {
    /// Checkpoints are found by replication ids, which depend on the UUID.
    fn check_uuid(&self, replications: &Replications, theirs: &str) -> anyhow::Result<()> {
        let ours = &replications.service().uuid;
        if ours == theirs {
            return Ok(());
        }
        let what = format!(
            "the cluster's UUID is {theirs} and the one here is {ours}, so checkpoints of the cluster would not be found and \
             every replication would start over: set uuid = \"{theirs}\" in [couchdb] on every node, and for this command"
        );
        if !self.apply || self.new_checkpoints {
            output::error(&format!("note: {what}"));
            return Ok(());
        }
        Err(anyhow!("{what}; or give --new-checkpoints").context(Unusable))
    }
}

async fn database(import: &Import, world: &mut World, name: &str) -> anyhow::Result<Outcome> {
    let World {
        cluster,
        replications,
        admins,
        blocked,
    } = world;
    let docs = replications.docs();
    let mut db = match docs.open(&docs.name(name)?).await {
        Ok(db) => Some(db),
        Err(docstore::Error::NoDatabase) => None,
        Err(error) => return Err(error.into()),
    };
    if import.apply && db.is_none() {
        db = Some(replications.create_database(name).await?);
    }
    // The node has made `_replicator` at its first start.
    if let Some(db) = db.as_ref().filter(|_| import.apply)
        && docs.security(db).await?.is_none()
        && let Some(security) = cluster.security(name).await?
    {
        docs.set_security(db, &security).await?;
    }
    let mut outcome = Outcome::default();
    let mut since = "0".to_owned();
    while let Some(page) = cluster.page(name, &since).await? {
        since = page.last_seq;
        let wanted = missing(docs, db.as_ref(), page.leaves, &mut outcome).await?;
        let mut edits = Vec::new();
        for leaf in cluster.leaves(name, &wanted).await? {
            let Some(judged) = outcome.judge(replications, cluster, admins, &leaf) else {
                continue;
            };
            if let Some(wanted) = &judged.wanted {
                blocked.add(wanted).await;
            }
            edits.push((judged.edit, judged.grant));
        }
        if let Some(db) = db.as_ref().filter(|_| import.apply) {
            write(replications, db, edits, &mut outcome).await?;
        }
    }
    Ok(outcome)
}

/// The leaves that do not exist here, except deletions of documents that do not exist here.
async fn missing(
    docs: &DocStore,
    db: Option<&Db>,
    leaves: Vec<(String, Vec<Rev>, bool)>,
    outcome: &mut Outcome,
) -> anyhow::Result<Vec<(String, Rev)>> {
    let named: Vec<_> = leaves
        .iter()
        .map(|(id, revs, _)| (id.clone(), revs.clone()))
        .collect();
    let Some(db) = db else {
        let alive = leaves.into_iter().filter(|(_, _, deleted)| !deleted);
        return Ok(alive
            .flat_map(|(id, revs, _)| one_by_one(&id, revs))
            .collect());
    };
    let diffs = docs.revs_diff(db, &named).await?;
    let absent: usize = diffs.iter().map(|diff| diff.missing.len()).sum();
    let all: usize = named.iter().map(|(_, revs)| revs.len()).sum();
    outcome.present += (all - absent) as u64;
    let mut wanted = Vec::new();
    for diff in diffs {
        let gone = leaves
            .iter()
            .any(|(id, _, deleted)| *deleted && *id == diff.id);
        if gone && diff.possible_ancestors.is_empty() {
            continue;
        }
        wanted.extend(one_by_one(&diff.id, diff.missing));
    }
    Ok(wanted)
}

fn one_by_one(id: &str, revs: Vec<Rev>) -> Vec<(String, Rev)> {
    revs.into_iter().map(|rev| (id.to_owned(), rev)).collect()
}

async fn write(
    replications: &Replications,
    db: &Db,
    edits: Vec<(Edit, Option<Grant>)>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let mut prepared = Vec::with_capacity(edits.len());
    for (edit, grant) in edits {
        let writer = &Writer::Replicator;
        prepared.push((replications.prepare_granted(db, edit, writer, grant.as_ref())?).edit);
    }
    let hook = replications.hook(Writer::Replicator);
    let written = replications
        .docs()
        .bulk_docs(db, &prepared, EditMode::Replicated, &hook)
        .await?;
    for (edit, written) in prepared.iter().zip(written) {
        if let Err(error) = written {
            outcome.refused.push((edit.id.clone(), error.to_string()));
        }
    }
    Ok(())
}

/// A leaf that can be imported.
struct Judged {
    edit: Edit,
    grant: Option<Grant>,
    /// The replication that will run.
    wanted: Option<Replication>,
}

impl Outcome {
    /// What would become of a leaf; `None` if it is left out.
    fn judge(
        &mut self,
        replications: &Replications,
        cluster: &Cluster,
        admins: &HashSet<String>,
        leaf: &Leaf,
    ) -> Option<Judged> {
        match self.sort(replications, cluster, admins, leaf) {
            Ok(judged) => Some(judged),
            Err(reason) => {
                self.refused.push((leaf.id.clone(), reason));
                None
            }
        }
    }

    fn sort(
        &mut self,
        replications: &Replications,
        cluster: &Cluster,
        admins: &HashSet<String>,
        leaf: &Leaf,
    ) -> Result<Judged, String> {
        let text = leaf.text.as_ref().map_err(Clone::clone)?;
        let doc = Doc::parse(text).map_err(|invalid| invalid.to_string())?;
        let edit = Edit::new(&leaf.id, doc).map_err(|error| error.to_string())?;
        let body = Json::parse(&edit.body).map_err(|_| "it is not JSON".to_owned())?;
        let mut judged = Judged {
            edit,
            grant: None,
            wanted: None,
        };
        if judged.edit.deleted {
            self.deleted += 1;
        } else if judged.edit.id.starts_with("_design/") {
            if body.get("validate_doc_update").is_some() {
                return Err(NO_FUNCTIONS.to_owned());
            }
            self.designs += 1;
        } else {
            let owner = body.get("owner").and_then(Json::as_str);
            let reach = match owner {
                Some(owner) if admins.contains(owner) => Reach::Private,
                _ => Reach::Public,
            };
            // Only the owner of a document may lend credentials to it.
            let is_own = owner == Some(cluster.name.as_str());
            let names = is_own.then(|| cluster.names());
            judged.grant = Grant::of(&body, names.as_ref(), reach);
            if !is_own && has_plain_name(&body) {
                return Err(PLAIN_NAME.to_owned());
            }
            let defaults = replications.options().defaults();
            let wanted = Replication::granted(&body, judged.grant.as_ref(), &defaults);
            let wanted = wanted.map_err(|invalid| invalid.to_string())?;
            // These members mean nothing to the cluster, so any user may have written them there.
            if wanted.is_privileged() {
                return Err(PRIVILEGED.to_owned());
            }
            let state = body.get("_replication_state").and_then(Json::as_str);
            if let Some("completed" | "failed") = state {
                self.ended += 1;
            } else {
                self.runs += 1;
                judged.wanted = Some(wanted);
            }
            self.ownerless += u64::from(owner.is_none());
        }
        Ok(judged)
    }

    fn to_json(&self, import: &Import, name: &str) -> Value {
        let refused = self.refused.iter();
        let refused = refused.map(|(id, reason)| json!({"id": id, "reason": reason}));
        json!({
            "database": name, "applied": import.apply, "run": self.runs, "ended": self.ended,
            "deleted": self.deleted, "designs": self.designs, "present": self.present,
            "ownerless": self.ownerless, "refused": refused.collect::<Vec<_>>(),
        })
    }
}

/// Whether `source` or `target` is the name of a database.
fn has_plain_name(body: &Json) -> bool {
    ["source", "target"].into_iter().any(|member| {
        let endpoint = body.get(member);
        let url = endpoint.map(|endpoint| endpoint.get("url").unwrap_or(endpoint));
        (url.and_then(Json::as_str)).is_some_and(|url| !url.contains("://"))
    })
}

fn report(import: &Import, name: &str, outcome: &Outcome) {
    if import.json {
        output::line(&outcome.to_json(import, name).to_string());
        return;
    }
    let Outcome {
        runs,
        ended,
        deleted,
        designs,
        present,
        ownerless,
        refused,
    } = outcome;
    let verb = if import.apply {
        "imported"
    } else {
        "to import"
    };
    output::line(&format!(
        "{name}: {verb}: {runs} that run, {ended} that have ended, {designs} design documents, {deleted} deletions; \
         {present} unchanged; {} refused",
        refused.len()
    ));
    if *ownerless > 0 {
        output::line(&format!(
            "  {ownerless} have no owner: only administrators will be able to change them"
        ));
    }
    for (id, reason) in refused {
        output::line(&format!("  refused: {id}: {reason}"));
    }
}
