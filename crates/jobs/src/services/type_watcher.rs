//! The registered types, as this or another node changes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use store::{Call, Watch};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::services::pause::{Pause, sleep};
use crate::testing::planted::Bug;
use crate::{Error, JobType, Jobs, Options, Result, TypeConfig};

/// The registered types.
pub type TypeMap = Arc<BTreeMap<JobType, TypeConfig>>;

/// The service that reads the types: one per process.
#[derive(Debug)]
pub struct TypeWatcher {
    jobs: Jobs,
    options: Options,
    types: watch::Sender<TypeMap>,
}

/// The types as the watcher last read them. They stay unchanged while they cannot be read.
#[derive(Debug, Clone)]
pub struct Types(watch::Receiver<TypeMap>);

impl Types {
    /// The current types; empty before the first read.
    pub fn current(&self) -> TypeMap {
        Arc::clone(&self.0.borrow())
    }

    /// Waits until the types differ from those last returned.
    pub async fn changed(&mut self) -> Result<TypeMap> {
        self.0.changed().await.map_err(|_| Error::Stopped)?;
        Ok(Arc::clone(&self.0.borrow_and_update()))
    }
}

impl TypeWatcher {
    /// A watcher, and the types that it reads.
    pub fn new(jobs: Jobs, options: Options) -> (Self, Types) {
        let (types, seen) = watch::channel(TypeMap::default());
        let watcher = Self {
            jobs,
            options,
            types,
        };
        (watcher, Types(seen))
    }

    /// Reads the types when they change, and periodically in case a change was missed.
    pub async fn run(self, token: CancellationToken) {
        let planted = self.jobs.planted();
        let mut pause = Pause::new(self.jobs.entropy(), planted);
        loop {
            let known = self.jobs.known_types();
            let changes = known.changes();
            let (types, changed) = match self.read().await {
                Ok(read) => read,
                Err(error) => {
                    known.forget();
                    tracing::warn!(error = %error.chain(), "cannot read job types");
                    if planted.is(Bug::NoTypesOnError) {
                        self.types.send_replace(TypeMap::default());
                    }
                    if pause.wait(&token).await {
                        continue;
                    }
                    return;
                }
            };
            pause.reset();
            self.types.send_if_modified(|known| {
                let new = **known != types;
                if new {
                    *known = Arc::new(types);
                }
                new
            });
            let jitter = (self.jobs.entropy()).up_to(self.options.type_check_jitter_max());
            let wait = self.options.type_check() + jitter;
            if changed.is_some() {
                let types = Arc::clone(&self.types.borrow());
                known.set(types, changes, Instant::now() + wait);
            }
            tokio::select! {
                biased;
                () = token.cancelled() => return known.forget(),
                () = changed_or_never(changed) => known.forget(),
                () = tokio::time::sleep(wait) => {}
            }
            // Several registrations in a row cause one read.
            if !sleep(self.options.holdoff(), &token).await {
                return;
            }
        }
    }

    async fn read(&self) -> Result<(BTreeMap<JobType, TypeConfig>, Option<Watch>)> {
        (self.jobs)
            .read(Call::batch("watch_types"), |tx| async move {
                let types = self.jobs.types_in(&tx).await?;
                let watch = watch_or_poll(tx.watch(&self.jobs.keys().types()).await)?;
                Ok((types, watch))
            })
            .await
    }
}

/// Without a watch left, the store is polled.
pub(crate) fn watch_or_poll(watch: store::Result<Watch>) -> Result<Option<Watch>> {
    match watch {
        Ok(watch) => Ok(Some(watch)),
        Err(store::Error::TooManyWatches { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns when the watch fires or fails: either way, it is time to read.
pub(crate) async fn changed_or_never(watch: Option<Watch>) {
    match watch {
        Some(watch) => {
            if let Err(error) = watch.changed().await {
                tracing::debug!(error = %error, "watch");
            }
        }
        None => std::future::pending().await,
    }
}
