pub(crate) mod blocking;
pub(crate) mod events;
pub(crate) mod fairness;
pub(crate) mod jobs;
pub(crate) mod requests;
pub(crate) mod retries;
