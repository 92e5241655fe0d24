//! Rules that are rewound while something else happens to them.

use super::*;

impl Fixture {
    /// Rewinds the rule `r`.
    async fn rewind(&self, to: Rewind) -> u64 {
        let listeners = Listeners::open(self.rules.clone()).await.unwrap();
        let rule = RuleId {
            instance: self.db.instance(),
            doc: "r".to_owned(),
        };
        let rewound = listeners.rewind(&rule, &Only::default(), &to).await;
        rewound.unwrap()
    }
}

#[tokio::test]
async fn a_rewind_ends_the_run_in_progress() {
    let mut fixture = Fixture::new().await;
    fixture.gate.forget_permits(1_000);
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.put(&["1", "2", "3"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "1");
    assert_eq!(fixture.rewind(Rewind::Now).await, 1);
    fixture.gate.add_permits(1_000);
    fixture.job("r", is_there).await;
    fixture.put(&["4"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "4");
}

/// Where it had been made anew, its changes were skipped; where not, all of its changes are new.
#[tokio::test]
async fn a_rule_is_rewound_to_now_while_its_database_is_missing() {
    let mut fixture = Fixture::new().await;
    fixture.called(on_change(&json!({"since": 0}))).await;
    fixture.finished("r").await;
    let missing = |since: Option<&'static str>| {
        move |job: Option<(&JobInfo, Place)>| {
            job.is_some_and(|(info, place)| {
                let is_since = since.is_none() || place.since.as_deref() == since;
                info.state == State::Pending && place.missing_ms.is_some() && is_since
            })
        }
    };
    fixture.peer.delete_database("a").unwrap();
    fixture.signal(Event::Deleted, None).await;
    fixture.job("r", missing(None)).await;
    fixture.peer.create_database("a").unwrap();
    fixture.put(&["skipped"]);
    assert_eq!(fixture.rewind(Rewind::Now).await, 1);
    fixture.job("r", is_there).await;
    fixture.put(&["2"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "2");
    fixture.finished("r").await;

    fixture.peer.delete_database("a").unwrap();
    fixture.signal(Event::Deleted, None).await;
    fixture.job("r", missing(None)).await;
    assert_eq!(fixture.rewind(Rewind::Now).await, 1);
    fixture.job("r", missing(Some("0"))).await;
    fixture.peer.create_database("a").unwrap();
    fixture.put(&["3"]);
    fixture.signal(Event::Created, None).await;
    assert_eq!(next(&mut fixture.sent).await, "3");
}
