//! What a job's data and its row say of a replication that sleeps in the store; see `wake.rs`.

use couch::Seq;
use jobs::JobId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::Transaction;

use crate::fault::ServiceError;
use crate::keys;

/// A replication that sleeps, in its job's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asleep {
    /// The server and the database whose changes wake it; `None` if only the clock does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) watches: Option<(String, String)>,
    /// The server is not followed: it is asked for changes when the job is due, which is soon.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(crate) polls: bool,
    /// The sequence up to which the source was copied.
    pub(crate) seq: Value,
    /// Its row.
    pub(crate) wake: Wake,
}

impl Asleep {
    pub(crate) fn seq(&self) -> Seq {
        Seq::from_value(&self.seq)
    }

    /// Writes its row.
    pub(crate) fn begin_in(&self, tx: &Transaction, job: &JobId) {
        if let Some((server, database)) = &self.watches {
            tx.set(&keys::wake(server, database, job), &self.wake.encode());
        }
    }

    /// Removes its row.
    pub(crate) fn end_in(&self, tx: &Transaction, job: &JobId) {
        if let Some((server, database)) = &self.watches {
            tx.clear(&keys::wake(server, database, job));
        }
    }
}

/// A row that wakes a sleeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wake {
    /// The last sequence of the source when it fell asleep; `null` if there are more changes, for which the job is due.
    pub(crate) seq: Value,
    /// Another sequence under which the server lists the database, although it has no later changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) listed: Option<Value>,
    /// From the change to the run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) delay_ms: i64,
    /// A random time of up to this is added.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) random_ms: i64,
    /// It does not run before this time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) not_before_ms: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Wake {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a row is JSON")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ServiceError> {
        serde_json::from_slice(bytes).map_err(|_| {
            ServiceError::corrupt("the row of a sleeping replication cannot be decoded")
        })
    }
}
