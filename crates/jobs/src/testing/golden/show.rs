//! Readable rows. Random values and commit versions are left out, or shown as `…`.

use bytes::Bytes;
use store::tuple::{Element, unpack};

use crate::Attempt;
use crate::model::header::{Blob, Header, Place};
use crate::model::keys::{after_stamp, charged_until, since, stamp_of};

const TABLES: [&str; 13] = [
    "JOB", "PENDING", "SLEEPER", "NOTIFIER", "TYPE", "ACTIVITY", "DATA", "FINISHED", "HISTORY",
    "COUNT", "LEASE", "NOTE", "TYPES",
];
const STATES: [&str; 5] = ["absent", "pending", "running", "finished", "dead"];

/// Data that a script gives by length consists of dots.
pub(super) fn read_data(text: &str) -> Bytes {
    let length = text.strip_suffix("bytes").and_then(|n| n.parse().ok());
    match length {
        Some(length) => vec![b'.'; length].into(),
        None => text.to_owned().into(),
    }
}

pub(super) fn data(data: &[u8]) -> String {
    if data.len() > 40 {
        return format!("{} bytes", data.len());
    }
    data.escape_ascii().to_string()
}

pub(super) fn row(key_bytes: &[u8], value: &Bytes) -> String {
    let shown = key(key_bytes);
    let value = match table(key_bytes) {
        Some(name) => self::value(name, value),
        None => "…".to_owned(),
    };
    format!("{shown} = {value}")
}

pub(super) fn key(key: &[u8]) -> String {
    let Some(name) = table(key) else {
        return key.escape_ascii().to_string();
    };
    let elements: Vec<Element<'_>> = unpack(key).unwrap();
    let mut shown: Vec<String> = elements[2..].iter().map(element).collect();
    match name {
        // The version at which it became ready.
        "PENDING" if shown[1] == "0" => shown[4] = "…".to_owned(),
        "PENDING" if shown[1] == "7" => shown[6] = "…".to_owned(),
        "COUNT" => {
            // The row is chosen at random.
            shown[1] = "…".to_owned();
            let edge: usize = shown[2].parse().unwrap();
            shown[2] = format!("{}→{}", STATES[edge / 8], STATES[edge % 8]);
        }
        "CALL" => shown[4] = "…".to_owned(),
        "FINISHED" if shown[2] == i64::MAX.to_string() => shown[2] = "never".to_owned(),
        _ => {}
    }
    shown.insert(0, name.to_owned());
    shown.join(" ")
}

fn table(key: &[u8]) -> Option<&'static str> {
    let elements: Vec<Element<'_>> = unpack(key).ok()?;
    match elements[..] {
        [Element::Int(51), Element::Int(14), ..] => Some("ORDER"),
        [Element::Int(51), Element::Int(21), ..] => Some("DEAD"),
        [Element::Int(51), Element::Int(22), ..] => Some("TENANT"),
        [Element::Int(51), Element::Int(24), ..] => Some("THERE"),
        [Element::Int(51), Element::Int(25), ..] => Some("CALL"),
        [Element::Int(51), Element::Int(26), ..] => Some("SHARES"),
        [Element::Int(51), Element::Int(table), ..] => {
            TABLES.get(usize::try_from(table).ok()? - 1).copied()
        }
        _ => None,
    }
}

fn element(element: &Element<'_>) -> String {
    match element {
        Element::Int(number) => number.to_string(),
        Element::String(text) => text.to_string(),
        Element::Bytes(bytes) => bytes.escape_ascii().to_string(),
        other => format!("{other:?}"),
    }
}

fn value(table: &str, value: &Bytes) -> String {
    match table {
        "JOB" => header(&Header::decode(value.clone()).unwrap()),
        "PENDING" | "ORDER" => format!("since {}", since(value).unwrap()),
        "ACTIVITY" => {
            stamp_of(value).unwrap();
            let beat = after_stamp(value);
            let at_ms = i64::from_be_bytes(beat[..8].try_into().unwrap());
            let charged = charged_until(value).map(|ms| format!(", charged until {ms}"));
            format!("stamp, beat at {at_ms}{}", charged.unwrap_or_default())
        }
        "SLEEPER" | "NOTIFIER" | "TYPES" | "CALL" => {
            stamp_of(value).unwrap();
            "stamp".to_owned()
        }
        "TYPE" => {
            let config = crate::TypeConfig::decode(value.clone()).unwrap();
            format!(
                "timeout {}, retention {:?}, stalls_max {:?}",
                config.timeout_ms, config.retention_ms, config.stalls.stalls_max
            )
        }
        "HISTORY" => attempt(&Attempt::decode(value.clone()).unwrap()),
        "COUNT" | "TENANT" => i64::from_le_bytes(value[..].try_into().unwrap()).to_string(),
        _ => format!("{:?}", data(value)),
    }
}

fn header(header: &Header) -> String {
    let mut parts = vec![match header.place {
        Place::Ready(_) => "pending, ready".to_owned(),
        Place::Timed => format!("pending, due {}", header.due_ms),
        Place::Waiting(which, _) => {
            let limit = header
                .limit(which)
                .map(|name| name.escape_ascii().to_string());
            format!("pending, behind {}", limit.unwrap_or_default())
        }
        Place::Active => "running".to_owned(),
        Place::Finished { at_ms, expires_ms } => match expires_ms {
            i64::MAX => format!("finished at {at_ms}"),
            expires_ms => format!("finished at {at_ms}, expires {expires_ms}"),
        },
        Place::Dead { at_ms } => format!("dead since {at_ms}"),
    }];
    parts.push(format!("data {}", blob(&header.data)));
    if let Some(next) = &header.next {
        let by = if next.by_creator { "creator" } else { "holder" };
        let data = next.data.as_ref().map(blob);
        let data = data.map_or(String::new(), |data| format!(", data {data}"));
        parts.push(format!("next [by {by}, due {}{data}]", next.due_ms));
    }
    if let Some(signal_ms) = header.signal_ms() {
        parts.push(format!("signal {signal_ms}"));
    }
    if let Some(covered_ms) = header.covered_ms() {
        parts.push(format!("covers {covered_ms}"));
    }
    if let Some(asked_ms) = header.asked_ms() {
        parts.push(format!("asked at {asked_ms}"));
    }
    if header.stalls > 0 {
        parts.push(format!("stalls {}", header.stalls));
    }
    if let Some(last) = &header.last {
        parts.push(format!("last [{}]", attempt(last)));
    }
    if !header.watchers.is_empty() {
        parts.push(format!("watchers {:?}", header.watchers));
    }
    parts.join("; ")
}

fn blob(blob: &Blob) -> String {
    match &blob.bytes {
        Some(bytes) => format!("{:?}", data(bytes)),
        None => format!("{} bytes in slot {}", blob.len, blob.slot),
    }
}

fn attempt(attempt: &Attempt) -> String {
    let begun = format!(
        "run {} by {} from {}",
        attempt.number, attempt.holder, attempt.started_ms
    );
    match &attempt.end {
        None => begun,
        Some(end) => {
            let reason = end.reason.as_ref();
            let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
            format!("{begun} to {}, {:?}{reason}", end.at_ms, end.outcome)
        }
    }
}
