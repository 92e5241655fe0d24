use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::rustls::ClientConfig;
use tower::timeout::Timeout;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt as _};

/// Keep-alive probes detect a vanished cluster, even for a feed that waits for hours.
const KEEPALIVE: Duration = Duration::from_secs(30);

pub(super) type Connector =
    BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

/// Connects within `time_limit`, including the TLS handshake. Without `tls`, only `http` works.
pub(super) fn connector(tls: Option<Arc<ClientConfig>>, time_limit: Duration) -> Connector {
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    let Some(tls) = tls else {
        let http = http.map_response(MaybeHttpsStream::Http);
        return BoxCloneSyncService::new(Timeout::new(http, time_limit));
    };
    http.enforce_http(false);
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(Arc::unwrap_or_clone(tls))
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    BoxCloneSyncService::new(Timeout::new(https, time_limit))
}
