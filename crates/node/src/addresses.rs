//! The addresses that a node and its store listen on. No replication may reach them without a rule.

use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::net::TcpListener;

use crate::config::Config;

/// What a node listens on, bound before anything is started.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// Of a frontend.
    pub(crate) http: Option<TcpListener>,
    pub(crate) metrics: Option<TcpListener>,
}

impl Listeners {
    pub(crate) async fn bind(config: &Config) -> anyhow::Result<Self> {
        let http = config.http.listen.as_str();
        let http = config.node_types.api_frontend.then_some(http);
        Ok(Self {
            http: listen(http).await?,
            metrics: listen(config.metrics.listen.as_deref()).await?,
        })
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let all = [&self.http, &self.metrics].into_iter().flatten();
        all.filter_map(|listener| listener.local_addr().ok())
    }
}

async fn listen(address: Option<&str>) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address).await;
    listener
        .map(Some)
        .with_context(|| format!("cannot listen on {address}"))
}

/// The processes that the cluster file of a FoundationDB store names.
pub(crate) async fn of_store(config: &Config) -> Vec<SocketAddr> {
    let Some(file) = config.store.url.strip_prefix("fdb:") else {
        return Vec::new();
    };
    let file = file.split('?').next().unwrap_or_default();
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut found = Vec::new();
    for process in processes(&text) {
        match tokio::net::lookup_host(process).await {
            Ok(addresses) => found.extend(addresses),
            Err(error) => {
                tracing::warn!(process, %error, "cannot resolve an address in the cluster file; replications to it are not blocked");
            }
        }
    }
    found
}

/// The addresses with their ports in the text of a cluster file.
fn processes(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (_, processes) = lines
        .next()
        .and_then(|line| line.split_once('@'))
        .unwrap_or_default();
    let bare = |process: &'_ str| process.strip_suffix(":tls").unwrap_or(process).len();
    (processes.split(','))
        .map(|process| &process[..bare(process)])
        .filter(|process| !process.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::processes;

    #[test]
    fn a_cluster_file_names_processes() {
        let file = "# do not edit\n\nname:id@10.0.0.1:4500,[fd00::1]:4500:tls,db.example:4501\n";
        let named = ["10.0.0.1:4500", "[fd00::1]:4500", "db.example:4501"];
        assert_eq!(processes(file), named);
        assert!(processes("").is_empty());
    }
}
