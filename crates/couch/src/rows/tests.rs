use proptest::prelude::*;

use super::*;

/// Rows and envelope of a response that arrives in chunks of `size` bytes.
fn split(layout: Layout, text: &[u8], size: usize) -> Result<(Vec<String>, String), Broken> {
    let mut splitter = Splitter::new(layout, 1000);
    let mut rows = Vec::new();
    for chunk in text.chunks(size) {
        splitter.feed(Bytes::copy_from_slice(chunk));
        while let Some(row) = splitter.next_row()? {
            rows.push(String::from_utf8(row.to_vec()).unwrap());
        }
    }
    Ok((rows, String::from_utf8(splitter.finish()?).unwrap()))
}

const RESULTS: Layout = Layout::Member("results");

#[test]
fn layouts_of_all_servers() {
    let one_line = r#"{"results":[{"a":1},{"b":"]}\"\\"},[2,[]]],"last_seq":7,"pending":0}"#;
    let lines = "{\"results\":[\n{\"a\":1},\n{\"b\":\"]}\\\"\\\\\"},\n[2,[]]\n],\n\"last_seq\":7,\"pending\":0}\n";
    let sorted = r#" { "last_seq" : 7 , "x":{"results":[1]}, "y":"results", "results" : [ {"a":1} , {"b":"]}\"\\"}, [2,[]] ] } "#;
    let rows = [r#"{"a":1}"#, r#"{"b":"]}\"\\"}"#, "[2,[]]"];
    for size in [1, 2, 3, 7, 1000] {
        for text in [one_line, lines, sorted] {
            let (found, envelope) = split(RESULTS, text.as_bytes(), size).unwrap();
            assert_eq!(found, rows, "{text} by {size}");
            let envelope: serde_json::Value = serde_json::from_str(&envelope).unwrap();
            assert_eq!(envelope["last_seq"], 7);
            assert_eq!(envelope["results"], serde_json::json!([]));
        }
        let (found, _) = split(
            Layout::Array,
            br#"["a", 1 ,-2.5e3,null,{"b":[]},"c\""]"#,
            size,
        )
        .unwrap();
        assert_eq!(
            found,
            [r#""a""#, "1", "-2.5e3", "null", r#"{"b":[]}"#, r#""c\"""#]
        );
        let (found, _) = split(
            Layout::Values,
            b"\n\n{\"a\":1}\n\n{\"b\":2}{\"c\":3}\n",
            size,
        )
        .unwrap();
        assert_eq!(found, [r#"{"a":1}"#, r#"{"b":2}"#, r#"{"c":3}"#]);
        for empty in [r#"{"results":[]}"#, "{\"results\":[\n\n],\n\"last_seq\":0}"] {
            assert_eq!(split(RESULTS, empty.as_bytes(), size).unwrap().0, [""; 0]);
        }
    }
}

#[test]
fn events_for_browsers() {
    let text = concat!(
        ": a comment\n\n",
        "data: {\"a\":\"data: x\\n\"}\nid: 1-x\n\n",
        "event: heartbeat\ndata: \n\n",
        "data:{\"b\":[2]}\r\nid: 2\r\n\r\n",
        "datum: {\"c\":3}\n",
        "data\n\ndata:  7 \nretry: 10\n",
    );
    for size in [1, 2, 3, 7, 1000] {
        let (found, envelope) = split(Layout::Events, text.as_bytes(), size).unwrap();
        assert_eq!(found, [r#"{"a":"data: x\n"}"#, r#"{"b":[2]}"#, "7"]);
        assert_eq!(envelope, "");
        let cut = split(Layout::Events, b"data: {\"a\":", size);
        assert_eq!(cut.unwrap_err(), Broken::Truncated);
    }
}

#[test]
fn broken_answers() {
    for size in [1, 5, 1000] {
        for (layout, text, broken) in [
            (RESULTS, "", Broken::Truncated),
            (RESULTS, "  ", Broken::Truncated),
            (RESULTS, "<html>", Broken::NotJson),
            (RESULTS, "potato", Broken::NotJson),
            (RESULTS, r#"{"results":["#, Broken::Truncated),
            (RESULTS, r#"{"results":[{"a":1"#, Broken::Truncated),
            (RESULTS, r#"{"results":[{"a":1}"#, Broken::Truncated),
            (
                RESULTS,
                r#"{"results":[{"a":1}],"last_seq":"#,
                Broken::Truncated,
            ),
            (RESULTS, r#"{"results":[{"a":1}],,}"#, Broken::NotJson),
            (
                RESULTS,
                r#"{"results":[{"a":1}]} trailing"#,
                Broken::NotJson,
            ),
            (RESULTS, r#"{"results":[,{"a":1}]}"#, Broken::NotJson),
            (RESULTS, r#"{"results":[1,,2]}"#, Broken::NotJson),
            (RESULTS, r#"{"results":[:]}"#, Broken::NotJson),
            (RESULTS, r#"{"results":{"a":[1]}}"#, Broken::NoRows),
            (RESULTS, r#"{"error":"x"}"#, Broken::NoRows),
            (RESULTS, r#"["results",[1]]"#, Broken::NoRows),
            (Layout::Array, r#"{"a":[1]}"#, Broken::NoRows),
            (Layout::Values, r#"{"a":1}{"b""#, Broken::Truncated),
            (Layout::Values, r#"{"a":1},"#, Broken::NotJson),
            (Layout::Values, "[1]]", Broken::NotJson),
        ] {
            assert_eq!(
                split(layout, text.as_bytes(), size),
                Err(broken),
                "{text} by {size}"
            );
        }
    }
}

#[test]
fn nothing_grows_without_bound() {
    let endless_row = format!("{{\"results\":[\"{}", "x".repeat(5000));
    assert_eq!(
        split(RESULTS, endless_row.as_bytes(), 100),
        Err(Broken::RowTooLarge(1000))
    );
    let endless_head = format!("{{\"x\":\"{}", "x".repeat(ENVELOPE_BYTES_MAX));
    assert_eq!(
        split(RESULTS, endless_head.as_bytes(), 100),
        Err(Broken::EnvelopeTooLarge)
    );
    let endless_tail = format!("{{\"results\":[]{}", " ".repeat(ENVELOPE_BYTES_MAX));
    assert_eq!(
        split(RESULTS, endless_tail.as_bytes(), 100),
        Err(Broken::EnvelopeTooLarge)
    );
    let mut heartbeats = Splitter::new(Layout::Values, 10);
    for _ in 0..10_000 {
        heartbeats.feed(Bytes::from_static(b"\n"));
        assert_eq!(heartbeats.next_row(), Ok(None));
    }
    assert_eq!(
        heartbeats.carry.capacity() + heartbeats.envelope.capacity(),
        0
    );
}

#[test]
fn rows_within_a_chunk_are_not_copied() {
    let chunk = Bytes::from_static(b"{\"a\":1}\n{\"b\":2}\n");
    let mut splitter = Splitter::new(Layout::Values, 100);
    splitter.feed(chunk.clone());
    let row = splitter.next_row().unwrap().unwrap();
    assert_eq!(row.as_ptr(), chunk.as_ptr());
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        r#"[\[\]{},:" \\a-c\n]{0,8}"#.prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec((r#"[a-c"\\]{0,3}"#, inner), 0..4)
                .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_rows_in_any_chunks(values in prop::collection::vec(json(), 0..6), size in 1_usize..40, pretty: bool) {
        let whole = serde_json::json!({ "before": [1, "results"], "results": values, "after": { "results": [2] } });
        let text = if pretty { serde_json::to_vec_pretty(&whole) } else { serde_json::to_vec(&whole) }.unwrap();
        let (rows, envelope) = split(RESULTS, &text, size).unwrap();
        let rows: Vec<serde_json::Value> = rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
        prop_assert_eq!(&rows, &values);
        let envelope: serde_json::Value = serde_json::from_str(&envelope).unwrap();
        prop_assert_eq!(&envelope["after"], &whole["after"]);
    }

    #[test]
    fn any_bytes_are_an_error_or_rows(text in prop::collection::vec(prop::sample::select(br#"{}[]",:\ a1"#.to_vec()), 0..60), size in 1_usize..20) {
        for layout in [RESULTS, Layout::Array, Layout::Values] {
            let _ = split(layout, &text, size);
        }
    }
}
