//! How fast running jobs copy: what they have written since they were seen some seconds ago, so that ten thousand jobs that
//! copy a document now and then count, too. A job that was not seen before reports its own rate.

use std::collections::{HashMap, VecDeque};

use jobs::JobId;
use serde_json::Value;

use super::Seen;

/// Running jobs report their progress every ten seconds.
const WINDOW_MS: i64 = 12_000;
/// What was seen before a longer pause than this says nothing about now.
const MEMORY_MS: i64 = 60_000;

/// What was written at some moments, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Rates(VecDeque<Moment>);

#[derive(Debug, Default)]
struct Moment {
    at_ms: i64,
    written: HashMap<JobId, Written>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Written {
    docs: u64,
    bytes: u64,
}

impl Rates {
    /// Begins a moment. Keeps one that is old enough for a rate, and those after it.
    pub(crate) fn begin(&mut self, now_ms: i64) {
        let age = |moment: &Moment| now_ms - moment.at_ms;
        (self.0).retain(|moment| (0..MEMORY_MS).contains(&age(moment)));
        while (self.0.get(1)).is_some_and(|next| age(next) >= WINDOW_MS) {
            self.0.pop_front();
        }
        self.0.push_back(Moment {
            at_ms: now_ms,
            written: HashMap::new(),
        });
    }

    /// Documents and bytes per second of a running job, which is part of the last moment from now on.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a rate needs no more than 52 bits"
    )]
    pub(crate) fn see(&mut self, seen: &Seen) -> (f64, f64) {
        let Some(last) = self.0.back_mut() else {
            return (0.0, 0.0);
        };
        let (now_ms, now) = (last.at_ms, Written::by(seen));
        last.written.insert(seen.job.clone(), now);
        let old = (self.0.front()).filter(|moment| now_ms - moment.at_ms >= WINDOW_MS);
        let before = old.and_then(|moment| Some((moment.at_ms, moment.written.get(&seen.job)?)));
        let Some((at_ms, before)) = before else {
            let own = |name| seen.live.info.get(name).and_then(Value::as_f64);
            let (docs, bytes) = (own("docs_per_second"), own("bytes_per_second"));
            return (docs.unwrap_or(0.0), bytes.unwrap_or(0.0));
        };
        let seconds = (now_ms - at_ms) as f64 / 1000.0;
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        (rate(now.docs, before.docs), rate(now.bytes, before.bytes))
    }
}

impl Written {
    fn by(seen: &Seen) -> Self {
        let count = |name| seen.live.info.get(name).and_then(Value::as_u64);
        let count = |name| count(name).unwrap_or(0);
        Self {
            docs: count("docs_written"),
            bytes: count("bytes_read") + count("bytes_written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use document::json::Json;
    use jobs::{JobInfo, State};
    use serde_json::json;

    use super::*;
    use crate::data::{JobData, JobState, Origin};
    use crate::live::Live;
    use replication::params::Invalid;
    use seal::Sealer;

    fn running(id: &str, docs: u64) -> Seen {
        let job = JobId::new(id.to_owned()).unwrap();
        let (origin, body) = (Origin::Request { user: None }, Json::Object(Vec::new()));
        let invalid = Invalid::new("no");
        let mut data = JobData::new(
            &Sealer::plain(),
            &job,
            origin,
            (&body, None),
            Err(&invalid),
            0,
        );
        data.state = JobState::Running;
        let info =
            json!({"docs_written": docs, "bytes_written": 10 * docs, "docs_per_second": 7.5});
        Seen {
            info: JobInfo {
                id: job.clone(),
                state: State::Running,
                due_ms: 0,
                created_ms: 0,
                attempts: 1,
                stalls: 0,
                next_due_ms: None,
                signal_ms: None,
                asked_ms: None,
                class: jobs::Class::Normal,
                tenant: None,
                waits_for: None,
                has_slots: false,
                finished_ms: None,
                expires_ms: None,
                last: None,
                data_bytes: 0,
            },
            job,
            data,
            live: Live {
                info: info.as_object().unwrap().clone(),
                ..Live::default()
            },
        }
    }

    #[test]
    fn rates_are_of_what_was_written_meanwhile() {
        let mut rates = Rates::default();
        let mut at = |now_ms, id, docs| {
            rates.begin(now_ms);
            rates.see(&running(id, docs))
        };
        assert_eq!(at(0, "a", 100), (7.5, 0.0));
        assert_eq!(at(5_000, "a", 110), (7.5, 0.0));
        assert_eq!(at(15_000, "a", 130), (2.0, 20.0));
        // A new job reports its own rate; one that began again has written nothing.
        assert_eq!(at(16_000, "b", 130), (7.5, 0.0));
        assert_eq!(at(17_000, "a", 0), (0.0, 0.0));
        assert_eq!(at(80_000, "a", 240), (7.5, 0.0));
        // A clock that is set back makes no rates.
        assert_eq!(at(20_000, "a", 500), (7.5, 0.0));
    }
}
