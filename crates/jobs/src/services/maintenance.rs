//! Background work of a node: for each type that it serves, recovers abandoned jobs and removes expired
//! ones. Any number of nodes may serve a type; leases divide the work.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::services::monitor::{ByPolicy, StallHook, monitor_type};
use crate::services::pause::Pause;
use crate::services::type_watcher::{TypeMap, TypeWatcher, Types};
use crate::{JobType, Jobs, Options};

/// Monitors a type until the token is cancelled.
type Watch = Arc<dyn Fn(CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// One per process. Takes leases on the types that it [serves](Self::serve), while they are registered,
/// and on no others.
pub struct Maintenance {
    jobs: Jobs,
    options: Options,
    served: BTreeMap<JobType, Watch>,
    /// Types whose names begin like this are served, too, whenever they are registered.
    prefix: Option<&'static str>,
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
    /// A service that serves no type yet.
    pub fn new(jobs: Jobs, options: Options) -> Self {
        let (watcher, types) = TypeWatcher::new(jobs.clone(), options.clone());
        Self {
            jobs,
            options,
            served: BTreeMap::new(),
            prefix: None,
            watcher,
            types,
        }
    }

    /// Serves all types whose names begin with `prefix`, as [`Self::serve`] does, from when they are registered.
    #[must_use]
    pub fn serve_prefix(self, prefix: &'static str) -> Self {
        let prefix = Some(prefix);
        Self { prefix, ..self }
    }

    /// Serves a type whose [`StallPolicy`](crate::StallPolicy) decides about abandoned jobs.
    #[must_use]
    pub fn serve(self, ty: JobType) -> Self {
        self.serve_with(ty, ByPolicy)
    }

    /// Serves a type whose `hook` decides about abandoned jobs.
    #[must_use]
    pub fn serve_with(mut self, ty: JobType, hook: impl StallHook + 'static) -> Self {
        let watch = watch(&self.jobs, &self.options, &ty, hook);
        self.served.insert(ty, watch);
        self
    }

    /// All registered types, whether served or not.
    pub fn types(&self) -> Types {
        self.types.clone()
    }

    /// Runs until the token is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let Self {
            jobs,
            options,
            mut served,
            prefix,
            watcher,
            mut types,
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
            for ty in registered.keys() {
                if prefix.is_some_and(|prefix| ty.as_str().starts_with(prefix)) {
                    let new = || watch(&jobs, &options, ty, ByPolicy);
                    served.entry(ty.clone()).or_insert_with(new);
                }
            }
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
                    // A bug, such as one in a hook: the type is monitored again later.
                    tracing::error!(error = %error, "the monitor of a job type panicked");
                    monitors.retain(|_, (_, id)| *id != error.id());
                    pause.wait(&token).await;
                }
            }
        }
        while tasks.join_next().await.is_some() {}
    }
}

fn watch(jobs: &Jobs, options: &Options, ty: &JobType, hook: impl StallHook + 'static) -> Watch {
    let (jobs, options, hook) = (jobs.clone(), options.clone(), Arc::new(hook));
    let ty = ty.clone();
    Arc::new(move |stop| {
        let (jobs, options, hook) = (jobs.clone(), options.clone(), Arc::clone(&hook));
        let ty = ty.clone();
        Box::pin(async move {
            Box::pin(monitor_type(&jobs, &ty, &*hook, &options, &stop)).await;
        })
    })
}
