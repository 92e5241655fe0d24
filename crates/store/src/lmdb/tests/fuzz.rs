//! Records and logs that were damaged.

use std::fs;

use rand::RngExt;
use testkit::fuzz_more;
use twox_hash::XxHash3_64;

use super::power::{LOG, small};
use super::{engine, rows};
use crate::lmdb::record::{HEADER_BYTES, Header, Op, Record, RecordWriter};
use crate::{Error, KeyRange};

fn records() -> Vec<Vec<u8>> {
    let put = Op::Put {
        key: "key".into(),
        value: vec![7; 300].into(),
    };
    let clear = Op::Clear { key: "".into() };
    let range = KeyRange::new("b", "c");
    let commits = [
        vec![],
        vec![put, clear],
        vec![
            Op::ClearRange {
                range: range.clone(),
            },
            Op::Touch { range },
        ],
    ];
    (0..=commits.len())
        .map(|count| {
            let mut writer = RecordWriter::new();
            for ops in &commits[..count] {
                writer.push(ops);
            }
            writer.finish(7, 11, 5).0
        })
        .collect()
}

/// Whatever a record says, reading it neither fails badly nor takes more than its bytes.
#[test]
fn a_record_of_any_bytes_is_read_or_refused() {
    let mut samples = records();
    // The largest version there is.
    samples[1][16..24].fill(0xff);
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    fuzz_more("records", 20_000, &samples, &[], |rng, bytes| {
        let mut bytes = bytes.to_vec();
        if bytes.len() > HEADER_BYTES && rng.random_ratio(3, 4) {
            let checksum = XxHash3_64::oneshot(&bytes[8..]);
            bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        }
        let Some(header) = Header::parse(&bytes).filter(|header| header.matches(&bytes)) else {
            return false;
        };
        if let Some(record) = Record::parse(header, &bytes) {
            record.first_version();
            assert_eq!(record.commits.len(), header.commits as usize);
        }
        false
    });
}

/// What was acknowledged is there, or nothing is opened. Without the control page, as after a power
/// cut, the log may be cut where nothing behind proves that it went on.
#[test]
fn a_damaged_log_is_refused_or_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("whole");
    let states = small(&path, 8);
    let files = ["format", "data.mdb", "control", LOG]
        .map(|name| (name, fs::read(path.join(name)).unwrap()));
    // The log itself, and not the zeros behind it.
    let log = &files[3].1;
    let end = log.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let (used, zeros) = log.split_at(end);
    let damaged = directory.path().join("damaged");
    fuzz_more("the log", 300, &[used], &[], |rng, bytes| {
        fs::create_dir(&damaged).unwrap();
        for (name, content) in &files {
            fs::write(damaged.join(name), content).unwrap();
        }
        fs::write(damaged.join(LOG), [bytes, zeros].concat()).unwrap();
        let power_cut = rng.random_ratio(1, 2);
        if power_cut {
            fs::remove_file(damaged.join("control")).unwrap();
        }
        match engine(&damaged) {
            Ok(store) => {
                let found = rows(&store);
                let known = &states[if power_cut { 0 } else { states.len() - 1 }..];
                assert!(known.contains(&found), "power cut: {power_cut}: {found:?}");
                store.close();
            }
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
        fs::remove_dir_all(&damaged).unwrap();
        false
    });
}
