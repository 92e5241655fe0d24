//! The text that proves that a worker holds a job. Any frontend makes the held job of it again.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use jobs::{Job, JobId, JobLock, JobType};

const BYTES: usize = 1 + 4 + 16;
/// The job has more than data: an ended run has to remove it.
const HAS_MORE: u8 = 1;

pub(crate) fn encode(job: &Job, has_more: bool) -> String {
    let flags = if has_more { HAS_MORE } else { 0 };
    let (attempt, lock) = (job.attempt.to_be_bytes(), job.lock.bits().to_be_bytes());
    BASE64.encode([&[flags][..], &attempt, &lock].concat())
}

/// The job, and whether it had more than data when it was claimed. `None` if the lock is malformed or the id is invalid:
/// `_claim` cannot have given them, so the answer is that of a lock that is over.
pub(crate) fn decode(ty: &JobType, id: &str, lock: &str) -> Option<(Job, bool)> {
    let bytes = BASE64.decode(lock).ok()?;
    if bytes.len() != BYTES {
        return None;
    }
    let attempt = u32::from_be_bytes(bytes[1..5].try_into().unwrap_or_default());
    let lock = u128::from_be_bytes(bytes[5..].try_into().unwrap_or_default());
    let id = JobId::new(id.to_owned()).ok()?;
    let job = Job::new(ty.clone(), id, JobLock::from_bits(lock), attempt);
    Some((job, bytes[0] & HAS_MORE != 0))
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
            assert!(decode(&ty, "j", bad).is_none(), "{bad}");
        }
        assert!(decode(&ty, &"j".repeat(1_000), &text).is_none());
    }
}
