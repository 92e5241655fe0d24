//! Tables of expressions.

use jiff::Timestamp;

use super::Timing;
use crate::Seconds;

fn ms(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_millisecond()
}

fn shown(ms: i64) -> String {
    Timestamp::from_millisecond(ms).unwrap().to_string()
}

/// Expression, zone, a time, and the occurrences that follow.
const OCCURRENCES: &str = "
* * * * *            | UTC              | 2026-01-01T00:00:30Z | 2026-01-01T00:01:00Z 2026-01-01T00:02:00Z
*/15 * * * *         | UTC              | 2026-01-01T00:00:00Z | 2026-01-01T00:15:00Z 2026-01-01T00:30:00Z
5/20 * * * *         | UTC              | 2026-01-01T00:00:00Z | 2026-01-01T00:05:00Z 2026-01-01T00:25:00Z 2026-01-01T00:45:00Z
0 4,16 * * *         | UTC              | 2026-01-01T05:00:00Z | 2026-01-01T16:00:00Z 2026-01-02T04:00:00Z
0 10-20/5 * * *      | UTC              | 2026-01-01T12:00:00Z | 2026-01-01T15:00:00Z 2026-01-01T20:00:00Z 2026-01-02T10:00:00Z
30 4 * * mon-fri     | UTC              | 2026-11-20T04:30:00Z | 2026-11-23T04:30:00Z 2026-11-24T04:30:00Z
0 0 * * SUN          | UTC              | 2026-11-20T00:00:00Z | 2026-11-22T00:00:00Z 2026-11-29T00:00:00Z
0 0 * * 7            | UTC              | 2026-11-20T00:00:00Z | 2026-11-22T00:00:00Z
0 0 * * 5-7          | UTC              | 2026-11-21T12:00:00Z | 2026-11-22T00:00:00Z 2026-11-27T00:00:00Z
0 0 13 * fri         | UTC              | 2026-11-12T12:00:00Z | 2026-11-13T00:00:00Z 2026-11-20T00:00:00Z
0 0 */10 * mon       | UTC              | 2026-06-01T12:00:00Z | 2026-08-31T00:00:00Z
0 0 31 * *           | UTC              | 2026-01-31T12:00:00Z | 2026-03-31T00:00:00Z 2026-05-31T00:00:00Z
0 0 29 feb *         | UTC              | 2026-01-01T00:00:00Z | 2028-02-29T00:00:00Z 2032-02-29T00:00:00Z
0 0 29 2 *           | UTC              | 2096-03-01T00:00:00Z | 2104-02-29T00:00:00Z
0 0 1 Jan,Jul *      | UTC              | 2026-01-01T00:00:00Z | 2026-07-01T00:00:00Z 2027-01-01T00:00:00Z
@hourly              | UTC              | 2026-01-01T00:00:00Z | 2026-01-01T01:00:00Z
@daily               | Asia/Kolkata     | 2026-01-01T00:00:00Z | 2026-01-01T18:30:00Z
@weekly              | UTC              | 2026-11-20T00:00:00Z | 2026-11-22T00:00:00Z
@monthly             | UTC              | 2026-11-20T00:00:00Z | 2026-12-01T00:00:00Z
@yearly              | UTC              | 2026-11-20T00:00:00Z | 2027-01-01T00:00:00Z
0 9 * * *            | America/New_York | 2026-03-07T15:00:00Z | 2026-03-08T13:00:00Z
30 2 * * *           | Europe/Berlin    | 2026-03-28T12:00:00Z | 2026-03-29T01:30:00Z 2026-03-30T00:30:00Z
30 2,3 * * *         | Europe/Berlin    | 2026-03-28T12:00:00Z | 2026-03-29T01:30:00Z 2026-03-30T00:30:00Z
45,10 2-3 * * *      | Europe/Berlin    | 2026-03-28T12:00:00Z | 2026-03-29T01:10:00Z 2026-03-29T01:45:00Z 2026-03-30T00:10:00Z
30 * * * *           | Europe/Berlin    | 2026-03-29T00:00:00Z | 2026-03-29T00:30:00Z 2026-03-29T01:30:00Z
30 2 * * *           | Europe/Berlin    | 2026-10-24T12:00:00Z | 2026-10-25T00:30:00Z 2026-10-26T01:30:00Z
0,30 1-3 * * *       | Europe/Berlin    | 2026-10-24T23:15:00Z | 2026-10-24T23:30:00Z 2026-10-25T00:00:00Z 2026-10-25T00:30:00Z 2026-10-25T02:00:00Z
30 * * * *           | Europe/Berlin    | 2026-10-25T00:00:00Z | 2026-10-25T00:30:00Z 2026-10-25T01:30:00Z 2026-10-25T02:30:00Z
0 0 * * *            | America/Havana   | 2026-03-07T12:00:00Z | 2026-03-08T05:00:00Z 2026-03-09T04:00:00Z
15 0 * * *           | America/Havana   | 2026-10-31T12:00:00Z | 2026-11-01T04:15:00Z 2026-11-02T05:15:00Z
0 2 * * *            | Australia/Lord_Howe | 2026-10-03T00:00:00Z | 2026-10-03T15:30:00Z 2026-10-04T15:00:00Z
";

#[test]
fn expressions_occur() {
    for line in OCCURRENCES.trim().lines() {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let timing = Timing::cron(columns[0], Some(columns[1])).unwrap();
        let mut at = ms(columns[2]);
        for expected in columns[3].split_whitespace() {
            at = timing.after(at).unwrap();
            assert_eq!(shown(at), expected, "{line}");
        }
    }
}

/// An expression, and what its refusal says.
const REFUSED: &[(&str, &str)] = &[
    ("* * * *", "it has 4"),
    ("* * * * * *", "it has 6"),
    ("", "it has 0"),
    ("60 * * * *", "`60` is not valid as minute"),
    ("* 24 * * *", "`24` is not valid as hour"),
    ("* * 0 * *", "numbers from 1 to 31"),
    ("* * * 13 *", "`13` is not valid as month"),
    ("* * * * 8", "`8` is not valid as day of week"),
    ("* * * * monday", "`monday`"),
    ("*/0 * * * *", "at least 1"),
    ("20-10 * * * *", "must not decrease"),
    ("+5 * * * *", "`+5`"),
    ("1,,2 * * * *", "`` is not valid as minute"),
    ("@reboot", "it has 1"),
    ("0 0 30 2 *", "never occurs"),
];

#[test]
fn wrong_expressions_are_refused() {
    for (text, reason) in REFUSED {
        let told = Timing::cron(text, None).unwrap_err().to_string();
        assert!(told.contains(reason), "{text}: {told}");
    }
    let told = Timing::cron("* * * * *", Some("Mars/Olympus")).unwrap_err();
    assert!(told.to_string().contains("Mars/Olympus"), "{told}");
    assert!(Timing::every(Seconds::default(), 0).is_err());
}

#[test]
fn the_last_of_many_is_found() {
    let now = ms("2026-11-23T10:07:00Z");
    for (cron, from, last) in [
        (
            "*/5 * * * *",
            "2020-01-01T00:00:00Z",
            "2026-11-23T10:05:00Z",
        ),
        (
            "*/90 * * * *",
            "2020-01-01T00:00:00Z",
            "2026-11-23T10:00:00Z",
        ),
        (
            "0 */24 * * *",
            "2020-01-01T00:00:00Z",
            "2026-11-23T00:00:00Z",
        ),
        ("0 4 * * *", "2020-01-01T04:00:00Z", "2026-11-23T04:00:00Z"),
        ("0 0 1 1 *", "2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("0 0 1 1 *", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
    ] {
        let timing = Timing::cron(cron, None).unwrap();
        assert_eq!(shown(timing.last(ms(from), now)), last, "{cron}");
    }
    let every = Timing::every(Seconds::new(7), 1_000).unwrap();
    assert_eq!(
        (every.after(0), every.after(1_000)),
        (Some(8_000), Some(8_000))
    );
    assert_eq!(every.after(7_999), Some(8_000));
    assert_eq!(
        every.last(8_000, 8_000 + 7_000 * 1_000_000 + 3),
        8_000 + 7_000 * 1_000_000
    );
    assert_eq!(every.last(8_000, 8_000), 8_000);
}
