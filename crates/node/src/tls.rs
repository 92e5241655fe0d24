//! TLS certificates.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, bail};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_rustls::TlsAcceptor;

use crate::config::HttpOptions;

/// The certificate of the listener with its key. It can be replaced: connections made later get the new one.
#[derive(Debug)]
pub struct Certificate(RwLock<Arc<CertifiedKey>>);

impl Certificate {
    /// Reads the configured files; `None` without them.
    pub fn read(options: &HttpOptions) -> anyhow::Result<Option<Self>> {
        let (cert, key) = match (&options.cert_file, &options.key_file) {
            (Some(cert), Some(key)) => (cert, key),
            (None, None) => return Ok(None),
            _ => bail!("set both `cert_file` and `key_file`, or neither"),
        };
        let certified = Arc::new(certified(cert, key)?);
        Ok(Some(Self(RwLock::new(certified))))
    }

    pub fn acceptor(self: &Arc<Self>) -> anyhow::Result<TlsAcceptor> {
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::clone(self) as Arc<_>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    pub fn replace(&self, new: &Self) {
        let new = new.get();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn get(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }
}

/// Trusts certificates signed by one in this file, or by one that the system trusts.
pub fn client(ca_file: Option<&Path>) -> anyhow::Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?;
    let Some(path) = ca_file else {
        let builder = builder.with_platform_verifier();
        let builder = builder.context("cannot load the system's certificates")?;
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let read = || format!("cannot read {}", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).with_context(read)? {
        roots
            .add(certificate.with_context(read)?)
            .with_context(read)?;
    }
    if roots.is_empty() {
        bail!("{} contains no certificate", path.display());
    }
    let builder = builder.with_root_certificates(roots);
    Ok(Arc::new(builder.with_no_client_auth()))
}

fn certified(cert: &Path, key: &Path) -> anyhow::Result<CertifiedKey> {
    let read = |path: &Path| format!("cannot read {}", path.display());
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert)
        .with_context(|| read(cert))?
        .collect();
    let certificates = certificates.with_context(|| read(cert))?;
    if certificates.is_empty() {
        bail!("{} contains no certificate", cert.display());
    }
    let private = PrivateKeyDer::from_pem_file(key).with_context(|| read(key))?;
    CertifiedKey::from_der(certificates, private, &aws_lc_rs::default_provider())
        .with_context(|| format!("cannot use {} and {}", cert.display(), key.display()))
}
