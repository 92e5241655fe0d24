//! Iterates over everything that may be sealed, in bounded parts: bodies of documents, replications' jobs, and data of other jobs.

use bytes::Bytes;
use docstore::{Db, DocStore, IdRange};
use jobs::{JobId, JobType, Jobs};
use seal::{Place, job_context, values};
use store::Transaction;

use crate::data::JobData;
use crate::fault::ServiceError;

/// Everything that may be sealed.
pub(super) struct Everything<'a> {
    pub(super) docs: &'a DocStore,
    pub(super) jobs: &'a Jobs,
    pub(super) ty: &'a JobType,
}

/// The result for one page.
#[derive(Default)]
pub(super) struct Page {
    /// `None` at the end.
    pub(super) next: Option<Place>,
    pub(super) looked: u64,
    pub(super) written: u64,
}

/// What becomes of what may be sealed: `None` leaves it.
pub(super) struct Rewrite<'a> {
    pub(super) body: RewriteBody<'a>,
    pub(super) job: &'a (dyn Fn(&JobId, JobData) -> Option<JobData> + Sync),
    /// Sealed data in a context: of jobs of other types, and other values.
    pub(super) data: &'a (dyn Fn(&[u8], &Bytes) -> Option<Bytes> + Sync),
}

type RewriteBody<'a> = &'a (dyn Fn(&Db, &str, &str) -> Option<String> + Sync);
type RewriteData<'a> = &'a (dyn Fn(&JobId, &Bytes) -> Option<Bytes> + Sync);

impl Everything<'_> {
    /// Rewrites a bounded part at this position.
    pub(super) async fn rewrite_in(
        &self,
        tx: &Transaction,
        place: &Place,
        rewrite: &Rewrite<'_>,
    ) -> Result<Page, ServiceError> {
        match place {
            Place::Documents { db, after } => {
                (self.bodies_in(tx, db.as_deref(), after.as_deref(), rewrite.body)).await
            }
            Place::Jobs { after } => {
                let rewrite = |id: &JobId, data: &Bytes| {
                    let data = JobData::decode(data).ok()?;
                    (rewrite.job)(id, data).map(|data| data.encode().into())
                };
                let page = self.jobs_in(tx, self.ty, after.as_deref(), &rewrite);
                let (after, page) = page.await?;
                let next = match after {
                    None => Place::Data {
                        ty: None,
                        after: None,
                    },
                    after => Place::Jobs { after },
                };
                Ok(Page {
                    next: Some(next),
                    ..page
                })
            }
            Place::Data { ty, after } => {
                (self.data_in(tx, ty.as_deref(), after.as_deref(), rewrite)).await
            }
            Place::Values { after } => {
                let page = values::rewrite_in(tx, after.as_deref(), rewrite.data).await?;
                Ok(Page {
                    next: page.after.map(|after| Place::Values { after: Some(after) }),
                    looked: page.looked,
                    written: page.written,
                })
            }
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

    async fn data_in(
        &self,
        tx: &Transaction,
        name: Option<&str>,
        after: Option<&[u8]>,
        rewrite: &Rewrite<'_>,
    ) -> Result<Page, ServiceError> {
        let types = self.jobs.types_in(tx).await?.into_keys();
        let mut others = types.filter(|ty| ty != self.ty && Some(ty.as_str()) >= name);
        let Some(ty) = others.next() else {
            return Ok(Page {
                next: Some(Place::Values { after: None }),
                ..Page::default()
            });
        };
        let after = after.filter(|_| Some(ty.as_str()) == name);
        let data = |id: &JobId, data: &Bytes| {
            (rewrite.data)(&job_context(ty.as_str(), id.as_bytes()), data)
        };
        let (after, page) = self.jobs_in(tx, &ty, after, &data).await?;
        let ty = match after {
            // The next greater name.
            None => format!("{ty}\0"),
            Some(_) => ty.as_str().to_owned(),
        };
        Ok(Page {
            next: Some(Place::Data {
                ty: Some(ty),
                after,
            }),
            ..page
        })
    }

    /// Rewrites jobs of a type, and returns the last one unless the type is done.
    async fn jobs_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        after: Option<&[u8]>,
        rewrite: RewriteData<'_>,
    ) -> Result<(Option<Vec<u8>>, Page), ServiceError> {
        let after = after.map(|id| JobId::new(id.to_vec())).transpose()?;
        let page = (self.jobs)
            .rewrite_in(tx, ty, after.as_ref(), rewrite)
            .await?;
        let after = page.after.filter(|_| !page.done);
        let counted = Page {
            next: None,
            looked: page.looked,
            written: page.written,
        };
        Ok((after.map(|id| id.as_bytes().to_vec()), counted))
    }
}
