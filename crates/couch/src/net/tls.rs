//! TLS: trust roots and client certificates.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use wire::Io;

use super::connector::Trouble;
use crate::error::{Error, Failure};
use crate::secret::Secret;

/// A server that speaks plain HTTP may wait for the end of what it takes for a request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The source of the trust roots.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Roots {
    System,
    /// A PEM file of the node.
    File(PathBuf),
    /// PEM text of the endpoint.
    Pem(String),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ClientIdentity {
    /// PEM files of the node.
    Files { cert: PathBuf, key: PathBuf },
    /// PEM texts of the endpoint.
    Pem { cert: String, key: Secret },
}

/// Everything that makes one TLS configuration differ from another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TlsIdentity {
    pub(crate) verify: bool,
    pub(crate) roots: Roots,
    pub(crate) client: Option<ClientIdentity>,
}

impl TlsIdentity {
    /// The same without the client certificate, for origins that the endpoint did not name.
    pub(crate) fn anonymous(&self) -> Self {
        Self {
            client: None,
            ..self.clone()
        }
    }
}

/// A TLS configuration, loaded when first needed and again when its files may have changed.
pub(crate) struct TlsSource {
    identity: TlsIdentity,
    /// For `https` proxies: the node's own trust roots.
    proxy_identity: TlsIdentity,
    http2: bool,
    reload: Duration,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    origin: Option<(Arc<ClientConfig>, Instant)>,
    proxy: Option<(Arc<ClientConfig>, Instant)>,
}

impl TlsSource {
    pub(crate) fn new(
        identity: TlsIdentity,
        proxy_identity: TlsIdentity,
        http2: bool,
        reload: Duration,
    ) -> Self {
        Self {
            identity,
            proxy_identity,
            http2,
            reload,
            loaded: Mutex::default(),
        }
    }

    /// TLS with the server itself; returns whether it chose HTTP/2.
    pub(super) async fn handshake(
        &self,
        stream: Box<dyn Io>,
        host: &str,
    ) -> Result<(Box<dyn Io>, bool), Trouble> {
        let config = {
            let mut loaded = self.loaded.lock().await;
            let alpn: &[&[u8]] = if self.http2 {
                &[b"h2", b"http/1.1"]
            } else {
                &[b"http/1.1"]
            };
            self.fresh(&mut loaded.origin, &self.identity, alpn).await?
        };
        let stream = shake_hands(config, stream, host).await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok((Box::new(stream), http2))
    }

    /// TLS with an `https` proxy.
    pub(super) async fn proxy_handshake(
        &self,
        stream: Box<dyn Io>,
        host: &str,
    ) -> Result<Box<dyn Io>, Trouble> {
        let config = {
            let mut loaded = self.loaded.lock().await;
            self.fresh(&mut loaded.proxy, &self.proxy_identity, &[b"http/1.1"])
                .await?
        };
        Ok(Box::new(shake_hands(config, stream, host).await?))
    }

    async fn fresh(
        &self,
        slot: &mut Option<(Arc<ClientConfig>, Instant)>,
        identity: &TlsIdentity,
        alpn: &[&[u8]],
    ) -> Result<Arc<ClientConfig>, Error> {
        let now = Instant::now();
        if let Some((config, made)) = slot
            && now.duration_since(*made) < self.reload
        {
            return Ok(Arc::clone(config));
        }
        let mut config = client_config(identity).await?;
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let config = Arc::new(config);
        *slot = Some((Arc::clone(&config), now));
        Ok(config)
    }
}

async fn shake_hands(
    config: Arc<ClientConfig>,
    stream: Box<dyn Io>,
    host: &str,
) -> Result<tokio_rustls::client::TlsStream<Box<dyn Io>>, Trouble> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(bare.to_owned()).map_err(|_| Failure::Unresolvable {
        host: host.to_owned(),
    })?;
    let shaken = timeout(
        HANDSHAKE_TIMEOUT,
        TlsConnector::from(config).connect(name, stream),
    )
    .await;
    let silent = |_| {
        let source = io::Error::new(io::ErrorKind::TimedOut, "no response to a TLS handshake");
        Trouble::Final(Failure::tls("no_tls", source))
    };
    shaken.map_err(silent)?.map_err(classify)
}

/// Retries do not help against an invalid certificate, or a port without TLS; all other errors may be transient.
fn classify(source: io::Error) -> Trouble {
    let inner = source
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let (tag, lasting) = match inner {
        Some(rustls::Error::InvalidCertificate(why)) => (certificate_tag(why), true),
        Some(rustls::Error::InvalidMessage(_)) => ("no_tls", true),
        Some(rustls::Error::AlertReceived(_)) => ("tls_alert", false),
        Some(_) => ("tls_error", false),
        None => return Failure::connect(source).into(),
    };
    let failure = Failure::tls(tag, source);
    if lasting {
        Trouble::Final(failure)
    } else {
        Trouble::Retry(failure)
    }
}

fn certificate_tag(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::UnknownIssuer => "unknown_ca",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "hostname_mismatch"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "certificate_expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "certificate_not_yet_valid"
        }
        CertificateError::Revoked => "certificate_revoked",
        _ => "bad_certificate",
    }
}

async fn client_config(identity: &TlsIdentity) -> Result<ClientConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Config(format!("TLS cannot be set up: {error}")))?;
    let builder = if identity.verify {
        match &identity.roots {
            Roots::System => builder
                .with_platform_verifier()
                .map_err(|error| Error::Config(format!("no system certificates: {error}")))?,
            Roots::File(path) => {
                let trusted = Trusted::new(&read(path).await?, &path.display(), provider)?;
                (builder.dangerous()).with_custom_certificate_verifier(Arc::new(trusted))
            }
            Roots::Pem(pem) => {
                let trusted = Trusted::new(pem.as_bytes(), &"`tls.ca`", provider)?;
                (builder.dangerous()).with_custom_certificate_verifier(Arc::new(trusted))
            }
        }
    } else {
        tracing::warn!("server certificates are not verified for some endpoints");
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
    };
    let (cert, key) = match &identity.client {
        None => return Ok(builder.with_no_client_auth()),
        Some(ClientIdentity::Files { cert, key }) => (read(cert).await?, read(key).await?),
        Some(ClientIdentity::Pem { cert, key }) => {
            (cert.clone().into_bytes(), key.expose().as_bytes().to_vec())
        }
    };
    let chain = certificates(&cert, &"client certificate")?;
    let key = private_key(&key)?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| Error::Config(format!("client certificate is not usable: {error}")))
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    // PKCS #8 names the encryption in its label, the older form in a header.
    if memchr::memmem::find(pem, b"ENCRYPTED").is_some() {
        return Err(Error::Config(
            "client key is encrypted, which is not supported: write it without a password, with \
             `openssl pkey -in KEY -out PLAIN_KEY`, to a file that only this service can read"
                .to_owned(),
        ));
    }
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|_| Error::Config("client key is not an unencrypted PEM key".to_owned()))
}

async fn read(path: &PathBuf) -> Result<Vec<u8>, Error> {
    tokio::fs::read(path)
        .await
        .map_err(|error| Error::Config(format!("cannot read {}: {error}", path.display())))
}

fn certificates(
    pem: &[u8],
    origin: &dyn fmt::Display,
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(Error::Config(format!("{origin} has no PEM certificates"))),
    }
}

/// Accepts certificates of the given authorities, and the given certificates themselves: self-signed ones often are those of an
/// authority, which servers must not use otherwise.
#[derive(Debug)]
struct Trusted {
    authorities: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Trusted {
    fn new(
        pem: &[u8],
        origin: &dyn fmt::Display,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, Error> {
        let invalid = |error: &dyn fmt::Display| {
            Error::Config(format!("certificate of {origin} is not valid: {error}"))
        };
        let certificates = certificates(pem, origin)?;
        let mut store = RootCertStore::empty();
        for certificate in &certificates {
            (store.add(certificate.clone())).map_err(|error| invalid(&error))?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider);
        Ok(Self {
            authorities: verifier.build().map_err(|error| invalid(&error))?,
            certificates,
        })
    }
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            (self.authorities).verify_server_cert(end_entity, intermediates, name, ocsp, now);
        match verified {
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_)))
                if self.certificates.iter().any(|known| known == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Accepts any certificate, but still checks that the server has its key.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_cannot_be_used_say_why() {
        let problem = |pem: &str| private_key(pem.as_bytes()).unwrap_err().to_string();
        let pkcs8 =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert!(problem(pkcs8).contains("openssl pkey"));
        let older = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIB\n-----END RSA PRIVATE KEY-----\n";
        assert!(problem(older).contains("is encrypted"));
        assert!(problem("junk").contains("is not an unencrypted PEM key"));
    }
}
