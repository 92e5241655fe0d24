//! What requests and responses have.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;

/// A job to be added. Members that are `None` have the defaults of `POST /_jobs/TYPE`.
#[derive(Debug, Clone, Serialize)]
pub struct NewJob<T> {
    pub data: T,
    pub id: Option<String>,
    pub delay_sec: Option<f64>,
    /// RFC 3339.
    pub due: Option<String>,
    /// `urgent`, `normal` or `bulk`.
    pub class: Option<String>,
    pub tenant: Option<String>,
    pub key: Option<String>,
    /// `replace`, `keep` or `earliest`.
    pub on_exists: Option<String>,
}

impl<T> NewJob<T> {
    pub fn new(data: T) -> Self {
        let (id, delay_sec, due, class) = (None, None, None, None);
        Self { data, id, delay_sec, due, class, tenant: None, key: None, on_exists: None }
    }
}

impl<T: Serialize> NewJob<T> {
    /// What is given of it.
    pub(crate) fn given(&self) -> Result<Value> {
        let mut job = serde_json::to_value(self)?;
        if let Some(members) = job.as_object_mut() {
            members.retain(|name, value| name == "data" || !value.is_null());
        }
        Ok(job)
    }
}

/// A job as readers see it. Listings have data, progress, result and error only if asked for them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct JobInfo {
    pub id: String,
    /// `pending`, `running`, `finished` or `dead`.
    pub state: String,
    pub due: String,
    pub attempt: u32,
    pub failures: u32,
    pub worker: Option<String>,
    pub reason: Option<String>,
    pub data: Value,
    pub progress: Value,
    pub result: Value,
    pub error: Value,
    pub attempts: Vec<Value>,
    /// Why data, progress, result and error are missing, if they cannot be read.
    pub unreadable: Option<String>,
}

/// A page of a listing; pass `next` as `after`.
#[derive(Debug, Clone, Deserialize)]
pub struct Page {
    pub jobs: Vec<JobInfo>,
    pub next: Option<String>,
}

/// A claimed job.
#[derive(Debug, Deserialize)]
pub(crate) struct Claimed {
    pub(crate) id: String,
    pub(crate) lock: String,
    pub(crate) attempt: u32,
    pub(crate) failures: u32,
    pub(crate) data: Value,
    #[serde(default)]
    pub(crate) progress: Value,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Claims {
    pub(crate) jobs: Vec<Claimed>,
    pub(crate) timeout_sec: f64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Beaten {
    pub(crate) status: String,
}
