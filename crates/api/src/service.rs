//! The service: its dependencies, and running it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response};
use jobs::NotifierHandle;
use listen::Answer;
use queue::Queue;
use rules::deliver::Deliveries;
use rules::rule::{Listeners, Rules};
use scheduler::Replications;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::auth::authenticator::Authenticator;
use crate::auth::password::PasswordHash;
use crate::client::Client;
use crate::forwarded::Proxies;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::options::{InvalidOption, Options};
use crate::state::Shared;
use crate::upstream::Upstream;
use crate::waits::Waits;
use crate::{call, pipeline};

/// Dependencies of a service. Clock and random bits are the queue's.
#[derive(Debug)]
pub struct Setup {
    /// Replications with their jobs and databases.
    pub replications: Replications,
    /// Jobs of users.
    pub queue: Queue,
    /// Calls of webhooks; `None` turns `/_deliveries` off.
    pub deliveries: Option<Deliveries>,
    /// Jobs of rules that ask for calls; `None` turns actions on them off.
    pub listeners: Option<Listeners>,
    pub authenticator: Authenticator,
    /// Follows jobs for `_replicate`; without it, waiting is not possible.
    pub follow: Option<NotifierHandle>,
    /// Renders `/_metrics`; `None` turns it off.
    pub metrics: Option<Metrics>,
    /// The CouchDB cluster behind this service, if any.
    pub upstream: Option<Upstream>,
    pub options: Options,
}

#[derive(Clone, Debug)]
pub struct Service(Arc<Shared>);

impl Service {
    pub fn new(setup: Setup) -> Result<Self, InvalidOption> {
        let Setup {
            replications,
            queue,
            deliveries,
            listeners,
            authenticator,
            follow,
            metrics,
            upstream,
            options,
        } = setup;
        options.validate()?;
        authenticator.validate()?;
        let health = Health::new(replications.docs().store().clone());
        let body_memory =
            (options.bodies_bytes_max / call::MEMORY_UNIT_BYTES).min(u32::MAX as usize);
        Ok(Self(Arc::new(Shared {
            rules: Rules::new(replications.clone()),
            replications,
            queue,
            deliveries,
            listeners,
            authenticator,
            follow,
            metrics,
            upstream,
            permits: Arc::new(Semaphore::new(options.requests_max)),
            waiting: Waits::new(options.waits_max),
            forwarded: Arc::new(Semaphore::new(options.waits_max)),
            anonymous: Arc::new(Semaphore::new(options.anonymous_requests_max)),
            // Validated above.
            proxies: Proxies::parse(&options.trusted_proxies).unwrap_or_default(),
            health,
            body_memory: Arc::new(Semaphore::new(body_memory)),
            options,
            stop: CancellationToken::new(),
        })))
    }

    /// Replaces the configured administrators. Sessions of removed administrators, and of those with a changed
    /// password, end.
    pub fn set_admins(&self, admins: BTreeMap<String, PasswordHash>) {
        self.0.authenticator.admins.set(admins);
    }

    pub async fn handle(&self, request: Request<Body>, client: Client) -> Response<Body> {
        pipeline::answer(&self.0, request, client).await
    }

    pub async fn run(self, listener: TcpListener, stop: CancellationToken) {
        self.serve(listener, None, stop).await;
    }

    /// Serves TLS connections until `stop`.
    pub async fn run_tls(self, listener: TcpListener, tls: TlsAcceptor, stop: CancellationToken) {
        self.serve(listener, Some(tls), stop).await;
    }

    async fn serve(self, listener: TcpListener, tls: Option<TlsAcceptor>, stop: CancellationToken) {
        let answering = Answering {
            tls: tls.is_some(),
            service: self.clone(),
        };
        let served = listen::serve(
            listener,
            tls,
            self.0.options.listen(),
            answering,
            stop.clone(),
        );
        let end_waits = async {
            stop.cancelled().await;
            self.0.stop.cancel();
        };
        tokio::join!(served, end_waits);
    }
}

#[derive(Clone)]
struct Answering {
    service: Service,
    tls: bool,
}

impl Answer for Answering {
    async fn answer(&self, request: Request<Body>, address: SocketAddr) -> Response<Body> {
        let client = Client {
            address,
            tls: self.tls,
        };
        self.service.handle(request, client).await
    }
}
