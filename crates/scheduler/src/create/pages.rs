//! The jobs of a rule, page by page.

use docstore::InstanceId;
use jobs::{JobId, Pages, Query};

use crate::data::rule_jobs_start;
use crate::service::Replications;

/// Jobs per page.
const PAGE: usize = 100;

impl Replications {
    /// The jobs of a rule, with or without their data, and possibly others. Each page is a transaction of its own.
    pub(super) fn pages_of_rule(
        &self,
        instance: InstanceId,
        doc_id: &str,
        data: bool,
    ) -> jobs::Result<Pages<'_>> {
        let query = Query {
            data,
            ..of_rule(instance, doc_id)?
        };
        Ok(self.jobs().pages(self.job_type(), query, PAGE))
    }
}

/// The jobs of a rule, with their data, and possibly others.
pub(crate) fn of_rule(instance: InstanceId, doc_id: &str) -> jobs::Result<Query> {
    let start = rule_jobs_start(instance, doc_id);
    Ok(Query {
        to: Some(JobId::new(format!("{start}\u{10ffff}"))?),
        from: Some(JobId::new(start)?),
        data: true,
        ..Query::default()
    })
}
