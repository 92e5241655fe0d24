//! A running node: wires its roles together, and stops them in order.

mod following;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use api::auth::authenticator::Authenticator;
use api::auth::cookie::Sessions;
use api::auth::jwt::Jwt;
use api::auth::password::PasswordHash;
use api::auth::throttle::Throttle;
use api::auth::verifier::Verifier;
use api::{Service, Upstream};
use couch::{Network, NetworkOptions, Policy};
use docstore::DocStore;
use jobs::{Acceptor, Clock, Entropy, Holder, Jobs, Maintenance, Notifier};
use queue::Queue;
use replication::engine::Budget;
use rules::deliver::{Deliveries, EventCalls};
use rules::rule::{Listeners as RuleListeners, Rules};
use rules::source::Followers;
use scheduler::{PasswordCell, Replications, Server, ServerSetup, ServiceError, Setup};
use seal::Unreadable;
use store::Store;
use store::nodes::{self, Registration};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::addresses::{self, Listeners};
use crate::config::Config;
use crate::keys::KeyRing;
use crate::metrics::{Collected, Scraped};
use crate::tls::{self, Certificate};
use crate::{admins, random};
use following::Following;

/// Time limit of a graceful shutdown.
pub const STOP_MAX: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct Node {
    replications: Replications,
    deliveries: Deliveries,
    passwords: PasswordCell,
    service: Option<Service>,
    certificate: Option<Arc<Certificate>>,
    admin_secret: [u8; 32],
    address: Option<SocketAddr>,
    /// Tasks that clients and jobs depend on directly; stopped first.
    outer: Tasks,
    /// Tasks that the others depend on.
    inner: Tasks,
}

#[derive(Debug, Default)]
struct Tasks {
    stop: CancellationToken,
    running: JoinSet<&'static str>,
}

impl Tasks {
    /// Starts a task with a token that stops it.
    fn start<F>(&mut self, name: &'static str, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = task(self.stop.clone());
        self.running.spawn(async move {
            task.await;
            name
        });
    }

    /// The first task that ends without being stopped.
    async fn failed(&mut self) -> anyhow::Error {
        match self.running.join_next().await {
            Some(Ok(name)) => anyhow!("the {name} ended unexpectedly"),
            Some(Err(error)) => anyhow!(error).context("a component of the node failed"),
            None => std::future::pending().await,
        }
    }

    async fn stop(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a component of the node failed");
            }
        }
    }
}

impl Node {
    /// Starts every role on a store. On an error, stops what was started.
    pub async fn start(
        config: &Config,
        store: Store,
        keys: &KeyRing,
        collected: &Collected,
    ) -> anyhow::Result<Self> {
        let listeners = Listeners::bind(config).await?;
        let mut network = network(config)?;
        network.egress.own = addresses::of_store(config).await;
        network.egress.own.extend(listeners.addresses());
        let file = config.rules.passwords_file.as_deref();
        let passwords = PasswordCell::new(following::passwords(file)?);
        let opened = opened(config, keys, store, &network, &passwords).await?;
        let (replications, deliveries) = opened;
        deliveries.register(&config.webhooks).await?;
        // A node that follows sources adds jobs of these types as soon as it starts.
        let feeds = Followers::register(replications.jobs()).await?;
        let listening = RuleListeners::open(Rules::new(replications.clone())).await?;
        let admin_secret = admins::secret(keys)?;
        let mut node = Self {
            replications,
            deliveries,
            passwords,
            service: None,
            certificate: None,
            admin_secret,
            address: listeners.addresses().next(),
            outer: Tasks::default(),
            inner: Tasks::default(),
        };
        if let Some(listener) = listeners.http {
            node.start_frontend(config, keys, collected, listener, &listening)
                .await?;
        }
        if config.node_types.replication {
            node.start_replication(config, network, &listening)?;
        }
        if let Some(listener) = listeners.metrics {
            tracing::info!(address = %listener.local_addr()?, "serving metrics");
            let (scraped, options) = (
                Scraped::new(collected.clone(), node.replications.docs().store().clone()),
                listen::Options::default(),
            );
            node.outer.start("listener for metrics", |stop| {
                listen::serve(listener, None, options, scraped, stop)
            });
        }
        node.register(config).await?;
        let replications = &node.replications;
        let maintenance = Maintenance::new(replications.jobs().clone(), config.couch_jobs.clone())
            .serve(replications.job_type().clone())
            .serve(feeds)
            .serve(listening.job_type().clone())
            .serve(node.deliveries.job_type().clone())
            .serve(queue::schedules_type())
            .serve_prefix(queue::PREFIX);
        node.inner
            .start("activity monitor", |stop| maintenance.run(stop));
        let collected = collected.clone();
        node.inner
            .start("metrics upkeep", |stop| collected.run(stop));
        Ok(node)
    }

    /// Puts the node into the list of those that work on the store.
    async fn register(&mut self, config: &Config) -> anyhow::Result<()> {
        let jobs = self.replications.jobs();
        let (clock, id) = (jobs.clock().clone(), jobs.entropy().bits());
        let roles = [
            (config.node_types.api_frontend, "api_frontend"),
            (config.node_types.replication, "replication"),
        ];
        let roles = roles.iter().filter(|(has, _)| *has);
        let node = nodes::Node {
            name: node_name(config),
            roles: roles.map(|(_, role)| *role).collect::<Vec<_>>().join(","),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_ms: clock.now_ms(),
        };
        let mut registration = Registration::new(jobs.store().clone(), id, node);
        registration.beat(clock.now_ms()).await?;
        self.inner.start("registration of the node", |stop| {
            stay_registered(registration, clock, stop)
        });
        Ok(())
    }

    async fn start_frontend(
        &mut self,
        config: &Config,
        keys: &KeyRing,
        collected: &Collected,
        listener: TcpListener,
        listeners: &RuleListeners,
    ) -> anyhow::Result<()> {
        if config.replicator.create_replicator_db {
            create_database(&self.replications, "_replicator").await?;
        }
        let replications = &self.replications;
        let (jobs, ty) = (replications.jobs().clone(), replications.job_type().clone());
        let (notifier, follow) = Notifier::new(jobs, ty, config.couch_jobs.clone());
        let (jobs, options) = (replications.jobs().clone(), config.couch_jobs.clone());
        let queue = Queue::new(jobs, options, replications.sealer().clone());
        let admins = admins::hash_all(&config.admins, self.admin_secret).await?;
        let rendered = collected.clone();
        let service = Service::new(api::Setup {
            replications: replications.clone(),
            queue: queue.clone(),
            deliveries: Some(self.deliveries.clone()),
            listeners: Some(listeners.clone()),
            authenticator: authenticator(config, keys, admins)?,
            follow: Some(follow),
            metrics: Some(api::Metrics::new(move || rendered.render())),
            upstream: upstream(config)?,
            options: api::Options {
                node_name: node_name(config),
                ..config.api.clone()
            },
        })?;
        self.certificate = Certificate::read(&config.http)?.map(Arc::new);
        let tls = self.certificate.as_ref().map(Certificate::acceptor);
        let tls = tls.transpose()?;
        self.service = Some(service.clone());
        self.outer.start("notifier", |stop| notifier.run(stop));
        self.outer.start("claims of users", |stop| queue.run(stop));
        self.outer
            .start("listener", |stop| serve(service, listener, tls, stop));
        Ok(())
    }

    fn start_replication(
        &mut self,
        config: &Config,
        network: NetworkOptions,
        listeners: &RuleListeners,
    ) -> anyhow::Result<()> {
        let replications = &self.replications;
        let holder = Holder::new(&node_name(config))?;
        let (jobs, ty) = (replications.jobs().clone(), replications.job_type().clone());
        let (acceptor, handle) = Acceptor::new(jobs, ty, holder.clone());
        let network = Network::new(network, random())?;
        let following = Following {
            config,
            replications,
            deliveries: &self.deliveries,
            listeners,
            network: &network,
            holder: &holder,
            passwords: &self.passwords,
        };
        following.start(&mut self.outer, &mut self.inner)?;
        let setup = ServerSetup {
            node: holder,
            network,
            budget: Budget::new(config.node.document_memory_mb.saturating_mul(1 << 20)),
        };
        let (server, _load) = Server::new(replications.clone(), handle, setup);
        self.outer.start("job server", |stop| server.run(stop));
        self.inner.start("acceptor", |stop| acceptor.run(stop));
        Ok(())
    }

    /// Where clients connect to, or those who want metrics if this is no frontend.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The key of administrators' salts.
    pub(crate) fn admin_secret(&self) -> [u8; 32] {
        self.admin_secret
    }

    pub fn replications(&self) -> &Replications {
        &self.replications
    }

    /// Applies reloadable settings: options of `[replicator]`, passwords of rules, administrators, and the certificate. If one
    /// is not valid, it applies none.
    pub async fn apply(&self, config: &Config) -> anyhow::Result<()> {
        let passwords = following::passwords(config.rules.passwords_file.as_deref())?;
        let admins = match &self.service {
            Some(_) => Some(admins::hash_all(&config.admins, self.admin_secret).await?),
            None => None,
        };
        let read = |_: &Arc<_>| Certificate::read(&config.http).transpose();
        let certificate = self.certificate.as_ref().and_then(read).transpose()?;
        self.replications.set_options(config.replicator.clone())?;
        self.passwords.set(passwords);
        if let (Some(old), Some(new)) = (&self.certificate, certificate) {
            old.replace(&new);
        }
        if let (Some(service), Some(admins)) = (&self.service, admins) {
            service.set_admins(admins);
        }
        Ok(())
    }

    /// Waits until a component ends unexpectedly.
    pub async fn failed(&mut self) -> anyhow::Error {
        tokio::select! {
            error = self.outer.failed() => error,
            error = self.inner.failed() => error,
        }
    }

    /// Stops in order: requests end, jobs write checkpoints and are released. False after a time-out.
    pub async fn stop(mut self) -> bool {
        let orderly = async {
            self.outer.stop().await;
            self.inner.stop().await;
        };
        tokio::time::timeout(STOP_MAX, orderly).await.is_ok()
    }
}

/// Shows signs of life until the node stops. Ends early when the store can no longer be used by this
/// version, and so ends the node.
async fn stay_registered(mut registration: Registration, clock: Clock, stop: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = tokio::time::sleep(nodes::BEAT_EVERY) => {}
        }
        match registration.beat(clock.now_ms()).await {
            Ok(()) => {}
            Err(error @ store::Error::Open { .. }) => {
                tracing::error!(error = %wire::chain(&error), "the store is no longer usable");
                return;
            }
            Err(error) => tracing::warn!(error = %wire::chain(&error), "cannot register the node"),
        }
    }
    if let Err(error) = registration.leave().await {
        tracing::warn!(error = %wire::chain(&error), "cannot unregister the node");
    }
}

/// Replications of a store, with the keys of its nodes.
pub(crate) async fn replications(
    config: &Config,
    keys: &KeyRing,
    store: Store,
    network: &NetworkOptions,
) -> anyhow::Result<Replications> {
    let (replications, _) = opened(config, keys, store, network, &PasswordCell::default()).await?;
    Ok(replications)
}

/// Replications of a store and the calls of its webhooks.
async fn opened(
    config: &Config,
    keys: &KeyRing,
    store: Store,
    network: &NetworkOptions,
    passwords: &PasswordCell,
) -> anyhow::Result<(Replications, Deliveries)> {
    let jobs = Jobs::new(store.clone(), Clock::system(), Entropy::from_os());
    let deliveries = Deliveries::new(jobs.clone());
    let events = EventCalls::new(deliveries.clone(), &config.webhooks.events);
    let docs = docstore::Options {
        kinds: ["_replicator", "_users"]
            .into_iter()
            .chain(rules::rule::KINDS)
            .map(str::to_owned)
            .collect(),
        document_bytes_max: config.couchdb.max_document_size,
        ..docstore::Options::default()
    };
    let setup = Setup {
        sealer: keys.sealer()?,
        secrets: config.secrets.named().map_err(|what| anyhow!(what))?,
        passwords: passwords.clone(),
        options: config.replicator.clone(),
        uuid: config.couchdb.uuid.clone(),
        job_timeout: Some(Duration::from_secs(config.couch_jobs.job_timeout_sec)),
        policy: Some(Policy::new(network)?),
        events: events.map(|events| Arc::new(events) as Arc<_>),
        legacy_host: config.couchdb.legacy_host().map_err(|what| anyhow!(what))?,
    };
    match Replications::open(jobs, DocStore::new(store, docs), setup).await {
        Ok(replications) => Ok((replications, deliveries)),
        Err(ServiceError::Unreadable(Unreadable::OtherKey(name))) => bail!(other_key(&name)),
        Err(ServiceError::Unreadable(error)) => Err(anyhow!(error).context(
            "credentials in this store may be sealed with other keys; give this node the key file of the others, or restore \
             the key's line below the first one: `davenport keys list` shows when it can be removed",
        )),
        Err(error) => Err(error.into()),
    }
}

/// The error for a key whose name belongs to another key.
pub(crate) fn other_key(names: &str) -> String {
    format!(
        "the key {names} of the key file differs from the key of that name recorded in this store: give this node the key \
         file of the others, or, if this one is meant to be new, give it a name that has never been used"
    )
}

async fn create_database(replications: &Replications, name: &str) -> anyhow::Result<()> {
    match replications.create_database(name).await {
        Ok(_) | Err(ServiceError::Docs(docstore::Error::DatabaseExists)) => Ok(()),
        Err(error) => Err(anyhow!(error).context(format!("cannot create the database {name}"))),
    }
}

fn authenticator(
    config: &Config,
    keys: &KeyRing,
    admins: BTreeMap<String, PasswordHash>,
) -> anyhow::Result<Authenticator> {
    let auth = &config.chttpd_auth;
    let secrets = keys.derive("davenport session cookies");
    let claims = config.jwt_auth.required_claims.iter();
    let claims = claims.map(|claim| match claim.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (claim.clone(), None),
    });
    Ok(Authenticator {
        admins: admins.into(),
        sessions: Sessions::new(
            secrets.iter().map(|secret| secret.to_vec()).collect(),
            Duration::from_secs(auth.timeout),
        ),
        jwt: Jwt::new(
            &config.jwt_keys.0,
            claims.collect(),
            &config.jwt_auth.roles_claim_path,
        )?,
        proxy_secrets: (auth.proxy_secrets.iter())
            .map(|secret| secret.clone().into_bytes())
            .collect(),
        verifier: Verifier::new(random()),
        throttle: Throttle::new(random()),
        upgrade_hashes: auth.upgrade_hash_on_auth,
    })
}

/// The cluster behind this frontend.
fn upstream(config: &Config) -> anyhow::Result<Option<Upstream>> {
    let options = &config.upstream;
    let is_tls = options.target()?.is_some_and(|url| url.scheme() == "https");
    let tls = is_tls.then(|| tls::client(options.ca_file.as_deref()));
    Ok(Upstream::new(options.clone(), tls.transpose()?, random())?)
}

/// How other servers are reached. The configured cluster is allowed at any address, since plain database names refer to
/// it.
pub fn network(config: &Config) -> anyhow::Result<NetworkOptions> {
    let mut options = config.network.clone();
    if let Some(url) = config.upstream.target()? {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        options.egress.allow.push(format!("{host}:{port}"));
    }
    Ok(options)
}

async fn serve(
    service: Service,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
) {
    match tls {
        Some(tls) => service.run_tls(listener, tls, stop).await,
        None => service.run(listener, stop).await,
    }
}

/// The name that jobs show.
pub fn node_name(config: &Config) -> String {
    config.node.name.clone().unwrap_or_else(|| {
        let name = format!("davenport@{}", host::name());
        name.chars().take(jobs::HOLDER_BYTES_MAX / 4).collect()
    })
}

pub async fn open_store(config: &Config) -> anyhow::Result<Store> {
    Ok(Store::open_with(&config.store.url, &config.store.open_options()).await?)
}

/// The keys from the configured file; for an in-memory store, a random one.
pub fn open_keys(config: &Config, file: Option<&Path>) -> anyhow::Result<KeyRing> {
    match key_file(config, file) {
        Some(path) => KeyRing::open(&path, random()),
        None => Ok(KeyRing::drawn(random())),
    }
}

/// The path of the configured key file.
pub(crate) fn key_file(config: &Config, file: Option<&Path>) -> Option<PathBuf> {
    let state = std::env::var_os("STATE_DIRECTORY");
    crate::keys::path(config, file, state.as_deref().map(Path::new))
}
