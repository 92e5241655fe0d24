//! The redo log: segment files that are written sequentially, one after the other.
//!
//! ```text
//! redo-0000000000000001   record record record end
//! redo-0000000000000002   record record ······ zeros, or older records of a recycled file
//! redo-0000000000000003   prepared
//! ```
//! New segments are filled with zeros and synced, so that later syncs need not update the file
//! system's metadata. A segment whose records are all in the tree is recycled: it is renamed to a
//! later number. Numbers are never reused.
//!
//! The life of a commit, and what a crash at each point leaves:
//!
//! ```text
//!     commit.lock held ──────────┐                  checkpoint.lock held ─────────────┐
//! ─ a ─ append record ─ b ─ publish ─ c ─ fdatasync ─ d ─ LMDB commit ─ e ─ recycle ─ f ─▶
//!       (page cache)      (control page)    reply          rows + mark      rename segment
//! ```
//!
//! | at | a killed process leaves | a power cut leaves |
//! |---|---|---|
//! | a | nothing, or part of a record; the next commit overwrites it | the same |
//! | b | a whole record that others overwrite; without others, start-up replays it | any part of it |
//! | c | a commit that others see, and sync | any part of it; no client was told of it |
//! | d | a durable commit | the same: start-up replays the record |
//! | e | a tree that includes it; the mark says where the rest of the log begins | the same |
//! | f | the same; records in the renamed file do not continue the log | the same |
//!
//! Each record contains the checksum of the previous one, so a torn record ends the log, and old
//! records in a recycled segment never continue it. Start-up (see [`open`](super::open)) replays from
//! the tree's mark to that end, and refuses to open if it knows of a durable version after it: from
//! the control page, or from any record, each of which states what was durable when it was written.
//! Transactions that only read wait until the versions they saw are past `d`.
//!
//! Only the holder of the commit lock writes, after the last published record. Readers stop at the
//! published version, so they never see an unpublished record of a killed writer.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::record::{HEADER_BYTES, Header, Record, RecordWriter};

#[cfg(test)]
use super::trace::{Event, Trace};

/// A position between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) segment: u64,
    pub(super) offset: u64,
    /// The checksum of the record before.
    pub(super) chain: u64,
    /// The bytes of log before it.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) enum Found {
    Record(Record, Position),
    /// The log ends here.
    End,
}

#[derive(Debug)]
pub(super) struct Log {
    directory: PathBuf,
    /// The size of segments, except for the first, which is small, and those with larger records.
    segment_bytes: u64,
    segments: Mutex<BTreeMap<u64, Arc<Segment>>>,
    /// The last segment whose directory entry is synced.
    named: AtomicU64,
    #[cfg(test)]
    pub(super) trace: Trace,
}

#[derive(Debug)]
struct Segment {
    file: File,
    bytes: u64,
}

/// How much is read before the length of a record is known.
const READ_BYTES: usize = 4096;
const FIRST_SEGMENT_BYTES: u64 = 1 << 20;

impl Log {
    pub(super) fn new(directory: &Path, segment_bytes: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            segment_bytes,
            segments: Mutex::default(),
            named: AtomicU64::new(0),
            #[cfg(test)]
            trace: Trace::default(),
        }
    }

    pub(super) fn read(&self, at: Position) -> io::Result<Found> {
        let mut position = at;
        loop {
            let Some(segment) = self.segment(position.segment)? else {
                return Ok(Found::End);
            };
            let Some((header, bytes)) = segment.read(position.offset)? else {
                return Ok(Found::End);
            };
            if header.previous != position.chain {
                return Ok(Found::End);
            }
            let length = bytes.len() as u64;
            if header.ends_segment() {
                position = Position {
                    segment: position.segment + 1,
                    offset: 0,
                    chain: header.checksum,
                    bytes: position.bytes + length,
                };
                continue;
            }
            let next = Position {
                segment: position.segment,
                offset: position.offset + length,
                chain: header.checksum,
                bytes: position.bytes + length,
            };
            return Ok(match Record::parse(header, &bytes) {
                Some(record) => Found::Record(record, next),
                None => Found::End,
            });
        }
    }

    /// Writes a record. The caller holds the commit lock, and publishes the record afterwards.
    pub(super) fn append(
        &self,
        at: Position,
        writer: RecordWriter,
        version: u64,
        durable: u64,
    ) -> io::Result<Position> {
        let mut at = at;
        let mut segment = self.existing(at.segment)?;
        let end_bytes = HEADER_BYTES as u64;
        let record_bytes = writer.record_bytes() as u64;
        // A prepared segment may be too small for this record, and is then left empty.
        while at.offset + record_bytes + end_bytes > segment.bytes {
            // The next segment must exist before the record that points to it.
            let next = self.make(at.segment + 1, record_bytes + end_bytes)?;
            let (end, chain) = RecordWriter::new().finish(version, at.chain, durable);
            self.write(at.segment, &segment, at.offset, &end)?;
            at = Position {
                segment: at.segment + 1,
                offset: 0,
                chain,
                bytes: at.bytes + end_bytes,
            };
            segment = next;
        }
        let (bytes, chain) = writer.finish(version, at.chain, durable);
        self.write(at.segment, &segment, at.offset, &bytes)?;
        Ok(Position {
            segment: at.segment,
            offset: at.offset + record_bytes,
            chain,
            bytes: at.bytes + record_bytes,
        })
    }

    /// Makes the records in these segments survive a power cut. Missing segments were recycled, so
    /// their records are in the tree.
    pub(super) fn sync(&self, first: u64, last: u64) -> io::Result<()> {
        for number in first..=last {
            if let Some(segment) = self.segment(number)? {
                self.sync_segment(number, &segment)?;
            }
        }
        if self.named.load(Ordering::Acquire) < last {
            self.sync_directory()?;
            self.named.fetch_max(last, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Rewrites the bytes between two positions and syncs them. After a failed sync of an earlier
    /// process, the page cache may hold pages that are marked clean but are not on disk.
    pub(super) fn rewrite(&self, from: Position, to: Position) -> io::Result<()> {
        for number in from.segment..=to.segment {
            let segment = self.existing(number)?;
            let begin = if number == from.segment {
                from.offset
            } else {
                0
            };
            let end = if number == to.segment {
                to.offset
            } else {
                segment.bytes
            };
            let mut bytes = vec![0; usize::try_from(end - begin).map_err(io::Error::other)?];
            segment.file.read_exact_at(&mut bytes, begin)?;
            self.write(number, &segment, begin, &bytes)?;
        }
        self.sync(from.segment, to.segment)
    }

    /// The newest version that any whole record after `end` states as durable. If it is newer than the
    /// version at `end`, acknowledged commits are missing.
    pub(super) fn durable_behind(&self, end: Position) -> io::Result<u64> {
        let mut newest = 0;
        for number in self.numbers()? {
            if number < end.segment {
                continue;
            }
            let bytes = fs::read(self.path(number))?;
            let begin = if number == end.segment { end.offset } else { 0 };
            let mut offset = usize::try_from(begin).map_err(io::Error::other)?;
            while let Some(header) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
                if let Some(header) = Header::parse(header)
                    && let Some(record) = bytes.get(offset..offset + header.record_bytes())
                    && header.matches(record)
                {
                    newest = newest.max(header.durable);
                }
                offset += 8;
            }
        }
        Ok(newest)
    }

    /// The numbers of the existing segments.
    pub(super) fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("redo-"));
            numbers.extend(number.and_then(|hex| u64::from_str_radix(hex, 16).ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Creates the first segment. The caller holds the commit lock.
    pub(super) fn make_first(&self, number: u64) -> io::Result<()> {
        self.make(number, 0).map(drop)
    }

    /// True if the next segment does not exist and will be needed soon.
    pub(super) fn wants_next(&self, at: Position) -> io::Result<bool> {
        let Some(segment) = self.segment(at.segment)? else {
            return Ok(false);
        };
        Ok(at.offset > segment.bytes / 2 && !self.path(at.segment + 1).exists())
    }

    /// Prepares a file for [`Self::place_spare`], without a lock because filling it takes long.
    pub(super) fn make_spare(&self) -> io::Result<()> {
        self.fill(&self.spare(), self.segment_bytes).map(drop)
    }

    /// Makes the spare file a segment, unless another process has made it. The caller holds the commit
    /// lock.
    pub(super) fn place_spare(&self, number: u64) -> io::Result<()> {
        if self.path(number).exists() {
            return fs::remove_file(self.spare());
        }
        self.name(&self.spare(), number, self.segment_bytes)
    }

    /// Renames a segment whose records are in the tree to a later number, or removes it. The caller
    /// holds the commit lock.
    pub(super) fn recycle(&self, old: u64, number: u64) -> io::Result<()> {
        self.lock().remove(&old);
        let (from, to) = (self.path(old), self.path(number));
        if to.exists() || fs::metadata(&from)?.len() != self.segment_bytes {
            #[cfg(test)]
            self.trace.push(Event::Removed { segment: old });
            return fs::remove_file(from);
        }
        #[cfg(test)]
        (self.trace).push(Event::Renamed {
            from: old,
            to: number,
        });
        fs::rename(from, to)
    }

    fn existing(&self, number: u64) -> io::Result<Arc<Segment>> {
        self.segment(number)?.ok_or_else(|| {
            let path = self.path(number).display().to_string();
            io::Error::new(io::ErrorKind::NotFound, format!("{path} is missing"))
        })
    }

    fn segment(&self, number: u64) -> io::Result<Option<Arc<Segment>>> {
        let mut segments = self.lock();
        if let Some(segment) = segments.get(&number) {
            return Ok(Some(Arc::clone(segment)));
        }
        let options = OpenOptions::new().read(true).write(true).clone();
        let file = match options.open(self.path(number)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = file.metadata()?.len();
        let segment = Arc::new(Segment { file, bytes });
        // The last segments are those in use.
        while segments.len() >= 4 {
            segments.pop_first();
        }
        segments.insert(number, Arc::clone(&segment));
        Ok(Some(segment))
    }

    fn make(&self, number: u64, least_bytes: u64) -> io::Result<Arc<Segment>> {
        if let Some(segment) = self.segment(number)? {
            return Ok(segment);
        }
        let usual = match number {
            1 => self.segment_bytes.min(FIRST_SEGMENT_BYTES),
            _ => self.segment_bytes,
        };
        let temporary = self.directory.join("redo.new");
        let bytes = usual.max(least_bytes);
        self.fill(&temporary, bytes)?;
        self.name(&temporary, number, bytes)?;
        self.existing(number)
    }

    /// Makes a prepared file a segment.
    fn name(&self, file: &Path, number: u64, bytes: u64) -> io::Result<()> {
        #[cfg(test)]
        self.trace.push(Event::Filled {
            segment: number,
            bytes,
        });
        #[cfg(not(test))]
        let _ = bytes;
        fs::rename(file, self.path(number))
    }

    fn fill(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let options = (OpenOptions::new().write(true).create(true).truncate(true))
            .mode(0o600)
            .clone();
        let file = options.open(path)?;
        let zeros = vec![0; 1 << 16];
        let mut filled = 0;
        let result = loop {
            if filled == bytes {
                break file.sync_all();
            }
            let step = usize::try_from(bytes - filled).map_or(zeros.len(), |n| n.min(zeros.len()));
            if let Err(error) = self.write_file(&file, filled, &zeros[..step]) {
                break Err(error);
            }
            filled += step as u64;
        };
        if result.is_err() {
            // An unfinished file only takes up disk space.
            let _ = fs::remove_file(path);
        }
        result
    }

    #[cfg_attr(
        not(test),
        expect(clippy::unused_self, reason = "tests inject errors here")
    )]
    fn write_file(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        self.trace.before_write()?;
        file.write_all_at(bytes, offset)
    }

    fn write(&self, number: u64, segment: &Segment, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_file(&segment.file, offset, bytes)?;
        #[cfg(test)]
        self.trace.push(Event::Written {
            segment: number,
            offset,
            bytes: bytes.to_vec(),
        });
        #[cfg(not(test))]
        let _ = number;
        Ok(())
    }

    #[cfg_attr(
        not(test),
        expect(clippy::unused_self, reason = "tests inject errors here")
    )]
    fn sync_segment(&self, number: u64, segment: &Segment) -> io::Result<()> {
        #[cfg(test)]
        let events = self.trace.before_sync()?;
        segment.file.sync_data()?;
        #[cfg(test)]
        self.trace.push(Event::Synced {
            segment: number,
            events,
        });
        #[cfg(not(test))]
        let _ = number;
        Ok(())
    }

    pub(super) fn sync_directory(&self) -> io::Result<()> {
        #[cfg(test)]
        let events = self.trace.events().len();
        File::open(&self.directory)?.sync_all()?;
        #[cfg(test)]
        self.trace.push(Event::DirectorySynced { events });
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("redo-{number:016x}"))
    }

    fn spare(&self) -> PathBuf {
        self.directory.join("redo.spare")
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Segment>>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Segment {
    /// The record at an offset, if it is complete.
    fn read(&self, offset: u64) -> io::Result<Option<(Header, Vec<u8>)>> {
        let mut bytes = vec![0; READ_BYTES];
        let mut read = 0;
        while read < HEADER_BYTES {
            match self.file.read_at(&mut bytes[read..], offset + read as u64) {
                Ok(0) => return Ok(None),
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let Some(header) = Header::parse(&bytes) else {
            return Ok(None);
        };
        let length = header.record_bytes();
        if offset + length as u64 > self.bytes {
            return Ok(None);
        }
        bytes.resize(length, 0);
        if read < length {
            match self
                .file
                .read_exact_at(&mut bytes[read..], offset + read as u64)
            {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(header.matches(&bytes).then_some((header, bytes)))
    }
}
