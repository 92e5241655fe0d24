//! The background work of a node: for each registered type, bring back what was abandoned and
//! forget what is over. Any number of nodes may run it; they share the work by leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::services::monitor::{ByPolicy, StallHook, watch_over};
use crate::services::pause::Pause;
use crate::services::type_watcher::{TypeMap, TypeWatcher, Types};
use crate::{JobType, Jobs, Options};

/// The service: one for a process.
#[derive(Debug)]
pub struct Maintenance<H = ByPolicy> {
    jobs: Jobs,
    options: Options,
    hook: Arc<H>,
    watcher: TypeWatcher,
    types: Types,
}

impl Maintenance {
    /// The service for types whose policy decides about abandoned jobs.
    pub fn new(jobs: Jobs, options: Options) -> Self {
        Self::with_hook(jobs, options, ByPolicy)
    }
}

impl<H: StallHook + 'static> Maintenance<H> {
    /// The service for types whose owner decides about abandoned jobs.
    pub fn with_hook(jobs: Jobs, options: Options, hook: H) -> Self {
        let (watcher, types) = TypeWatcher::new(jobs.clone(), options.clone());
        Self {
            jobs,
            options,
            hook: Arc::new(hook),
            watcher,
            types,
        }
    }

    /// The types as this service sees them.
    pub fn types(&self) -> Types {
        self.types.clone()
    }

    /// Works until the token is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let Self {
            jobs,
            options,
            hook,
            watcher,
            mut types,
        } = self;
        let mut tasks = JoinSet::new();
        let mut monitors: BTreeMap<JobType, (CancellationToken, Id)> = BTreeMap::new();
        let mut pause = Pause::new(jobs.entropy(), jobs.planted());
        let watching = token.child_token();
        tasks.spawn(watcher.run(watching));
        let mut wanted = TypeMap::default();
        while !token.is_cancelled() {
            monitors.retain(|ty, (stop, _)| {
                let keep = wanted.contains_key(ty);
                if !keep {
                    stop.cancel();
                }
                keep
            });
            for ty in wanted.keys() {
                monitors.entry(ty.clone()).or_insert_with(|| {
                    let stop = token.child_token();
                    let (ty, jobs, hook) = (ty.clone(), jobs.clone(), Arc::clone(&hook));
                    let options = options.clone();
                    let stopped = stop.clone();
                    let task = tasks.spawn(async move {
                        watch_over(&jobs, &ty, &*hook, &options, &stopped).await;
                    });
                    (stop, task.id())
                });
            }
            tokio::select! {
                biased;
                () = token.cancelled() => {}
                changed = types.changed() => match changed {
                    Ok(types) => wanted = types,
                    Err(_) => token.cancelled().await,
                },
                Some(Err(error)) = tasks.join_next() => {
                    // A bug in a hook, say: the type is looked after again, later.
                    tracing::error!(error = %error, "watch over a job type");
                    monitors.retain(|_, (_, id)| *id != error.id());
                    pause.wait(&token).await;
                }
            }
        }
        while tasks.join_next().await.is_some() {}
    }
}
