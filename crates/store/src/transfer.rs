//! Export and import of a whole store, and the scan that `export` and `check` share.
//!
//! The format is the same for all backends, so a store can be piped from one to another:
//!
//! ```text
//! "davenport export 2\n"   magic
//! formats of the rows      oldest u16, newest u16
//! incarnation              u32
//! row*                     key length u32, value length u32, key, value; keys ascending
//! end                      0xffff_ffff, the number of rows u64, the CRC-32 of all bytes before it u32
//! ```
//!
//! Numbers are big endian. Reserved keys (`0xfe`) are not exported.
//! Nodes have to be stopped, since rows are read in many transactions: an export of a store that others write to fails.

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::metadata::Metadata;
use crate::nodes::{BEAT_EVERY, Registered};
use crate::range::after;
use crate::{Call, Error, Formats, KeyRange, KeyValue, RangeOptions, Result, Store, Transaction};

const MAGIC: &[u8] = b"davenport export 2\n";
/// Exports of format 1 did not say so.
const MAGIC_1: &[u8] = b"davenport export 1\n";
const END: u32 = u32::MAX;
/// The bytes of rows in one transaction of an import.
const BATCH_BYTES: usize = 1_000_000;

/// How often an export looks for a sign of life before it begins.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The size of what was read or written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of rows.
    pub rows: u64,
    /// The bytes of their keys.
    pub key_bytes: u64,
    /// The bytes of their values.
    pub value_bytes: u64,
}

impl Totals {
    fn count(&mut self, row: &KeyValue) {
        self.rows += 1;
        self.key_bytes += row.key.len() as u64;
        self.value_bytes += row.value.len() as u64;
    }
}

/// Why an export or import failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// Reading or writing the stream failed.
    #[error("the stream failed after {rows} rows")]
    Stream {
        /// The rows transferred before.
        rows: u64,
        /// The error of the stream.
        #[source]
        source: std::io::Error,
    },
    /// The store is written to while it is exported.
    #[error("{writer} while it was read; stop all nodes, and export again")]
    InUse {
        /// Who writes to it, in words.
        writer: String,
    },
    /// The stream is not an export, or is incomplete or damaged.
    #[error("this is not a complete export: {0}")]
    Format(&'static str),
}

/// A scan of a range page by page, each in a transaction of its own.
#[derive(Debug)]
pub struct Scan {
    store: Store,
    rest: Option<KeyRange>,
}

/// What an export compares to notice that a node, or another program, writes to the store.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    /// The version of an embedded store: each commit raises it.
    version: Option<u64>,
    /// The signs of life of nodes.
    nodes: Vec<Registered>,
}

impl Store {
    /// Scans a range of any size. Each page is read in a transaction of its own.
    pub fn scan(&self, range: KeyRange) -> Scan {
        Scan {
            store: self.clone(),
            rest: Some(range),
        }
    }

    /// Reads every row and checks checksums, order and limits.
    pub async fn check(&self) -> Result<Totals> {
        self.verify().await?;
        let mut totals = Totals::default();
        let mut scan = self.scan(KeyRange::all());
        let mut last: Option<Bytes> = None;
        while let Some(page) = scan.next_page().await? {
            for row in page {
                if last.as_ref().is_some_and(|last| *last >= row.key) {
                    return Err(Error::corrupt(format!(
                        "key {:02x?} is out of order",
                        row.key
                    )));
                }
                if row.key.len() > KEY_BYTES_MAX || row.value.len() > VALUE_BYTES_MAX {
                    return Err(Error::corrupt(format!(
                        "the row of key {:02x?} exceeds the limits",
                        row.key
                    )));
                }
                totals.count(&row);
                last = Some(row.key);
            }
        }
        Ok(totals)
    }

    /// Writes the whole store to `output`, unless it is damaged or in use.
    pub async fn export(
        &self,
        output: &mut (impl AsyncWrite + Unpin),
    ) -> std::result::Result<Totals, TransferError> {
        self.verify().await?;
        let mark = self.quiet_mark().await?;
        let mut totals = Totals::default();
        let mut stream = Checksummed::new(output);
        stream.write(MAGIC, &totals).await?;
        let Formats { oldest, newest } = self.formats();
        stream.write(&oldest.to_be_bytes(), &totals).await?;
        stream.write(&newest.to_be_bytes(), &totals).await?;
        let incarnation = self.incarnation().to_be_bytes();
        stream.write(&incarnation, &totals).await?;
        let mut scan = self.scan(KeyRange::all());
        while let Some(page) = scan.next_page().await? {
            for row in page {
                stream.write(&length(&row.key), &totals).await?;
                stream.write(&length(&row.value), &totals).await?;
                stream.write(&row.key, &totals).await?;
                stream.write(&row.value, &totals).await?;
                totals.count(&row);
            }
            self.unchanged_since(&mark).await?;
        }
        stream.write(&END.to_be_bytes(), &totals).await?;
        stream.write(&totals.rows.to_be_bytes(), &totals).await?;
        let checksum = stream.checksum.clone().finalize().to_be_bytes();
        stream.write(&checksum, &totals).await?;
        (stream.inner.flush().await).map_err(|source| stream_error(&totals, source))?;
        Ok(totals)
    }

    /// [`Self::mark`], where no node shows a sign of life.
    async fn quiet_mark(&self) -> std::result::Result<Mark, TransferError> {
        let mark = self.mark().await?;
        // Elsewhere every write changes the mark.
        if mark.version.is_none() && !mark.nodes.is_empty() {
            let looks = BEAT_EVERY.as_secs() / LOOK_EVERY.as_secs() + 5;
            for _ in 0..looks {
                tokio::time::sleep(LOOK_EVERY).await;
                self.unchanged_since(&mark).await?;
            }
        }
        Ok(mark)
    }

    async fn mark(&self) -> Result<Mark> {
        let version = |tx: Transaction| async move { tx.embedded_version() };
        Ok(Mark {
            version: self.transact(Call::batch("mark"), version).await?,
            nodes: self.nodes().await?,
        })
    }

    async fn unchanged_since(&self, mark: &Mark) -> std::result::Result<(), TransferError> {
        let now = self.mark().await?;
        if now == *mark {
            return Ok(());
        }
        let lives = |node: &&Registered| !mark.nodes.contains(node);
        let writer = match now.nodes.iter().find(lives) {
            Some(Registered { node, .. }) => format!("node {} used the store", node.name),
            None => "the store was written to".to_owned(),
        };
        Err(TransferError::InUse { writer })
    }

    /// Imports an export into an empty store, and sets the incarnation above the export's.
    ///
    /// The store cannot be opened until an import has finished; one that failed can be repeated.
    pub async fn import(
        url: &str,
        input: &mut (impl AsyncRead + Unpin),
    ) -> std::result::Result<Totals, TransferError> {
        let mut totals = Totals::default();
        let mut stream = Checksummed::new(input);
        let formats = match &stream.read::<{ MAGIC.len() }>(&totals).await? {
            magic if magic == MAGIC => Formats {
                oldest: u16::from_be_bytes(stream.read(&totals).await?),
                newest: u16::from_be_bytes(stream.read(&totals).await?),
            },
            magic if magic == MAGIC_1 => Formats {
                oldest: 1,
                newest: 1,
            },
            _ => {
                return Err(TransferError::Format(
                    "it does not begin with 'davenport export'",
                ));
            }
        };
        Formats::default().check(formats)?;
        let incarnation = u32::from_be_bytes(stream.read(&totals).await?)
            .checked_add(1)
            .ok_or(TransferError::Format("its incarnation is out of range"))?;
        let store = Self::open_for_import(url).await?;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let key_length = u32::from_be_bytes(stream.read(&totals).await?);
            if key_length == END {
                break;
            }
            let value_length = u32::from_be_bytes(stream.read(&totals).await?);
            let key = stream.bytes(key_length, KEY_BYTES_MAX, &totals).await?;
            let value = stream.bytes(value_length, VALUE_BYTES_MAX, &totals).await?;
            let row = KeyValue { key, value };
            totals.count(&row);
            bytes += row.key.len() + row.value.len() + 200;
            batch.push(row);
            if bytes >= BATCH_BYTES {
                store.write_rows(&batch).await?;
                batch.clear();
                bytes = 0;
            }
        }
        store.write_rows(&batch).await?;
        if u64::from_be_bytes(stream.read(&totals).await?) != totals.rows {
            return Err(TransferError::Format("rows are missing"));
        }
        let checksum = stream.checksum.clone().finalize();
        if u32::from_be_bytes(stream.read(&totals).await?) != checksum {
            return Err(TransferError::Format("its checksum is wrong"));
        }
        let rest = stream.inner.read(&mut [0]).await;
        if rest.map_err(|source| stream_error(&totals, source))? > 0 {
            return Err(TransferError::Format("more follows its end"));
        }
        let metadata = Metadata {
            incarnation,
            formats,
        };
        store.end_import(metadata).await?;
        Ok(totals)
    }

    async fn write_rows(&self, rows: &[KeyValue]) -> Result<()> {
        let body = |tx: Transaction| async move {
            for row in rows {
                tx.set(&row.key, &row.value);
            }
            Ok(())
        };
        self.transact(Call::batch("import"), body).await
    }

    async fn end_import(&self, metadata: Metadata) -> Result<()> {
        let body = |tx: Transaction| async move {
            metadata.end_import(&tx);
            Ok(())
        };
        self.transact(Call::batch("end_import"), body).await
    }
}

impl Scan {
    /// The next rows, or `None` at the end.
    pub async fn next_page(&mut self) -> Result<Option<Vec<KeyValue>>> {
        let Some(range) = self.rest.take() else {
            return Ok(None);
        };
        let range = &range;
        let body = |tx: Transaction| async move {
            let mut read = tx
                .snapshot()
                .get_range(range.clone(), RangeOptions::default());
            read.next_page().await
        };
        let page = self.store.transact(Call::batch("scan"), body).await?;
        if let Some(last) = page.as_ref().and_then(|page| page.last()) {
            self.rest = Some(KeyRange::new(after(&last.key), range.end.clone()));
        }
        Ok(page)
    }
}

/// A stream that computes a checksum of what passes through.
struct Checksummed<'a, S> {
    inner: &'a mut S,
    checksum: crc32fast::Hasher,
}

impl<'a, S> Checksummed<'a, S> {
    fn new(inner: &'a mut S) -> Self {
        let checksum = crc32fast::Hasher::new();
        Self { inner, checksum }
    }
}

impl<W: AsyncWrite + Unpin> Checksummed<'_, W> {
    async fn write(
        &mut self,
        bytes: &[u8],
        totals: &Totals,
    ) -> std::result::Result<(), TransferError> {
        self.checksum.update(bytes);
        let written = self.inner.write_all(bytes).await;
        written.map_err(|source| stream_error(totals, source))
    }
}

impl<R: AsyncRead + Unpin> Checksummed<'_, R> {
    async fn read<const N: usize>(
        &mut self,
        totals: &Totals,
    ) -> std::result::Result<[u8; N], TransferError> {
        let mut bytes = [0; N];
        let read = self.inner.read_exact(&mut bytes).await;
        read.map_err(|source| stream_error(totals, source))?;
        self.checksum.update(&bytes);
        Ok(bytes)
    }

    async fn bytes(
        &mut self,
        length: u32,
        max: usize,
        totals: &Totals,
    ) -> std::result::Result<Bytes, TransferError> {
        let length = length as usize;
        if length > max {
            return Err(TransferError::Format("a row exceeds the store's limits"));
        }
        let mut bytes = vec![0; length];
        let read = self.inner.read_exact(&mut bytes).await;
        read.map_err(|source| stream_error(totals, source))?;
        self.checksum.update(&bytes);
        Ok(bytes.into())
    }
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len())
        .expect("keys and values are within their limits")
        .to_be_bytes()
}

fn stream_error(totals: &Totals, source: std::io::Error) -> TransferError {
    let rows = totals.rows;
    TransferError::Stream { rows, source }
}
