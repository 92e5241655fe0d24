//! Ids: of messages, by which receivers recognise repetitions, and of their jobs.
//!
//! A message is what a rule says about one change, so its id is a hash of these. Its job has the same id, unless the call
//! is debounced: then equal calls share a job, and its message is that of the last of them. Debounced calls that are too
//! large to be stored share one per document.
//!
//! The revision of a rule is not part of either: an edited rule's calls replace those that wait, and a receiver that has
//! had a message does not get it as a new one.

use aws_lc_rs::digest::{Context, SHA256};
use jobs::JobId;
use serde_json::Value;
use url::Url;

use crate::rule::call::Call;

/// In base32 as many bytes are 32 characters, without padding.
const HASH_BYTES: usize = 20;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The `webhook-id` of a call: the same for all attempts and replays.
pub(super) fn message(call: &Call) -> String {
    // One revision can have several sequences: they differ between the nodes of a cluster.
    let version = if call.rev.is_empty() {
        [b"seq".as_slice(), call.seq.as_bytes()]
    } else {
        [b"rev".as_slice(), call.rev.as_bytes()]
    };
    let change = [
        &call.rules,
        &call.rule,
        &call.source,
        &call.db,
        &call.doc_id,
    ];
    let parts = change.into_iter().map(String::as_bytes).chain(version);
    format!("msg_{}", hash(parts))
}

/// The id of the job of a call.
pub(super) fn job(call: &Call) -> jobs::Result<JobId> {
    if !call.debounce {
        return JobId::new(message(call));
    }
    let body = call.body.as_deref().unwrap_or_default();
    // Equal documents may have their members in another order.
    let canonical = serde_json::from_str(body).map(|mut value: Value| {
        value.sort_all_objects();
        value.to_string()
    });
    let body = canonical.as_deref().unwrap_or(body);
    let url = call
        .target
        .as_ref()
        .map(|target| target.with_query(call.query.as_deref()));
    let url = url.as_ref().map_or(&*call.url, Url::as_str);
    let parts = [&call.rules, &call.rule, &call.method, url, body];
    // One that was too large has lost query and body, and would be equal to all others of its rule.
    let document = [&*call.source, &call.db, &call.doc_id];
    let document = document.into_iter().filter(|_| call.left_out > 0);
    let parts = parts.into_iter().chain(document).map(str::as_bytes);
    JobId::new(format!("last_{}", hash(parts)))
}

fn hash<'a>(parts: impl Iterator<Item = &'a [u8]>) -> String {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    base32(&context.finish().as_ref()[..HASH_BYTES])
}

/// Base32 of RFC 4648 in lower case, of a multiple of five bytes.
fn base32(bytes: &[u8]) -> String {
    let groups = bytes.chunks(5).map(|five| {
        five.iter()
            .fold(0, |bits, byte| bits << 8 | u64::from(*byte))
    });
    let digits = groups.flat_map(|bits| (0..8).rev().map(move |n| (bits >> (5 * n)) & 31));
    digits
        .map(|digit| char::from(ALPHABET[usize::try_from(digit).unwrap_or_default()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliver::testing::call;

    #[test]
    fn base32_is_that_of_the_rfc() {
        assert_eq!(base32(b"fooba"), "mzxw6ytb");
        assert_eq!(base32(&[0; 5]), "aaaaaaaa");
        assert_eq!(base32(&[255; 10]), "7777777777777777");
    }

    #[test]
    fn a_message_is_a_rule_and_a_change() {
        let one = call("http://a/");
        let id = message(&one);
        assert!(
            id.len() == 36 && id.starts_with("msg_") && !id.contains('.'),
            "{id}"
        );
        let same = Call {
            seq: "9-other".into(),
            url: "http://b/".into(),
            ..one.clone()
        };
        assert_eq!(message(&same), id);
        let others = [
            Call {
                rule: "other".into(),
                ..one.clone()
            },
            Call {
                source: "other".into(),
                ..one.clone()
            },
            Call {
                db: "other".into(),
                ..one.clone()
            },
            Call {
                doc_id: "other".into(),
                ..one.clone()
            },
            Call {
                rev: "2-b".into(),
                ..one.clone()
            },
            Call {
                rev: String::new(),
                ..one.clone()
            },
            // Rules of different databases may have the same id.
            Call {
                rules: "team/_rules".into(),
                ..one.clone()
            },
            // Parts do not run into each other.
            Call {
                db: format!("{}{}", one.db, one.doc_id),
                doc_id: String::new(),
                ..one.clone()
            },
        ];
        let mut ids: Vec<String> = others.iter().map(message).collect();
        ids.push(id);
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), others.len() + 1);
    }

    #[test]
    fn equal_debounced_calls_share_a_job() {
        let one = Call {
            debounce: true,
            body: Some(r#"{"a":1,"b":{"c":2,"d":3}}"#.into()),
            ..call("http://a/x")
        };
        let id = |call: &Call| job(call).unwrap();
        let same = Call {
            rev: "2-b".into(),
            doc_id: "other".into(),
            body: Some(r#"{"b":{"d":3,"c":2},"a":1}"#.into()),
            ..one.clone()
        };
        assert_eq!(id(&same), id(&one));
        assert_ne!(message(&same), message(&one));
        for other in [
            Call {
                debounce: false,
                hops: 0,
                left_out: 0,
                ..one.clone()
            },
            Call {
                rule: "other".into(),
                ..one.clone()
            },
            Call {
                method: "PUT".into(),
                ..one.clone()
            },
            // Spiegel compared the template, and lost calls (D3).
            Call {
                url: "http://a/y".into(),
                ..one.clone()
            },
            Call {
                body: Some("{}".into()),
                ..one.clone()
            },
        ] {
            assert_ne!(id(&other), id(&one));
        }
    }
}
