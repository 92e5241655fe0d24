//! What hostile input may cost: never more than in proportion to its size.

use std::hint::black_box;

use document::json::Json;

/// Nanoseconds that this thread has had a processor, whatever else the machine does; where the system does not say, 0.
fn processor_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = stat.split_whitespace().next();
    first.and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// How much longer the work takes on input of eight times the size: 8 when it is linear, 64 when it is quadratic.
fn growth<I>(input: impl Fn(u32) -> I, work: impl Fn(&I)) -> f64 {
    let fastest = |size: u32| {
        let input = input(size);
        let times = (0..7).map(|_| {
            let began = processor_ns();
            work(&input);
            u32::try_from(processor_ns() - began).unwrap_or(u32::MAX)
        });
        f64::from(times.min().unwrap_or(0).max(1))
    };
    let small = fastest(8_000);
    fastest(64_000) / small
}

#[test]
fn members_cost_in_proportion() {
    let object = |members: u32| {
        let members: Vec<_> = (0..members)
            .map(|n| format!("\"member {n}\":{n}"))
            .collect();
        format!("{{{}}}", members.join(","))
    };
    let growth = growth(object, |text| {
        black_box(Json::parse(text).unwrap());
    });
    assert!(growth < 30.0, "{growth}");
}

#[test]
fn nesting_costs_in_proportion() {
    // 64 kB of numbers below as many levels as are allowed cost about what they cost below one.
    let nested = |levels: usize| {
        let open = "[".repeat(levels);
        format!("{open}{}0{}", "0,".repeat(32_000), "]".repeat(levels))
    };
    let growth = growth(
        |size| nested(if size == 8_000 { 12 } else { 96 }),
        |text| {
            black_box(Json::parse(text).unwrap());
        },
    );
    assert!(growth < 3.0, "{growth}");
}
