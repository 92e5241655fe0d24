use super::*;

fn leaf() -> Leaf {
    Leaf {
        deleted: false,
        ancestors: vec!["1-a".parse().unwrap()],
        body: r#"{"n":1.0,"o":{"a":1,"b":2}}"#.to_owned(),
        attachments: BTreeMap::from([(
            "x".to_owned(),
            (
                "text/plain".to_owned(),
                Value::from(2),
                Bytes::from_static(b"bytes"),
            ),
        )]),
    }
}

fn rev() -> Rev {
    "2-b".parse().unwrap()
}

fn contents(leaf: Leaf) -> Contents {
    Contents {
        documents: BTreeMap::from([("d".to_owned(), BTreeMap::from([(rev(), leaf)]))]),
        locals: BTreeMap::from([("_local/c".to_owned(), r#"{"a":1}"#.to_owned())]),
    }
}

/// What is different when the target's leaf is changed so.
fn changed(change: impl FnOnce(&mut Leaf)) -> Vec<Difference> {
    let mut target = leaf();
    change(&mut target);
    compare(&contents(leaf()), &contents(target))
}

#[test]
fn the_same_is_the_same() {
    assert_eq!(changed(|_| {}), []);
    // As other servers write it.
    assert_eq!(
        changed(|leaf| leaf.body = r#"{"n":1.00e0, "o":{"a":1,"b":2}}"#.to_owned()),
        []
    );
    // A target that keeps less of a history, or more.
    assert_eq!(changed(|leaf| leaf.ancestors.clear()), []);
}

#[test]
fn every_difference_has_a_name() {
    let at = || ("d".to_owned(), rev());
    let deleted = changed(|leaf| leaf.deleted = true);
    assert_eq!(deleted, [Difference::Deleted(at().0, at().1)]);
    let history = changed(|leaf| leaf.ancestors = vec!["1-z".parse().unwrap()]);
    assert_eq!(history, [Difference::History(at().0, at().1)]);
    for body in [
        r#"{"n":1,"o":{"a":1,"b":2}}"#,
        r#"{"n":1.0,"o":{"b":2,"a":1}}"#,
        r#"{"n":1.5,"o":{"a":1,"b":2}}"#,
        r#"{"n":1.0}"#,
        "not JSON",
    ] {
        let differences = changed(|leaf| leaf.body = body.to_owned());
        assert_eq!(differences, [Difference::Body(at().0, at().1)], "{body}");
    }
    let changes: [fn(&mut Leaf); 4] = [
        |leaf| leaf.attachments.clear(),
        |leaf| leaf.attachments.get_mut("x").unwrap().0 = "image/png".to_owned(),
        |leaf| leaf.attachments.get_mut("x").unwrap().1 = Value::from(1),
        |leaf| leaf.attachments.get_mut("x").unwrap().2 = Bytes::from_static(b"Bytes"),
    ];
    for change in changes {
        let expected = Difference::Attachment(at().0, at().1, "x".to_owned());
        assert_eq!(changed(change), [expected]);
    }
}

#[test]
fn what_is_on_one_side_only() {
    let (full, empty) = (contents(leaf()), Contents::default());
    let local = || Difference::Local("_local/c".to_owned());
    assert_eq!(
        compare(&full, &empty),
        [Difference::MissingDocument("d".to_owned()), local()]
    );
    assert_eq!(
        compare(&empty, &full),
        [Difference::ExtraDocument("d".to_owned()), local()]
    );
    assert_eq!(
        compare(&full.clone().without_locals(), &empty),
        [Difference::MissingDocument("d".to_owned())]
    );
    let mut more = full.clone();
    let other: Rev = "2-a".parse().unwrap();
    let leaves = more.documents.get_mut("d").unwrap();
    leaves.insert(other.clone(), leaf());
    let (id, rev) = ("d".to_owned(), other);
    assert_eq!(
        compare(&more, &full),
        [Difference::MissingLeaf(id.clone(), rev.clone())]
    );
    assert_eq!(compare(&full, &more), [Difference::ExtraLeaf(id, rev)]);
}
