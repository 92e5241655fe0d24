//! `davenport bench store`.

use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::Bench;

#[derive(Debug, Args)]
pub struct StoreBench {
    /// Empty store; default: a new temporary directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Seconds for each case
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Print one line of JSON per figure
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(bench: StoreBench) -> anyhow::Result<()> {
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    // The bare cases must use the same disk as the store.
    let bare = bench.store.is_none().then(|| directory.path().join("bare"));
    if let Some(bare) = &bare {
        std::fs::create_dir(bare).context("cannot create a directory for bare LMDB")?;
    }
    let url = crate::url_or_new(bench.store, &directory);
    let second = crate::second_process("store-echo", &url)?;
    let measured = Bench {
        url,
        bare,
        duration: Duration::from_secs(bench.seconds),
        second_process: Some(second),
    };
    super::run(measured, &mut |figure| {
        crate::report("store", &figure, bench.json);
    })
    .await?;
    Ok(())
}
