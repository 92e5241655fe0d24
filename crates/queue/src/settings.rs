//! Settings of a user's type, as clients write them.

use std::collections::BTreeMap;
use std::fmt;

use jobs::{Limit, LimitName, SHARES_MAX, Sharing, StallPolicy, Tenant, TypeConfig};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, Seconds, seconds};

/// The highest `max_data_bytes`. The rest of what the queue stores is for progress, result and error.
pub const DATA_BYTES_MAX: u64 = 8_000_000;
const LIMITS_MAX: usize = 1_000;
const TENANTS_MAX: usize = 1_000;
const ROLES_MAX: usize = 100;
/// The role that no setting can grant.
const ADMIN_ROLE: &str = "_admin";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A worker that sends no heartbeat for so long loses its job.
    #[serde(deserialize_with = "seconds::timeout")]
    pub timeout_sec: Seconds,
    /// How long finished jobs are kept; `null` until they are removed.
    pub retention_sec: Option<Seconds>,
    pub retry: RetryPolicy,
    /// How many jobs with a key run at once, or start per period.
    pub limits: BTreeMap<String, LimitSetting>,
    /// Tenants get parts of the workers' time in proportion to their shares: those listed, and 100 for others. Absent, the
    /// tenants of jobs do not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<BTreeMap<String, u32>>,
    pub roles: Roles,
    /// More jobs are refused while so many are pending.
    pub max_pending: Option<u64>,
    /// Maximum size of a job's data, of its result, and of its progress.
    pub max_data_bytes: u64,
    /// What is written of its jobs is encrypted at rest. Not written unless it is true: older versions do not know it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
}

/// When a failed job is retried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// A job that fails more often in a row is dead; `null` for no limit.
    pub limit: Option<u32>,
    /// The delay after the first failure, multiplied with each further one.
    pub delay_sec: Seconds,
    pub multiplier: f64,
    pub max_delay_sec: Seconds,
    /// The fraction by which a delay may be shorter.
    pub jitter: f64,
}

/// A number of concurrent runs, or of starts per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LimitSetting {
    AtOnce(u32),
    Rate(Rate),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    max: u32,
    #[serde(deserialize_with = "seconds::period")]
    per_sec: Seconds,
}

/// By hand, so that errors name the member of a rate, and a list is no rate.
impl<'de> Deserialize<'de> for LimitSetting {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = LimitSetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a whole number up to 10,000, or {\"max\": whole number, \"per_sec\": seconds}",
                )
            }

            fn visit_u64<E: de::Error>(self, max: u64) -> std::result::Result<Self::Value, E> {
                let max = u32::try_from(max);
                max.map(LimitSetting::AtOnce)
                    .map_err(|_| E::invalid_value(Unexpected::Other("a larger number"), &self))
            }

            fn visit_i64<E: de::Error>(self, max: i64) -> std::result::Result<Self::Value, E> {
                Err(E::invalid_value(Unexpected::Signed(max), &self))
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                members: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                Rate::deserialize(MapAccessDeserializer::new(members)).map(LimitSetting::Rate)
            }
        }
        from.deserialize_any(Either)
    }
}

/// Who may do what, by roles. Server administrators may do everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Roles {
    pub enqueue: Vec<String>,
    pub work: Vec<String>,
    pub read: Vec<String>,
}

/// What a role allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    Enqueue,
    Work,
    Read,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout_sec: Seconds::new(30),
            retention_sec: Some(Seconds::new(24 * 3_600)),
            retry: RetryPolicy::default(),
            limits: BTreeMap::new(),
            shares: None,
            roles: Roles::default(),
            max_pending: None,
            max_data_bytes: 1_000_000,
            sealed: false,
        }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            limit: Some(20),
            delay_sec: Seconds::new(5),
            multiplier: 2.0,
            max_delay_sec: Seconds::new(3_600),
            jitter: 0.2,
        }
    }
}

impl Right {
    pub fn name(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Work => "work",
            Self::Read => "read",
        }
    }
}

impl Roles {
    /// Whether one of these roles gives the right.
    pub fn allow(&self, right: Right, roles: &[String]) -> bool {
        let allowed = self.with(right);
        roles
            .iter()
            .any(|role| role != ADMIN_ROLE && allowed.contains(role))
    }

    fn with(&self, right: Right) -> &[String] {
        match right {
            Right::Enqueue => &self.enqueue,
            Right::Work => &self.work,
            Right::Read => &self.read,
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |reason: String| Err(Error::Invalid(reason));
        if !(1..=DATA_BYTES_MAX).contains(&self.max_data_bytes) {
            return invalid(format!(
                "`max_data_bytes` must be from 1 to {DATA_BYTES_MAX}"
            ));
        }
        if self.max_pending == Some(0) {
            return invalid("`max_pending` must be at least 1".into());
        }
        let retry = &self.retry;
        if !(1.0..=100.0).contains(&retry.multiplier) {
            return invalid("`retry.multiplier` must be from 1 to 100".into());
        }
        if !(0.0..=1.0).contains(&retry.jitter) {
            return invalid("`retry.jitter` must be from 0 to 1".into());
        }
        if self.limits.len() > LIMITS_MAX {
            return invalid(format!(
                "`limits` has more than {LIMITS_MAX} names; the limit `GROUP` also applies to keys such as `GROUP|NAME`"
            ));
        }
        for (right, roles) in
            [Right::Enqueue, Right::Work, Right::Read].map(|r| (r, self.roles.with(r)))
        {
            if roles.len() > ROLES_MAX {
                return invalid(format!(
                    "`roles.{}` has more than {ROLES_MAX} roles",
                    right.name()
                ));
            }
        }
        self.limits()?;
        self.shares().map(drop)
    }

    /// The shares of tenants in the queue.
    pub(crate) fn shares(&self) -> Result<BTreeMap<Tenant, u32>> {
        let shares = self.shares.iter().flatten();
        if self.shares.iter().any(|shares| shares.len() > TENANTS_MAX) {
            return Err(Error::Invalid(format!(
                "`shares` has more than {TENANTS_MAX} tenants; a tenant that is not listed has 100 shares"
            )));
        }
        let shares = shares.map(|(name, shares)| {
            let invalid = |reason: String| Error::Invalid(format!("`shares.{name}`: {reason}"));
            if !(1..=SHARES_MAX).contains(shares) {
                return Err(invalid(format!("must be from 1 to {SHARES_MAX}")));
            }
            let tenant = Tenant::new(name.clone()).map_err(|error| invalid(error.to_string()))?;
            Ok((tenant, *shares))
        });
        shares.collect()
    }

    /// The limits in the queue.
    pub(crate) fn limits(&self) -> Result<BTreeMap<LimitName, Limit>> {
        let limits = self.limits.iter().map(|(name, setting)| {
            let limit = match setting {
                LimitSetting::AtOnce(max) => Limit::at_once(*max),
                LimitSetting::Rate(rate) => Limit::per(rate.max, rate.per_sec.ms()),
            };
            let invalid = |reason: String| Error::Invalid(format!("`limits.{name}`: {reason}"));
            if limit.max > jobs::LIMIT_SLOTS_MAX {
                return Err(invalid(format!(
                    "at most {}; a higher rate needs a shorter period",
                    jobs::LIMIT_SLOTS_MAX
                )));
            }
            let name = LimitName::new(name.clone()).map_err(|error| invalid(error.to_string()))?;
            Ok((name, limit))
        });
        limits.collect()
    }

    /// The registration of the type in the queue. A worker that goes silent counts as a failure, without a delay.
    pub(crate) fn config(&self) -> TypeConfig {
        let config = TypeConfig::new(self.timeout_sec.ms());
        TypeConfig {
            retention_ms: self.retention_sec.map(Seconds::ms),
            stalls: StallPolicy {
                stalls_max: self.retry.limit,
                ..config.stalls
            },
            sharing: match self.shares {
                Some(_) => Sharing::On,
                None => Sharing::Off,
            },
            ..config
        }
    }
}

impl RetryPolicy {
    /// The delay in milliseconds after so many failures in a row; `None` if there were too many. `luck` is a random
    /// number from 0 to 1.
    pub(crate) fn wait_ms(&self, failures: u32, luck: f64) -> Option<i64> {
        if self.limit.is_some_and(|limit| failures > limit) {
            return None;
        }
        // Times infinity, it would be no number.
        if self.delay_sec.ms() == 0 {
            return Some(0);
        }
        let times = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let delay = self.delay_sec.duration().as_secs_f64() * self.multiplier.powi(times);
        let delay = delay.min(self.max_delay_sec.duration().as_secs_f64());
        #[expect(clippy::cast_possible_truncation, reason = "it has a maximum")]
        let ms = (delay * 1_000.0 * (1.0 - self.jitter * luck)).round() as i64;
        Some(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_until_a_job_is_dead() {
        let retry = RetryPolicy {
            limit: Some(4),
            delay_sec: Seconds::new(2),
            multiplier: 3.0,
            max_delay_sec: Seconds::new(20),
            jitter: 0.5,
        };
        let waits: Vec<_> = (1..=5)
            .map(|failures| retry.wait_ms(failures, 0.0))
            .collect();
        assert_eq!(
            waits,
            [Some(2_000), Some(6_000), Some(18_000), Some(20_000), None]
        );
        assert_eq!(retry.wait_ms(1, 1.0), Some(1_000));
        let forever = RetryPolicy {
            limit: None,
            ..retry
        };
        assert_eq!(forever.wait_ms(u32::MAX, 0.0), Some(20_000));
        let at_once = RetryPolicy {
            delay_sec: Seconds::new(0),
            ..forever
        };
        assert_eq!(at_once.wait_ms(u32::MAX, 0.0), Some(0));
    }

    #[test]
    fn settings_are_checked() {
        for bad in [
            r#"{"max_data_bytes":8000001}"#,
            r#"{"max_pending":0}"#,
            r#"{"retry":{"multiplier":0.5}}"#,
            r#"{"retry":{"jitter":2}}"#,
            r#"{"limits":{"":1}}"#,
            r#"{"limits":{"a":10001}}"#,
            r#"{"shares":{"":1}}"#,
            r#"{"shares":{"a":0}}"#,
            r#"{"shares":{"a":1001}}"#,
        ] {
            let settings: Settings = serde_json::from_str(bad).unwrap();
            assert!(settings.check().is_err(), "{bad}");
        }
        for bad in [
            r#"{"timeout_sec":0}"#,
            r#"{"timeout_sec":90000}"#,
            r#"{"limits":{"a":{"max":1,"per_sec":0}}}"#,
        ] {
            assert!(serde_json::from_str::<Settings>(bad).is_err(), "{bad}");
        }
        let good = r#"{"retention_sec":null,"retry":{"limit":null},"limits":{"a":1,"b":{"max":5,"per_sec":0.5}}}"#;
        let settings: Settings = serde_json::from_str(good).unwrap();
        settings.check().unwrap();
        assert_eq!(settings.config().retention_ms, None);
        let shown = serde_json::to_value(&settings).unwrap();
        assert_eq!(shown["limits"]["b"]["per_sec"], 0.5);
        assert!(shown.get("sealed").is_none(), "older versions refuse it");
        assert_eq!(shown.get("shares"), None);
        assert_eq!(settings.config().sharing, Sharing::Off);
        let fair: Settings = serde_json::from_str(r#"{"shares":{"a":1000}}"#).unwrap();
        fair.check().unwrap();
        assert_eq!(fair.config().sharing, Sharing::On);
        assert_eq!(fair.shares().unwrap().into_values().sum::<u32>(), 1_000);
        let roles = Roles {
            work: vec!["robot".into(), ADMIN_ROLE.into()],
            ..Roles::default()
        };
        assert!(roles.allow(Right::Work, &["robot".into()]));
        assert!(
            !roles.allow(Right::Work, &[ADMIN_ROLE.into()])
                && !roles.allow(Right::Read, &["robot".into()])
        );
    }
}
