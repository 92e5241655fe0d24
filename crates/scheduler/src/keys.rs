//! The data model of this crate, and the only place that knows bytes of keys.
//!
//! ```text
//! (52, 1, replication id)               = job id         the job that may copy for this id
//! (52, 2, replication id, job id)       = ""             jobs that failed as duplicates of the owner
//! (52, 3)                               = uuid           of the service: part of every replication id
//! (52, 4, instance)                     = name, last id  a database to scan, and how far it is scanned
//! (52, 5, job id)                       = JSON           progress, which changes more often than the job's data
//! (52, 6, 0, replication id, job id)    = ""             unfinished jobs with an id, for listings
//! (52, 6, 1, "", job id)                = ""             unfinished jobs without one
//! (52, 7)                                                 retired
//! (52, 8) to (52, 11)                                     keys, see the crate `seal`
//! (52, 12, job id)                      = JSON           a suspect that a node is starting
//! (52, 15, time, job id)                = replication id of a transient job that ended at this time
//! (52, 16, minute, node)                = JSON           what a node copied in this minute since 1970
//! (52, 17, replication id)              = JSON           the run of a removed job that may still write a checkpoint
//! (52, 18, server, database, job id)    = JSON           a replication that sleeps until this database changes
//! (52, 19, server)                      = JSON           how the databases of this server are followed
//! ```
//!
//! Table numbers are never reused. A row of table 1 may outlive its job; the next job with that replication id overwrites it.

use docstore::InstanceId;
use jobs::JobId;
use store::KeyRange;
use store::tuple::{below, pack, unpack};

use crate::fault::ServiceError;

const LAYER: u16 = 52;
const OWNERS: u16 = 1;
const DUPLICATES: u16 = 2;
const SERVICE: u16 = 3;
const SCANS: u16 = 4;
const LIVE: u16 = 5;
const ACTIVE: u16 = 6;
const SUSPECTS: u16 = 12;
const RESULTS: u16 = 15;
const MINUTES: u16 = 16;
const LEAVING: u16 = 17;
const WAKES: u16 = 18;
const FOLLOWED: u16 = 19;

pub(crate) fn owner(replication_id: &str) -> Vec<u8> {
    pack(&(LAYER, OWNERS, replication_id))
}

pub(crate) fn duplicate(replication_id: &str, job: &JobId) -> Vec<u8> {
    pack(&(LAYER, DUPLICATES, replication_id, job.as_bytes()))
}

pub(crate) fn duplicates(replication_id: &str) -> KeyRange {
    below(&(LAYER, DUPLICATES, replication_id))
}

pub(crate) fn service() -> Vec<u8> {
    pack(&(LAYER, SERVICE))
}

pub(crate) fn scan(instance: InstanceId) -> Vec<u8> {
    pack(&(LAYER, SCANS, &instance.0[..]))
}

pub(crate) fn scans() -> KeyRange {
    below(&(LAYER, SCANS))
}

pub(crate) fn live(job: &JobId) -> Vec<u8> {
    pack(&(LAYER, LIVE, job.as_bytes()))
}

pub(crate) fn suspect(job: &JobId) -> Vec<u8> {
    pack(&(LAYER, SUSPECTS, job.as_bytes()))
}

/// Of a replication id or the lock of a target.
pub(crate) fn leaving(of: &str) -> Vec<u8> {
    pack(&(LAYER, LEAVING, of))
}

pub(crate) fn wake(server: &str, database: &str, job: &JobId) -> Vec<u8> {
    pack(&(LAYER, WAKES, server, database, job.as_bytes()))
}

/// The sleepers of a server, or of one of its databases.
pub(crate) fn wakes(server: &str, database: Option<&str>) -> KeyRange {
    match database {
        None => below(&(LAYER, WAKES, server)),
        Some(database) => below(&(LAYER, WAKES, server, database)),
    }
}

/// The database and the job of a [`wake`].
pub(crate) fn sleeper(key: &[u8]) -> Result<(String, JobId), ServiceError> {
    let (_, _, _, database, job) =
        unpack::<(u16, u16, String, String, Vec<u8>)>(key).map_err(|_| {
            ServiceError::corrupt("the key of a sleeping replication cannot be decoded")
        })?;
    Ok((database, JobId::new(job)?))
}

pub(crate) fn followed(server: &str) -> Vec<u8> {
    pack(&(LAYER, FOLLOWED, server))
}

pub(crate) fn all_followed() -> KeyRange {
    below(&(LAYER, FOLLOWED))
}

/// The result of a transient job that ended at a time.
pub(crate) fn result(at_ms: i64, job: &JobId) -> Vec<u8> {
    pack(&(LAYER, RESULTS, at_ms, job.as_bytes()))
}

/// The results up to a time.
pub(crate) fn results(until_ms: i64) -> KeyRange {
    let all = below(&(LAYER, RESULTS));
    KeyRange::new(
        all.begin,
        pack(&(LAYER, RESULTS, until_ms.saturating_add(1))),
    )
}

pub(crate) fn minute(number: i64, node: &str) -> Vec<u8> {
    pack(&(LAYER, MINUTES, number, node))
}

/// The minutes after one, up to another.
pub(crate) fn minutes(after: i64, to: i64) -> KeyRange {
    let bound = |number: i64| pack(&(LAYER, MINUTES, number.saturating_add(1)));
    KeyRange::new(bound(after), bound(to))
}

pub(crate) fn minute_of(key: &[u8]) -> Result<i64, ServiceError> {
    let (_, _, number, _) = unpack::<(u16, u16, i64, String)>(key)
        .map_err(|_| ServiceError::corrupt("the key of a minute cannot be decoded"))?;
    Ok(number)
}

pub(crate) fn active(replication_id: Option<&str>, job: &JobId) -> Vec<u8> {
    let rank = u16::from(replication_id.is_none());
    let id = replication_id.unwrap_or_default();
    pack(&(LAYER, ACTIVE, rank, id, job.as_bytes()))
}

pub(crate) fn all_active() -> KeyRange {
    below(&(LAYER, ACTIVE))
}

/// When a job ended, and which, by its [`result`].
pub(crate) fn ended(key: &[u8]) -> Result<(i64, JobId), ServiceError> {
    let (_, _, at_ms, job) = unpack::<(u16, u16, i64, Vec<u8>)>(key)
        .map_err(|_| ServiceError::corrupt("a key of a result cannot be decoded"))?;
    Ok((at_ms, JobId::new(job)?))
}

/// The job at the end of a key of tables 2 and 6.
pub(crate) fn last_job(key: &[u8]) -> Result<JobId, ServiceError> {
    let job = match unpack::<(u16, u16, u16, String, Vec<u8>)>(key) {
        Ok((_, _, _, _, job)) => job,
        Err(_) => {
            unpack::<(u16, u16, String, Vec<u8>)>(key)
                .map_err(|_| ServiceError::corrupt("a key of an index cannot be decoded"))?
                .3
        }
    };
    Ok(JobId::new(job)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str) -> JobId {
        id.try_into().unwrap()
    }

    #[test]
    fn bytes_are_pinned() {
        let hex = |key: Vec<u8>| key.escape_ascii().to_string();
        assert_eq!(
            hex(owner("ab+continuous")),
            r"\x154\x15\x01\x02ab+continuous\x00"
        );
        assert_eq!(
            hex(duplicate("ab", &job("j"))),
            r"\x154\x15\x02\x02ab\x00\x01j\x00"
        );
        assert_eq!(hex(service()), r"\x154\x15\x03");
        assert_eq!(hex(live(&job("j"))), r"\x154\x15\x05\x01j\x00");
        assert_eq!(hex(minute(1, "n")), r"\x154\x15\x10\x15\x01\x02n\x00");
        assert_eq!(hex(leaving("ab")), r"\x154\x15\x11\x02ab\x00");
        assert_eq!(hex(suspect(&job("j"))), r"\x154\x15\x0c\x01j\x00");
        assert_eq!(
            hex(active(Some("ab"), &job("j"))),
            r"\x154\x15\x06\x14\x02ab\x00\x01j\x00"
        );
        assert_eq!(
            hex(active(None, &job("j"))),
            r"\x154\x15\x06\x15\x01\x02\x00\x01j\x00"
        );
    }

    #[test]
    fn ranges_contain_only_their_table() {
        let one = duplicate("ab", &job("j"));
        assert!(duplicates("ab").contains(&one));
        assert!(!duplicates("a").contains(&one));
        assert!(all_active().contains(&active(None, &job(""))));
        assert!(active(Some("ff"), &job("z")) < active(None, &job("a")));
        assert!(scans().contains(&scan(InstanceId([0xff; 16]))));
        assert!(!scans().contains(&live(&job("j"))));
        assert_eq!(last_job(&one).unwrap(), job("j"));
        assert_eq!(last_job(&active(Some("ab"), &job("k"))).unwrap(), job("k"));
        assert_eq!(last_job(&active(None, &job("l"))).unwrap(), job("l"));
        assert!(
            minutes(1, 2).contains(&minute(2, "n")) && !minutes(1, 2).contains(&minute(1, "n"))
        );
        assert_eq!(minute_of(&minute(7, "n")).unwrap(), 7);
        let one = wake("http://a/", "b", &job("j"));
        assert!(wakes("http://a/", None).contains(&one));
        assert!(wakes("http://a/", Some("b")).contains(&one));
        assert!(!wakes("http://a/", Some("bc")).contains(&one));
        assert!(!wakes("http://", None).contains(&one));
        assert_eq!(sleeper(&one).unwrap(), ("b".to_owned(), job("j")));
        assert!(last_job(b"x").is_err());
    }
}
