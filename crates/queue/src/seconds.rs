//! Durations in requests and settings: seconds, possibly with a fraction.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Rounded to milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(u64);

/// About 30 years.
const SECONDS_MAX: f64 = 1e9;

impl Seconds {
    pub const fn new(seconds: u64) -> Self {
        Self(seconds * 1_000)
    }

    /// Rounded up to milliseconds.
    pub(crate) fn of(duration: Duration) -> Self {
        let ms = duration.as_micros().div_ceil(1_000);
        Self(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is in range"
    )]
    fn round(seconds: f64) -> Self {
        Self((seconds * 1_000.0).round() as u64)
    }

    pub fn ms(self) -> u64 {
        self.0
    }

    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// For clocks.
    pub(crate) fn ms_signed(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(from)?;
        // The least and the greatest that is allowed may be checked later.
        if seconds < 0.0 {
            return Err(de::Error::custom("a duration must not be negative"));
        }
        if seconds > SECONDS_MAX {
            let what = "a duration must be at most 1,000,000,000 seconds";
            return Err(de::Error::custom(what));
        }
        Ok(Self::round(seconds))
    }
}

/// The timeout of a type. Below the least, a slow worker could be mistaken for a dead one.
pub(crate) fn timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Seconds, D::Error> {
    within(
        from,
        1.0..=86_400.0,
        "must be from 1 to 86,400 seconds (a day)",
    )
}

/// The period of a rate.
pub(crate) fn period<'de, D: Deserializer<'de>>(from: D) -> Result<Seconds, D::Error> {
    within(
        from,
        0.001..=SECONDS_MAX,
        "must be from 0.001 to 1,000,000,000 seconds",
    )
}

fn within<'de, D: Deserializer<'de>>(
    from: D,
    range: RangeInclusive<f64>,
    what: &str,
) -> Result<Seconds, D::Error> {
    let seconds = f64::deserialize(from)?;
    if range.contains(&seconds) {
        return Ok(Seconds::round(seconds));
    }
    Err(de::Error::custom(what))
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1_000) {
            return to.serialize_u64(self.0 / 1_000);
        }
        to.serialize_f64(self.duration().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read_and_written() {
        for (text, ms, shown) in [
            ("1", 1_000, "1"),
            ("0.25", 250, "0.25"),
            ("0", 0, "0"),
            ("2.0004", 2_000, "2"),
        ] {
            let seconds: Seconds = serde_json::from_str(text).unwrap();
            assert_eq!(seconds.ms(), ms);
            assert_eq!(serde_json::to_string(&seconds).unwrap(), shown);
        }
        for text in ["-1", "1e10", "\"1\"", "null"] {
            assert!(serde_json::from_str::<Seconds>(text).is_err(), "{text}");
        }
    }
}
