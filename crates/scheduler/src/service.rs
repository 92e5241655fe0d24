//! The replication service: its setup, and what the rest of this crate shares.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use docstore::DocStore;
use jobs::{Entropy, JobType, Jobs, Sharing, StallPolicy, TypeConfig};
use seal::{Sealer, check_keys_in};
use store::Transaction;
use tokio::sync::watch;

use crate::data;
use crate::events::Events;
use crate::fault::ServiceError;
use crate::keys;
use crate::options::Options;
use crate::passwords::PasswordCell;
use crate::snapshot::Kept;
use replication::id::Service;
use replication::params::Defaults;

/// The type of replication jobs, as CouchDB names it.
pub const JOB_TYPE: &str = "rep_jobs";
/// Default time that a node may be silent before its jobs are given to others.
pub const JOB_TIMEOUT: Duration = Duration::from_secs(61);
/// Due time of paused jobs: the end of the year 9999.
pub(crate) const PARKED_MS: i64 = 253_402_300_799_000;
/// The secrets of the configuration by the names that `auth.secret_ref` uses.
pub type Secrets = HashMap<String, couch::NamedSecret>;

/// Arguments of [`Replications::open`].
#[derive(Debug, Default)]
pub struct Setup {
    /// Keys for credentials at rest.
    pub sealer: Sealer,
    /// Secrets for `auth.secret_ref`.
    pub secrets: Secrets,
    /// For the user names in the URLs of rules.
    pub passwords: PasswordCell,
    /// Called when replications fail, lag and recover.
    pub events: Option<Arc<dyn Events>>,
    /// The section `[replicator]`.
    pub options: Options,
    /// The UUID in replication ids, such as that of a CouchDB being replaced. By default the stored one, or a new one.
    pub uuid: Option<String>,
    /// See [`Service::legacy_host`].
    pub legacy_host: Option<(String, u16)>,
    /// Rejects literal addresses when they are written; `None` allows all.
    pub policy: Option<couch::Policy>,
    /// How long a node may be silent before its jobs are given to others; [`JOB_TIMEOUT`] if `None`. The value of the node
    /// that started last applies to all nodes of the store.
    pub job_timeout: Option<Duration>,
}

/// The result of a piece of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// There is nothing to do.
    Nothing,
    /// Something was done; there may be more.
    Some,
}

/// Everything about replications except running them. Cheap to clone.
#[derive(Clone)]
pub struct Replications(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) jobs: Jobs,
    pub(crate) docs: DocStore,
    pub(crate) ty: JobType,
    pub(crate) sealer: Sealer,
    pub(crate) secrets: Secrets,
    pub(crate) passwords: PasswordCell,
    pub(crate) policy: Option<couch::Policy>,
    pub(crate) events: Option<Arc<dyn Events>>,
    pub(crate) service: Service,
    pub(crate) kept: Kept,
    /// The remotes that this node's metrics have.
    pub(crate) counted: Mutex<BTreeSet<String>>,
    options: watch::Sender<Arc<Options>>,
}

impl fmt::Debug for Replications {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Replications").finish_non_exhaustive()
    }
}

impl Replications {
    /// Registers the job type, and reads or creates the service's UUID. [`ServiceError::Unreadable`] if something in
    /// the store may be sealed with a key that the setup lacks.
    pub async fn open(jobs: Jobs, docs: DocStore, setup: Setup) -> Result<Self, ServiceError> {
        setup.options.validate()?;
        let ty = JobType::new(JOB_TYPE)?;
        let jobs = jobs.labelled(&ty, data::label);
        let job_timeout = setup.job_timeout.unwrap_or(JOB_TIMEOUT);
        let timeout_ms = u64::try_from(job_timeout.as_millis()).unwrap_or(u64::MAX);
        let config = TypeConfig {
            stalls: StallPolicy {
                stalls_max: None,
                backoff_ms: 500,
                backoff_ms_max: 600_000,
                healthy_ms: setup.options.health_threshold_sec.saturating_mul(1000),
            },
            sharing: Sharing::On,
            ..TypeConfig::new(timeout_ms)
        };
        let drawn = format!("{:032x}", jobs.entropy().bits());
        let (registry, ty_ref) = (&jobs, &ty);
        let (given, drawn) = (setup.uuid.as_deref(), drawn.as_str());
        let sealer = &setup.sealer;
        let (uuid, before) = (jobs.store())
            .transact("open_replications", |tx| async move {
                let before = registry.type_config_in(&tx, ty_ref).await?;
                registry.set_type_in(&tx, ty_ref, config).await?;
                check_keys_in(&tx, sealer).await?;
                Ok::<_, ServiceError>((service_uuid_in(&tx, given, drawn).await?, before))
            })
            .await?;
        if let Some(before) = before.filter(|before| before.timeout_ms != timeout_ms) {
            tracing::warn!(
                before_ms = before.timeout_ms,
                now_ms = timeout_ms,
                "job_timeout_sec of this node now applies to all nodes of the store"
            );
        }
        Ok(Self(Arc::new(Shared {
            jobs,
            docs,
            ty,
            sealer: setup.sealer,
            secrets: setup.secrets,
            passwords: setup.passwords,
            policy: setup.policy,
            events: setup.events,
            service: Service {
                uuid,
                legacy_host: setup.legacy_host,
            },
            kept: Kept::default(),
            counted: Mutex::default(),
            options: watch::Sender::new(Arc::new(setup.options)),
        })))
    }

    /// The secrets of the configuration.
    pub fn secrets(&self) -> &Secrets {
        &self.0.secrets
    }

    pub fn jobs(&self) -> &Jobs {
        &self.0.jobs
    }

    pub fn docs(&self) -> &DocStore {
        &self.0.docs
    }

    /// The type of the jobs, for a [`jobs::Notifier`] and a [`jobs::Acceptor`].
    pub fn job_type(&self) -> &JobType {
        &self.0.ty
    }

    /// The service's part of replication ids.
    pub fn service(&self) -> &Service {
        &self.0.service
    }

    pub fn sealer(&self) -> &Sealer {
        &self.0.sealer
    }

    /// The current settings.
    pub fn options(&self) -> Arc<Options> {
        self.0.options.borrow().clone()
    }

    /// Changes the settings from the next transaction or scheduler cycle on.
    pub fn set_options(&self, options: Options) -> Result<(), ServiceError> {
        options.validate()?;
        self.0.options.send_replace(Arc::new(options));
        Ok(())
    }

    pub(crate) fn watch_options(&self) -> watch::Receiver<Arc<Options>> {
        self.0.options.subscribe()
    }

    pub(crate) fn defaults(&self) -> Defaults {
        self.0.options.borrow().defaults()
    }

    pub(crate) fn entropy(&self) -> &Entropy {
        self.0.jobs.entropy()
    }
}

async fn service_uuid_in(
    tx: &Transaction,
    given: Option<&str>,
    drawn: &str,
) -> Result<String, ServiceError> {
    let stored = tx.get(&keys::service()).await?;
    let stored = stored.map(|row| String::from_utf8_lossy(&row).into_owned());
    let uuid = match (given, &stored) {
        (Some(given), _) => given,
        (None, Some(stored)) => stored,
        (None, None) => drawn,
    };
    if stored.as_deref() != Some(uuid) {
        tx.set(&keys::service(), uuid.as_bytes());
    }
    Ok(uuid.to_owned())
}
