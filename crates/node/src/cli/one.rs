//! Runs one replication in this process, without a service.

use std::path::PathBuf;

use clap::Args;
use couch::{EgressOptions, Network, NetworkOptions};
use document::json::Json;
use replication::Error;
use replication::engine::Run;
use replication::params::{Defaults, Replication};

/// Which servers a command without a service trusts.
#[derive(Debug, Args)]
pub(crate) struct Trust {
    /// PEM file with the certificate authorities to trust, instead of the system's
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Do not verify certificates
    #[arg(long)]
    insecure: bool,
}

impl Trust {
    pub(crate) fn network(&self) -> anyhow::Result<Network> {
        let options = NetworkOptions {
            verify_ssl_certificates: !self.insecure,
            ssl_trusted_certificates_file: self.cacert.clone(),
            // The user who runs this can reach every address anyway.
            egress: EgressOptions::open(),
            ..NetworkOptions::default()
        };
        Ok(Network::new(options, crate::random())?)
    }
}

/// Parses a replication document and computes its id.
pub(crate) async fn prepare(document: &Json, uuid: &str, network: Network) -> anyhow::Result<Run> {
    let replication = Replication::from_document(document, &Defaults::default())?;
    let run = Run::alone(replication, uuid, network, super::random_hex());
    Box::pin(run).await.map_err(|error| failure(&error))
}

/// The error of a run, for its user.
pub(crate) fn failure(error: &Error) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", error.tag(), error.reason())
}
