#![doc = include_str!("../README.md")]

mod client;
mod follow;
mod types;
mod worker;

pub use client::Client;
pub use follow::Changes;
pub use reqwest::Method;
pub use types::{
    Answer, Beat, Change, Claimed, Claims, Ended, Error, Failure, Finish, Held, JobInfo, NewJob, Page, Result, Retried,
    WorkerOptions,
};
pub use worker::{Task, Worker, stopped_by_signal};
