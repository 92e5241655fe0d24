use super::*;

fn status(status: u16) -> Fault {
    Fault::Status {
        status,
        retry_after: None,
    }
}

#[test]
fn patterns() {
    for (pattern, text, expected) in [
        ("/db", "/db", true),
        ("/db", "/db/", false),
        ("*", "", true),
        ("*/_changes", "/a/b/_changes", true),
        ("/db/*", "/other/db/x", false),
        ("/*/_local/*", "/db/_local/é", true),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-c-b", false),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
    }
}

#[test]
fn a_script_counts_each_rule_by_itself() {
    let injector = Injector::new(Faults::script([
        (On::get("*/_changes").nth(2), Fault::Reset),
        (On::any("/db/*").first(3), Fault::Latency { ms: 1 }),
        (On::post("/db/_bulk_docs").from(2), status(503)),
    ]));
    let met: Vec<usize> = [
        ("GET", "/db/_changes"),
        ("HEAD", "/db/_changes"),
        ("GET", "/db/_changes"),
        ("POST", "/db/_bulk_docs"),
        ("POST", "/db/_bulk_docs"),
        ("POST", "/db/_bulk_docs"),
        ("GET", "/other"),
    ]
    .into_iter()
    .map(|(method, path)| injector.decide(method, path, "").len())
    .collect();
    assert_eq!(met, [1, 1, 2, 0, 1, 1, 0]);
    let resets = injector.injected();
    let resets = resets.iter().filter(|one| one.fault == Fault::Reset);
    assert_eq!(resets.count(), 1);
}

#[test]
fn queries_may_count() {
    let continuous = On::get("*/_changes?*feed=continuous*").nth(1);
    let injector = Injector::new(Faults::script([(continuous, Fault::Hang)]));
    assert_eq!(injector.decide("GET", "/a/_changes", "feed=normal"), []);
    assert_eq!(injector.decide("GET", "/a/b", "feed=continuous"), []);
    let query = "style=all_docs&feed=continuous&since=0";
    assert_eq!(injector.decide("GET", "/a/_changes", query), [Fault::Hang]);
    assert_eq!(injector.decide("GET", "/a/_changes", query), []);
}

#[test]
fn another_plan_counts_from_the_start_and_remembers_what_was_injected() {
    let plan = || Faults::script([(On::any("/").nth(1), Fault::Hang)]);
    let injector = Injector::new(plan());
    assert_eq!(injector.decide("GET", "/", ""), [Fault::Hang]);
    assert_eq!(injector.decide("GET", "/", ""), []);
    injector.set(plan());
    assert_eq!(injector.decide("GET", "/", ""), [Fault::Hang]);
    injector.set(Faults::none());
    assert_eq!(injector.decide("GET", "/", ""), []);
    assert_eq!(injector.injected().len(), 2);
}

#[test]
fn the_same_requests_meet_the_same_faults_in_any_order() {
    let draw = |paths: &[&str]| {
        let injector = Injector::new(Faults::seeded(7, Profile::chaos()));
        let mut met: Vec<(String, String)> = (paths.iter())
            .flat_map(|path| {
                let faults = injector.decide("GET", path, "");
                faults
                    .into_iter()
                    .map(|fault| ((*path).to_owned(), format!("{fault:?}")))
            })
            .collect();
        met.sort();
        met
    };
    let there: Vec<String> = (0..200).map(|n| format!("/db/{}", n % 40)).collect();
    let there: Vec<&str> = there.iter().map(String::as_str).collect();
    let mut back = there.clone();
    back.reverse();
    let met = draw(&there);
    assert!(met.len() > 40, "{met:?}");
    assert_eq!(met, draw(&back));
}

#[test]
fn seeds_differ_and_come_to_an_end() {
    let drawn = |seed, profile: Profile| -> Vec<Fault> {
        let injector = Injector::new(Faults::seeded(seed, profile));
        (0..2_000)
            .flat_map(|n| injector.decide("POST", &format!("/{n}"), ""))
            .collect()
    };
    let everything = |seed| drawn(seed, Profile::chaos());
    assert_ne!(everything(1), everything(2));
    let short = Profile {
        faults_max: 5,
        latency: 1000,
        ..Profile::default()
    };
    assert_eq!(drawn(1, short).len(), 5);
    assert_eq!(drawn(1, Profile::default()), []);
    let kinds: std::collections::HashSet<_> =
        everything(3).iter().map(std::mem::discriminant).collect();
    assert!(kinds.len() >= 9, "{}", kinds.len());
    let overload = drawn(4, Profile::overload());
    let is_busy = |fault: &Fault| matches!(fault, Fault::Latency { .. } | Fault::Status { .. });
    assert!(overload.iter().all(is_busy));
}

#[test]
fn a_plan_can_be_written_down() {
    let plan = Faults {
        script: vec![
            (On::put("/db").nth(3), Fault::CutBody { after_bytes: 7 }),
            (On::any("*"), Fault::Restart { down_ms: 1 }),
        ],
        seeded: Some((9, Profile::network())),
    };
    let json = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Faults>(&json).unwrap(), plan);
    let short = r#"{"script":[[{"method":"GET","path":"*","from":1,"to":null},"reset"]]}"#;
    let plan: Faults = serde_json::from_str(short).unwrap();
    assert_eq!(plan, Faults::script([(On::get("*"), Fault::Reset)]));
    assert!(serde_json::from_str::<Faults>(r#"{"scripts":[]}"#).is_err());
}
