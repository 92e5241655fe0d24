#![doc = include_str!("../README.md")]

mod client;
mod types;
mod worker;

pub use client::Client;
pub use reqwest::Method;
pub use types::{
    Answer, Beat, Beats, Claimed, Claims, Ended, Error, Failure, Finish, Held, JobInfo, NewJob, Page, Result, Retried,
    WorkerOptions,
};
pub use worker::{Task, Worker, stopped_by_signal};
