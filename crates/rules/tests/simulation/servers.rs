//! The server whose databases change, the one they are copied to, and how nodes connect to them.

use std::net::SocketAddr;
use std::sync::Arc;

use couch::{ConnectFn, Transport};
use peer::{Fault, Faults, On, Options, Peer, Profile};
use wire::Io;

use crate::endpoint::{Endpoint, Mode};
use crate::journal::Journal;
use crate::plan::{Plan, Way};

pub(crate) struct Servers {
    pub(crate) source: Peer,
    pub(crate) target: Peer,
    pub(crate) endpoint: Endpoint,
}

/// Faults drawn from a seed, and the refusals of the plan.
fn faults(plan: &Plan, seed: u64, profile: Profile) -> Faults {
    let refused = Fault::Status {
        status: 403,
        retry_after: None,
    };
    let refusals = plan
        .source
        .feed_only
        .then(|| (On::post("/_dbs_info"), refused));
    Faults {
        script: refusals.into_iter().collect(),
        ..Faults::seeded(seed, profile)
    }
}

impl Servers {
    pub(crate) fn start(plan: &Plan, journal: &Journal) -> Self {
        let start = |host: u8| {
            Peer::unplugged(Options {
                listen: SocketAddr::from(([10, 0, 0, host], 5984)),
                seed: plan.seed,
                ..Options::default()
            })
        };
        Self {
            source: start(1),
            target: start(2),
            endpoint: Endpoint::start(journal),
        }
    }

    pub(crate) fn trouble(&self, plan: &Plan) {
        for (peer, seed) in [(&self.source, 1), (&self.target, 2)] {
            let seed = plan.seed.wrapping_mul(2) + seed;
            peer.set_faults(faults(plan, seed, plan.profile.clone()));
        }
        (self.source).set_feed_faults(plan.seed, plan.source.feed_faults);
    }

    /// Ends all faults but latency, refusals and those of the feed.
    pub(crate) fn heal(&self, plan: &Plan) {
        let profile = Profile {
            latency: plan.profile.latency,
            latency_ms_max: plan.profile.latency_ms_max,
            faults_max: plan.profile.faults_max,
            ..Profile::default()
        };
        for peer in [&self.source, &self.target] {
            peer.set_faults(faults(plan, plan.seed, profile.clone()));
        }
        self.endpoint.set(Mode::Well);
    }

    pub(crate) fn transport(&self) -> Transport {
        let doors = [&self.source, &self.target].map(|peer| (peer.address(), peer.door().unwrap()));
        let endpoint = self.endpoint.door();
        let connect: Arc<ConnectFn> = Arc::new(move |address: SocketAddr| {
            let stream = if let Some((_, door)) = doors.iter().find(|(known, _)| *known == address)
            {
                door.connect()
            } else {
                let (ours, theirs) = tokio::io::duplex(64 << 10);
                let refused = |_| std::io::ErrorKind::ConnectionRefused.into();
                endpoint.send(theirs).map(|()| ours).map_err(refused)
            };
            let stream = stream.map(|stream| Box::new(stream) as Box<dyn Io>);
            Box::pin(std::future::ready(stream))
        });
        Transport::Custom(connect)
    }

    pub(crate) fn has(&self, way: Way, db: &str, doc: &str) -> bool {
        let target = format!("{}-{db}", way.name());
        matches!(self.target.get(&target, doc), Ok(Some(_)))
    }
}
