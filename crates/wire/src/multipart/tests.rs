use proptest::prelude::*;

use super::*;

type Parts = Vec<(Part, Vec<u8>)>;

/// Everything a parser says about a body that arrives in chunks of `size` bytes.
fn parse(boundary: &str, body: &[u8], size: usize) -> Result<(Parts, bool), Malformed> {
    let mut parser = Parser::new(boundary);
    let mut parts: Parts = Vec::new();
    let mut open = false;
    for chunk in body.chunks(size) {
        parser.feed(Bytes::copy_from_slice(chunk));
        loop {
            match parser.next_event()? {
                Event::Part(part) => {
                    assert!(!open);
                    open = true;
                    parts.push((part, Vec::new()));
                }
                Event::Data(data) => {
                    assert!(open && !data.is_empty());
                    parts.last_mut().unwrap().1.extend_from_slice(&data);
                }
                Event::PartEnd => {
                    assert!(open);
                    open = false;
                }
                Event::End => return Ok((parts, true)),
                Event::NeedMore => break,
            }
        }
    }
    Ok((parts, false))
}

#[test]
fn bodies_as_couchdb_writes_them() {
    let body = b"--b1\r\nContent-Type: application/json\r\n\r\n{\"_id\":\"x\"}\r\n--b1\r\n\
        Content-Disposition: attachment; filename=\"a \"b\".txt\"\r\nContent-Type: text/plain\r\n\
        Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\n\r\n--b\r\n--b1  \r\n\r\n\r\n--b1--\r\nepilogue";
    let doc = Part {
        content_type: "application/json".to_owned(),
        ..Part::default()
    };
    let attachment = Part {
        content_type: "text/plain".to_owned(),
        file_name: Some("\"a \"b\".txt\"".to_owned()),
        content_length: Some(5),
        content_encoding: "gzip".to_owned(),
    };
    for prefix in ["", "\r\n", "preamble\r\n"] {
        let body = [prefix.as_bytes(), body].concat();
        for size in 1..body.len() {
            let (parts, closed) = parse("b1", &body, size).unwrap();
            let expected = [
                (doc.clone(), b"{\"_id\":\"x\"}".to_vec()),
                (attachment.clone(), b"\r\n--b".to_vec()),
                (Part::default(), Vec::new()),
            ];
            assert!(closed);
            assert_eq!(parts, expected, "by {size}");
        }
    }
    assert!(!attachment.is_named_otherwise("a \"b\".txt"));
    assert!(attachment.is_named_otherwise("b.txt"));
    assert!(!doc.is_named_otherwise("anything"));
    let escaped = Part {
        file_name: Some(r#""a\"b"; x=y"#.to_owned()),
        ..Part::default()
    };
    assert!(!escaped.is_named_otherwise("a\"b"));
}

#[test]
fn broken_bodies() {
    for size in [1, 7, 100_000] {
        assert_eq!(
            parse("b", b"--bx\r\n\r\n", size),
            Err(Malformed::BadBoundary)
        );
        assert_eq!(
            parse("b", b"--b\r\nnot a header\r\n\r\n", size),
            Err(Malformed::BadHead)
        );
        let length = b"--b\r\nContent-Length: many\r\n\r\n";
        assert_eq!(parse("b", length, size), Err(Malformed::BadHead));
        for unfinished in ["", "--", "--b", "--b\r\n", "--b\r\nA: b\r\n\r\ndata\r\n--"] {
            assert!(
                !parse("b", unfinished.as_bytes(), size).unwrap().1,
                "{unfinished}"
            );
        }
    }
    let endless_head = [b"--b\r\nX: ".to_vec(), vec![b'x'; HEAD_BYTES_MAX + 100]].concat();
    assert_eq!(
        parse("b", &endless_head, 1000),
        Err(Malformed::HeadTooLarge)
    );
    let mut endless_preamble = Parser::new("b");
    for _ in 0..1000 {
        endless_preamble.feed(Bytes::from_static(&[b'\r'; 100]));
        assert_eq!(endless_preamble.next_event(), Ok(Event::NeedMore));
        assert!(endless_preamble.buffer.len() < 4);
    }
}

#[test]
fn whole_bodies() {
    let body = "before\r\n--z\r\nA: b\r\nContent-Disposition: attachment; filename=\"n\"\r\n\r\n\
                one\r\n\r\n--z\r\ncontent-encoding: gzip\r\n\r\ntwo\r\n--z\r\n\r\n\r\n--z--after";
    let parts = split(&Bytes::from_static(body.as_bytes()), "z").unwrap();
    let contents: Vec<_> = parts.iter().map(|(_, content)| &content[..]).collect();
    assert_eq!(contents, [&b"one\r\n"[..], b"two", b""]);
    assert_eq!(parts[0].0.bare_name(), Some("n"));
    assert_eq!(parts[1].0.bare_name(), None);
    assert_eq!(parts[1].0.content_encoding, "gzip");
    for end in 0..body.len() - "--after".len() {
        let cut = Bytes::copy_from_slice(&body.as_bytes()[..end]);
        assert_eq!(split(&cut, "z"), Err(Malformed::Truncated), "{end}");
    }
    assert_eq!(split(&Bytes::from_static(b"--z--"), "z").unwrap().len(), 0);
    let parts = |count: usize| Bytes::from(format!("{}--z--", "--z\r\n\r\n\r\n".repeat(count)));
    assert_eq!(split(&parts(10_000), "z").unwrap().len(), 10_000);
    assert_eq!(split(&parts(10_001), "z"), Err(Malformed::TooManyParts));
}

#[test]
fn boundaries() {
    let found = |kind| boundary(kind);
    let is = |boundary: &str| Some(boundary.to_owned());
    assert_eq!(found("multipart/related; boundary=\"a b\""), is("a b"));
    assert_eq!(found("multipart/related;charset=x;boundary=ab"), is("ab"));
    let long = format!("multipart/related; boundary={}", "x".repeat(201));
    for none in [
        "multipart/related",
        "multipart/related; boundary=",
        "",
        &long,
    ] {
        assert_eq!(found(none), None, "{none}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_contents_in_any_chunks(
        contents in prop::collection::vec(
            prop::collection::vec(prop::sample::select(b"\r\n-b1x".to_vec()), 0..40),
            1..5,
        ),
        size in 1_usize..50,
    ) {
        let boundary = "b1b1";
        let clash = |content: &Vec<u8>| memmem::find(&[b"\r\n", &content[..]].concat(), b"--b1b1").is_some();
        prop_assume!(!contents.iter().any(clash));
        let mut body = Vec::new();
        for content in &contents {
            body.extend_from_slice(b"--b1b1\r\n\r\n");
            body.extend_from_slice(content);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--b1b1--");
        let (parts, closed) = parse(boundary, &body, size).unwrap();
        let found: Vec<_> = parts.into_iter().map(|(_, data)| data).collect();
        prop_assert!(closed);
        prop_assert_eq!(found, contents);
    }

    #[test]
    fn any_bytes_do_not_panic(
        body in prop::collection::vec(prop::sample::select(b"\r\n-b: ".to_vec()), 0..80),
        size in 1_usize..20,
    ) {
        let _ = parse("b", &body, size);
    }
}

#[test]
fn any_bytes() {
    let seeds: [&[u8]; 2] = [
        b"--b\r\nContent-Type: application/json\r\n\r\n{}\r\n--b\r\nContent-Disposition: attachment; \
          filename=\"a\"\r\nContent-Length: 3\r\n\r\nabc\r\n--b--",
        b"preamble\r\n--b  \r\n\r\n\r\n--b\r\nA: b\r\n\r\n\r\n--b-\r\n--b--epilogue",
    ];
    let words = [
        "--b",
        "\r\n--b",
        "\r\n",
        "--",
        "\r\n\r\n",
        "Content-Length: 0\r\n",
        ";",
        "\"",
        "=",
    ];
    testkit::fuzz("multipart", &seeds, &words, |body| {
        let whole = parse("b", body, body.len().max(1));
        // Chunk sizes make no difference, except to which error an incomplete head is.
        for size in [1, 3, 17] {
            let pieces = parse("b", body, size);
            assert_eq!(pieces.is_ok(), whole.is_ok(), "by {size}");
            if let (Ok(pieces), Ok(whole)) = (&pieces, &whole) {
                assert_eq!(pieces, whole, "by {size}");
            }
        }
        let held: usize = whole
            .iter()
            .flat_map(|(parts, _)| parts)
            .map(|(_, data)| data.len())
            .sum();
        assert!(held <= body.len());
        let split = split(&Bytes::copy_from_slice(body), "b");
        assert_eq!(split.is_ok(), matches!(whole, Ok((_, true))));
        if let (Ok(split), Ok((parts, _))) = (&split, &whole) {
            assert!(
                split
                    .iter()
                    .map(|(part, data)| (part, &data[..]))
                    .eq(parts.iter().map(|(part, data)| (part, &data[..])))
            );
        }
        whole.is_ok()
    });
}
