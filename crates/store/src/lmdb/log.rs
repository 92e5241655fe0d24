//! The redo log: segment files that are written from front to back, one after the other.
//!
//! ```text
//! redo-0000000000000001   record record record turn
//! redo-0000000000000002   record record ······ zeros, or what the file held before
//! redo-0000000000000003   prepared
//! ```
//! A segment is filled with zeros when it is made, so that syncing what is written into it later
//! needs no change of the file system's own records. A segment whose records are all in the tree is
//! renamed to become a later one. A number is never used twice.
//!
//! Only the holder of the commit lock writes, behind the last record that was published. Readers
//! stop at the published version, so they never see what a killed writer has left unpublished.

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

/// A place between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) segment: u64,
    pub(super) offset: u64,
    /// The checksum of the record before.
    pub(super) chain: u64,
    /// How many bytes of log lie before.
    pub(super) bytes: u64,
}

/// What is found at a position.
#[derive(Debug)]
pub(super) enum Found {
    Record(Record, Position),
    /// No continuation of the log.
    End,
}

#[derive(Debug)]
pub(super) struct Log {
    directory: PathBuf,
    /// The size of segments, except the first, which is small, and those for larger records.
    segment_bytes: u64,
    segments: Mutex<BTreeMap<u64, Arc<Segment>>>,
    /// The last segment whose name is known to be on disk.
    named: AtomicU64,
    #[cfg(test)]
    pub(super) trace: Trace,
}

#[derive(Debug)]
struct Segment {
    file: File,
    bytes: u64,
}

/// How much of a segment a reader fetches before it knows how long the record is.
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

    /// Reads the record at a position.
    pub(super) fn read(&self, at: Position) -> io::Result<Found> {
        let mut place = at;
        loop {
            let Some(segment) = self.segment(place.segment)? else {
                return Ok(Found::End);
            };
            let Some((header, bytes)) = segment.read(place.offset)? else {
                return Ok(Found::End);
            };
            if header.previous != place.chain {
                return Ok(Found::End);
            }
            let length = bytes.len() as u64;
            if header.is_turn() {
                place = Position {
                    segment: place.segment + 1,
                    offset: 0,
                    chain: header.checksum,
                    bytes: place.bytes + length,
                };
                continue;
            }
            let next = Position {
                segment: place.segment,
                offset: place.offset + length,
                chain: header.checksum,
                bytes: place.bytes + length,
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
        let turn_bytes = HEADER_BYTES as u64;
        let record_bytes = writer.record_bytes() as u64;
        // A segment that somebody has made for smaller records is passed by.
        while at.offset + record_bytes + turn_bytes > segment.bytes {
            // The next segment is there before the record that leads to it.
            let next = self.make(at.segment + 1, record_bytes + turn_bytes)?;
            let (turn, chain) = RecordWriter::new().finish(version, at.chain, durable);
            self.write(at.segment, &segment, at.offset, &turn)?;
            at = Position {
                segment: at.segment + 1,
                offset: 0,
                chain,
                bytes: at.bytes + turn_bytes,
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

    /// Makes sure that what was written into these segments survives a power cut. A segment that is
    /// gone was in the tree.
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

    /// Writes the bytes between two positions again and syncs them. A sync that failed in an
    /// earlier life may have left pages in memory that look clean and are not on disk.
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

    /// The newest version that any whole record behind `end` says was durable: proof that the log
    /// once went on, if that is newer than what was read up to `end`.
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

    /// The numbers of the segments there are.
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

    /// The segment, which is made if it is not there. The caller holds the commit lock.
    pub(super) fn make_first(&self, number: u64) -> io::Result<()> {
        self.make(number, 0).map(drop)
    }

    /// True when the log will soon have to go on in a segment that is not there yet.
    pub(super) fn wants_next(&self, at: Position) -> io::Result<bool> {
        let Some(segment) = self.segment(at.segment)? else {
            return Ok(false);
        };
        Ok(at.offset > segment.bytes / 2 && !self.path(at.segment + 1).exists())
    }

    /// Fills a file with zeros, which [`Self::place_spare`] will give a name.
    pub(super) fn make_spare(&self) -> io::Result<()> {
        self.fill(&self.spare(), self.segment_bytes).map(drop)
    }

    /// Makes the spare file a segment, unless somebody was faster. The caller holds the commit lock.
    pub(super) fn place_spare(&self, number: u64) -> io::Result<()> {
        if self.path(number).exists() {
            return fs::remove_file(self.spare());
        }
        self.name(&self.spare(), number, self.segment_bytes)
    }

    /// Uses a segment whose records are in the tree again under a later number, or removes it. The
    /// caller holds the commit lock.
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
        // The last ones are those that are written, synced and read.
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

    /// Makes a file of zeros a segment.
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
            // A half filled file only takes up the room that is missing.
            let _ = fs::remove_file(path);
        }
        result
    }

    #[cfg_attr(
        not(test),
        expect(clippy::unused_self, reason = "tests interfere here")
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
        expect(clippy::unused_self, reason = "tests interfere here")
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
    /// The whole record at an offset, if there is one.
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
