//! What receives the calls of webhooks.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::serve::Listener;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::journal::Journal;

/// Longer than any call may take.
const SILENCE: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Well,
    Refuses,
    Silent,
}

pub(crate) struct Endpoint {
    knock: mpsc::UnboundedSender<DuplexStream>,
    mode: Arc<Mutex<Mode>>,
    _task: AbortOnDropHandle<()>,
}

struct Streams(mpsc::UnboundedReceiver<DuplexStream>);

impl Listener for Streams {
    type Io = DuplexStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (DuplexStream, SocketAddr) {
        match self.0.recv().await {
            Some(stream) => (stream, SocketAddr::from(([10, 0, 0, 3], 80))),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([10, 0, 0, 3], 80)))
    }
}

impl Endpoint {
    pub(crate) fn start(journal: &Journal) -> Self {
        let (knock, knocks) = mpsc::unbounded_channel();
        let mode = Arc::new(Mutex::new(Mode::Well));
        let (journal, now) = (journal.clone(), Arc::clone(&mode));
        let receive = move |request: Request| {
            let header = |name| request.headers()[name].to_str().unwrap();
            let way = request.uri().path().trim_start_matches('/');
            let mode = *now.lock().unwrap();
            journal.called(way, header("x-couch-db"), header("x-couch-doc-id"), mode);
            async move {
                match mode {
                    Mode::Well => StatusCode::OK,
                    Mode::Refuses => StatusCode::SERVICE_UNAVAILABLE,
                    Mode::Silent => {
                        tokio::time::sleep(SILENCE).await;
                        StatusCode::GATEWAY_TIMEOUT
                    }
                }
            }
        };
        let app = Router::new().fallback(receive);
        let task = tokio::spawn(async move {
            axum::serve(Streams(knocks), app).await.unwrap();
        });
        Self {
            knock,
            mode,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Opens connections.
    pub(crate) fn door(&self) -> mpsc::UnboundedSender<DuplexStream> {
        self.knock.clone()
    }

    pub(crate) fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }
}
