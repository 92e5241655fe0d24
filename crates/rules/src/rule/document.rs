//! Documents of databases of kind `_rules`.
//!
//! Spiegel's documents are accepted as they are. Members without a meaning are ignored, as in `_replicator` documents;
//! in objects that Spiegel does not have (`match`, `trigger`, `retry`), they are mistakes.

use document::json::Json;

use super::databases::{Databases, NAME_ONLY};
use super::fields::{Fields, Invalid};
use super::remote::{self, Remote};
use super::replicator::Replicate;
use super::webhook::Webhook;

/// A valid document that says what is to happen when a database has changed.
#[derive(Debug)]
pub struct Rule {
    pub enabled: bool,
    pub databases: Databases,
    pub task: Task,
}

#[derive(Debug)]
pub enum Task {
    Replicate(Box<Replicate>),
    Call(Box<Webhook>),
    Copy(Box<Remote>),
}

impl Rule {
    /// Reads the body of a document; `None` for one that Spiegel keeps its own state in.
    pub fn parse(body: &Json) -> Result<Option<Self>, Invalid> {
        Self::read(&Fields::new(body, false))
    }

    /// A body that [`Self::parse`] has accepted before, which is quicker.
    pub fn accepted(body: &Json) -> Result<Option<Self>, Invalid> {
        Self::read(&Fields::new(body, true))
    }

    /// Checks the id of the document, which is part of the ids of its jobs.
    pub(super) fn check_id(&self, db: &str, id: &str) -> Result<(), Invalid> {
        if id.contains('|') {
            let reason = "must not contain a vertical bar, which separates the parts of a job's id; choose another id";
            return Err(Invalid::new("_id", reason));
        }
        match &self.task {
            Task::Copy(_) => remote::check_id(db, id),
            Task::Replicate(_) | Task::Call(_) => Ok(()),
        }
    }

    fn read(fields: &Fields<'_>) -> Result<Option<Self>, Invalid> {
        match fields.needed("type")? {
            "replicator" => Self::replicator(fields).map(Some),
            "on_change" => Self::on_change(fields).map(Some),
            "remote" => Self::remote(fields).map(Some),
            "change_listener" | "global" => Ok(None),
            _ => {
                let reason = "must be \"replicator\", \"on_change\" or \"remote\"";
                Err(fields.invalid("type", reason))
            }
        }
    }

    fn replicator(fields: &Fields<'_>) -> Result<Self, Invalid> {
        if fields.get("db_name").is_some() {
            let reason = "is of documents of type `on_change`; use `match.database`";
            return Err(fields.invalid("db_name", reason));
        }
        let databases = Databases::parse(fields)?;
        let replicate = Replicate::parse(fields, &databases.captures())?;
        if fields.are_new() && !databases.is_pattern() && replicate.source().varies() {
            let is_object = fields
                .get("source")
                .is_some_and(|side| side.as_object().is_some());
            let member = if is_object { "source.url" } else { "source" };
            let reason = "`${db_name}` stands for no database; add `match.database`";
            return Err(fields.invalid(member, reason));
        }
        let (server, name) = replicate.place();
        let name_only = fields.get("match").and_then(Json::as_str) == Some(NAME_ONLY);
        Ok(Self {
            enabled: fields.boolean("enabled", true)?,
            databases: databases.below((!name_only).then_some(server), name),
            task: Task::Replicate(Box::new(replicate)),
        })
    }

    fn remote(fields: &Fields<'_>) -> Result<Self, Invalid> {
        let (remote, databases) = Remote::parse(fields)?;
        Ok(Self {
            enabled: fields.boolean("enabled", true)?,
            databases,
            task: Task::Copy(Box::new(remote)),
        })
    }

    fn on_change(fields: &Fields<'_>) -> Result<Self, Invalid> {
        if fields
            .get("match")
            .is_some_and(|given| given.as_str().is_some())
        {
            let reason = "must be an object with members among `database`, `events`";
            return Err(fields.invalid("match", reason));
        }
        let databases = Databases::parse(fields)?;
        let webhook = Webhook::parse(fields, databases.captures())?;
        Ok(Self {
            enabled: fields.boolean("enabled", true)?,
            databases,
            task: Task::Call(Box::new(webhook)),
        })
    }
}
