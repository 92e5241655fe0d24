//! Names: of types, jobs, locks and holders.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::model::run::Run;
use crate::{Error, Result};

/// The longest name of a type.
pub const TYPE_BYTES_MAX: usize = 64;
/// The longest id of a job. Any bytes will do, none at all too.
pub const ID_BYTES_MAX: usize = 256;
/// The longest name of a holder.
pub const HOLDER_BYTES_MAX: usize = 128;
/// How many buckets the hash of an id spreads jobs over. Part of the stored format.
pub(crate) const BUCKETS: u16 = 32;
/// How many buckets it spreads scheduled jobs over: claims begin in a random one and take from its
/// head, so with few buckets many claims meet. Part of the stored format.
pub(crate) const TIMED_BUCKETS: u16 = 256;
/// How many rows count a transition; each transaction adds to a random one.
pub(crate) const COUNT_ROWS: u16 = 128;
/// How many shards it spreads ready jobs over: the more, the less claims meet; the fewer, the closer
/// to first come, first served. Part of the stored format.
pub(crate) const SHARDS: u16 = 1_024;

/// How many lanes there are. Part of the stored format.
pub(crate) const LANES: u16 = 4_096;

/// Whose jobs a job stands among: lanes are served in turn, however many jobs wait in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u16);

impl Lane {
    /// The lane of an owner, by a hash of its name: few others have the same.
    pub fn of(owner: &[u8]) -> Self {
        Self(high_bits(owner, 12))
    }

    /// The lane of this number, if there is one.
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        (number < LANES).then_some(Self(number))
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }
}

/// What kind of work a job is: the queue it stands in.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobType(Arc<str>);

impl JobType {
    /// A type of this name, 1 to [`TYPE_BYTES_MAX`] bytes long.
    pub fn new(name: &str) -> Result<Self> {
        check("job type", name.len(), TYPE_BYTES_MAX)?;
        if name.is_empty() {
            return Err(Error::Invalid("a job type has a name"));
        }
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for JobType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Which job of its type: there is never more than one of an id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Bytes);

impl JobId {
    /// An id of up to [`ID_BYTES_MAX`] bytes.
    pub fn new(id: impl Into<Bytes>) -> Result<Self> {
        let id = id.into();
        check("job id", id.len(), ID_BYTES_MAX)?;
        Ok(Self(id))
    }

    /// The bytes of the id.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Which bucket of every index the job lies in.
    pub(crate) fn bucket(&self) -> u16 {
        self.shard() / (SHARDS / BUCKETS)
    }

    /// Which bucket of the scheduled jobs it lies in.
    pub(crate) fn timed_bucket(&self) -> u16 {
        self.shard() / (SHARDS / TIMED_BUCKETS)
    }

    /// Which shard of the ready jobs it lies in. Part of the stored format: never change it.
    pub(crate) fn shard(&self) -> u16 {
        high_bits(&self.0, 10)
    }
}

impl TryFrom<&str> for JobId {
    type Error = Error;

    fn try_from(id: &str) -> Result<Self> {
        Self::new(id.to_owned())
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The proof of holding a job: made for one run of one job, of 64 random bits and the number of the acceptor that wants to be
/// told when the job is taken away; 0 if none does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobLock([u8; 16]);

impl JobLock {
    /// The lock of these bits, which must be random.
    pub fn from_bits(bits: u128) -> Self {
        Self(bits.to_be_bytes())
    }

    /// The bits, for handing a job to another process.
    pub fn bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// The acceptor to be told.
    pub(crate) fn acceptor(self) -> Option<u64> {
        let (_, number) = self.0.split_last_chunk()?;
        Some(u64::from_be_bytes(*number)).filter(|number| *number != 0)
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Shows too little of the lock to be used by a reader of logs.
impl fmt::Debug for JobLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

/// Who runs jobs: a node's name, for operators to read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(Arc<str>);

impl Holder {
    /// A holder of this name, up to [`HOLDER_BYTES_MAX`] bytes long.
    pub fn new(name: &str) -> Result<Self> {
        check("holder", name.len(), HOLDER_BYTES_MAX)?;
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A job that is held: what every call of its worker needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its type.
    pub ty: JobType,
    /// Its id.
    pub id: JobId,
    /// The proof that the caller is its holder.
    pub lock: JobLock,
    /// Which run of the job this is, from 1.
    pub attempt: u32,
    pub(crate) run: Arc<Run>,
}

impl Job {
    /// The run with this lock, for a process other than the one that accepted it.
    pub fn new(ty: JobType, id: JobId, lock: JobLock, attempt: u32) -> Self {
        Self {
            ty,
            id,
            lock,
            attempt,
            run: Arc::default(),
        }
    }

    /// How long its holder may be silent, as its last heartbeat knew: heartbeats are to be sent at a third of it or sooner.
    pub fn timeout(&self) -> Duration {
        self.run.timeout()
    }

    /// Cancelled when a creator asks for another run: a long run may stop, and finish, for its sake. At once for jobs that an
    /// [`Acceptor`](crate::Acceptor) handed out, else with an answer to the holder.
    pub fn again(&self) -> &CancellationToken {
        &self.run.again
    }

    /// Cancelled when the job was removed, or [`keep_alive`](crate::Jobs::keep_alive) has lost it: the run may stop where it
    /// is. At once for jobs that an [`Acceptor`](crate::Acceptor) handed out, else with an answer to the holder.
    pub fn lost(&self) -> &CancellationToken {
        &self.run.lost
    }
}

/// So many bits of a hash. Part of the stored format: never change it.
fn high_bits(bytes: &[u8], bits: u32) -> u16 {
    // FNV-1a, finished by a multiplication so that the high bits depend on every byte.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u16::try_from(mixed >> (u64::BITS - bits)).unwrap_or(0)
}

pub(crate) fn check(what: &'static str, size: usize, max: usize) -> Result<()> {
    if size > max {
        return Err(Error::TooLarge { what, size, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_pinned_and_even() {
        let bucket = |id: &'static [u8]| JobId::new(id).unwrap().bucket();
        assert_eq!(
            [bucket(b""), bucket(b"a"), bucket(b"\xff\x00")],
            [16, 16, 23]
        );
        let mut counts = [0_u32; 32];
        for n in 0..32_000 {
            counts[usize::from(JobId::new(format!("job-{n}")).unwrap().bucket())] += 1;
        }
        assert!(counts.iter().all(|n| (800..1200).contains(n)), "{counts:?}");
    }

    #[test]
    fn lanes_are_pinned() {
        let lanes = [&b""[..], b"anna", b"\xff"].map(|owner| Lane::of(owner).number());
        assert_eq!(lanes, [2135, 2079, 655]);
    }

    #[test]
    fn names_have_limits() {
        assert!(JobType::new("").is_err());
        assert!(JobType::new(&"t".repeat(TYPE_BYTES_MAX)).is_ok());
        assert!(JobType::new(&"t".repeat(TYPE_BYTES_MAX + 1)).is_err());
        assert!(JobId::new(vec![0; ID_BYTES_MAX]).is_ok());
        assert!(JobId::new(vec![0; ID_BYTES_MAX + 1]).is_err());
        assert!(Holder::new(&"h".repeat(HOLDER_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn a_lock_does_not_show_itself() {
        let lock = JobLock::from_bits(0xabcd_ef01_2345);
        assert_eq!(format!("{lock:?}"), "0000…");
        assert_eq!(lock.bits(), 0xabcd_ef01_2345);
    }
}
