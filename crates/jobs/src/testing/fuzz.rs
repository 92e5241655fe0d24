//! Mutations of everything that the queue decodes.

use std::num::NonZeroU8;

use bytes::Bytes;
use store::tuple::pack;
use testkit::fuzz_more;

use crate::model::header::{Blob, DATA_BYTES_MAX, End, Header, Next, Order, Place, Rare};
use crate::model::keys::{Keys, stamp_of, stamp_template};
use crate::model::types::TypeConfig;
use crate::{Attempt, Holder, JobLock, JobType, Lane, Outcome, State};

fn attempt(end: Option<End>) -> Attempt {
    Attempt {
        number: 3,
        holder: Holder::new("a holder").unwrap(),
        started_ms: -7,
        end,
        lock: JobLock::from_bits(u128::MAX / 3),
    }
}

fn end() -> End {
    End {
        at_ms: 1_700_000_000_000,
        outcome: Outcome::Stalled,
        reason: Some("a reason".to_owned()),
    }
}

fn rare() -> Rare {
    Rare {
        covers: 4,
        asked_ms: Some(-9),
        class: crate::Class::Bulk,
        tenant: Some(Bytes::from_static(b"anna")),
        pool: Some(Bytes::new()),
        key: Some(Bytes::from_static(b"https://a/b")),
        taken: vec![(Bytes::from_static(b"limit"), 7)],
        signal_ms: Some(3),
        shared: true,
    }
}

fn headers() -> Vec<Header> {
    let places = [
        Place::Ready(Order {
            incarnation: 1,
            version: u64::MAX,
        }),
        Place::Timed,
        Place::Active,
        Place::Finished {
            at_ms: 5,
            expires_ms: i64::MAX,
        },
        Place::Dead { at_ms: 5 },
    ];
    let lanes = [None, Some(Lane::of(b"anna"))];
    let header = |place, lane: Option<Lane>| Header {
        place,
        due_ms: i64::MIN,
        created_ms: 1_700_000_000_000,
        born: 9,
        attempts: 3,
        stalls: 1,
        retention_ms: Some(300),
        slots: 2,
        data: Blob {
            slot: 2,
            len: 100_000,
            bytes: None,
            label: NonZeroU8::new(3),
        },
        next: Some(Next {
            due_ms: 8,
            data: Some(Blob::new(0, Bytes::from_static(b"data"))),
            by_creator: true,
        }),
        last: Some(attempt(lane.map(|_| end()))),
        ops: vec![1, 2, u64::MAX],
        watchers: vec![7],
        lane,
        rare: lane.map(|_| Box::new(rare())),
    };
    let all = places.map(|place| lanes.map(|lane| header(place, lane)));
    all.into_iter().flatten().collect()
}

/// Decoding and encoding agree, so no value is mistaken for another.
#[test]
fn any_bytes_decode_to_a_header_or_an_error() {
    for header in headers() {
        assert_eq!(Header::decode(header.encode().into()).unwrap(), header);
    }
    let encoded: Vec<_> = headers().iter().map(Header::encode).collect();
    fuzz_more("headers", 20_000, &samples(&encoded), &[], |_, bytes| {
        if let Ok(header) = Header::decode(Bytes::copy_from_slice(bytes)) {
            assert_eq!(Header::decode(header.encode().into()).unwrap(), header);
            // Readers allocate memory for the data.
            assert!((header.chunked()).all(|blob| blob.len as usize <= DATA_BYTES_MAX));
        }
        false
    });
}

#[test]
fn running_jobs_know_when_the_signals_arrived_that_they_cover() {
    let running = headers().into_iter().filter(|h| h.place == Place::Active);
    for mut header in running.filter(|header| header.rare.is_some()) {
        let started_ms = header.last.as_ref().unwrap().started_ms;
        for before_ms in [
            0,
            1,
            -1,
            7_200_000,
            -7_200_000,
            2_147_483_646,
            -2_147_483_646,
        ] {
            let asked_ms = Some(started_ms - before_ms);
            header.cover(asked_ms, started_ms);
            let decoded = Header::decode(header.encode().into()).unwrap();
            assert_eq!(decoded.covered_ms(), asked_ms);
        }
        for (asked_ms, covered_ms) in [
            (i64::MIN, started_ms - 2_147_483_646),
            (i64::MAX, started_ms + 2_147_483_646),
        ] {
            header.cover(Some(asked_ms), started_ms);
            assert_eq!(header.covered_ms(), Some(covered_ms));
        }
        header.cover(None, started_ms);
        assert_eq!(header.covered_ms(), None);
    }
}

#[test]
fn any_bytes_decode_to_an_attempt_or_type_or_an_error() {
    let config = TypeConfig::new(61_000);
    let attempts = [attempt(None), attempt(Some(end()))].map(|attempt| attempt.encode());
    let mut encoded = attempts.to_vec();
    encoded.push(config.encode());
    fuzz_more(
        "attempts and types",
        20_000,
        &samples(&encoded),
        &[],
        |_, bytes| {
            let bytes = Bytes::copy_from_slice(bytes);
            if let Ok(attempt) = Attempt::decode(bytes.clone()) {
                assert_eq!(Attempt::decode(attempt.encode().into()).unwrap(), attempt);
            }
            if let Ok(config) = TypeConfig::decode(bytes) {
                assert_eq!(TypeConfig::decode(config.encode().into()).unwrap(), config);
            }
            false
        },
    );
}

#[test]
fn any_bytes_decode_to_keys_and_stamps_or_an_error() {
    let (keys, ty) = (Keys::new(), JobType::new("a\0type").unwrap());
    let states = State::ALL;
    let mut encoded: Vec<_> = states
        .iter()
        .map(|state| keys.state(&ty, *state).begin.to_vec())
        .collect();
    for header in headers() {
        let id = crate::JobId::new(&b"id\0"[..]).unwrap();
        encoded.push(keys.index(&ty, &id, &crate::model::keys::Position::of(&header)));
    }
    encoded.push(stamp_template(3, b"rest"));
    encoded.push(pack(&(51, 2, "t", 0, 1, 2)));
    fuzz_more(
        "keys and stamps",
        20_000,
        &samples(&encoded),
        &[],
        |_, bytes| {
            for state in states {
                if let Ok((position, id)) = keys.position(&ty, state, bytes) {
                    let key = keys.index(&ty, &id, &position);
                    assert_eq!(keys.position(&ty, state, &key).unwrap(), (position, id));
                }
            }
            for range in keys.of_jobs() {
                let _ = Keys::type_of(&range, bytes);
                let _ = Keys::id(&range, bytes);
                let _ = Keys::number(&range, bytes);
                let _ = Keys::count_edge(&range, bytes);
            }
            let _ = keys.type_name(bytes);
            let _ = stamp_of(bytes);
            false
        },
    );
}

fn samples(encoded: &[Vec<u8>]) -> Vec<&[u8]> {
    encoded.iter().map(Vec::as_slice).collect()
}

/// Headers of earlier and later formats are rejected, not misread.
#[test]
fn a_header_of_another_format_is_rejected() {
    let encoded = headers().remove(1).encode();
    for format in [0, 1, 2, 4] {
        let other = [&[format], &encoded[1..]].concat();
        let refused = Header::decode(other.into())
            .unwrap_err()
            .chain()
            .to_string();
        assert!(
            refused.contains(&format!("of format {format}")),
            "{refused}"
        );
    }
    let later = [&*encoded, &[99, 0]].concat();
    let refused = Header::decode(later.into())
        .unwrap_err()
        .chain()
        .to_string();
    assert!(refused.contains("field 99"), "{refused}");
}
