//! What all endpoints of a node share.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::{
    AuthSettings, Authenticator, Grant, JwtFile, Session, SessionKey, TokenKey, TokenSource,
    session_url,
};
use crate::connect_to::ConnectTo;
use crate::egress::{Egress, Reach};
use crate::endpoint::{AuthMethod, Endpoint};
use crate::error::Error;
use crate::health::{Reachability, Servers, Watched};
use crate::limiter::RateLimiter;
use crate::net::{
    CONNECT_TIMEOUT, ClientIdentity, Dialer, Profile, ProfileKey, Roots, Tasks, TlsIdentity,
    TlsSource, Trouble,
};
use crate::options::{NetworkOptions, RateLimitScope};
use crate::secret::{Secret, sensitive};

/// Connections, sessions and limits of a node. Clones are cheap; connections are closed with the last.
#[derive(Clone)]
pub struct Network(Arc<Shared>);

/// The key of a rate limit: an address and a method.
pub(crate) type LimitKey = (Arc<str>, &'static str);

struct Shared {
    options: NetworkOptions,
    tls: TlsIdentity,
    dialer: Arc<Dialer>,
    tasks: Tasks,
    limiter: Arc<RateLimiter<LimitKey>>,
    servers: Arc<Servers>,
    profiles: Cache<ProfileKey, Profile>,
    sessions: Cache<SessionKey, Session>,
    tokens: Cache<TokenKey, TokenSource>,
    jwt_files: Cache<String, JwtFile>,
    /// Kept alive, so that short jobs reuse the connections of earlier ones.
    _default_profile: Arc<Profile>,
    boundaries: Boundaries,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.tasks.token.cancel();
    }
}

impl Network {
    /// Creates a network. `seed` makes multipart boundaries unguessable.
    pub fn new(options: NetworkOptions, seed: [u8; 32]) -> Result<Self, Error> {
        options.validate()?;
        if !options.verify_ssl_certificates {
            tracing::warn!("verify_ssl_certificates is off: any server can pose as any other");
        }
        let egress = Egress::new(&options.egress)?;
        let connect_to = ConnectTo::parse(&options.connect_to);
        let dialer = Arc::new(Dialer::new(
            egress,
            connect_to,
            options.resolver.clone(),
            options.transport.clone(),
        ));
        let tasks = Tasks {
            tracker: TaskTracker::new(),
            token: CancellationToken::new(),
        };
        let tls = options.tls_identity();
        let profiles = Cache::default();
        let key = ProfileKey {
            tls: tls.clone(),
            proxy: None,
            reach: Reach::Public,
            connect_timeout: CONNECT_TIMEOUT,
        };
        let default_profile = profiles.get(key, |key| {
            Ok(new_profile(key, &options, &tls, &dialer, &tasks))
        })?;
        Ok(Self(Arc::new(Shared {
            options,
            tls,
            dialer,
            tasks,
            limiter: Arc::new(RateLimiter::new()),
            servers: Arc::default(),
            profiles,
            sessions: Cache::default(),
            tokens: Cache::default(),
            jwt_files: Cache::default(),
            _default_profile: default_profile,
            boundaries: Boundaries {
                seed,
                count: AtomicU64::new(0),
            },
        })))
    }

    /// The connections and credentials of an endpoint; logs in if the server has sessions.
    pub(crate) async fn enter(
        &self,
        endpoint: &Endpoint,
    ) -> Result<(Arc<Profile>, Authenticator), Error> {
        if endpoint.secret_ref().is_some() {
            return Err(Error::Config(
                "`auth.secret_ref` is not resolved".to_owned(),
            ));
        }
        let profile = self.own_profile(endpoint)?;
        let authenticator = self.authenticator(endpoint, &profile).await;
        if matches!(
            authenticator,
            Err(Error::Auth { .. } | Error::Failed { .. } | Error::Unresolvable { .. })
        ) {
            self.doubt(endpoint);
        }
        Ok((profile, authenticator?))
    }

    fn own_profile(&self, endpoint: &Endpoint) -> Result<Arc<Profile>, Error> {
        self.profile(ProfileKey {
            tls: self.identity(endpoint),
            proxy: endpoint.proxy().cloned(),
            reach: endpoint.reach(),
            connect_timeout: CONNECT_TIMEOUT,
        })
    }

    /// Tells whether the server of an endpoint responds.
    pub fn reachability(&self, endpoint: &Endpoint) -> Reachability {
        self.watched(endpoint).reachability()
    }

    /// Requests to the server of an endpoint will be repeated after a pause. If it gives no response, it is probed until
    /// then.
    pub fn need_server(&self, endpoint: &Endpoint, pause: Duration) {
        let linger = self.0.options.probes.linger;
        (self.watched(endpoint)).need_for(pause.saturating_add(linger));
    }

    fn watched(&self, endpoint: &Endpoint) -> Arc<Watched> {
        let origin = endpoint.base().origin().ascii_serialization();
        self.0.servers.get(&origin)
    }

    /// A request to the server of an endpoint got no response.
    pub(crate) fn doubt(&self, endpoint: &Endpoint) {
        let (watched, times) = (self.watched(endpoint), self.0.options.probes);
        if watched.doubt(times)
            && let Ok(profile) = self.own_profile(endpoint)
        {
            let servers = Arc::clone(&self.0.servers);
            let observing = watched.observe(servers, profile, times);
            hyper::rt::Executor::execute(&self.0.tasks, observing);
        }
    }

    /// Checks the host of an endpoint against the egress policy, as a connection would. A name that does not resolve passes.
    pub async fn check(&self, endpoint: &Endpoint) -> Result<(), Error> {
        let url = endpoint.base();
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        match self.0.dialer.check(host, port, endpoint.reach()).await {
            Err(Trouble::Fatal(error)) => Err(error),
            Err(Trouble::Retry(_) | Trouble::Final(_)) | Ok(()) => Ok(()),
        }
    }

    /// The node's TLS identity with the endpoint's overrides.
    fn identity(&self, endpoint: &Endpoint) -> TlsIdentity {
        let wanted = endpoint.tls();
        let mut identity = self.0.tls.clone();
        if let Some(pem) = &wanted.ca_pem {
            identity.roots = Roots::Pem(pem.clone());
        }
        if let Some(verify) = wanted.verify {
            identity.verify = verify;
        }
        if let (Some(cert), Some(key)) = (&wanted.cert_pem, &wanted.key_pem) {
            identity.client = Some(ClientIdentity::Pem {
                cert: cert.clone(),
                key: key.clone(),
            });
        }
        identity
    }

    /// Connections to any server, for an author with this reach.
    pub(crate) fn open_profile(
        &self,
        reach: Reach,
        connect_timeout: Duration,
    ) -> Result<Arc<Profile>, Error> {
        self.profile(ProfileKey {
            tls: self.0.tls.clone(),
            proxy: None,
            reach,
            connect_timeout,
        })
    }

    fn profile(&self, key: ProfileKey) -> Result<Arc<Profile>, Error> {
        let shared = &self.0;
        shared.profiles.get(key, |key| {
            Ok(new_profile(
                key,
                &shared.options,
                &shared.tls,
                &shared.dialer,
                &shared.tasks,
            ))
        })
    }

    /// The profile for an origin that is not the endpoint's: of redirects and token servers.
    pub(crate) fn foreign_profile(&self, own: &ProfileKey) -> Result<Arc<Profile>, Error> {
        self.profile(ProfileKey {
            tls: self.0.tls.anonymous(),
            proxy: own.proxy.clone(),
            reach: Reach::Public,
            connect_timeout: CONNECT_TIMEOUT,
        })
    }

    async fn authenticator(
        &self,
        endpoint: &Endpoint,
        profile: &Arc<Profile>,
    ) -> Result<Authenticator, Error> {
        let settings = || AuthSettings {
            session_refresh: Duration::from_secs(self.0.options.session_refresh_interval_sec),
            session_min_update: Duration::from_secs(self.0.options.session_min_update_interval),
            jwt_directory: self.0.options.jwt_directory.clone(),
        };
        let grant = match endpoint.auth_method() {
            None => match endpoint.basic() {
                None => return Ok(Authenticator::Anonymous),
                Some(basic) => {
                    if self.0.options.auth_session {
                        let url = session_url(endpoint.base());
                        let key = SessionKey {
                            profile: profile.key.clone(),
                            url,
                            basic: basic.clone(),
                        };
                        let session = self.0.sessions.get(key, |key| {
                            Ok(Session::new(
                                Arc::clone(profile),
                                key.url,
                                key.basic,
                                settings(),
                            ))
                        })?;
                        if session.open().await? {
                            return Ok(Authenticator::Session(session));
                        }
                    }
                    return Ok(Authenticator::Fixed(sensitive(&basic.header())?));
                }
            },
            Some(AuthMethod::Bearer(token)) => {
                let value = Secret::from(format!("Bearer {}", token.expose()));
                return Ok(Authenticator::Fixed(sensitive(&value)?));
            }
            Some(AuthMethod::JwtFile(name)) => {
                let file = self
                    .0
                    .jwt_files
                    .get(name.clone(), |name| JwtFile::new(&name, &settings()))?;
                return Ok(Authenticator::JwtFile(file));
            }
            Some(method) => method.clone(),
        };
        let foreign = self.foreign_profile(&profile.key)?;
        let key = TokenKey {
            profile: foreign.key.clone(),
            method: grant,
        };
        let source = self.0.tokens.get(key, |key| match key.method {
            AuthMethod::ClientCredentials(client) => {
                Ok(TokenSource::new(foreign, Grant::ClientCredentials(client)))
            }
            AuthMethod::Iam(iam) => Ok(TokenSource::new(foreign, Grant::Iam(iam))),
            AuthMethod::Bearer(_) | AuthMethod::JwtFile(_) => {
                Err(Error::Config("this method has no token server".to_owned()))
            }
        })?;
        Ok(Authenticator::Token(source))
    }

    pub(crate) fn limiter(&self) -> &RateLimiter<LimitKey> {
        &self.0.limiter
    }

    pub(crate) fn rate_limit_scope(&self) -> RateLimitScope {
        self.0.options.rate_limit_scope
    }

    /// A boundary that no document can contain on purpose.
    pub(crate) fn boundary(&self) -> String {
        self.0.boundaries.next()
    }
}

fn new_profile(
    key: ProfileKey,
    options: &NetworkOptions,
    own: &TlsIdentity,
    dialer: &Arc<Dialer>,
    tasks: &Tasks,
) -> Profile {
    let reload = Duration::from_secs(options.cacert_reload_interval_hours.saturating_mul(3600));
    let tls = TlsSource::new(key.tls.clone(), own.anonymous(), options.http2, reload);
    let idle = Duration::from_millis(options.connection_close_interval);
    Profile::new(key, Arc::clone(dialer), tls, idle, tasks.clone())
}

/// Values that are shared while they are in use.
struct Cache<K, V>(Mutex<HashMap<K, Weak<V>>>);

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Hash + Eq + Clone, V> Cache<K, V> {
    fn get(&self, key: K, make: impl FnOnce(K) -> Result<V, Error>) -> Result<Arc<V>, Error> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = entries.get(&key).and_then(Weak::upgrade) {
            return Ok(found);
        }
        // Keys hold credentials, so those of unused values are dropped at once.
        entries.retain(|_, value| value.strong_count() > 0);
        let fresh = Arc::new(make(key.clone())?);
        entries.insert(key, Arc::downgrade(&fresh));
        Ok(fresh)
    }
}

struct Boundaries {
    seed: [u8; 32],
    count: AtomicU64,
}

impl Boundaries {
    fn next(&self) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let digest = Sha256::new()
            .chain_update(self.seed)
            .chain_update(count.to_be_bytes())
            .finalize();
        wire::hex(&digest[..16])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_shared_while_they_are_used() {
        let cache = Cache::<&str, u32>::default();
        let first = cache.get("a", |_| Ok(1)).unwrap();
        assert_eq!(*cache.get("a", |_| Ok(2)).unwrap(), 1);
        drop(first);
        assert_eq!(*cache.get("a", |_| Ok(3)).unwrap(), 3);
        cache.get("b", |_| Ok(4)).unwrap();
        assert_eq!(
            cache.0.lock().unwrap().len(),
            1,
            "unused values are dropped"
        );
    }

    #[test]
    fn boundaries_differ() {
        let seeded = |seed| Boundaries {
            seed: [seed; 32],
            count: AtomicU64::new(0),
        };
        let one = seeded(1);
        let (first, second) = (one.next(), one.next());
        assert_eq!(first.len(), 32);
        assert_ne!(first, second);
        assert_ne!(first, seeded(2).next());
    }
}
