//! What a run needs of the user's parameters.

use std::time::Duration;

use couch::Endpoint;
use replication::params::Replication;
use serde_json::json;

use super::end::End;
use super::{Work, text_info};
use crate::data::{JobData, Origin};
use crate::fault::ServiceError;

impl Work<'_> {
    /// The user's parameters, ready to run.
    pub(super) fn replication(
        &self,
        data: &JobData,
    ) -> Result<Result<Replication, End>, ServiceError> {
        let replications = &self.runner.replications;
        let job = &self.accepted.job.id;
        let wanted = data.replication(&replications.0.sealer, job, &replications.defaults());
        let mut replication = match wanted {
            Ok(Ok(replication)) => replication,
            Ok(Err(invalid)) => return Ok(Err(End::Fail(text_info(&invalid.to_string())))),
            // This node may lack a key that others have.
            Err(error @ ServiceError::Unreadable(_)) => {
                let info = json!({"error": "unreadable", "reason": wire::chain(&error)});
                return Ok(Err(End::Crash(info)));
            }
            Err(error) => return Err(error),
        };
        for endpoint in [&mut replication.source, &mut replication.target] {
            match self.resolve(endpoint) {
                Ok(None) => {}
                Ok(Some(resolved)) => *endpoint = resolved,
                Err(text) => {
                    let info = json!({"error": "replication_auth_error", "reason": text});
                    return Ok(Err(End::Crash(info)));
                }
            }
        }
        if let Origin::Rule { .. } = data.origin {
            let passwords = replications.0.passwords.get();
            for endpoint in [&mut replication.source, &mut replication.target] {
                passwords.complete(endpoint);
            }
        }
        if data.last_error.as_deref() == Some("max_backoff") {
            let options = &mut replication.options;
            let interval = &mut options.checkpoint_interval;
            *interval = (*interval).min(Duration::from_secs(5));
            options.worker_processes = options.worker_processes.min(2);
            options.worker_batch_size = options.worker_batch_size.min(100);
            options.http_connections = options.http_connections.min(2);
        }
        Ok(Ok(replication))
    }

    fn resolve(&self, endpoint: &Endpoint) -> Result<Option<Endpoint>, String> {
        let Some(name) = endpoint.secret_ref() else {
            return Ok(None);
        };
        let secret = self.runner.replications.0.secrets.get(name);
        let secret = secret.ok_or_else(|| format!("there is no secret `{name}`"))?;
        endpoint
            .with_secret(secret)
            .map(Some)
            .map_err(|error| error.to_string())
    }
}
