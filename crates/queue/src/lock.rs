//! The text that proves that a worker holds a job. Any frontend makes the held job of it again.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use jobs::{Job, JobId, JobLock, JobType};

use crate::{Error, Result};

const BYTES: usize = 1 + 4 + 16;
/// The job has more than data: an ended run has to remove it.
const HAS_MORE: u8 = 1;

pub(crate) fn encode(job: &Job, has_more: bool) -> String {
    let flags = if has_more { HAS_MORE } else { 0 };
    let (attempt, lock) = (job.attempt.to_be_bytes(), job.lock.bits().to_be_bytes());
    BASE64.encode([&[flags][..], &attempt, &lock].concat())
}

/// The job, and whether it had more than data when it was claimed.
pub(crate) fn decode(ty: &JobType, id: &str, lock: &str) -> Result<(Job, bool)> {
    let bytes = BASE64
        .decode(lock)
        .ok()
        .filter(|bytes| bytes.len() == BYTES);
    let bytes = bytes.ok_or_else(|| {
        Error::Invalid("`lock` must be the one that `_claim` gave with the job".into())
    })?;
    let attempt = u32::from_be_bytes(bytes[1..5].try_into().unwrap_or_default());
    let lock = u128::from_be_bytes(bytes[5..].try_into().unwrap_or_default());
    let id = JobId::new(id.to_owned())?;
    let job = Job::new(ty.clone(), id, JobLock::from_bits(lock), attempt);
    Ok((job, bytes[0] & HAS_MORE != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_again() {
        let ty = JobType::new("api/a").unwrap();
        let id = JobId::try_from("j").unwrap();
        let job = Job::new(ty.clone(), id, JobLock::from_bits(u128::MAX - 7), 3);
        let text = encode(&job, true);
        assert_eq!(decode(&ty, "j", &text).unwrap(), (job, true));
        for bad in ["", "x", "äö", &text[1..]] {
            assert!(decode(&ty, "j", bad).is_err(), "{bad}");
        }
    }
}
