use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::rev::RevId;

fn rev(text: &str) -> Rev {
    text.parse().unwrap()
}

/// `"3-c 2-b 1-a"`, newest first; the value is the newest revision's text.
fn path(text: &str) -> Path<String> {
    let revs: Vec<Rev> = text.split(' ').map(rev).collect();
    let ids = revs.iter().map(|rev| rev.id.clone()).collect();
    let revisions = Revisions {
        start: revs[0].generation,
        ids,
    };
    Path {
        revisions,
        deleted: false,
        value: revs[0].to_string(),
    }
}

fn tombstone(text: &str) -> Path<String> {
    Path {
        deleted: true,
        ..path(text)
    }
}

fn tree(paths: &[&str]) -> RevTree<String> {
    let mut tree = RevTree::new();
    for text in paths {
        tree.merge(path(text));
    }
    tree
}

fn leaves<V>(tree: &RevTree<V>) -> Vec<String> {
    tree.leaves()
        .iter()
        .map(|leaf| leaf.rev.to_string())
        .collect()
}

fn history<V>(tree: &RevTree<V>, newest: &str) -> Vec<String> {
    tree.path(&rev(newest))
        .map(|node| node.rev.to_string())
        .collect()
}

#[test]
fn merging_extends_branches_or_ignores() {
    let mut tree = RevTree::new();
    assert_eq!(tree.merge(path("2-b 1-a")), Merged::NewLeaf);
    assert_eq!(tree.merge(path("3-c 2-b 1-a")), Merged::NewLeaf);
    assert_eq!(tree.merge(path("3-d 2-b 1-a")), Merged::NewBranch);
    assert_eq!(
        tree.merge(path("1-z")),
        Merged::NewBranch,
        "a tree of its own"
    );
    assert_eq!(tree.merge(path("2-b 1-a")), Merged::Known, "an ancestor");
    assert_eq!(tree.merge(path("3-c 2-b 1-a")), Merged::Known, "a leaf");
    assert_eq!(leaves(&tree), ["3-d", "3-c", "1-z"]);
    assert_eq!(history(&tree, "3-c"), ["3-c", "2-b", "1-a"]);
    assert_eq!(tree.get(&rev("2-b")).unwrap().value.unwrap(), "2-b");
    assert!(
        tree.get(&rev("1-a")).unwrap().value.is_none(),
        "known by name only"
    );
    assert_eq!(tree.len(), 5);
}

#[test]
fn a_stemmed_tree_takes_longer_histories_and_is_joined_by_them() {
    let mut tree = tree(&["3-c", "6-f 5-e"]);
    assert_eq!(leaves(&tree), ["6-f", "3-c"]);
    assert_eq!(tree.merge(path("7-g 6-f 5-e 4-d 3-c 2-b")), Merged::NewLeaf);
    assert_eq!(leaves(&tree), ["7-g"]);
    assert_eq!(
        history(&tree, "7-g"),
        ["7-g", "6-f", "5-e", "4-d", "3-c", "2-b"]
    );
}

#[test]
fn a_shorter_history_finds_its_place_inside_the_tree() {
    let mut tree = tree(&["4-d 3-c 2-b 1-a"]);
    assert_eq!(tree.merge(path("4-x 3-c")), Merged::NewBranch);
    assert_eq!(history(&tree, "4-x"), ["4-x", "3-c", "2-b", "1-a"]);
}

#[test]
fn a_contradicting_history_continues_the_known_one() {
    let mut tree = tree(&["3-c 2-b 1-a"]);
    assert_eq!(tree.merge(path("4-d 3-c 2-x 1-a")), Merged::NewLeaf);
    assert_eq!(history(&tree, "4-d"), ["4-d", "3-c", "2-b", "1-a"]);
    assert!(tree.get(&rev("2-x")).is_none());
}

#[test]
fn an_impossible_history_is_believed_as_far_as_it_goes() {
    let mut tree = RevTree::new();
    let ids = ["b", "a", "z", "y"]
        .map(|id| RevId::Text(id.into()))
        .to_vec();
    let overlong = Path {
        revisions: Revisions { start: 2, ids },
        deleted: false,
        value: (),
    };
    assert_eq!(tree.merge(overlong), Merged::NewLeaf);
    assert_eq!(history(&tree, "2-b"), ["2-b", "1-a"]);
    let none = Path {
        revisions: Revisions {
            start: 2,
            ids: vec![],
        },
        deleted: false,
        value: (),
    };
    assert_eq!(tree.merge(none), Merged::Known);
}

#[test]
fn live_leaves_win_over_deleted_ones_then_the_greatest() {
    let mut tree = tree(&["2-b 1-a"]);
    tree.merge(tombstone("9-z"));
    tree.merge(path("2-c 1-a"));
    assert_eq!(leaves(&tree), ["2-c", "2-b", "9-z"]);
    assert_eq!(tree.winner().unwrap().rev, &rev("2-c"));
    assert_eq!(tree.conflicts(false), [&rev("2-b")]);
    assert_eq!(tree.conflicts(true), [&rev("9-z")]);
    assert!(!tree.is_deleted());
    tree.merge(tombstone("3-d 2-c 1-a"));
    tree.merge(tombstone("3-d 2-b 1-a"));
    assert_eq!(
        tree.winner().unwrap().rev,
        &rev("2-b"),
        "3-d is known already, below 2-c"
    );
    tree.merge(tombstone("3-e 2-b 1-a"));
    assert!(tree.is_deleted());
    assert_eq!(tree.winner().unwrap().rev, &rev("9-z"));
    assert!(!RevTree::<()>::new().is_deleted());
}

#[test]
fn edits_continue_leaves_of_live_documents_and_revive_deleted_ones() {
    let none = RevTree::<String>::new();
    assert_eq!(none.edit(None, false), Ok(None));
    assert_eq!(
        none.edit(None, true),
        Ok(None),
        "a document may begin deleted"
    );
    assert_eq!(none.edit(Some(&rev("1-a")), false), Err(Conflict));

    let mut live = tree(&["2-b 1-a", "2-c 1-a"]);
    live.merge(tombstone("3-d 2-b 1-a"));
    assert_eq!(live.edit(None, false), Err(Conflict));
    assert_eq!(live.edit(Some(&rev("2-c")), false), Ok(Some(rev("2-c"))));
    assert_eq!(live.edit(Some(&rev("2-c")), true), Ok(Some(rev("2-c"))));
    assert_eq!(
        live.edit(Some(&rev("3-d")), false),
        Ok(Some(rev("3-d"))),
        "a deleted leaf beside a live one"
    );
    assert_eq!(
        live.edit(Some(&rev("1-a")), false),
        Err(Conflict),
        "an ancestor"
    );
    assert_eq!(
        live.edit(Some(&rev("2-z")), false),
        Err(Conflict),
        "unknown"
    );

    live.merge(tombstone("3-e 2-c 1-a"));
    assert_eq!(
        live.edit(None, false),
        Ok(Some(rev("3-e"))),
        "the winning tombstone"
    );
    assert_eq!(live.edit(None, true), Err(Conflict), "deleted already");
    assert_eq!(
        live.edit(Some(&rev("3-e")), false),
        Err(Conflict),
        "CouchDB wants it made anew"
    );
}

#[test]
fn revs_info_tells_bodies_names_and_tombstones_apart() {
    let mut tree = tree(&["2-b 1-a"]);
    tree.merge(tombstone("3-c 2-b 1-a"));
    let info = |tree: &RevTree<String>| {
        let info = tree.revs_info(&rev("3-c"));
        info.iter()
            .map(|(rev, status)| format!("{rev} {}", status.as_str()))
            .collect::<Vec<_>>()
    };
    assert_eq!(info(&tree), ["3-c deleted", "2-b available", "1-a missing"]);
    tree.compact();
    assert_eq!(info(&tree), ["3-c deleted", "2-b missing", "1-a missing"]);
    assert!(tree.revs_info(&rev("9-z")).is_empty());
    assert_eq!(
        tree.revisions(&rev("2-b")).unwrap(),
        path("2-b 1-a").revisions
    );
    assert!(tree.revisions(&rev("9-z")).is_none());
}

#[test]
fn revs_diff_and_latest() {
    let tree = tree(&["3-c 2-b 1-a", "2-x 1-a", "5-e"]);
    let asked = ["9-q", "1-a", "3-c", "4-z", "9-q"].map(rev);
    assert_eq!(tree.missing(&asked), ["4-z", "9-q"].map(rev));
    assert_eq!(
        tree.possible_ancestors(&["4-z"].map(rev)),
        ["3-c", "2-x"].map(rev)
    );
    assert_eq!(
        tree.possible_ancestors(&["9-q", "4-z"].map(rev)),
        ["5-e", "3-c", "2-x"].map(rev)
    );
    assert!(tree.possible_ancestors(&[]).is_empty());

    let (found, missing) = tree.latest(&["1-a", "4-z"].map(rev));
    assert_eq!(
        found
            .iter()
            .map(|node| node.rev.to_string())
            .collect::<Vec<_>>(),
        ["2-x", "3-c"]
    );
    assert_eq!(missing, [rev("4-z")]);
    let (found, _) = tree.latest(&["2-b", "5-e", "2-b"].map(rev));
    assert_eq!(
        found
            .iter()
            .map(|node| node.rev.to_string())
            .collect::<Vec<_>>(),
        ["3-c", "5-e"]
    );
}

#[test]
fn stemming_keeps_what_some_leaf_still_reaches() {
    let mut tree = tree(&["5-e 4-d 3-c 2-b 1-a", "3-x 2-b 1-a"]);
    tree.stem(2);
    assert_eq!(history(&tree, "5-e"), ["5-e", "4-d"]);
    assert_eq!(history(&tree, "3-x"), ["3-x", "2-b"]);
    assert_eq!(tree.len(), 4);
    tree.stem(0);
    assert_eq!(leaves(&tree), ["5-e", "3-x"]);
    assert_eq!(tree.len(), 2);
}

/// A whole history: revision `i + 1` is a child of `parents[i]` (`None`: a root), with ids of mixed sizes.
fn histories() -> impl Strategy<Value = Vec<Vec<Rev>>> {
    let parents = prop::collection::vec(prop::option::weighted(0.9, any::<Index>()), 1..40);
    parents.prop_map(|parents| {
        let mut paths: Vec<Vec<Rev>> = Vec::new();
        for (number, parent) in parents.into_iter().enumerate() {
            let above = parent
                .filter(|_| number > 0)
                .map(|index| paths[index.index(number)].clone());
            let above = above.unwrap_or_default();
            let generation = above.len() as u64 + 1;
            let id = if number % 3 == 0 {
                format!("{number:032x}")
            } else {
                format!("r{number}")
            };
            let own = Rev {
                generation,
                id: RevId::parse(generation, &id).unwrap(),
            };
            paths.push(std::iter::once(own).chain(above).collect());
        }
        paths
    })
}

fn as_path(revs: &[Rev]) -> Path<usize> {
    let ids = revs.iter().map(|rev| rev.id.clone()).collect();
    let deleted = revs[0].to_string().ends_with('5');
    Path {
        revisions: Revisions {
            start: revs[0].generation,
            ids,
        },
        deleted,
        value: revs.len(),
    }
}

/// The contents of a tree without the values of ancestors: whether they are known depends on the order of arrival.
fn shape(tree: &RevTree<usize>) -> BTreeMap<Rev, (Option<Rev>, bool)> {
    (tree.nodes())
        .map(|node| {
            (
                node.rev.clone(),
                (
                    tree.path(node.rev).nth(1).map(|parent| parent.rev.clone()),
                    node.leaf,
                ),
            )
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whole_histories_give_one_tree_in_any_order(paths in histories(), order in any::<Vec<Index>>()) {
        let mut tree = RevTree::new();
        let shuffled = order.iter().map(|index| index.get(&paths));
        for revs in shuffled.chain(&paths) {
            tree.merge(as_path(revs));
        }
        let parents: BTreeSet<&Rev> = paths.iter().filter_map(|revs| revs.get(1)).collect();
        let expected = (paths.iter())
            .map(|revs| (revs[0].clone(), (revs.get(1).cloned(), !parents.contains(&revs[0]))))
            .collect::<BTreeMap<_, _>>();
        prop_assert_eq!(shape(&tree), expected);
        for revs in &paths {
            prop_assert_eq!(tree.merge(as_path(revs)), Merged::Known);
            prop_assert_eq!(tree.path(&revs[0]).map(|node| node.rev.clone()).collect::<Vec<_>>(), revs.clone());
        }
    }

    #[test]
    fn stemming_cuts_each_leaf_to_the_limit(paths in histories(), limit in 1usize..6) {
        let mut tree = RevTree::new();
        for revs in &paths {
            tree.merge(as_path(revs));
        }
        let before = leaves(&tree);
        tree.stem(limit);
        prop_assert_eq!(leaves(&tree), before);
        let mut reached = BTreeSet::new();
        for leaf in tree.leaves() {
            let whole = paths.iter().find(|revs| &revs[0] == leaf.rev).unwrap();
            reached.extend(whole.iter().take(limit).cloned());
            // Another leaf may retain more of a shared history than this one's share.
            let kept: Vec<Rev> = tree.path(leaf.rev).map(|node| node.rev.clone()).collect();
            prop_assert!(kept.len() >= limit.min(whole.len()));
            prop_assert_eq!(&kept[..], &whole[..kept.len()]);
        }
        prop_assert_eq!(tree.nodes().map(|node| node.rev.clone()).collect::<BTreeSet<_>>(), reached);
    }

    #[test]
    fn bytes_come_back_and_damaged_ones_never_panic(
        paths in histories(), limit in 1usize..9, cut in any::<Index>(), flip in any::<(Index, u8)>(),
    ) {
        let mut tree = RevTree::new();
        for revs in &paths {
            tree.merge(as_path(revs));
        }
        tree.stem(limit);
        let mut bytes = Vec::new();
        tree.encode(&mut bytes, |value, out| out.push(u8::try_from(*value).unwrap()));
        let take = |bytes: &mut &[u8]| {
            let (value, rest) = bytes.split_first().ok_or(crate::Error::Corrupt("value"))?;
            *bytes = rest;
            Ok(usize::from(*value))
        };
        let mut rest = &bytes[..];
        prop_assert_eq!(&RevTree::decode(&mut rest, take).unwrap(), &tree);
        prop_assert!(rest.is_empty());
        prop_assert!(RevTree::decode(&mut &bytes[..cut.index(bytes.len())], take).is_err());
        let at = flip.0.index(bytes.len());
        bytes[at] ^= flip.1;
        drop(RevTree::decode(&mut &bytes[..], take));
    }
}

#[test]
fn a_long_history_takes_twenty_bytes_a_revision() {
    let ids = (0..1000u32)
        .map(|number| RevId::parse(1, &format!("{number:032x}")).unwrap())
        .collect();
    let mut tree = RevTree::new();
    tree.merge(Path {
        revisions: Revisions { start: 1000, ids },
        deleted: false,
        value: (),
    });
    let mut bytes = Vec::new();
    tree.encode(&mut bytes, |(), _| ());
    assert!(bytes.len() <= 20_000, "{}", bytes.len());
}
