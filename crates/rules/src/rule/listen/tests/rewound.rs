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
