//! `davenport import spiegel`: the rules of a Spiegel, from its database into the database `spiegel` of a service.
//!
//! Without `--apply` nothing is written, and no service is needed.

mod judge;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use document::json::Json;
use percent_encoding::percent_decode_str;
use reqwest::Method;
use scheduler::Passwords;
use serde_json::{Value, json};
use url::Url;

use super::cluster::Cluster;
use crate::cli::service::{Refusal, Service, ServiceFlags, page};
use crate::cli::{Unusable, output};
use judge::{Judge, Verdict};

/// The database at the service.
const DATABASE: &str = "spiegel";
const BEGIN: &str = "rules begin with the present state of each database: calls that Spiegel has not made yet are not made unless the \
                     database changes again";

#[derive(Debug, Args)]
pub(crate) struct ImportSpiegel {
    #[arg(
        long,
        value_name = "URL",
        env = "DAVENPORT_FROM",
        hide_env_values = true,
        help = "Spiegel's database, as http://NAME:PASSWORD@HOST:5984/spiegel"
    )]
    from: String,
    /// A file of passwords for Spiegel; can be repeated
    #[arg(long, value_name = "FILE")]
    passwords: Vec<PathBuf>,
    /// Write the documents to the database `spiegel` of a service; they take effect at once
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    service: ServiceFlags,
}

/// What was found and done.
#[derive(Default)]
struct Counts {
    accepted: u64,
    changed: u64,
    rejected: u64,
    /// By their kind.
    ignored: BTreeMap<String, u64>,
    written: u64,
}

impl ImportSpiegel {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let passwords = self.passwords.iter().map(|file| Passwords::load(file));
        let passwords = passwords.collect::<Result<_, _>>().context(Unusable)?;
        let (cluster, db) = source(&self.from)?;
        let service = Service::new(&self.service)?;
        if self.apply {
            create_database(&service).await?;
        }
        let mut judge = Judge::new(passwords);
        let (mut counts, mut last) = (Counts::default(), None);
        loop {
            let page = cluster.documents(&db, last.as_deref()).await?;
            let mut verdicts = Vec::new();
            for row in &page.rows {
                if let Some(document) = row.document()? {
                    verdicts.push((row.key.clone(), judge.judge(&row.key, &document)));
                }
            }
            if self.apply {
                counts.written += write(&service, &mut verdicts).await?;
            }
            for (id, verdict) in verdicts {
                counts.add(&verdict);
                report(&service, &id, &verdict);
            }
            last = page.last();
            if last.is_none() {
                break;
            }
        }
        self.summarize(&service, &counts, &judge);
        if !self.apply {
            output::error("nothing was written; use --apply to write");
        } else if counts.rejected > 0 {
            let rejected = counts.rejected;
            bail!("{rejected} documents were left out, for the reasons above");
        }
        Ok(())
    }

    fn summarize(&self, service: &Service, counts: &Counts, judge: &Judge) {
        if service.json {
            let missing = judge.missing.iter();
            let missing = missing.map(|(user, host)| json!({"host": host, "user": user}));
            let summary = json!({
                "applied": self.apply, "accepted": counts.accepted, "changed": counts.changed,
                "rejected": counts.rejected, "ignored": counts.ignored, "written": counts.written,
                "servers": judge.servers, "hosts": judge.hosts,
                "missing_passwords": missing.collect::<Vec<_>>(),
            });
            output::line(&summary.to_string());
            return;
        }
        let ignored = counts.ignored.iter();
        let ignored = ignored.map(|(kind, count)| format!(", {count} {kind}"));
        output::line(&format!(
            "{} accepted, {} of them changed; {} rejected; ignored: {} documents{}",
            counts.accepted,
            counts.changed,
            counts.rejected,
            counts.ignored.values().sum::<u64>(),
            ignored.collect::<String>()
        ));
        if self.apply {
            let present = counts.accepted - counts.written;
            let written = counts.written;
            output::line(&format!("{written} written, {present} unchanged"));
        }
        let server = |(url, count): (&String, &u64)| match count {
            1 => format!("{url} (1 rule)"),
            count => format!("{url} ({count} rules)"),
        };
        list(
            "replications read these servers; each needs a section [sources.NAME] with this url, and the user and password of an \
             administrator:",
            judge.servers.iter().map(server),
        );
        list("webhooks call these hosts:", judge.hosts.iter().map(server));
        list(
            "--passwords has no password for these users:",
            judge
                .missing
                .iter()
                .map(|(user, host)| format!("{user}@{host}")),
        );
        output::line(BEGIN);
    }
}

impl Counts {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Accepted { changes, .. } => {
                self.accepted += 1;
                self.changed += u64::from(!changes.is_empty());
            }
            Verdict::Rejected { .. } => self.rejected += 1,
            Verdict::Ignored(kind) => *self.ignored.entry(kind.clone()).or_default() += 1,
        }
    }
}

fn list(head: &str, items: impl ExactSizeIterator<Item = String>) {
    if items.len() > 0 {
        output::line(head);
    }
    for item in items {
        output::line(&format!("  {item}"));
    }
}

/// What became of a document.
fn report(service: &Service, id: &str, verdict: &Verdict) {
    let (line, row) = match verdict {
        Verdict::Accepted { changes, .. } if changes.is_empty() => (
            format!("accepted: {id}"),
            json!({"id": id, "result": "accepted"}),
        ),
        Verdict::Accepted { changes, .. } => (
            format!("changed: {id}: {}", changes.join("; ")),
            json!({"id": id, "result": "changed", "changes": changes}),
        ),
        Verdict::Rejected { path, reason } => {
            let named = if path.is_empty() {
                String::new()
            } else {
                format!("`{path}`: ")
            };
            (
                format!("rejected: {id}: {named}{reason}"),
                json!({"id": id, "result": "rejected", "path": path, "reason": reason}),
            )
        }
        // There is one for each database.
        Verdict::Ignored(_) => return,
    };
    output::line(&if service.json { row.to_string() } else { line });
}

/// The server of Spiegel's database, and the database's name.
fn source(from: &str) -> anyhow::Result<(Cluster, String)> {
    let bad = || {
        let how = "--from: write http://NAME:PASSWORD@HOST:5984/spiegel";
        anyhow!(how).context(Unusable)
    };
    let mut url = Url::parse(from).map_err(|_| bad())?;
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let (name, password) = (decoded(url.username()), url.password().map(decoded));
    let password = password.filter(|_| !name.is_empty()).ok_or_else(bad)?;
    let mut parts = url.path_segments().into_iter().flatten();
    let db = parts.rfind(|part| !part.is_empty()).map(decoded);
    let db = db.ok_or_else(bad)?;
    url.set_username("").map_err(|()| bad())?;
    url.set_password(None).map_err(|()| bad())?;
    url.set_query(None);
    url.set_fragment(None);
    url.path_segments_mut()
        .map_err(|()| bad())?
        .pop_if_empty()
        .pop();
    let user = format!("{name}:{password}");
    Ok((Cluster::new(url.as_str(), &user)?, db))
}

async fn create_database(service: &Service) -> anyhow::Result<()> {
    let path = format!("/{DATABASE}");
    match service.send(Method::PUT, &path).await {
        Err(error) => match error.downcast_ref::<Refusal>() {
            Some(refusal) if refusal.status == 412 => Ok(()),
            _ => Err(error),
        },
        Ok(_) => Ok(()),
    }
}

/// Writes the documents that differ from those of the service; those that it refuses become rejected.
async fn write(service: &Service, verdicts: &mut [(String, Verdict)]) -> anyhow::Result<u64> {
    let accepted = verdicts
        .iter_mut()
        .filter_map(|(id, verdict)| match verdict {
            Verdict::Accepted { members, .. } => Some((id.clone(), std::mem::take(members))),
            _ => None,
        });
    let accepted: Vec<_> = accepted.collect();
    if accepted.is_empty() {
        return Ok(0);
    }
    let ids: Vec<&String> = accepted.iter().map(|(id, _)| id).collect();
    let path = format!("/{DATABASE}/_all_docs");
    let request = service.request(Method::POST, &path)?;
    let request = request.query(&[("include_docs", "true")]);
    let present = page(request.body(json!({"keys": ids}).to_string())).await?;
    let mut revs = HashMap::new();
    let mut same = Vec::new();
    for row in &present.rows {
        let Some(document) = row.document()? else {
            continue;
        };
        let rev = document.get("_rev").cloned();
        let own = judge::own_members(&document);
        let wanted = accepted.iter().find(|(id, _)| *id == row.key);
        if wanted.is_some_and(|(_, members)| sorted(members) == sorted(&own)) {
            same.push(row.key.clone());
        }
        revs.insert(row.key.clone(), rev);
    }
    let mut docs = Vec::new();
    for (id, members) in accepted {
        if same.contains(&id) {
            continue;
        }
        let rev = revs.remove(&id).flatten();
        let mut document = vec![("_id".to_owned(), Json::String(id))];
        document.extend(rev.map(|rev| ("_rev".to_owned(), rev)));
        document.extend(members);
        docs.push(Json::Object(document));
    }
    if docs.is_empty() {
        return Ok(0);
    }
    let body = Json::Object(vec![("docs".to_owned(), Json::Array(docs))]).to_string();
    let path = format!("/{DATABASE}/_bulk_docs");
    let answer = service.send_body(Method::POST, &path, body).await?;
    let mut written = 0;
    for row in answer.as_array().context("`_bulk_docs` returned no rows")? {
        if row["ok"] == true {
            written += 1;
        } else if let Some((_, verdict)) = verdicts.iter_mut().find(|(id, _)| row["id"] == **id) {
            *verdict = Verdict::refused(row);
        }
    }
    Ok(written)
}

fn sorted(members: &[(String, Json)]) -> Json {
    Json::Object(members.to_vec()).sorted()
}

impl Verdict {
    /// Of a document that the service refuses.
    fn refused(row: &Value) -> Self {
        Self::Rejected {
            path: String::new(),
            reason: output::cell(&row["reason"]),
        }
    }
}
