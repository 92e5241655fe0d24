//! When schedules occur: cron expressions in a time zone, and intervals.
//!
//! An expression names local times. One that the clock skips when it is put forward occurs as much later as the clock was
//! put forward; one that comes twice when the clock is put back occurs the first time. With `*` as its hour, an expression
//! follows elapsed time instead: it occurs in both of two equal hours, and not in an hour that is skipped.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::{Error, Result, Seconds};

/// Expressions that do not occur for so long never do: 29 February may be eight years away.
const DAYS_MAX: usize = 9 * 366;
const MINUTE: SignedDuration = SignedDuration::from_mins(1);
/// Windows in which the last of many missed occurrences is searched.
const WINDOWS_MS: [i64; 4] = [3_600_000, 86_400_000, 32 * 86_400_000, i64::MAX];

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const ALIASES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

#[derive(Debug, Clone)]
pub(crate) enum Timing {
    Cron(Box<Cron>),
    /// So many milliseconds apart, counted from a time.
    Every {
        every_ms: i64,
        from_ms: i64,
    },
}

/// An expression: a bit for each allowed value.
#[derive(Debug, Clone)]
pub(crate) struct Cron {
    minutes: u64,
    hours: u64,
    /// Follows elapsed time.
    every_hour: bool,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Day of the month and day of the week are both restricted: either will do.
    either_day: bool,
    zone: TimeZone,
}

impl Timing {
    pub(crate) fn cron(text: &str, zone: Option<&str>) -> Result<Self> {
        let cron = Cron::parse(text, time_zone(zone.unwrap_or("UTC"))?)?;
        Ok(Self::Cron(Box::new(cron)))
    }

    pub(crate) fn every(every: Seconds, from_ms: i64) -> Result<Self> {
        if every < Seconds::new(1) {
            return Err(Error::Invalid("`every_sec` must be at least 1".into()));
        }
        Ok(Self::Every {
            every_ms: every.ms_signed(),
            from_ms,
        })
    }

    /// The first occurrence after a time.
    pub(crate) fn after(&self, ms: i64) -> Option<i64> {
        match self {
            Self::Cron(cron) => cron.after(ms),
            Self::Every { every_ms, from_ms } => {
                let passed = ms.saturating_sub(*from_ms).max(0) / every_ms;
                from_ms.checked_add(every_ms.checked_mul(passed + 1)?)
            }
        }
    }

    /// The last occurrence from one that is not after a time up to that time.
    pub(crate) fn last(&self, from_ms: i64, until_ms: i64) -> i64 {
        for window_ms in WINDOWS_MS {
            let begin_ms = until_ms.saturating_sub(window_ms).max(from_ms);
            let mut last = (begin_ms == from_ms).then_some(from_ms);
            let mut next = self.after(begin_ms);
            while let Some(at) = next.filter(|at| *at <= until_ms) {
                last = Some(at);
                next = match self {
                    Self::Every { every_ms, from_ms } => {
                        // All at once.
                        let at = until_ms - (until_ms - from_ms) % every_ms;
                        last = Some(at);
                        None
                    }
                    Self::Cron(_) => self.after(at),
                };
            }
            if let Some(last) = last {
                return last;
            }
        }
        from_ms
    }
}

fn time_zone(name: &str) -> Result<TimeZone> {
    TimeZone::get(name).map_err(|_| {
        Error::Invalid(format!(
            "`zone`: `{name}` is not known here; use a name such as `Europe/Berlin` or `UTC`, and check that the time zone \
             database (the package tzdata) is installed"
        ))
    })
}

impl Cron {
    fn parse(text: &str, zone: TimeZone) -> Result<Self> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == text.trim());
        let fields: Vec<&str> = alias
            .map_or(text, |(_, text)| text)
            .split_whitespace()
            .collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(Error::Invalid(format!(
                "`cron` must have five fields, minute, hour, day of month, month and day of week, such as `30 4 * * mon-fri`; \
                 it has {}",
                fields.len()
            )));
        };
        let is_any = |field: &str| field.starts_with('*');
        let weekday_bits = field(weekdays, "day of week", (0, 7), &WEEKDAYS)?;
        let cron = Self {
            minutes: field(minutes, "minute", (0, 59), &[])?,
            hours: field(hours, "hour", (0, 23), &[])?,
            every_hour: hours == "*",
            days: field(days, "day of month", (1, 31), &[])?,
            months: field(months, "month", (1, 12), &MONTHS)?,
            // 7 is Sunday, too.
            weekdays: weekday_bits | weekday_bits >> 7,
            either_day: !is_any(days) && !is_any(weekdays),
            zone,
        };
        if cron.after(0).is_none() {
            return Err(Error::Invalid(format!("`cron`: `{text}` never occurs")));
        }
        Ok(cron)
    }

    fn after(&self, ms: i64) -> Option<i64> {
        let after = Timestamp::from_millisecond(ms).ok()?;
        let mut date = self.zone.to_datetime(after).date().yesterday().ok()?;
        for _ in 0..DAYS_MAX {
            if self.has(date) {
                let times = self.times(date).into_iter().filter(|at| *at > after);
                if let Some(first) = times.min() {
                    return Some(first.as_millisecond());
                }
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    fn has(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        let both = if self.either_day {
            day || weekday
        } else {
            day && weekday
        };
        has(self.months, date.month()) && both
    }

    /// The occurrences of a day.
    fn times(&self, date: Date) -> Vec<Timestamp> {
        if self.every_hour {
            return self.minutes_of(date).unwrap_or_default();
        }
        let hours = (0..24).filter(|hour| has(self.hours, *hour));
        let times = hours.flat_map(|hour| {
            let minutes = (0..60).filter(|minute| has(self.minutes, *minute));
            minutes.filter_map(move |minute| self.instant(date, hour, minute))
        });
        times.collect()
    }

    /// The minutes that pass in a day.
    fn minutes_of(&self, date: Date) -> Option<Vec<Timestamp>> {
        let end = self.instant(date.tomorrow().ok()?, 0, 0)?;
        let (mut at, mut times) = (self.instant(date, 0, 0)?, Vec::new());
        while at < end {
            if has(self.minutes, self.zone.to_datetime(at).minute()) {
                times.push(at);
            }
            at = at.checked_add(MINUTE).ok()?;
        }
        Some(times)
    }

    fn instant(&self, date: Date, hour: i8, minute: i8) -> Option<Timestamp> {
        let local = date.at(hour, minute, 0, 0);
        self.zone.to_ambiguous_timestamp(local).compatible().ok()
    }
}

fn has(bits: u64, value: i8) -> bool {
    bits & 1 << value != 0
}

/// Lists of values, ranges and steps: `1,10-20/5,*/15,mon-fri`.
fn field(text: &str, what: &str, (min, max): (u32, u32), names: &[&str]) -> Result<u64> {
    let invalid = |part: &str, must: &str| {
        Error::Invalid(format!("`cron`: `{part}` is not valid as {what}; {must}"))
    };
    let value = |part: &str| {
        // The names of months count from 1.
        let first = u32::from(names.len() == MONTHS.len());
        let named = (names.iter().zip(first..)).find(|(name, _)| part.eq_ignore_ascii_case(name));
        let number = || {
            part.parse()
                .ok()
                .filter(|_| part.bytes().all(|b| b.is_ascii_digit()))
        };
        let value = named.map(|(_, value)| value).or_else(number);
        let value = value.filter(|value| (min..=max).contains(value));
        value.ok_or_else(|| {
            invalid(
                part,
                &format!("use numbers from {min} to {max}, `*`, `a-b`, `a,b` and `*/n`"),
            )
        })
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            None => (part, None),
            Some((range, step)) => {
                let step: Option<u32> = step.parse().ok().filter(|step| *step >= 1);
                (
                    range,
                    Some(step.ok_or_else(|| invalid(part, "a step must be at least 1"))?),
                )
            }
        };
        let (begin, end) = match (range, range.split_once('-'), step) {
            ("*", ..) => (min, if max == 7 { 6 } else { max }),
            (_, Some((begin, end)), _) => (value(begin)?, value(end)?),
            (one, None, None) => (value(one)?, value(one)?),
            (begin, None, Some(_)) => (value(begin)?, max),
        };
        if begin > end {
            return Err(invalid(part, "a range must not decrease"));
        }
        for value in (begin..=end).step_by(step.unwrap_or(1) as usize) {
            bits |= 1 << value;
        }
    }
    Ok(bits)
}

#[cfg(test)]
mod tests;
