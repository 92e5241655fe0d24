//! Draws faults from a seed.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Fault;

/// The probability of each fault, per 1,000 requests. A request gets at most one of them, and possibly latency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// The number of faults, after which there are none.
    pub faults_max: u64,
    pub latency: u32,
    /// In milliseconds.
    pub latency_ms_max: u64,
    /// 429 with `Retry-After: 1`.
    pub too_many: u32,
    /// 429 without `Retry-After`.
    pub too_many_silent: u32,
    /// 500, 502, 503 or 504.
    pub server_error: u32,
    pub reset: u32,
    pub lose_answer: u32,
    pub cut_body: u32,
    pub truncate_body: u32,
    pub slow_body: u32,
    pub dribble: u32,
    /// [`Fault::DeclareLength`]
    pub wrong_length: u32,
    pub restart: u32,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            faults_max: 1_000,
            latency: 0,
            latency_ms_max: 20,
            too_many: 0,
            too_many_silent: 0,
            server_error: 0,
            reset: 0,
            lose_answer: 0,
            cut_body: 0,
            truncate_body: 0,
            slow_body: 0,
            dribble: 0,
            wrong_length: 0,
            restart: 0,
        }
    }
}

impl Profile {
    /// A bad network: latency, resets, truncated and slow bodies.
    pub fn network() -> Self {
        Self {
            latency: 300,
            reset: 30,
            lose_answer: 20,
            cut_body: 40,
            slow_body: 10,
            dribble: 10,
            ..Self::default()
        }
    }

    /// An overloaded server: 429 and 5xx, latency.
    pub fn overload() -> Self {
        Self {
            latency: 500,
            too_many: 20,
            too_many_silent: 60,
            server_error: 60,
            ..Self::default()
        }
    }

    /// Everything, restarts included.
    pub fn chaos() -> Self {
        Self {
            too_many: 5,
            too_many_silent: 30,
            server_error: 40,
            truncate_body: 15,
            wrong_length: 15,
            restart: 3,
            ..Self::network()
        }
    }

    pub(super) fn draw(&self, seed: u64, method: &str, path: &str, nth: u64) -> Vec<Fault> {
        let mut hash = Sha256::new();
        for part in [
            &seed.to_be_bytes()[..],
            method.as_bytes(),
            b" ",
            path.as_bytes(),
            &nth.to_be_bytes(),
        ] {
            hash.update(part);
        }
        let mut chance = StdRng::from_seed(hash.finalize().into());
        let mut faults = Vec::new();
        if chance.random_range(0..1000) < self.latency {
            faults.push(Fault::Latency {
                ms: chance.random_range(0..=self.latency_ms_max),
            });
        }
        let mut drawn = chance.random_range(0..1000);
        let mut hits = |likely: u32| {
            let hit = drawn < likely;
            drawn = if hit { u32::MAX } else { drawn - likely };
            hit
        };
        let after_bytes = chance.random_range(0..2_000);
        if hits(self.too_many) {
            faults.push(Fault::Status {
                status: 429,
                retry_after: Some("1".to_owned()),
            });
        } else if hits(self.too_many_silent) {
            faults.push(Fault::Status {
                status: 429,
                retry_after: None,
            });
        } else if hits(self.server_error) {
            let status = [500, 502, 503, 504][chance.random_range(0..4_usize)];
            faults.push(Fault::Status {
                status,
                retry_after: None,
            });
        } else if hits(self.reset) {
            faults.push(Fault::Reset);
        } else if hits(self.lose_answer) {
            faults.push(Fault::LoseAnswer);
        } else if hits(self.cut_body) {
            faults.push(Fault::CutBody { after_bytes });
        } else if hits(self.truncate_body) {
            faults.push(Fault::TruncateBody { after_bytes });
        } else if hits(self.slow_body) {
            faults.push(Fault::SlowBody {
                bytes_per_second: chance.random_range(20_000..200_000),
            });
        } else if hits(self.dribble) {
            faults.push(Fault::Dribble);
        } else if hits(self.wrong_length) {
            let by = chance.random_range(1..100);
            faults.push(Fault::DeclareLength {
                by: if chance.random() { by } else { -by },
            });
        } else if hits(self.restart) {
            faults.push(Fault::Restart {
                down_ms: chance.random_range(0..50),
            });
        }
        faults
    }
}
