//! What hostile input may cost: never more than in proportion to its size.

use std::hint::black_box;
use std::time::Duration;

use document::json::Json;

/// How much longer the work takes on one input than on another. What else the machine does changes both, and the bounds are
/// several times what is expected.
fn ratio(large: &str, small: &str) -> f64 {
    let fastest = |text: &str| {
        let times = (0..7).map(|_| {
            #[expect(
                clippy::disallowed_methods,
                reason = "only the ratio of two times counts"
            )]
            let began = std::time::Instant::now();
            assert!(black_box(Json::parse(text)).is_ok());
            began.elapsed()
        });
        times.min().unwrap_or(Duration::ZERO).as_secs_f64()
    };
    let small = fastest(small);
    fastest(large) / small
}

/// 32 times the members: 1,024 when each is compared with all others.
#[test]
fn members_cost_in_proportion() {
    let object = |members: u32| {
        let members: Vec<_> = (0..members)
            .map(|n| format!("\"member {n}\":{n}"))
            .collect();
        format!("{{{}}}", members.join(","))
    };
    let ratio = ratio(&object(64_000), &object(2_000));
    assert!(ratio < 250.0, "{ratio}");
}

/// The same numbers below 120 levels: 120 when each level is read again.
#[test]
fn nesting_costs_in_proportion() {
    let nested = |levels: usize| {
        let open = "[".repeat(levels);
        format!("{open}{}0{}", "0,".repeat(32_000), "]".repeat(levels))
    };
    let ratio = ratio(&nested(120), &nested(1));
    assert!(ratio < 20.0, "{ratio}");
}
