//! The service, asked without a network.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod callers;
mod changes;
mod clients;
mod dashboard;
mod databases;
mod deliveries;
mod documents;
mod fields;
mod fixture;
mod flood;
mod forgery;
mod fuzz;
mod job_types;
mod jobs;
mod limits;
mod listing;
mod model;
mod openapi;
mod owners;
mod privileges;
mod replicate;
mod rules;
mod scheduler;
mod server;
mod session;
mod sweep;
mod table;
mod tls;
mod tokens;
mod upstream;
mod upstream_wire;
mod users;
mod validation;
mod world;
