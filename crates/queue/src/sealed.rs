//! How jobs are stored: those of sealed types encrypted. Both forms are read, whatever the type says now.

use std::collections::BTreeSet;

use bytes::Bytes;
use jobs::{Finish, JobId, JobType};
use seal::{Unreadable, is_sealed, job_context, key_of_data};
use store::Transaction;

use crate::reason::LEFT;
use crate::{Envelope, Error, Queue, Result, Type};

/// The reason of failed runs of sealed types. It is not encrypted; the job's `error` is.
pub(crate) const REASON: &str = "sealed";
/// When it is claimed again, perhaps by another node.
const LEFT_MS: i64 = 30_000;

impl Queue {
    /// The stored form of a job of this type.
    pub(crate) fn pack(&self, ty: &Type, id: &JobId, envelope: &Envelope) -> Result<Bytes> {
        let plain = envelope.encode();
        if !ty.settings.sealed {
            return Ok(plain);
        }
        let context = job_context(ty.ty.as_str(), id.as_bytes());
        let sealed = self.sealer().seal_data(&context, &plain);
        sealed.ok_or(Error::NoKeys)
    }

    /// A job from its stored form.
    pub(crate) fn unpack(&self, ty: &JobType, id: &JobId, data: Bytes) -> Result<Envelope> {
        if !is_sealed(&data) {
            return Envelope::decode(data);
        }
        let context = job_context(ty.as_str(), id.as_bytes());
        Envelope::decode(self.sealer().open_data(&context, &data)?)
    }

    /// How the run of a claimed job ends that cannot be read. One whose key this node lacks is left to others; one that no
    /// node can read is dead.
    pub(crate) fn unread(&self, ty: &JobType, id: &JobId, error: &Error) -> Finish {
        let reason = error.why();
        tracing::error!(job.ty = %ty, job.id = %id, reason, "a claimed job cannot be read");
        match error {
            Error::Unreadable(Unreadable::NoKey(_)) => {
                let due_ms = self.jobs().clock().now_ms().saturating_add(LEFT_MS);
                Finish {
                    reason: Some(format!("{LEFT}{reason}")),
                    ..Finish::returned(due_ms)
                }
            }
            _ => Finish::dead(reason),
        }
    }

    /// Must be called in each transaction that writes these stored forms.
    pub(crate) async fn sealing_in<'a>(
        &self,
        tx: &Transaction,
        stored: impl Iterator<Item = &'a Bytes>,
    ) -> Result<()> {
        let keys: BTreeSet<&str> = stored.filter_map(|data| key_of_data(data)).collect();
        for key in keys {
            seal::sealing_in(tx, self.sealer(), key).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
