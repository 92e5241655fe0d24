//! `trigger`: when a one-shot replication runs again.

use std::time::Duration;

use document::json::Json;

use super::fields::Fields;
use super::invalid::Invalid;

/// Longer intervals could overflow.
const SECONDS_MAX: f64 = 366.0 * 24.0 * 3600.0;
/// A run that waits for changes counts them one by one.
const CHANGES_MAX: u64 = 10_000;

/// When a one-shot replication runs again after it has completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trigger {
    /// Whether changes of the source start a run; else only the clock does.
    pub changes: bool,
    /// From the first change to the run.
    pub delay: Duration,
    /// A random time of up to this is added to the delay.
    pub random_delay: Duration,
    /// The least time between the starts of two runs.
    pub min_interval: Duration,
    /// The least number of changes that start a run.
    pub min_changes: u64,
    /// A run starts at least this often, with or without changes.
    pub every: Option<Duration>,
}

impl Trigger {
    pub(super) fn read(fields: &Fields<'_>, continuous: bool) -> Result<Option<Self>, Invalid> {
        if continuous && fields.get_unless_null("trigger").is_some() {
            return Err(Invalid::new(
                "`trigger` is for replications that end: remove `continuous` or `trigger`",
            ));
        }
        let members = match fields.get_unless_null("trigger") {
            None => return Ok(None),
            Some(Json::String(word)) if word == "changes" => {
                return Ok(Some(Self {
                    changes: true,
                    ..Self::default()
                }));
            }
            Some(Json::Object(members)) if !members.is_empty() => members,
            Some(_) => {
                return Err(Invalid::new(
                    "`trigger` must be \"changes\" or an object with `delay_sec`, `random_delay_sec`, `min_interval_sec`, `min_changes` or `every_sec`",
                ));
            }
        };
        let mut trigger = Self::default();
        for (name, value) in members {
            match name.as_str() {
                "delay_sec" => trigger.delay = seconds(name, value)?,
                "random_delay_sec" => trigger.random_delay = seconds(name, value)?,
                "min_interval_sec" => trigger.min_interval = seconds(name, value)?,
                "min_changes" => {
                    let number = value
                        .as_integer()
                        .and_then(|number| u64::try_from(number).ok());
                    let number = number.filter(|number| (1..=CHANGES_MAX).contains(number));
                    trigger.min_changes = number.ok_or_else(|| {
                        Invalid::new(format!(
                            "`trigger.min_changes` must be an integer from 1 to {CHANGES_MAX}"
                        ))
                    })?;
                }
                "every_sec" => {
                    let every = seconds(name, value)?;
                    if every < Duration::from_secs(1) {
                        return Err(Invalid::new("`trigger.every_sec` must be 1 or more"));
                    }
                    trigger.every = Some(every);
                    continue;
                }
                other => {
                    return Err(Invalid::new(format!(
                        "`trigger` has no member `{other}`; it has `delay_sec`, `random_delay_sec`, `min_interval_sec`, `min_changes` and `every_sec`"
                    )));
                }
            }
            trigger.changes = true;
        }
        Ok(Some(trigger))
    }
}

fn seconds(name: &str, value: &Json) -> Result<Duration, Invalid> {
    let number = match value {
        Json::Number(text) => text.parse::<f64>().ok(),
        _ => None,
    };
    let number = number.filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| {
        Invalid::new(format!(
            "`trigger.{name}` must be a number of seconds of 0 or more, at most a year"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(trigger: &str) -> Result<Option<Trigger>, String> {
        let body = Json::parse(&format!("{{\"trigger\":{trigger}}}")).unwrap();
        Trigger::read(&Fields::new(&body).unwrap(), false).map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_are_read() {
        let changes = Trigger {
            changes: true,
            ..Trigger::default()
        };
        assert_eq!(read("null"), Ok(None));
        assert_eq!(read("\"changes\""), Ok(Some(changes)));
        assert_eq!(
            read(
                r#"{"delay_sec":0.5,"random_delay_sec":2,"min_interval_sec":60,"min_changes":3,"every_sec":3600}"#
            ),
            Ok(Some(Trigger {
                delay: Duration::from_millis(500),
                random_delay: Duration::from_secs(2),
                min_interval: Duration::from_mins(1),
                min_changes: 3,
                every: Some(Duration::from_hours(1)),
                ..changes
            }))
        );
        let clock = read(r#"{"every_sec":60}"#).unwrap().unwrap();
        assert!(!clock.changes && clock.every == Some(Duration::from_mins(1)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let body = Json::parse(r#"{"trigger":"changes"}"#).unwrap();
        let error = Trigger::read(&Fields::new(&body).unwrap(), true).unwrap_err();
        assert!(error.to_string().contains("remove `continuous`"), "{error}");
        for (trigger, named) in [
            ("\"change\"", "must be \"changes\""),
            ("{}", "must be \"changes\""),
            ("true", "must be \"changes\""),
            (r#"{"delay":1}"#, "no member `delay`"),
            (r#"{"delay_sec":-1}"#, "`trigger.delay_sec`"),
            (r#"{"delay_sec":"1"}"#, "`trigger.delay_sec`"),
            (r#"{"random_delay_sec":-1}"#, "`trigger.random_delay_sec`"),
            (r#"{"every_sec":0}"#, "`trigger.every_sec` must be 1"),
            (r#"{"every_sec":1e99}"#, "at most a year"),
            (r#"{"min_changes":0}"#, "from 1 to 10000"),
            (r#"{"min_changes":1.5}"#, "from 1 to 10000"),
        ] {
            let error = read(trigger).unwrap_err();
            assert!(error.contains(named), "{trigger}: {error}");
        }
    }
}
