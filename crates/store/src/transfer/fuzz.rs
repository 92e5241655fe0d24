//! Damaged exports, with and without a matching checksum.

use rand::RngExt;
use testkit::fuzz_more;

use super::*;

fn samples(runtime: &tokio::runtime::Runtime) -> Vec<Vec<u8>> {
    [0_usize, 1, 30]
        .map(|rows| runtime.block_on(sample(rows)))
        .to_vec()
}

async fn sample(rows: usize) -> Vec<u8> {
    let store = Store::open("memory:").await.unwrap();
    let body = |tx: Transaction| async move {
        for number in 0..rows {
            tx.set(format!("row {number}").as_bytes(), &vec![7; number * 10]);
        }
        Ok::<_, Error>(())
    };
    store.transact("fill", body).await.unwrap();
    let mut export = Vec::new();
    store.export(&mut export).await.unwrap();
    export
}

#[tokio::test]
async fn an_incarnation_that_cannot_be_raised_is_refused() {
    let mut export = sample(1).await;
    let end = export.len() - 4;
    export[MAGIC.len() + 4..][..4].fill(0xff);
    let checksum = crc32fast::hash(&export[..end]).to_be_bytes();
    export[end..].copy_from_slice(&checksum);
    let refused = Store::import("memory:", &mut &export[..]).await;
    assert!(
        matches!(refused, Err(TransferError::Format(_))),
        "{refused:?}"
    );
}

#[test]
fn a_damaged_export_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let samples = samples(&runtime);
    for sample in &samples {
        let imported = runtime.block_on(Store::import("memory:", &mut &sample[..]));
        imported.unwrap();
    }
    let seeds: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    fuzz_more("exports", 3_000, &seeds, &[], |rng, bytes| {
        let mut bytes = bytes.to_vec();
        let sealed = rng.random_ratio(1, 2);
        if let (true, Some(end)) = (sealed, bytes.len().checked_sub(4)) {
            let checksum = crc32fast::hash(&bytes[..end]).to_be_bytes();
            bytes[end..].copy_from_slice(&checksum);
        }
        let imported = runtime.block_on(Store::import("memory:", &mut &bytes[..]));
        // Bytes after the end are ignored.
        let is_whole = || samples.iter().any(|sample| bytes.starts_with(sample));
        assert!(sealed || imported.is_err() || is_whole());
        false
    });
}
