//! How long changes take until they arrive at a server.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context;
use couch::{
    EgressOptions, Endpoint, FeedKind, Idle, Network, NetworkOptions, RequestOptions, Seq, Server,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout};

use crate::client::Client;

/// Time limit for the last change.
const ARRIVAL_MAX: Duration = Duration::from_mins(1);

/// When changes are made.
pub(crate) struct Load {
    pub(crate) pause: Duration,
    pub(crate) duration: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Of the change, from 0.
    pub(crate) number: usize,
    pub(crate) took: Duration,
}

/// Changes databases, whose names on both servers are the same, and waits for the changes at the target. A database with an
/// outstanding change is left out.
pub(crate) async fn measure(
    target: &Client,
    load: &Load,
    name: impl Fn(usize) -> String,
    write: impl AsyncFnMut(&str, usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Arrival>> {
    let (arrivals, arrived) = mpsc::channel(10_000);
    let following = follow(target, arrivals).await?;
    let mut clock = Clock {
        arrived,
        written: HashMap::new(),
        arrivals: Vec::new(),
    };
    let measured = tokio::select! {
        ended = following => ended.and_then(|()| anyhow::bail!("the target's feed ended")),
        measured = clock.measure(load, name, write) => measured,
    };
    measured.map(|()| clock.arrivals)
}

/// Follows the updates of a server.
async fn follow(
    server: &Client,
    arrivals: mpsc::Sender<(String, Instant)>,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>>> {
    let server = connect(&server.url("")).await?;
    let now = Seq::from_value(&"now".into());
    let mut updates = server
        .db_updates(FeedKind::Continuous, &now, Idle::HeartbeatMs(10_000))
        .await?;
    Ok(async move {
        while let Some(update) = updates.next().await? {
            if update.kind == "updated" {
                arrivals.send((update.db_name, Instant::now())).await?;
            }
        }
        Ok(())
    })
}

/// A connection to a server as nodes have it.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Server> {
    let options = NetworkOptions {
        egress: EgressOptions::open(),
        ..NetworkOptions::default()
    };
    let network = Network::new(options, crate::random())?;
    let endpoint = Endpoint::from_url(url)?;
    Ok(network.server(endpoint, RequestOptions::default()).await?)
}

struct Clock {
    arrived: mpsc::Receiver<(String, Instant)>,
    /// Changes that have not arrived yet.
    written: HashMap<String, (Instant, usize)>,
    arrivals: Vec<Arrival>,
}

impl Clock {
    async fn measure(
        &mut self,
        load: &Load,
        name: impl Fn(usize) -> String,
        mut write: impl AsyncFnMut(&str, usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut ticks = interval(load.pause);
        let (until, mut number) = (Instant::now() + load.duration, 0);
        while Instant::now() < until {
            tokio::select! {
                Some(arrived) = self.arrived.recv() => self.arrived(&arrived),
                _ = ticks.tick() => {
                    let name = name(number);
                    if !self.written.contains_key(&name) {
                        self.written.insert(name.clone(), (Instant::now(), number));
                        write(&name, number).await?;
                    }
                    number += 1;
                }
            }
        }
        let rest = async {
            while !self.written.is_empty() {
                let arrived = self.arrived.recv().await.context("the feed ended")?;
                self.arrived(&arrived);
            }
            anyhow::Ok(())
        };
        let rest = timeout(ARRIVAL_MAX, rest).await;
        rest.context("some changes did not arrive").flatten()
    }

    fn arrived(&mut self, (name, at): &(String, Instant)) {
        if let Some((written, number)) = self.written.remove(name) {
            let took = at.saturating_duration_since(written);
            self.arrivals.push(Arrival { number, took });
        }
    }
}
