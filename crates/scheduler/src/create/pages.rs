//! The jobs of a rule, page by page.

use docstore::InstanceId;
use jobs::{Cursor, JobId, Listed, Query};

use crate::data::rule_jobs_start;
use crate::service::Replications;

/// Jobs per page.
const PAGE: usize = 100;

/// The jobs of a rule, and possibly others. Each page is a transaction of its own.
pub(super) struct Pages<'a> {
    replications: &'a Replications,
    query: Query,
    /// Where the next page begins, after the first one.
    cursor: Option<Cursor>,
    ended: bool,
}

impl<'a> Pages<'a> {
    pub(super) fn of_rule(
        replications: &'a Replications,
        instance: InstanceId,
        doc_id: &str,
    ) -> jobs::Result<Self> {
        Ok(Self {
            replications,
            query: of_rule(instance, doc_id)?,
            cursor: None,
            ended: false,
        })
    }

    /// Without the jobs' data.
    pub(super) fn without_data(mut self) -> Self {
        self.query.data = false;
        self
    }

    /// `None` after the last page.
    pub(super) async fn next(&mut self) -> jobs::Result<Option<Vec<Listed>>> {
        if self.ended {
            return Ok(None);
        }
        let (cursor, query) = (self.cursor.as_ref(), &self.query);
        let (jobs, ty) = (self.replications.jobs(), self.replications.job_type());
        let page = jobs.list(ty, query, cursor, PAGE).await?;
        (self.ended, self.cursor) = (page.cursor.is_none(), page.cursor);
        Ok(Some(page.jobs))
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
