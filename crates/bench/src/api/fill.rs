//! Writes the documents to be listed, without a frontend.

use docstore::{Edit, EditMode};
use document::doc::Doc;
use scheduler::{Replications, Writer};

use crate::Open;

/// Documents per call.
const BATCH: usize = 500;

/// Creates a database with this many documents, each with its job.
pub(super) async fn fill(
    open: Open,
    url: &str,
    name: &str,
    documents: usize,
) -> anyhow::Result<()> {
    let service = open(url.to_owned(), None).await?;
    let documents = (0..documents).map(|number| (id(number), body(number)));
    write(&service, name, documents).await
}

/// Creates a database with these documents, ids and bodies, each with its job.
pub(crate) async fn write(
    service: &Replications,
    name: &str,
    documents: impl Iterator<Item = (String, String)>,
) -> anyhow::Result<()> {
    let db = service.create_database(name).await?;
    let writer = Writer::User {
        name: Some("bench".to_owned()),
        rank: scheduler::Rank::ServerAdmin,
    };
    let mut documents = documents.peekable();
    while documents.peek().is_some() {
        let mut edits = Vec::with_capacity(BATCH);
        for (id, body) in documents.by_ref().take(BATCH) {
            let edit = Edit::new(id, Doc::parse(&body)?)?;
            edits.push(service.prepare(&db, edit, &writer)?);
        }
        let hook = service.hook(writer.clone());
        let written = service
            .docs()
            .bulk_docs(&db, &edits, EditMode::NewEdits, &hook);
        for answer in written.await? {
            answer?;
        }
    }
    Ok(())
}

/// Spreads consecutive ids.
pub(super) fn id(number: usize) -> String {
    let scattered = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{scattered:016x}")
}

/// A replication with passwords, as most have.
pub(super) fn body(number: usize) -> String {
    format!(
        r#"{{"source":"http://reader:s3cret@source.example/db{number}","target":"http://writer:s3cret@target.example/db{number}","continuous":true}}"#
    )
}
