//! What servers answer, in a form that can be compared.

use reqwest::RequestBuilder;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) async fn read(request: RequestBuilder) -> Self {
        let Ok(response) = request.send().await else {
            return Self {
                status: 0,
                headers: HeaderMap::new(),
                bytes: b"no answer".to_vec(),
            };
        };
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let bytes = response
            .bytes()
            .await
            .map_or_else(|_| b"cut short".to_vec(), |bytes| bytes.to_vec());
        Self {
            status,
            headers,
            bytes,
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| Value::String(self.text()))
    }

    /// The body's member, or null.
    pub(crate) fn member(&self, name: &str) -> Value {
        self.json().get(name).cloned().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Value {
        self.headers.get(name).map_or(Value::Null, |value| {
            String::from_utf8_lossy(value.as_bytes()).into()
        })
    }

    /// Status and body.
    pub(crate) fn whole(&self) -> Value {
        json!([self.status, self.json()])
    }

    /// Status, and of an error its name and reason.
    pub(crate) fn outcome(&self) -> Value {
        match self.member("error") {
            Value::Null => json!(self.status),
            error => json!([self.status, error, self.member("reason")]),
        }
    }

    /// Status, and of an error its name.
    pub(crate) fn kind(&self) -> Value {
        match self.member("error") {
            Value::Null => json!(self.status),
            error => json!([self.status, error]),
        }
    }

    pub(crate) fn rev(&self) -> String {
        self.member("rev").as_str().unwrap_or_default().to_owned()
    }
}

/// Only these members of an object, in this order.
pub(crate) fn pick(value: &Value, names: &[&str]) -> Value {
    let members = names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), value.get(name)?.clone())));
    Value::Object(members.collect())
}
