//! A server that receives webhooks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Far more than any test takes.
const PATIENCE: Duration = Duration::from_mins(1);

/// A call as it was received.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) nth: usize,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Ends when dropped.
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    seen: Arc<watch::Sender<Vec<Seen>>>,
    _task: JoinSet<()>,
}

impl Endpoint {
    /// Answers each call with what `respond` returns for it.
    pub(crate) async fn new<F, Fut, R>(respond: F) -> Self
    where
        F: Fn(Seen) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = R> + Send,
        R: IntoResponse,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(watch::Sender::new(Vec::new()));
        let receiving = Arc::clone(&seen);
        let receive = move |request: Request| {
            let (receiving, respond) = (Arc::clone(&receiving), respond.clone());
            async move { receive(request, &receiving, respond).await }
        };
        let mut task = JoinSet::new();
        task.spawn(async move {
            let app = Router::new().fallback(receive);
            axum::serve(listener, app).await.unwrap();
        });
        Self {
            address,
            seen,
            _task: task,
        }
    }

    /// One that always answers with a status.
    pub(crate) async fn with_status(status: u16) -> Self {
        Self::new(move |_| async move { StatusCode::from_u16(status).unwrap() }).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    /// Waits for this many calls.
    pub(crate) async fn received(&self, count: usize) -> Vec<Seen> {
        let mut seen = self.seen.subscribe();
        let enough = tokio::time::timeout(PATIENCE, seen.wait_for(|seen| seen.len() >= count));
        let seen = enough
            .await
            .unwrap_or_else(|_| panic!("only {} of {count} calls came", self.seen().len()));
        seen.unwrap().clone()
    }
}

async fn receive<F, Fut, R>(
    request: Request,
    receiving: &watch::Sender<Vec<Seen>>,
    respond: F,
) -> Response
where
    F: Fn(Seen) -> Fut,
    Fut: Future<Output = R>,
    R: IntoResponse,
{
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let mut call = None;
    receiving.send_modify(|seen| {
        let one = Seen {
            nth: seen.len(),
            method: head.method,
            path: head.uri.to_string(),
            headers: head.headers,
            body,
        };
        seen.push(one.clone());
        call = Some(one);
    });
    respond(call.unwrap()).await.into_response()
}
