//! The data of the cases. Documents depend only on their number, so every run has the same.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use serde_json::json;

/// Bytes of documents per request.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_DOCUMENTS: usize = 2_000;
const ATTACHMENT_BYTES: usize = 20_000;
const LARGE_BYTES: usize = 1_000_000;
const LEAVES: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Case {
    /// 50,000 small documents
    Small,
    /// 2,000 documents with an attachment of 20 kB
    Attachments,
    /// 5,000 documents with 5 leaf revisions
    Conflicts,
    /// 200 documents of 1 MB
    Large,
    /// 1,000,000 documents that the target already has, without a checkpoint
    CaughtUp,
}

impl Case {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Attachments => "attachments",
            Self::Conflicts => "conflicts",
            Self::Large => "large",
            Self::CaughtUp => "caught_up",
        }
    }

    /// The number of documents.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a small positive number"
    )]
    pub(crate) fn documents(self, scale: f64) -> u64 {
        let all = match self {
            Self::Small => 50_000,
            Self::Attachments => 2_000,
            Self::Conflicts => 5_000,
            Self::Large => 200,
            Self::CaughtUp => 1_000_000,
        };
        (f64::from(all) * scale).ceil() as u64
    }

    pub(crate) fn target_is_full(self) -> bool {
        self == Self::CaughtUp
    }

    /// The revisions of a document, as JSON.
    fn revisions(self, number: u64) -> Vec<String> {
        let mut rng = SmallRng::seed_from_u64(number);
        let id = format!("{}-{number:07}", self.name());
        let first = |rng: &mut SmallRng| json!({"start": 1, "ids": [hex(rng, 32)]});
        match self {
            Self::Small | Self::CaughtUp => vec![
                json!({
                    "_id": id,
                    "_revisions": first(&mut rng),
                    "type": "reading",
                    "station": rng.random_range(0..1000),
                    "celsius": f64::from(rng.random_range(-2000..4000)) / 100.0,
                    "note": hex(&mut rng, 60),
                })
                .to_string(),
            ],
            Self::Attachments => {
                let mut data = vec![0; ATTACHMENT_BYTES];
                rng.fill_bytes(&mut data);
                let attachment = json!({
                    "content_type": "application/octet-stream",
                    "data": BASE64.encode(data),
                    "revpos": 1,
                });
                vec![
                    json!({
                        "_id": id,
                        "_revisions": first(&mut rng),
                        "type": "picture",
                        "_attachments": {"picture": attachment},
                    })
                    .to_string(),
                ]
            }
            Self::Conflicts => {
                let root = hex(&mut rng, 32);
                let leaf = |leaf: u64| {
                    let rev = hex(&mut rng, 32);
                    json!({
                        "_id": id,
                        "_revisions": {"start": 2, "ids": [rev, root]},
                        "type": "reading",
                        "leaf": leaf,
                        "note": hex(&mut rng, 60),
                    })
                    .to_string()
                };
                (0..LEAVES).map(leaf).collect()
            }
            Self::Large => vec![
                json!({
                    "_id": id,
                    "_revisions": first(&mut rng),
                    "type": "page",
                    "text": hex(&mut rng, LARGE_BYTES),
                })
                .to_string(),
            ],
        }
    }
}

/// Bodies of `_bulk_docs` that write all documents of a case.
pub(crate) fn batches(case: Case, count: u64) -> impl Iterator<Item = String> {
    let mut numbers = 0..count;
    std::iter::from_fn(move || {
        let mut body = String::new();
        let mut documents = 0;
        while body.len() < BATCH_BYTES && documents < BATCH_DOCUMENTS {
            let Some(number) = numbers.next() else { break };
            for revision in case.revisions(number) {
                body.push(if body.is_empty() { '[' } else { ',' });
                body.push_str(&revision);
                documents += 1;
            }
        }
        (documents > 0).then(|| format!(r#"{{"new_edits":false,"docs":{body}]}}"#))
    })
}

/// Random hexadecimal digits.
fn hex(rng: &mut SmallRng, digits: usize) -> String {
    let mut text = String::with_capacity(digits + 16);
    while text.len() < digits {
        let _ = write!(text, "{:016x}", rng.next_u64());
    }
    text.truncate(digits);
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn documents(case: Case, count: u64) -> Vec<Value> {
        batches(case, count)
            .flat_map(|body| {
                let body: Value = serde_json::from_str(&body).unwrap();
                assert_eq!(body["new_edits"], false);
                body["docs"].as_array().unwrap().clone()
            })
            .collect()
    }

    #[test]
    fn sizes_are_what_they_say() {
        let small = documents(Case::Small, 5_000);
        assert_eq!(small.len(), 5_000);
        assert!(small[4_999].to_string().len() < 300);
        let one = &documents(Case::Attachments, 1)[0];
        let data = one["_attachments"]["picture"]["data"].as_str().unwrap();
        assert_eq!(BASE64.decode(data).unwrap().len(), 20_000);
        assert_eq!(documents(Case::Conflicts, 3).len(), 15);
        assert!(documents(Case::Large, 1)[0].to_string().len() > 1_000_000);
        assert_eq!(batches(Case::Large, 9).count(), 2);
        assert_eq!(batches(Case::Small, 0).count(), 0);
        assert_eq!(Case::CaughtUp.documents(1.0), 1_000_000);
        assert_eq!(Case::Large.documents(0.001), 1);
    }

    #[test]
    fn documents_are_the_same_every_time_and_leaves_differ() {
        assert_eq!(documents(Case::Small, 3), documents(Case::Small, 3));
        let leaves = documents(Case::Conflicts, 1);
        let revs = |place: usize| leaves[place]["_revisions"]["ids"].clone();
        assert_eq!(revs(0)[1], revs(4)[1]);
        assert_ne!(revs(0)[0], revs(4)[0]);
    }
}
