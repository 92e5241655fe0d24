//! What waits, runs or has failed, on which node and why.

use std::fmt::Write as _;

use jobs::State;
use serde::Serialize;

use crate::mirrors::{Listed, Mirrors};

/// A mirror as `queue` shows it. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub(crate) remote: String,
    pub(crate) project: String,
    pub(crate) target: String,
    /// `running`, `delayed`, `waiting`, `retrying`, `dead` or `idle`.
    pub(crate) state: &'static str,
    /// What a push in progress is about, or failed pushes have left.
    pub(crate) refs: String,
    /// What has arrived since the last push began.
    pub(crate) arrived: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// When the push began, or will begin at the earliest.
    pub(crate) at_ms: i64,
    /// Why it does not run, or how the last push failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) failures: u32,
}

/// The queue: running first, then what waits, by time, then dead letters; idle mirrors only if asked for.
pub(crate) async fn rows(mirrors: &Mirrors, idle: bool) -> jobs::Result<Vec<Row>> {
    let mut rows: Vec<Row> = mirrors.list(idle).await?.into_iter().map(row).collect();
    let order = |row: &Row| match row.state {
        "running" => 0,
        "dead" => 2,
        "idle" => 3,
        _ => 1,
    };
    rows.sort_by(|a, b| (order(a), a.at_ms, &a.target).cmp(&(order(b), b.at_ms, &b.target)));
    Ok(rows)
}

fn row(listed: Listed) -> Row {
    let (mirror, info) = (listed.mirror, listed.info);
    let last = info.last.as_ref();
    let current = last.filter(|last| last.end.is_none());
    let failed = last.and_then(|last| last.end.as_ref()?.reason.clone());
    let waits_for = info.waits_for.map(|limit| limit.to_string());
    let waits = waits_for.map(|limit| match limit.split_once('|') {
        Some(("remote", name)) => format!("all threads of remote {name} are in use"),
        _ => "another push to this target is running".to_owned(),
    });
    let state = match info.state {
        State::Running => "running",
        State::Dead => "dead",
        State::Finished => "idle",
        State::Pending if waits.is_some() => "waiting",
        State::Pending if info.stalls > 0 => "retrying",
        State::Pending => "delayed",
    };
    Row {
        target: mirror.place,
        project: mirror.project,
        state,
        refs: mirror.refs.shown(),
        arrived: listed.arrived.shown(),
        node: current.map(|run| run.holder.to_string()),
        at_ms: (current.map(|run| run.started_ms).or(info.finished_ms)).unwrap_or(info.due_ms),
        reason: waits.or(failed),
        failures: mirror.failed.map_or(0, |(_, failures)| failures),
        remote: mirror.remote,
    }
}

/// A time in a unit that keeps its number short.
fn span(seconds: u64) -> String {
    match seconds {
        0..=120 => format!("{seconds} s"),
        121..=7_200 => format!("{} min", seconds / 60),
        7_201..=172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Rows for people.
pub(crate) fn table(rows: &[Row], now_ms: i64) -> String {
    let mut text = String::new();
    for row in rows {
        let away = span(row.at_ms.abs_diff(now_ms) / 1_000);
        let when = match row.state {
            "running" => format!("for {away} on {}", row.node.as_deref().unwrap_or("a node")),
            "dead" | "idle" => format!("{away} ago"),
            _ if row.at_ms > now_ms => format!("in {away}"),
            _ => String::new(),
        };
        let mut about = vec![row.refs.as_str(), row.arrived.as_str()];
        about.retain(|refs| !refs.is_empty());
        let (state, remote, about) = (row.state, &row.remote, about.join(" + "));
        let mut parts = vec![&*row.target, &about, &when];
        parts.retain(|part| !part.is_empty());
        let _ = write!(text, "{state:<9}{remote:<12}{}", parts.join("  "));
        // Writing to a string cannot fail.
        if let Some(reason) = &row.reason {
            let _ = write!(text, "\n         {reason}");
            if row.failures > 1 {
                let _ = write!(text, " ({} times)", row.failures);
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_when() {
        let line = |state, at_ms, refs: &str| {
            let row = Row {
                remote: "eu".to_owned(),
                project: "app".to_owned(),
                target: "/m/app.git".to_owned(),
                state,
                refs: refs.to_owned(),
                arrived: String::new(),
                node: (state == "running").then(|| "n1".to_owned()),
                at_ms,
                reason: None,
                failures: 0,
            };
            table(&[row], 1_000_000_000)
        };
        for (state, at_ms, refs, told) in [
            ("idle", 999_000_000, "", "/m/app.git  16 min ago"),
            (
                "dead",
                100_000_000,
                "all refs",
                "/m/app.git  all refs  10 days ago",
            ),
            (
                "running",
                999_990_000,
                "all refs",
                "/m/app.git  all refs  for 10 s on n1",
            ),
            (
                "retrying",
                1_030_000_000,
                "all refs",
                "/m/app.git  all refs  in 8 h",
            ),
            ("waiting", 999_000_000, "all refs", "/m/app.git  all refs"),
        ] {
            assert_eq!(
                line(state, at_ms, refs),
                format!("{state:<9}eu          {told}\n")
            );
        }
    }
}
