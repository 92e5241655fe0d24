//! The background work of a node: for each type that it serves, bring back what was abandoned and
//! forget what is over. Any number of nodes may serve a type; they share the work by leases.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::services::monitor::{ByPolicy, StallHook, watch_over};
use crate::services::pause::Pause;
use crate::services::type_watcher::{TypeMap, TypeWatcher, Types};
use crate::{JobType, Jobs, Options};

/// Watches over a type until the token is cancelled.
type Watch = Arc<dyn Fn(CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// The service: one for a process. It takes leases on the types that it was told to [serve](Self::serve),
/// while they are registered, and on no other.
pub struct Maintenance {
    jobs: Jobs,
    options: Options,
    served: BTreeMap<JobType, Watch>,
    watcher: TypeWatcher,
    types: Types,
}

impl fmt::Debug for Maintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut show = f.debug_struct("Maintenance");
        show.field("options", &self.options)
            .field("served", &self.served.keys())
            .finish_non_exhaustive()
    }
}

impl Maintenance {
    /// The service, which serves no type yet.
    pub fn new(jobs: Jobs, options: Options) -> Self {
        let (watcher, types) = TypeWatcher::new(jobs.clone(), options.clone());
        Self {
            jobs,
            options,
            served: BTreeMap::new(),
            watcher,
            types,
        }
    }

    /// Serves a type whose [`StallPolicy`](crate::StallPolicy) decides about abandoned jobs.
    #[must_use]
    pub fn serve(self, ty: JobType) -> Self {
        self.serve_with(ty, ByPolicy)
    }

    /// Serves a type whose owner decides about abandoned jobs.
    #[must_use]
    pub fn serve_with(mut self, ty: JobType, hook: impl StallHook + 'static) -> Self {
        let (jobs, options, hook) = (self.jobs.clone(), self.options.clone(), Arc::new(hook));
        let name = ty.clone();
        let watch = move |stop: CancellationToken| -> BoxFuture<'static, ()> {
            let (jobs, options, hook) = (jobs.clone(), options.clone(), Arc::clone(&hook));
            let ty = name.clone();
            Box::pin(async move {
                Box::pin(watch_over(&jobs, &ty, &*hook, &options, &stop)).await;
            })
        };
        self.served.insert(ty, Arc::new(watch));
        self
    }

    /// The types as this service sees them, whether it serves them or not.
    pub fn types(&self) -> Types {
        self.types.clone()
    }

    /// Works until the token is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let Self {
            jobs,
            served,
            watcher,
            mut types,
            ..
        } = self;
        let mut tasks = JoinSet::new();
        let mut monitors: BTreeMap<JobType, (CancellationToken, Id)> = BTreeMap::new();
        let mut pause = Pause::new(jobs.entropy(), jobs.planted());
        let watching = token.child_token();
        tasks.spawn(watcher.run(watching));
        let mut registered = TypeMap::default();
        while !token.is_cancelled() {
            monitors.retain(|ty, (stop, _)| {
                let keep = registered.contains_key(ty);
                if !keep {
                    stop.cancel();
                }
                keep
            });
            for (ty, watch) in &served {
                if registered.contains_key(ty) && !monitors.contains_key(ty) {
                    let stop = token.child_token();
                    let task = tasks.spawn(watch(stop.clone()));
                    monitors.insert(ty.clone(), (stop, task.id()));
                }
            }
            tokio::select! {
                biased;
                () = token.cancelled() => {}
                changed = types.changed() => match changed {
                    Ok(types) => registered = types,
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
