//! Power cuts: at every moment, with every choice of what the disk has kept of what was not synced.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{blind, commit, engine, rows, set};
use crate::lmdb::control::Control;
use crate::lmdb::engine::Engine;
use crate::lmdb::trace::{Event, Note};
use crate::lmdb::upkeep::make_room;
use crate::pending::Mutation;
use crate::{Error, KeyRange, KeyValue};

const SECTOR_BYTES: u64 = 512;
const PAGE_BYTES: usize = 4096;

/// A stretch of a store's life, as the disk saw it.
struct Life {
    /// The log's files when it began, all of it on disk.
    base: BTreeMap<u64, Vec<u8>>,
    events: Vec<Event>,
    /// The tree when it began, and after each checkpoint.
    trees: Vec<Vec<u8>>,
    /// The rows at each version since it began.
    states: BTreeMap<u64, Vec<KeyValue>>,
}

/// What a power cut leaves.
struct Image {
    segments: BTreeMap<u64, Vec<u8>>,
    tree: Vec<u8>,
    durable: u64,
}

impl Life {
    /// Opens the store and lets it live for a while: commits in groups, syncs now and then,
    /// checkpoints, and segments that are used again.
    fn live(path: &Path, rng: &mut SmallRng, steps: u32) -> Self {
        let store = engine(path).expect("opened");
        let mut life = Self {
            base: segments(path),
            events: Vec::new(),
            trees: vec![fs::read(path.join("data.mdb")).expect("a tree")],
            states: BTreeMap::new(),
        };
        store.log.trace.record();
        let note = |note| store.log.trace.push(Event::Note(note));
        let version = |store: &Engine| store.view().version;
        note(Note::Acknowledged(version(&store)));
        life.states.insert(version(&store), rows(&store));
        for _ in 0..steps {
            match rng.random_range(0..10) {
                0..6 => {
                    commit(&store, blind(some_writes(rng))).expect("committed");
                    life.states.insert(version(&store), rows(&store));
                }
                6..9 => {
                    store.sync().expect("synced");
                    note(Note::Acknowledged(version(&store)));
                }
                _ => {
                    store.checkpoint().expect("in the tree");
                    let tree = fs::read(path.join("data.mdb")).expect("a tree");
                    note(Note::Tree(life.trees.len()));
                    note(Note::Acknowledged(version(&store)));
                    life.trees.push(tree);
                    make_room(&store, true).expect("room");
                }
            }
        }
        life.events = store.log.trace.events();
        store.close();
        life
    }

    /// What the disk may hold when the power goes after `events`.
    fn cut(&self, events: usize, rng: &mut SmallRng) -> Image {
        let past = &self.events[..events];
        let (mut named, mut durable, mut tree) = (0, 0, 0);
        for event in past {
            match event {
                Event::DirectorySynced { events } => named = *events,
                Event::Note(Note::Acknowledged(version)) => durable = *version,
                Event::Note(Note::Tree(number)) => tree = *number,
                _ => {}
            }
        }
        // Names become durable in order.
        let named = rng.random_range(named..=events);
        Image {
            segments: self.segments(events, named, rng),
            tree: self.tree(tree, past, rng),
            // The control page is written back whenever the system likes.
            durable: if rng.random() { durable } else { 0 },
        }
    }

    fn segments(&self, events: usize, named: usize, rng: &mut SmallRng) -> BTreeMap<u64, Vec<u8>> {
        let mut files: Vec<File> = Vec::new();
        let (mut now_called, mut called_on_disk) = (BTreeMap::new(), BTreeMap::new());
        for (number, bytes) in &self.base {
            now_called.insert(*number, files.len());
            files.push(File::new(bytes.clone()));
        }
        called_on_disk.clone_from(&now_called);
        for (now, event) in self.events[..events].iter().enumerate() {
            match event {
                Event::Written {
                    segment,
                    offset,
                    bytes,
                } => files[now_called[segment]]
                    .writes
                    .push((now, *offset, bytes)),
                Event::Synced { segment, events } => {
                    files[now_called[segment]].synced = *events;
                }
                Event::Filled { segment, bytes } => {
                    now_called.insert(*segment, files.len());
                    files.push(File::new(vec![0; usize::try_from(*bytes).expect("small")]));
                }
                Event::Renamed { from, to } => {
                    let file = now_called.remove(from).expect("a name");
                    now_called.insert(*to, file);
                }
                Event::Removed { segment } => drop(now_called.remove(segment)),
                Event::DirectorySynced { .. } | Event::Note(_) => {}
            }
            if now < named {
                called_on_disk.clone_from(&now_called);
            }
        }
        (called_on_disk.into_iter())
            .map(|(number, file)| (number, files[file].on_disk(rng)))
            .collect()
    }

    /// The tree: of a checkpoint that was under way any pages may be there, but not the mark.
    fn tree(&self, number: usize, past: &[Event], rng: &mut SmallRng) -> Vec<u8> {
        let mut tree = self.trees[number].clone();
        let under_way = past
            .last()
            .is_some_and(|event| matches!(event, Event::Synced { .. }));
        if let (Some(next), true) = (self.trees.get(number + 1), under_way) {
            tree.resize(next.len().max(tree.len()), 0);
            let pages = next.chunks(PAGE_BYTES).enumerate().skip(2);
            for (page, bytes) in pages.filter(|_| rng.random()) {
                tree[page * PAGE_BYTES..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        tree
    }

    /// The versions that a store may be at after a power cut: what was acknowledged is there, and
    /// nothing is that was not written.
    fn may_be_at(&self, events: usize) -> (u64, u64) {
        let first = *self.states.keys().next().expect("a state");
        let (mut acknowledged, mut written) = (first, first);
        for event in &self.events[..events] {
            match event {
                Event::Note(Note::Acknowledged(version)) => acknowledged = *version,
                Event::Written { bytes, .. } => {
                    let header = crate::lmdb::record::Header::parse(bytes).expect("a record");
                    if !header.ends_segment() {
                        written = header.version;
                    }
                }
                _ => {}
            }
        }
        (acknowledged, written)
    }
}

/// A file whose bytes are on disk or on their way.
struct File<'e> {
    base: Vec<u8>,
    writes: Vec<(usize, u64, &'e Vec<u8>)>,
    synced: usize,
}

impl File<'_> {
    fn new(base: Vec<u8>) -> Self {
        Self {
            base,
            writes: Vec::new(),
            synced: 0,
        }
    }

    /// Each sector holds what it held at some moment since the last sync.
    fn on_disk(&self, rng: &mut SmallRng) -> Vec<u8> {
        let mut bytes = self.base.clone();
        let mut moments = BTreeMap::new();
        let (all, none) = (rng.random_ratio(1, 6), rng.random_ratio(1, 6));
        for (now, offset, written) in &self.writes {
            for (place, byte) in (*offset..).zip(written.iter()) {
                let sector = place / SECTOR_BYTES;
                let moment = *moments.entry(sector).or_insert_with(|| match (all, none) {
                    (true, _) => usize::MAX,
                    (_, true) => 0,
                    _ => {
                        let last = self.writes.last().map_or(0, |(now, ..)| *now);
                        rng.random_range(0..=last + 1)
                    }
                });
                if *now < self.synced || *now < moment {
                    bytes[usize::try_from(place).expect("small")] = *byte;
                }
            }
        }
        bytes
    }
}

impl Image {
    fn write(&self, path: &Path) {
        fs::create_dir_all(path).expect("a directory");
        fs::write(path.join("format"), "davenport embedded store, format 2\n").expect("written");
        fs::write(path.join("data.mdb"), &self.tree).expect("written");
        for (number, bytes) in &self.segments {
            fs::write(path.join(format!("redo-{number:016x}")), bytes).expect("written");
        }
        write_control(path, self.durable);
    }
}

fn write_control(path: &Path, durable: u64) {
    let file = (fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true))
    .open(path.join("control"))
    .expect("a file");
    if durable > 0 {
        Control::map(&file).expect("mapped").reset(durable, 0, 0);
    }
}

fn segments(path: &Path) -> BTreeMap<u64, Vec<u8>> {
    let mut segments = BTreeMap::new();
    for entry in fs::read_dir(path).expect("a directory") {
        let name = entry.expect("an entry").file_name();
        if let Some(Ok(number)) = (name.to_str().and_then(|name| name.strip_prefix("redo-")))
            .map(|hex| u64::from_str_radix(hex, 16))
        {
            segments.insert(number, fs::read(path.join(name)).expect("a segment"));
        }
    }
    segments
}

fn some_writes(rng: &mut SmallRng) -> Vec<Mutation> {
    let mut mutations: Vec<_> = (0..rng.random_range(1..4))
        .map(|_| {
            let key = format!("k{}", rng.random_range(0..40));
            let length = if rng.random_ratio(1, 8) { 9_000 } else { 60 };
            set(key, vec![rng.random(); rng.random_range(0..length)])
        })
        .collect();
    if rng.random_ratio(1, 5) {
        let range = KeyRange::prefix(format!("k{}", rng.random_range(0..4)).as_bytes());
        mutations.push(Mutation::ClearRange { range });
    }
    mutations
}

fn version(store: &Engine) -> u64 {
    store.view().version
}

/// Cuts the power again and again, and once more in the life after that.
#[test]
fn a_power_cut_takes_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().expect("a directory");
    for seed in 0..6 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let path = directory.path().join(format!("{seed}"));
        let life = Life::live(&path, &mut rng, 60);
        for cut in 0..40 {
            let again = path.join(format!("{cut}"));
            let events = rng.random_range(0..=life.events.len());
            survive(
                &life,
                events,
                &again,
                &mut rng,
                &format!("seed {seed} cut {cut}"),
            );
            if cut % 8 == 0 {
                // The second life begins on a disk with remains of the first.
                let second = Life::live(&again, &mut rng, 20);
                let once_more = again.join("again");
                for events in 0..=second.events.len() {
                    let name = format!("seed {seed} cut {cut} then {events}");
                    survive(&second, events, &once_more, &mut rng, &name);
                    fs::remove_dir_all(&once_more).expect("removed");
                }
            }
            fs::remove_dir_all(&again).expect("removed");
        }
    }
}

fn survive(life: &Life, events: usize, path: &Path, rng: &mut SmallRng, name: &str) {
    life.cut(events, rng).write(path);
    let store = engine(path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (least, most) = life.may_be_at(events);
    let at = version(&store);
    assert!(
        (least..=most).contains(&at),
        "{name}: {at} is not in {least}..={most}"
    );
    assert_eq!(rows(&store), life.states[&at], "{name}: version {at}");
    store.close();
}

/// A small store with a few acknowledged commits in its log.
pub(super) fn small(path: &Path, commits: u64) -> Vec<Vec<KeyValue>> {
    let store = engine(path).expect("opened");
    let mut states = vec![rows(&store)];
    for number in 0..commits {
        let key = Bytes::from(format!("k{number}"));
        commit(
            &store,
            blind(vec![set(key, "value"), set("last", format!("{number}"))]),
        )
        .expect("committed");
        store.sync().expect("synced");
        states.push(rows(&store));
    }
    store.close();
    states
}

pub(super) const LOG: &str = "redo-0000000000000001";

/// What is found when the log in `path` is this.
fn reopened(path: &Path, log: &[u8], durable: u64) -> Result<(u64, Vec<KeyValue>), Error> {
    fs::write(path.join(LOG), log).expect("written");
    write_control(path, durable);
    let store = engine(path)?;
    let found = (version(&store), rows(&store));
    store.close();
    Ok(found)
}

fn log_of(path: &Path) -> (PathBuf, Vec<u8>, usize) {
    let log = path.join(LOG);
    let bytes = fs::read(&log).expect("a log");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("records") + 1;
    (log, bytes, end.next_multiple_of(8))
}

#[test]
fn a_log_cut_at_any_byte_is_seen_or_whole() {
    const COMMITS: u64 = 3;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let states = small(path, COMMITS);
    let (_, log, end) = log_of(path);
    for cut in 0..end {
        for garbage in [0, 0xa5] {
            let mut torn = log.clone();
            torn[cut..end].fill(garbage);
            if torn == log {
                continue;
            }
            let what = reopened(path, &torn, COMMITS);
            assert!(
                matches!(what, Err(Error::Corrupt { .. })),
                "at {cut}: {what:?}"
            );
            // When nothing says that they had been acknowledged, the last ones are cut off. What a
            // later record calls durable is there all the same.
            match reopened(path, &torn, 0) {
                Ok((at, rows)) => {
                    assert_eq!(
                        rows,
                        states[usize::try_from(at).expect("small")],
                        "at {cut}"
                    );
                }
                Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
            }
        }
    }
    let whole = reopened(path, &log, COMMITS).expect("opened");
    assert_eq!(whole, (COMMITS, states[3].clone()));
}

#[test]
fn a_flipped_bit_stops_or_changes_nothing() {
    const COMMITS: u64 = 4;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let states = small(path, COMMITS);
    let (_, log, end) = log_of(path);
    let last = {
        let mut offsets = Vec::new();
        let mut offset = 0;
        while let Some(header) = crate::lmdb::record::Header::parse(&log[offset..]) {
            offsets.push(offset);
            offset += header.record_bytes();
        }
        offsets[offsets.len() - 1]
    };
    for byte in 0..end + 64 {
        let mut flipped = log.clone();
        flipped[byte] ^= 1 << (byte % 8);
        let what = reopened(path, &flipped, COMMITS);
        if byte >= end {
            assert_eq!(
                what.expect("opened"),
                (COMMITS, states[4].clone()),
                "{byte}"
            );
            continue;
        }
        assert!(
            matches!(what, Err(Error::Corrupt { .. })),
            "{byte}: {what:?}"
        );
        // The log itself proves that all but the last record had been acknowledged.
        let what = reopened(path, &flipped, 0);
        if byte < last {
            assert!(
                matches!(what, Err(Error::Corrupt { .. })),
                "{byte}: {what:?}"
            );
        } else {
            assert_eq!(
                what.expect("opened"),
                (COMMITS - 1, states[3].clone()),
                "{byte}"
            );
        }
    }
}

/// A disk that has kept a later record and lost the one before, and a new record of the same size in
/// the lost one's place: what lies behind it is of another time.
#[test]
fn remains_behind_the_end_are_not_taken_for_its_continuation() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let put = |store: &Engine, key: &'static str| {
        commit(store, blind(vec![set(key, vec![7; 1000])])).expect("committed");
        store.core().position.offset
    };
    let store = engine(path).expect("opened");
    let first = put(&store, "a");
    store.sync().expect("synced");
    let lost = put(&store, "b");
    put(&store, "c");
    store.close();
    drop(store);
    let mut log = fs::read(path.join(LOG)).expect("a log");
    let place = |offset: u64| usize::try_from(offset).expect("small");
    log[place(first)..place(lost)].fill(0);
    fs::write(path.join(LOG), log).expect("written");
    write_control(path, 1);
    for _ in 0..2 {
        let store = engine(path).expect("opened");
        if version(&store) == 1 {
            put(&store, "d");
            store.sync().expect("synced");
        }
        let keys: Vec<_> = rows(&store).into_iter().map(|row| row.key).collect();
        assert_eq!(keys, ["a", "d"]);
        store.close();
    }
}

/// A process that dies between writing a record and publishing it: the next commit of another
/// process takes its place; when all are gone, the next opener finds it whole and keeps it.
#[test]
fn an_unpublished_record_is_written_over_or_adopted() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let store = engine(path).expect("opened");
    commit(&store, blind(vec![set("k", "1")])).expect("committed");
    store.sync().expect("synced");
    let append = |value: &'static str| {
        let at = store.core().position;
        let mut writer = crate::lmdb::record::RecordWriter::new();
        writer.push(&[crate::lmdb::record::Op::Put {
            key: "k".into(),
            value: value.into(),
        }]);
        store.log.append(at, writer, 2, 1).expect("appended");
    };
    let value = |store: &Engine| {
        let snapshot = store.snapshot().expect("a snapshot");
        snapshot.get(b"k").expect("read").expect("a value")
    };
    append("a longer record that was never published");
    assert_eq!(value(&store), "1");
    commit(&store, blind(vec![set("k", "2")])).expect("committed");
    commit(&store, blind(vec![set("k", "3")])).expect("committed");
    store.sync().expect("synced");
    assert_eq!(value(&store), "3");
    let at = store.core().position;
    let mut writer = crate::lmdb::record::RecordWriter::new();
    writer.push(&[crate::lmdb::record::Op::Put {
        key: "k".into(),
        value: "4".into(),
    }]);
    store.log.append(at, writer, 4, 3).expect("appended");
    store.close();
    drop(store);
    let store = engine(path).expect("opened");
    assert_eq!((version(&store), value(&store)), (4, Bytes::from("4")));
}
