//! `davenport bench fleet`: a node with very many continuous jobs that wait for changes, many short jobs at once, and
//! how long jobs wait when their node stops.
//!
//! Nodes and servers run in their own processes, so that memory and CPU time can be measured. Given a CouchDB, short
//! jobs copy between its databases, and its own scheduler repeats that.

mod idle;
mod one_shot;
mod takeover;

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::service::Place;
use super::{print, random_hex};

#[derive(Debug, Args)]
pub struct FleetBench {
    /// Empty store for the nodes; default: a new temporary directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// URL of a CouchDB with its administrator, such as `http://admin:password@127.0.0.1:5984`, for the case `one_shot`, which
    /// copies its databases with Davenport and with its own scheduler; default: in-memory servers
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    #[arg(
        long,
        help = "Run only these cases, separated by commas: idle/N, one_shot/N, takeover/kill, takeover/stop",
        value_name = "CASE,CASE…",
        value_delimiter = ',',
        default_value = "idle/10000,one_shot/1000,takeover/kill,takeover/stop"
    )]
    cases: Vec<Case>,
    /// Seconds to observe idle jobs, and then again with some of them busy
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Set any configuration option of the nodes; also applies to the comparison
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Print one line of JSON per figure
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// This many continuous jobs that have caught up
    Idle(u32),
    /// This many jobs that copy ten documents
    OneShot(u32),
    /// A node stops, killed or in order
    Takeover { killed: bool },
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "{text:?} is not a case; use idle/N, one_shot/N, takeover/kill or takeover/stop"
            )
        };
        let (name, what) = text.split_once('/').ok_or_else(unknown)?;
        let count = || what.parse().ok().filter(|count| *count > 0);
        match (name, what) {
            ("idle", _) => count().map(Self::Idle),
            ("one_shot", _) => count().map(Self::OneShot),
            ("takeover", "kill") => Some(Self::Takeover { killed: true }),
            ("takeover", "stop") => Some(Self::Takeover { killed: false }),
            _ => None,
        }
        .ok_or_else(unknown)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle(jobs) => write!(f, "idle/{jobs}"),
            Self::OneShot(jobs) => write!(f, "one_shot/{jobs}"),
            Self::Takeover { killed: true } => f.write_str("takeover/kill"),
            Self::Takeover { killed: false } => f.write_str("takeover/stop"),
        }
    }
}

/// One case and its report.
struct Run<'a> {
    bench: &'a FleetBench,
    case: Case,
    place: Place,
    /// A separate database, so that a store can be reused.
    replicator: String,
}

pub(crate) async fn run(bench: FleetBench) -> anyhow::Result<()> {
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    for case in &bench.cases {
        let new = tempfile::tempdir().context("cannot create a temporary directory")?;
        let place = Place {
            store: super::url_or_new(bench.store.clone(), &new),
            // Cases may share a store.
            keys: directory.path().join("keys"),
            config: None,
            set: bench.set.clone(),
        };
        let run = Run {
            bench: &bench,
            case: *case,
            place,
            replicator: format!("bench-{}/_replicator", &random_hex()[..8]).replace('/', "%2F"),
        };
        let measured = match *case {
            Case::Idle(jobs) => Box::pin(idle::run(&run, jobs)).await,
            Case::OneShot(jobs) => Box::pin(one_shot::run(&run, jobs)).await,
            Case::Takeover { killed } => Box::pin(takeover::run(&run, killed)).await,
        };
        measured.with_context(|| format!("case {case}"))?;
    }
    Ok(())
}

impl Run<'_> {
    fn report(&self, who: &str, metric: &str, value: f64, unit: &str) {
        let case = self.case.to_string();
        print(&if self.bench.json {
            let line = json!({
                "bench": "fleet", "case": case, "who": who, "metric": metric, "value": value, "unit": unit,
            });
            line.to_string()
        } else {
            format!("{case:<24} {who:<10} {metric:<20} {value:>14.3} {unit}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names() {
        for name in ["idle/10000", "one_shot/7", "takeover/kill", "takeover/stop"] {
            assert_eq!(name.parse::<Case>().unwrap().to_string(), name);
        }
        for name in [
            "idle",
            "idle/0",
            "idle/x",
            "one_shot/-1",
            "takeover/pause",
            "x/1",
        ] {
            assert!(
                name.parse::<Case>().unwrap_err().contains("idle/N"),
                "{name}"
            );
        }
    }

    #[test]
    fn percentiles_are_of_what_there_is() {
        use crate::percentile;
        assert_eq!(percentile::<f64>(&[], 50), None);
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
        let hundred: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(
            (percentile(&hundred, 50), percentile(&hundred, 99)),
            (Some(50.0), Some(99.0))
        );
    }
}
