//! Iterates over everything that may be sealed, in bounded parts: bodies of documents, and jobs.

use docstore::{Db, DocStore, IdRange};
use jobs::{JobId, JobType, Jobs};
use store::Transaction;

use crate::data::JobData;
use crate::fault::ServiceError;
use crate::keys_in_use::Place;

/// Everything that may be sealed.
pub(super) struct Everything<'a> {
    pub(super) docs: &'a DocStore,
    pub(super) jobs: &'a Jobs,
    pub(super) ty: &'a JobType,
}

/// The result for one page.
pub(super) struct Page {
    /// `None` at the end.
    pub(super) next: Option<Place>,
    pub(super) looked: u64,
    pub(super) written: u64,
}

type RewriteBody<'a> = &'a (dyn Fn(&Db, &str, &str) -> Option<String> + Sync);
type RewriteJob<'a> = &'a (dyn Fn(&JobId, JobData) -> Option<JobData> + Sync);

impl Everything<'_> {
    /// Rewrites a bounded part at this position with `body` and `job`.
    pub(super) async fn rewrite_in(
        &self,
        tx: &Transaction,
        place: &Place,
        body: RewriteBody<'_>,
        job: RewriteJob<'_>,
    ) -> Result<Page, ServiceError> {
        match place {
            Place::Documents { db, after } => {
                (self.bodies_in(tx, db.as_deref(), after.as_deref(), body)).await
            }
            Place::Jobs { after } => self.jobs_in(tx, after.as_deref(), job).await,
        }
    }

    async fn bodies_in(
        &self,
        tx: &Transaction,
        name: Option<&str>,
        after: Option<&str>,
        rewrite: RewriteBody<'_>,
    ) -> Result<Page, ServiceError> {
        let range = IdRange {
            start: name.map(str::to_owned),
            limit: Some(1),
            ..IdRange::default()
        };
        let found = self.docs.databases_page_in(tx, &range).await?;
        let Some(db) = found.rows.into_iter().next() else {
            return Ok(Page {
                next: Some(Place::Jobs { after: None }),
                looked: 0,
                written: 0,
            });
        };
        // A deleted database needs no key. Writes to the next one since the pass began are covered by the row of their
        // key.
        let after = after.filter(|_| Some(db.name().as_str()) == name);
        let rewrite = |id: &str, body: &str| rewrite(&db, id, body);
        let page = (self.docs)
            .rewrite_bodies_in(tx, &db, after, &rewrite)
            .await?;
        let name = db.name().as_str().to_owned();
        let next = if page.done {
            Place::Documents {
                // The next greater name.
                db: Some(name + "\0"),
                after: None,
            }
        } else {
            Place::Documents {
                db: Some(name),
                after: page.after,
            }
        };
        Ok(Page {
            next: Some(next),
            looked: page.looked,
            written: page.written,
        })
    }

    async fn jobs_in(
        &self,
        tx: &Transaction,
        after: Option<&[u8]>,
        rewrite: RewriteJob<'_>,
    ) -> Result<Page, ServiceError> {
        let after = after.map(|id| JobId::new(id.to_vec())).transpose()?;
        let rewrite = |id: &JobId, data: &bytes::Bytes| {
            let data = JobData::decode(data).ok()?;
            rewrite(id, data).map(|data| data.encode().into())
        };
        let page = (self.jobs)
            .rewrite_in(tx, self.ty, after.as_ref(), &rewrite)
            .await?;
        let next = (!page.done).then(|| Place::Jobs {
            after: page.after.map(|id| id.as_bytes().to_vec()),
        });
        Ok(Page {
            next,
            looked: page.looked,
            written: page.written,
        })
    }
}
