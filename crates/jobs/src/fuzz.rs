//! Mutations of what parsers read, from seeds: some in every run of the tests, and for as long as
//! `FUZZ_SECONDS` says (`just fuzz`).

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// Says which iteration has failed.
struct Iteration(u64);

impl Drop for Iteration {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("fuzz: failed in iteration {}", self.0);
        }
    }
}

/// Gives `check` mutations of the samples, `least` times and until the time is over.
fn mutate(least: u64, samples: &[Vec<u8>], mut check: impl FnMut(&[u8])) {
    let seconds = std::env::var("FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let begun = Instant::now();
    for number in 0.. {
        if number >= least && begun.elapsed() >= Duration::from_secs(seconds) {
            println!("fuzz: {number} iterations");
            return;
        }
        let _iteration = Iteration(number);
        let mut rng = SmallRng::seed_from_u64(number);
        let mut bytes = samples[rng.random_range(0..samples.len())].clone();
        for _ in 0..rng.random_range(1..4) {
            mutate_once(&mut rng, &mut bytes, samples);
        }
        check(&bytes);
    }
}

fn mutate_once(rng: &mut SmallRng, bytes: &mut Vec<u8>, samples: &[Vec<u8>]) {
    const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
    let at = rng.random_range(0..=bytes.len());
    let end = rng.random_range(at..=bytes.len().min(at + 64));
    match rng.random_range(0..6) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => bytes[at..end].fill(EDGES[rng.random_range(0..EDGES.len())]),
        3 => {
            let other = &samples[rng.random_range(0..samples.len())];
            let from = rng.random_range(0..=other.len());
            let to = rng.random_range(from..=other.len().min(from + 64));
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        4 => rng.fill(&mut bytes[at..end]),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.random_range(0..8);
            }
        }
    }
}

mod tests {
    use std::num::NonZeroU8;

    use bytes::Bytes;
    use store::tuple::pack;

    use super::mutate;
    use crate::header::{Blob, DATA_BYTES_MAX, End, Header, Next, Order, Place};
    use crate::keys::{Keys, stamp_of, stamp_template};
    use crate::types::TypeConfig;
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
        };
        let all = places.map(|place| lanes.map(|lane| header(place, lane)));
        all.into_iter().flatten().collect()
    }

    /// What is decoded is what its own encoding says, so nothing is taken for something else.
    #[test]
    fn a_header_of_any_bytes_is_read_or_refused() {
        for header in headers() {
            assert_eq!(Header::decode(header.encode().into()).unwrap(), header);
        }
        let samples: Vec<_> = headers().iter().map(Header::encode).collect();
        mutate(20_000, &samples, |bytes| {
            if let Ok(header) = Header::decode(Bytes::copy_from_slice(bytes)) {
                assert_eq!(Header::decode(header.encode().into()).unwrap(), header);
                // Whoever reads the data makes room for it.
                assert!((header.chunked()).all(|blob| blob.len as usize <= DATA_BYTES_MAX));
            }
        });
    }

    #[test]
    fn an_attempt_and_a_type_of_any_bytes_are_read_or_refused() {
        let config = TypeConfig::new(61_000);
        let attempts = [attempt(None), attempt(Some(end()))].map(|attempt| attempt.encode());
        let mut samples = attempts.to_vec();
        samples.push(config.encode());
        mutate(20_000, &samples, |bytes| {
            let bytes = Bytes::copy_from_slice(bytes);
            if let Ok(attempt) = Attempt::decode(bytes.clone()) {
                assert_eq!(Attempt::decode(attempt.encode().into()).unwrap(), attempt);
            }
            if let Ok(config) = TypeConfig::decode(bytes) {
                assert_eq!(TypeConfig::decode(config.encode().into()).unwrap(), config);
            }
        });
    }

    #[test]
    fn keys_and_stamps_of_any_bytes_are_read_or_refused() {
        let (keys, ty) = (Keys::new(), JobType::new("a\0type").unwrap());
        let states = [State::Pending, State::Running, State::Finished];
        let mut samples: Vec<_> = states
            .iter()
            .map(|state| keys.state(&ty, *state).begin.to_vec())
            .collect();
        for header in headers() {
            let id = crate::JobId::new(&b"id\0"[..]).unwrap();
            samples.push(keys.index(&ty, &id, crate::keys::Position::of(&header)));
        }
        samples.push(stamp_template(3, b"rest"));
        samples.push(pack(&(51, 2, "t", 0, 1, 2)));
        mutate(20_000, &samples, |bytes| {
            for state in states {
                if let Ok((position, id)) = keys.position(&ty, state, bytes) {
                    let key = keys.index(&ty, &id, position);
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
        });
    }
}
