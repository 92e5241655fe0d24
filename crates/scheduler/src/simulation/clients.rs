//! Clients: they write, change, pause and delete documents, and request replications without a document.

use std::sync::Arc;

use docstore::{Edit, EditMode, ReadOptions, Rev, Revisions};
use document::doc::Doc;
use document::json::Json;
use jobs::NotifierHandle;
use rand::RngExt;
use rand::rngs::SmallRng;
use serde_json::{Value, json};
use testkit::some_time;
use tokio::time::sleep;

use super::fleet::World;
use super::plan::Goal;
use crate::create::{Caller, Rank, Started, Writer};
use crate::fault::ServiceError;
use crate::service::Replications;

/// A client of a frontend that never stops. Failed requests are not retried.
pub(super) async fn edit(
    world: Arc<World>,
    replications: Replications,
    follow: NotifierHandle,
    mut rng: SmallRng,
) {
    let frontend = Frontend {
        world,
        replications,
    };
    loop {
        sleep(some_time(&mut rng, frontend.world.plan.edits_gap)).await;
        if frontend.world.is_healing() {
            continue;
        }
        let number = rng.random_range(0..frontend.world.plan.goals.len());
        let goal = &frontend.world.plan.goals[number];
        if goal.documents == 0 {
            // A client that does not wait for the response may repeat the request.
            if let Ok(Started::Job { job, .. }) = frontend.ask(goal, &mut rng).await
                && rng.random_bool(0.5)
            {
                let time_limit = some_time(&mut rng, std::time::Duration::from_secs(30));
                drop(
                    tokio::time::timeout(time_limit, frontend.replications.wait(&follow, &job))
                        .await,
                );
            }
        } else {
            let id = document_id(number, rng.random_range(0..goal.documents));
            drop(frontend.edit(&id, goal, &mut rng).await);
        }
    }
}

pub(super) fn document_id(goal: usize, nth: usize) -> String {
    format!("goal-{goal}-{nth}")
}

/// A frontend, seen by its clients.
pub(super) struct Frontend {
    pub(super) world: Arc<World>,
    pub(super) replications: Replications,
}

impl Frontend {
    async fn edit(&self, id: &str, goal: &Goal, rng: &mut SmallRng) -> Result<(), ServiceError> {
        let now = self.read(id).await?;
        let rev = now.as_ref().and_then(|doc| doc["_rev"].as_str());
        let rev: Option<Rev> = rev.map(|rev| rev.parse().unwrap());
        match (rng.random_range(0..10), rev) {
            (0..3, Some(rev)) => {
                let hook = self.replications.hook(Writer::Replicator);
                let (docs, db) = (self.replications.docs(), &self.world.db);
                docs.delete(db, id, Some(&rev), &hook).await.map(drop)
            }
            (3..5, Some(_)) => {
                let job = crate::data::document_job_id(self.world.db.instance(), id);
                self.replications.set_paused(&job, rng.random()).await
            }
            (5..7, Some(_)) => {
                let job = crate::data::document_job_id(self.world.db.instance(), id);
                self.replications.restart(&job).await.map(drop)
            }
            (_, rev) => {
                let mut body = body(&self.world, goal);
                // Another replication with the same id.
                body["retries_per_request"] = json!(rng.random_range(1..4));
                self.put(id, rev, &body).await
            }
        }
    }

    async fn ask(&self, goal: &Goal, rng: &mut SmallRng) -> Result<Started, ServiceError> {
        let mut body = body(&self.world, goal);
        if rng.random_bool(0.3) {
            body["cancel"] = json!(true);
        }
        let caller = Caller {
            name: Some("joe".to_owned()),
            is_admin: true,
        };
        self.replications.request(&Json::from(&body), &caller).await
    }

    pub(super) async fn read(&self, id: &str) -> Result<Option<Value>, ServiceError> {
        let options = ReadOptions::default();
        match self
            .replications
            .docs()
            .get(&self.world.db, id, &options)
            .await
        {
            Ok(doc) => Ok(serde_json::from_str(&doc.to_json()).ok()),
            Err(docstore::Error::Missing | docstore::Error::Deleted) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn put(
        &self,
        id: &str,
        rev: Option<Rev>,
        body: &Value,
    ) -> Result<(), ServiceError> {
        let writer = Writer::User {
            name: Some("joe".to_owned()),
            rank: Rank::ServerAdmin,
        };
        let text = body.to_string();
        let mut edit = Edit::new(id, Doc::parse(&text).unwrap())?;
        edit.revisions = rev.map(Revisions::from);
        let edit = self.replications.prepare(&self.world.db, edit, &writer)?;
        let hook = self.replications.hook(writer);
        let docs = self.replications.docs();
        (docs
            .put(&self.world.db, &edit, EditMode::NewEdits, &hook)
            .await)
            .map(drop)
    }
}

/// The replication document of a goal.
pub(super) fn body(world: &World, goal: &Goal) -> Value {
    let (source, target) = (&world.servers.source, &world.servers.target);
    let source = if goal.invalid {
        // A database that does not exist.
        source.database_url("nowhere")
    } else {
        source.database_url(&goal.source)
    };
    json!({
        "source": source,
        "target": target.database_url(&goal.target),
        "continuous": goal.continuous,
    })
}
