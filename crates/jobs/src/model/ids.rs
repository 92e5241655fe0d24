//! Types and ids of jobs, locks and holders.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::model::run::Run;
use crate::{Error, Result};

/// Maximum bytes of a type's name.
pub const TYPE_BYTES_MAX: usize = 64;
/// Maximum bytes of a job id. Any bytes are valid, and so is an empty id.
pub const ID_BYTES_MAX: usize = 256;
/// Maximum bytes of a holder's name.
pub const HOLDER_BYTES_MAX: usize = 128;
/// Buckets that jobs are spread over by the hash of their id. Part of the stored format.
pub(crate) const BUCKETS: u16 = 32;
/// Buckets for scheduled jobs: claims start in a random one and take from its head, so few buckets would make claims
/// conflict. Part of the stored format.
pub(crate) const TIMED_BUCKETS: u16 = 256;
/// Rows that count a transition; each transaction adds to a random one.
pub(crate) const COUNT_ROWS: u16 = 128;
/// Shards for ready jobs: more of them mean fewer conflicts between claims; fewer are closer to first come, first
/// served. Part of the stored format.
pub(crate) const SHARDS: u16 = 1_024;

/// Longer parts of names are cut, and end with a hash.
const PART_BYTES_MAX: usize = 120;

/// The number of lanes. Part of the stored format.
pub(crate) const LANES: u16 = 4_096;
/// Ranges into which the lanes are divided when all of them are read.
pub(crate) const LANE_PARTS: u16 = 32;

/// The jobs of one owner: lanes are served in turn, however many jobs wait in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u16);

impl Lane {
    /// The lane of an owner, by a hash of its name: few owners share one.
    pub fn of(owner: &[u8]) -> Self {
        Self(high_bits(owner, 12))
    }

    /// The lane of this number, if valid.
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        (number < LANES).then_some(Self(number))
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }
}

/// The kind of a job's work: each type is its own queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobType(Arc<str>);

impl JobType {
    /// A type with a name of 1 to [`TYPE_BYTES_MAX`] bytes.
    pub fn new(name: &str) -> Result<Self> {
        check("job type", name.len(), TYPE_BYTES_MAX)?;
        if name.is_empty() {
            return Err(Error::Invalid("a job type needs a name"));
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
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

/// Identifies a job within its type.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Bytes);

impl JobId {
    /// An id of up to [`ID_BYTES_MAX`] bytes.
    pub fn new(id: impl Into<Bytes>) -> Result<Self> {
        let id = id.into();
        check("job id", id.len(), ID_BYTES_MAX)?;
        Ok(Self(id))
    }

    /// The id as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bucket of the job in every index.
    pub(crate) fn bucket(&self) -> u16 {
        self.shard() / (SHARDS / BUCKETS)
    }

    /// The bucket of the job among scheduled jobs.
    pub(crate) fn timed_bucket(&self) -> u16 {
        self.shard() / (SHARDS / TIMED_BUCKETS)
    }

    /// The shard of the job among ready jobs. Part of the stored format: never change it.
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

/// Proves that a job is held: 64 random bits for one run of one job, and the number of the acceptor to notify when the
/// job is removed; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobLock([u8; 16]);

impl JobLock {
    /// A lock of these bits, which must be random.
    pub fn from_bits(bits: u128) -> Self {
        Self(bits.to_be_bytes())
    }

    /// The bits, to hand a job to another process.
    pub fn bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// The acceptor to notify.
    pub(crate) fn acceptor(self) -> Option<u64> {
        let (_, number) = self.0.split_last_chunk()?;
        Some(u64::from_be_bytes(*number)).filter(|number| *number != 0)
    }

    /// Another lock for the same acceptor, as random as this one.
    pub(crate) fn again(self, times: u64) -> Self {
        let random = times.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self::from_bits(self.bits() ^ (u128::from(random) << 64))
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Shows too little of the lock for a reader of logs to use it.
impl fmt::Debug for JobLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

/// The name of a node that runs jobs, for operators to read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(Arc<str>);

impl Holder {
    /// A holder with a name of up to [`HOLDER_BYTES_MAX`] bytes.
    pub fn new(name: &str) -> Result<Self> {
        check("holder", name.len(), HOLDER_BYTES_MAX)?;
        Ok(Self(name.into()))
    }

    /// The name as text.
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

/// A job that is held: the argument of every call of its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its type.
    pub ty: JobType,
    /// Its id.
    pub id: JobId,
    /// Proves that the caller is the holder.
    pub lock: JobLock,
    /// The number of this run of the job, from 1.
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

    /// How long the holder may be silent, as of its last heartbeat: send heartbeats at most a third of this apart.
    pub fn timeout(&self) -> Duration {
        self.run.timeout()
    }

    /// Says whether the holder only keeps the job, and uses nothing that its tenant has a share of. Heartbeats of
    /// [`keep_alive`](crate::Jobs::keep_alive) do not charge the tenant then.
    pub fn set_idle(&self, idle: bool) {
        self.run.idle.store(idle, Ordering::Relaxed);
    }

    /// Cancelled when a creator requests another run: a long run may stop and finish early. Immediate for jobs from an
    /// [`Acceptor`](crate::Acceptor), else with the next answer to the holder.
    pub fn again(&self) -> &CancellationToken {
        &self.run.again
    }

    /// Cancelled when the job was removed, or [`keep_alive`](crate::Jobs::keep_alive) has lost it: the run may stop at
    /// once. Immediate for jobs from an [`Acceptor`](crate::Acceptor), else with the next answer to the holder.
    pub fn lost(&self) -> &CancellationToken {
        &self.run.lost
    }
}

/// Any text as a part of a [`JobId`] or a [`LimitName`](crate::LimitName): at most 120 bytes of ASCII, without spaces and
/// `|`, so that these can separate parts. Longer texts are cut, and a hash keeps them apart. Programs store the result:
/// it is always the same for a text.
pub fn name_part(text: &str) -> String {
    let escaped: String = (text.bytes())
        .map(|byte| match char::from(byte) {
            char if char.is_ascii_graphic() && !"%|".contains(char) => char.to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect();
    if escaped.len() <= PART_BYTES_MAX {
        return escaped;
    }
    let digest = Bytes::copy_from_slice(&Sha256::digest(text)[..16]);
    format!("{}#{digest:x}", &escaped[..PART_BYTES_MAX / 2])
}

/// A number from 0 to below `end` that is always the same for a text. It spreads jobs that would start together.
pub fn fraction(text: &str, end: i64) -> i64 {
    let digest = Sha256::digest(text);
    let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
    i64::from_be_bytes(*first).rem_euclid(end.max(1))
}

/// The high bits of a hash. Part of the stored format: never change it.
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
    fn parts_of_names_are_short_and_distinct() {
        assert_eq!(name_part("ssh://host/a b|c%"), "ssh://host/a%20b%7Cc%25");
        assert_eq!(name_part("\0\u{1f}\u{7f}~ü"), "%00%1F%7F~%C3%BC");
        let long = |end: &str| name_part(&format!("https://host/{}{end}", "ü/".repeat(300)));
        assert!(long("a").len() <= PART_BYTES_MAX && long("a") != long("b"));
        // Stored by programs: never change it.
        let start = "https://host/%C3%BC/%C3%BC/%C3%BC/%C3%BC/%C3%BC/%C3%BC/%C3%B";
        let hash = "06d98cd36de0d0a22763e10e39966412";
        assert_eq!(long("a"), format!("{start}#{hash}"));
        assert_eq!(name_part(&"x".repeat(120)), "x".repeat(120));
    }

    #[test]
    fn fractions_are_pinned() {
        assert_eq!(["a", "a"].map(|text| fraction(text, 1_000)), [634; 2]);
        assert_eq!([0, -1].map(|end| fraction("a", end)), [0, 0]);
    }

    #[test]
    fn debug_output_hides_the_lock() {
        let lock = JobLock::from_bits(0xabcd_ef01_2345);
        assert_eq!(format!("{lock:?}"), "0000…");
        assert_eq!(lock.bits(), 0xabcd_ef01_2345);
    }
}
