//! The nodes of a store: each keeps a row at a reserved key, so that all of them know when a newer
//! format can be written.
//!
//! ```text
//! 0xfe "/nodes/" id = name, roles, version, oldest and newest format, started, last sign of life
//! ```
//!
//! The format is raised in a transaction that reads all these rows and writes the format record; a
//! node registers in one that reads the record and writes its row. So a node that does not read
//! the new format is seen, or is refused. A node is gone when its row has stayed the same for
//! `SILENCE_MAX` by the clock of the node that looks: no two clocks are compared.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::metadata::Metadata;
use crate::tuple::{pack, unpack};
use crate::{Call, Error, Formats, KeyRange, RangeOptions, Result, Store};

const PREFIX: &[u8] = b"\xfe/nodes/";
/// How often a node shows a sign of life.
pub const BEAT_EVERY: Duration = Duration::from_secs(10);
/// A node whose row has not changed for so long has stopped.
const SILENCE_MAX: Duration = Duration::from_mins(1);
/// Its row is removed after so long.
const FORGET_AFTER: Duration = Duration::from_mins(10);

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name, as jobs show it.
    pub name: String,
    /// Its roles, separated by commas.
    pub roles: String,
    /// The version of Davenport that it runs.
    pub version: String,
    /// When it was started, by its clock.
    pub started_ms: i64,
}

/// A node as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Tells it from others of the same name: random bits.
    pub id: u128,
    /// What it says about itself.
    pub node: Node,
    /// The formats that it reads.
    pub formats: Formats,
    /// Its last sign of life, by its clock.
    pub seen_ms: i64,
}

/// The registration of a node that is running.
#[derive(Debug)]
pub struct Registration {
    store: Store,
    id: u128,
    node: Node,
    /// The rows of other nodes, and since when each is the same.
    seen: BTreeMap<u128, (Bytes, Instant)>,
}

impl Store {
    /// The nodes that are registered: those that run, and for some minutes those that were killed.
    pub async fn nodes(&self) -> Result<Vec<Registered>> {
        let rows = self
            .transact(Call::batch("nodes"), |tx| async move {
                let rows = tx.snapshot().get_range(all(), RangeOptions::default());
                rows.collect().await
            })
            .await?;
        rows.iter().map(|row| parse(&row.key, &row.value)).collect()
    }
}

impl Registration {
    /// The registration of a node, under random bits. [`Self::beat`] writes it.
    pub fn new(store: Store, id: u128, node: Node) -> Self {
        let seen = BTreeMap::new();
        Self {
            store,
            id,
            node,
            seen,
        }
    }

    /// Shows a sign of life, and raises the format that nodes write when all of them read a newer one.
    /// To be called every [`BEAT_EVERY`]. [`Error::Open`] says that others have done so meanwhile: the
    /// node has to stop.
    pub async fn beat(&mut self, now_ms: i64) -> Result<()> {
        let build = self.store.build();
        let value = &self.row(now_ms);
        let id = self.id;
        let (metadata, rows) = self
            .store
            .transact(Call::batch("register"), |tx| async move {
                let metadata = Metadata::read(&tx, build).await?;
                tx.set_own(&key(id), value);
                let rows = tx.snapshot().get_range(all(), RangeOptions::default());
                Ok::<_, Error>((metadata, rows.collect().await?))
            })
            .await?;
        let now = Instant::now();
        let mut seen = BTreeMap::new();
        for row in rows {
            let other = parse(&row.key, &row.value)?.id;
            let since = match self.seen.get(&other) {
                Some((same, since)) if *same == row.value => *since,
                _ => now,
            };
            seen.insert(other, (row.value, since));
        }
        self.seen = seen;
        self.store.set_format(metadata.formats.newest);
        self.forget(now).await?;
        if metadata.formats.newest < build.newest {
            self.raise(now).await?;
        }
        Ok(())
    }

    /// Takes the node out of the list: it stops.
    pub async fn leave(self) -> Result<()> {
        let id = self.id;
        self.store
            .transact("unregister", |tx| async move {
                tx.clear_own(&key(id));
                Ok(())
            })
            .await
    }

    /// Raises the format to the newest one that all nodes read.
    async fn raise(&self, now: Instant) -> Result<()> {
        let build = self.store.build();
        let raised = self
            .store
            .transact(Call::batch("raise_format"), |tx| async move {
                let metadata = Metadata::read(&tx, build).await?;
                let rows = tx.get_range(all(), RangeOptions::default());
                let mut format = build.newest;
                for row in rows.collect().await? {
                    let other = parse(&row.key, &row.value)?;
                    if !self.is_gone(other.id, &row.value, now, SILENCE_MAX) {
                        format = format.min(other.formats.newest);
                    }
                }
                if format <= metadata.formats.newest {
                    return Ok(metadata);
                }
                Ok::<_, Error>(metadata.raise(&tx, format))
            })
            .await?;
        self.store.set_format(raised.formats.newest);
        Ok(())
    }

    /// Removes the rows of nodes that were killed long ago.
    async fn forget(&self, now: Instant) -> Result<()> {
        let gone = |(id, (row, _)): &(&u128, &(Bytes, Instant))| {
            self.is_gone(**id, row, now, FORGET_AFTER)
        };
        let gone: Vec<_> = self.seen.iter().filter(gone).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let gone = &gone;
        (self.store)
            .transact(Call::batch("forget_nodes"), |tx| async move {
                for (id, (row, _)) in gone {
                    if tx.get(&key(**id)).await?.as_ref() == Some(row) {
                        tx.clear_own(&key(**id));
                    }
                }
                Ok(())
            })
            .await
    }

    fn is_gone(&self, id: u128, row: &Bytes, now: Instant, silence: Duration) -> bool {
        let same = self.seen.get(&id).filter(|(same, _)| same == row);
        id != self.id && same.is_some_and(|(_, since)| now - *since >= silence)
    }

    fn row(&self, now_ms: i64) -> Vec<u8> {
        let Node {
            name,
            roles,
            version,
            started_ms,
        } = &self.node;
        let Formats { oldest, newest } = self.store.build();
        let texts = (name.as_str(), roles.as_str(), version.as_str());
        pack(&(texts, oldest, newest, *started_ms, now_ms))
    }
}

fn key(id: u128) -> Vec<u8> {
    [PREFIX, &id.to_be_bytes()].concat()
}

fn all() -> KeyRange {
    KeyRange::prefix(PREFIX)
}

type Row = ((String, String, String), u16, u16, i64, i64);

fn parse(key: &[u8], value: &[u8]) -> Result<Registered> {
    let broken = || Error::corrupt("the row of a node cannot be decoded");
    let id = key.strip_prefix(PREFIX).and_then(|id| id.try_into().ok());
    let row: Row = unpack(value).map_err(|_| broken())?;
    let ((name, roles, version), oldest, newest, started_ms, seen_ms) = row;
    Ok(Registered {
        id: u128::from_be_bytes(id.ok_or_else(broken)?),
        node: Node {
            name,
            roles,
            version,
            started_ms,
        },
        formats: Formats { oldest, newest },
        seen_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Formats = Formats {
        oldest: 2,
        newest: 2,
    };
    const NEW: Formats = Formats {
        oldest: 2,
        newest: 3,
    };

    fn node(store: &Store, id: u128) -> Registration {
        let node = Node {
            name: format!("node {id}"),
            roles: "api_frontend".to_owned(),
            version: "0.1.0".to_owned(),
            started_ms: 5,
        };
        Registration::new(store.clone(), id, node)
    }

    fn refused(result: Result<()>) -> String {
        match result {
            Err(Error::Open { message, .. }) => message,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_newer_format_is_written_when_every_live_node_reads_it() {
        let store = Store::open("memory:").await.unwrap();
        let (old, new) = (store.as_build(OLD), store.as_build(NEW));
        let (mut a, mut b, mut c) = (node(&old, 1), node(&new, 2), node(&new, 3));
        for beat in 0..20 {
            for node in [&mut a, &mut b, &mut c] {
                node.beat(beat).await.unwrap();
            }
            tokio::time::sleep(BEAT_EVERY).await;
        }
        assert_eq!((new.format(), store.nodes().await.unwrap().len()), (2, 3));
        // The old node is stopped: for a minute it may still come back.
        for _ in 0..5 {
            b.beat(30).await.unwrap();
            assert_eq!(new.format(), 2);
            tokio::time::sleep(BEAT_EVERY).await;
        }
        b.beat(31).await.unwrap();
        assert_eq!(new.format(), 3);
        let message = refused(a.beat(40).await);
        assert!(message.contains("has format 3"), "{message}");
        // Only a build that reads it opens the store.
        assert!(refused(old.reopen().await).contains("supports only 2"));
        new.reopen().await.unwrap();
        c.beat(41).await.unwrap();
        assert_eq!(store.nodes().await.unwrap().len(), 3);
        tokio::time::sleep(FORGET_AFTER).await;
        c.beat(42).await.unwrap();
        let left = store.nodes().await.unwrap();
        assert_eq!((left.len(), left[0].node.name.as_str()), (1, "node 3"));
        c.leave().await.unwrap();
        assert!(store.nodes().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_node_that_stops_in_order_is_not_waited_for() {
        let store = Store::open("memory:").await.unwrap();
        let (mut a, mut b) = (node(&store.as_build(OLD), 1), node(&store.as_build(NEW), 2));
        a.beat(1).await.unwrap();
        b.beat(1).await.unwrap();
        assert_eq!(b.store.format(), 2);
        a.leave().await.unwrap();
        b.beat(2).await.unwrap();
        assert_eq!(b.store.format(), 3);
    }

    #[tokio::test]
    async fn stores_of_other_formats_are_refused_with_what_to_do() {
        let store = Store::open("memory:").await.unwrap();
        let record = |bytes: &'static [u8]| {
            store.transact("set", move |tx| async move {
                tx.set_own(b"\xfe/format", bytes);
                Ok::<_, Error>(())
            })
        };
        for (bytes, says) in [
            (
                &b"davenport\0\0\x01\0\0\0\x01\0"[..],
                "needs 2: start it on",
            ),
            (
                b"davenport\0\0\x09\0\0\0\x01\0\0\x08",
                "supports only 2: run",
            ),
            (
                b"davenport\0\0\x09and more than we know",
                "supports only 2: run",
            ),
            (
                b"davenport\0\0\x02\0\0\0\x01\0\0\x01",
                "needs 2: start it on",
            ),
            (b"other", "written by another program"),
        ] {
            record(bytes).await.unwrap();
            let message = refused(store.reopen().await);
            assert!(message.contains(says), "{message}");
        }
    }
}
