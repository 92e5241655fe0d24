//! `couch_jobs`: a transactional job queue that knows nothing of what its jobs do.
