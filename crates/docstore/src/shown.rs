//! Documents as they are returned to readers.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use document::doc::push_string;
use document::rev::{Rev, Revisions};
use document::revtree::Status;

use crate::Seq;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub id: String,
    pub rev: Rev,
    pub deleted: bool,
    /// The client's members, as a JSON object.
    pub body: String,
    pub attachments: Vec<Attachment>,
    pub meta: Meta,
}

/// Metadata that a reader may request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    pub revisions: Option<Revisions>,
    pub revs_info: Option<Vec<(Rev, Status)>>,
    pub local_seq: Option<Seq>,
    pub conflicts: Vec<Rev>,
    pub deleted_conflicts: Vec<Rev>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub name: String,
    pub content_type: String,
    pub md5: [u8; 16],
    pub bytes: u64,
    /// The generation that added it.
    pub revpos: u64,
    /// `None` for a stub.
    pub data: Option<Bytes>,
}

impl Document {
    /// The document as CouchDB returns it.
    pub fn to_json(&self) -> String {
        let mut json = String::with_capacity(self.body.len() + 128);
        json.push_str("{\"_id\":");
        push_string(&mut json, &self.id);
        json.push_str(",\"_rev\":");
        // Clients may choose any revision id, so it has to be escaped.
        push_string(&mut json, &self.rev.to_string());
        let members = (self.body.strip_prefix('{')).and_then(|body| body.strip_suffix('}'));
        if let Some(members) = members.filter(|members| !members.is_empty()) {
            json.push(',');
            json.push_str(members);
        }
        if self.deleted {
            json.push_str(",\"_deleted\":true");
        }
        self.meta.push(&mut json);
        if !self.attachments.is_empty() {
            json.push_str(",\"_attachments\":{");
            for (index, attachment) in self.attachments.iter().enumerate() {
                json.push_str(if index == 0 { "" } else { "," });
                attachment.push(&mut json);
            }
            json.push('}');
        }
        json.push('}');
        json
    }
}

impl Meta {
    fn push(&self, json: &mut String) {
        if let Some(revisions) = &self.revisions {
            json.push_str(",\"_revisions\":");
            json.push_str(&serde_json::to_string(revisions).expect("revisions can be written"));
        }
        if let Some(revs_info) = &self.revs_info {
            json.push_str(",\"_revs_info\":[");
            for (index, (rev, status)) in revs_info.iter().enumerate() {
                json.push_str(if index == 0 { "" } else { "," });
                json.push_str("{\"rev\":");
                push_string(json, &rev.to_string());
                let _ = write!(json, ",\"status\":\"{}\"}}", status.as_str());
            }
            json.push(']');
        }
        if let Some(seq) = self.local_seq {
            let _ = write!(json, ",\"_local_seq\":\"{seq}\"");
        }
        push_revs(json, "_conflicts", &self.conflicts);
        push_revs(json, "_deleted_conflicts", &self.deleted_conflicts);
    }
}

fn push_revs(json: &mut String, name: &str, revs: &[Rev]) {
    if revs.is_empty() {
        return;
    }
    let _ = write!(json, ",\"{name}\":[");
    for (index, rev) in revs.iter().enumerate() {
        json.push_str(if index == 0 { "" } else { "," });
        push_string(json, &rev.to_string());
    }
    json.push(']');
}

impl Attachment {
    /// As in CouchDB: `md5-` and base64.
    pub fn digest(&self) -> String {
        format!("md5-{}", BASE64_STANDARD.encode(self.md5))
    }

    fn push(&self, json: &mut String) {
        push_string(json, &self.name);
        json.push_str(":{\"content_type\":");
        push_string(json, &self.content_type);
        let _ = write!(
            json,
            ",\"revpos\":{},\"digest\":\"{}\"",
            self.revpos,
            self.digest()
        );
        match &self.data {
            Some(data) => {
                json.push_str(",\"data\":\"");
                BASE64_STANDARD.encode_string(data, json);
                json.push_str("\"}");
            }
            None => {
                let _ = write!(json, ",\"length\":{},\"stub\":true}}", self.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(body: &str) -> Document {
        Document {
            id: "a\"b".to_owned(),
            rev: "2-b".parse().unwrap(),
            deleted: false,
            body: body.to_owned(),
            attachments: Vec::new(),
            meta: Meta::default(),
        }
    }

    #[test]
    fn members_come_in_couchdbs_order() {
        let mut full = document(r#"{"x":1.0,"x":2}"#);
        assert_eq!(
            full.to_json(),
            r#"{"_id":"a\"b","_rev":"2-b","x":1.0,"x":2}"#
        );
        full.deleted = true;
        full.meta = Meta {
            revisions: Some(Revisions {
                start: 2,
                ids: vec![
                    "2-b".parse::<Rev>().unwrap().id,
                    "1-a".parse::<Rev>().unwrap().id,
                ],
            }),
            revs_info: Some(vec![
                ("2-b".parse().unwrap(), Status::Deleted),
                ("1-a".parse().unwrap(), Status::Missing),
            ]),
            local_seq: Some(Seq::ZERO),
            conflicts: vec!["2-a".parse().unwrap(), "1-\"".parse().unwrap()],
            deleted_conflicts: vec!["3-a".parse().unwrap()],
        };
        full.attachments = vec![
            Attachment {
                name: "n".to_owned(),
                content_type: "text/plain".to_owned(),
                md5: [0; 16],
                bytes: 2,
                revpos: 1,
                data: None,
            },
            Attachment {
                name: "m".to_owned(),
                content_type: "text/plain".to_owned(),
                md5: [0; 16],
                bytes: 2,
                revpos: 2,
                data: Some("hi".into()),
            },
        ];
        assert_eq!(
            full.to_json(),
            concat!(
                r#"{"_id":"a\"b","_rev":"2-b","x":1.0,"x":2,"_deleted":true,"#,
                r#""_revisions":{"start":2,"ids":["b","a"]},"#,
                r#""_revs_info":[{"rev":"2-b","status":"deleted"},{"rev":"1-a","status":"missing"}],"#,
                r#""_local_seq":"0","_conflicts":["2-a","1-\""],"_deleted_conflicts":["3-a"],"#,
                r#""_attachments":{"n":{"content_type":"text/plain","revpos":1,"digest":"md5-AAAAAAAAAAAAAAAAAAAAAA==","length":2,"stub":true},"#,
                r#""m":{"content_type":"text/plain","revpos":2,"digest":"md5-AAAAAAAAAAAAAAAAAAAAAA==","data":"aGk="}}}"#,
            )
        );
    }

    #[test]
    fn an_empty_body_leaves_no_comma() {
        assert_eq!(document("{}").to_json(), r#"{"_id":"a\"b","_rev":"2-b"}"#);
    }
}
