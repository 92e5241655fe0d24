//! Runs one replication: `replicate SOURCE TARGET [OPTIONS]`, the options being JSON. Prints the result.

use document::json::Json;
use replicator::engine::{Gate, Handles, Run, Settings, identify, run};
use replicator::id::Service;
use replicator::params::{Defaults, Replication};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
#[expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it is a command"
)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(source), Some(target)) = (args.next(), args.next()) else {
        return Err("usage: replicate SOURCE TARGET [OPTIONS]".into());
    };
    let mut body: serde_json::Value =
        serde_json::from_str(&args.next().unwrap_or_else(|| "{}".to_owned()))?;
    (body["source"], body["target"]) = (json!(source), json!(target));
    let replication =
        Replication::from_document(&Json::parse(&body.to_string())?, &Defaults::default())?;

    let options = couch::NetworkOptions {
        egress: couch::EgressOptions::open(),
        ..couch::NetworkOptions::default()
    };
    let network = couch::Network::new(options, rand::random())?;
    let service = Service {
        uuid: "replicate".to_owned(),
        legacy_host: None,
    };
    let settings = Settings::default();
    let (identity, filter_code) = identify(&replication, &service, &network, &settings).await?;
    let (control, handles) = Handles::new(Gate::open());
    let session_id = format!("{:032x}", rand::random::<u128>());
    let stats = replicator::Stats::default();
    let running = run(
        Run {
            replication,
            identity,
            filter_code,
            stats,
            session_id,
            network,
            settings,
        },
        handles,
    );
    tokio::pin!(running);
    let outcome = tokio::select! {
        outcome = &mut running => outcome,
        _ = tokio::signal::ctrl_c() => {
            control.stop();
            running.await
        }
    };
    match outcome {
        Ok(outcome) => {
            println!(
                "{}",
                json!({"ending": format!("{:?}", outcome.ending), "result": outcome.result,
                "info": outcome.progress.to_info(jiff::Timestamp::now())})
            );
            Ok(())
        }
        Err(error) => Err(error.to_info().to_string().into()),
    }
}
