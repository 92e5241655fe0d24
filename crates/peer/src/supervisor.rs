//! Serves, and starts over at every restart.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::http::{Context, handle};
use crate::listener::{Connection, Listening, Restart, Sockets, Transport};

/// Serves until the peer is dropped.
pub(crate) struct Supervisor {
    pub(crate) transport: Transport,
    pub(crate) address: SocketAddr,
    pub(crate) restarts: mpsc::Receiver<Restart>,
    pub(crate) running: CancellationToken,
}

impl Supervisor {
    pub(crate) async fn supervise(mut self, listening: Listening, context: Context) {
        let server = Arc::clone(&context.server);
        let app = Router::new().fallback(handle).with_state(context);
        let app = app.into_make_service_with_connect_info::<Connection>();
        let mut listening = Some(listening);
        let mut restarted: Option<oneshot::Sender<()>> = None;
        loop {
            let listener = match listening.take() {
                Some(listening) => listening,
                None => self.listen().await,
            };
            if let Some(restarted) = restarted.take() {
                restarted.send(()).ok();
            }
            let connections = self.running.child_token();
            let sockets = Sockets {
                listener,
                address: self.address,
                running: connections.clone(),
            };
            let serving = async { axum::serve(sockets, app.clone()).await };
            let restart = tokio::select! {
                biased;
                () = self.running.cancelled() => None,
                restart = self.restarts.recv() => restart,
                _ = serving => None,
            };
            connections.cancel();
            let Some(Restart { down, done }) = restart else {
                return;
            };
            server.auth.end_sessions(server.chance.bytes());
            tokio::time::sleep(down).await;
            restarted = done;
        }
    }

    async fn listen(&self) -> Listening {
        loop {
            match self.transport.listen().await {
                Ok(listening) => return listening,
                Err(error) => {
                    let address = self.address;
                    tracing::debug!(%address, %error, "the port is not free yet");
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
