//! Replications: parameters, ids, checkpoints, the engine, and the job that runs it.
