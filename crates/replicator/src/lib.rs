//! Replications: parameters, ids, checkpoints, the engine, and the job that runs it.

mod etf;
pub mod id;
pub mod params;
