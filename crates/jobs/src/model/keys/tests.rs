use proptest::prelude::*;

use super::*;
use crate::model::class::{LABELS, tag};
use crate::model::ids::{SHARDS, TIMED_BUCKETS};
use crate::{Class, Lane};

fn ty(name: &str) -> JobType {
    JobType::new(name).unwrap()
}

fn id(bytes: &[u8]) -> JobId {
    JobId::new(bytes.to_vec()).unwrap()
}

fn state_of(position: &Position) -> State {
    match position {
        Position::Ready(..)
        | Position::Timed(..)
        | Position::Waiting(..)
        | Position::Shared(..) => State::Pending,
        Position::Active => State::Running,
        Position::Finished(_) => State::Finished,
        Position::Dead(_) => State::Dead,
    }
}

fn order() -> impl Strategy<Value = Order> {
    (any::<u32>(), any::<u64>()).prop_map(|(incarnation, version)| Order {
        incarnation,
        version,
    })
}

fn position() -> impl Strategy<Value = Position> {
    prop_oneof![
        (class(), lane(), order())
            .prop_map(|(class, lane, order)| Position::Ready(class, lane, order)),
        (class(), lane(), any::<i64>())
            .prop_map(|(class, lane, due_ms)| Position::Timed(class, lane, due_ms)),
        (bytes(), class(), order()).prop_map(|(limit, class, order)| Position::Waiting(
            limit.into(),
            class,
            order
        )),
        (class(), bytes(), order()).prop_map(|(class, tenant, order)| Position::Shared(
            class,
            tenant.into(),
            order
        )),
        Just(Position::Active),
        any::<i64>().prop_map(Position::Finished),
        any::<i64>().prop_map(Position::Dead),
    ]
}

fn class() -> impl Strategy<Value = Class> {
    (0..3_usize).prop_map(|n| Class::ALL[n])
}

fn lane() -> impl Strategy<Value = Option<Lane>> {
    proptest::option::of(any::<[u8; 2]>().prop_map(|owner| Lane::of(&owner)))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // Zeros are escaped in keys, so errors are likeliest there.
    proptest::collection::vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 0..20)
}

/// The sort key of an index row by type, position and id.
type Sorted = (i64, Bytes, i64, u16, u32, u64, i64, Vec<u8>);

fn place(position: Position, id: &JobId) -> Sorted {
    let (mut behind, mut of_class) = (Bytes::new(), 0);
    let first_class = match position {
        Position::Shared(class, ..) => class as i64,
        _ => 0,
    };
    // Urgent jobs have the second lowest numbers of PENDING, but come first behind a limit.
    let number = |class: Class| [0, 3, 5][usize::from(class.number())];
    let (first, incarnation, version, time) = match position {
        Position::Ready(class, lane, order) => {
            of_class = number(class);
            let shard = lane.map_or(id.shard(), |lane| SHARDS + lane.number());
            (shard, order.incarnation, order.version, 0)
        }
        Position::Timed(class, lane, due_ms) => {
            of_class = number(class);
            let bucket = lane.map_or(id.timed_bucket(), |lane| TIMED_BUCKETS + lane.number());
            (bucket, 0, 0, due_ms)
        }
        Position::Waiting(limit, class, order) => {
            (behind, of_class) = (limit, class as i64);
            (0, order.incarnation, order.version, 0)
        }
        Position::Shared(class, tenant, order) => {
            (behind, of_class) = (tenant, class as i64);
            (id.shard(), order.incarnation, order.version, 0)
        }
        Position::Active => (id.bucket(), 0, 0, 0),
        Position::Finished(at_ms) | Position::Dead(at_ms) => (id.bucket(), 0, 0, at_ms),
    };
    (
        first_class,
        behind,
        of_class,
        first,
        incarnation,
        version,
        time,
        id.as_bytes().to_vec(),
    )
}

proptest! {
    #[test]
    fn index_rows_round_trip(position in position(), bytes in bytes()) {
        let (keys, ty, id) = (Keys::new(), ty("mail"), id(&bytes));
        let key = keys.index(&ty, &id, &position);
        let state = state_of(&position);
        prop_assert_eq!(keys.position(&ty, state, &key).unwrap(), (position, id));
        let range = keys.state(&ty, state);
        prop_assert!(*range.begin < *key && *key < *range.end);
    }

    #[test]
    fn index_rows_are_in_order(
        positions in (position(), position()),
        ids in (bytes(), bytes()),
    ) {
        let (keys, ty) = (Keys::new(), ty("mail"));
        let (a, b) = ((positions.0, id(&ids.0)), (positions.1, id(&ids.1)));
        // Two rows of one kind: rows of different kinds are never compared.
        if std::mem::discriminant(&a.0) != std::mem::discriminant(&b.0) {
            return Ok(());
        }
        let key = |row: &(Position, JobId)| keys.index(&ty, &row.1, &row.0);
        prop_assert_eq!(key(&a).cmp(&key(&b)), place(a.0.clone(), &a.1).cmp(&place(b.0.clone(), &b.1)));
    }

    #[test]
    fn jobs_are_ordered_by_id(a in bytes(), b in bytes()) {
        let (keys, ty) = (Keys::new(), ty("mail"));
        let key = |bytes: &[u8]| keys.job(&ty, &id(bytes));
        let bucket = |bytes: &[u8]| id(bytes).bucket();
        prop_assert_eq!(key(&a).cmp(&key(&b)), (bucket(&a), &a).cmp(&(bucket(&b), &b)));
        prop_assert_eq!(*keys.jobs_from(&ty, bucket(&b), &a) <= *key(&b), a <= b);
        prop_assert!(keys.jobs_of(&ty, bucket(&a)).contains(&key(&a)));
        let range = keys.jobs(&ty);
        prop_assert_eq!(Keys::id(&range, &key(&a)).unwrap(), id(&a));
        // The rows of one job are not among those of another, whatever prefix their ids share.
        let chunk = keys.chunk(&ty, &id(&a), 1, 0);
        let others = keys.chunks(&ty, &id(&b), 1);
        prop_assert_eq!(*others.begin < *chunk && *chunk < *others.end, a == b);
        let attempt = keys.attempt(&ty, &id(&a), 3);
        let others = keys.attempts(&ty, &id(&b));
        prop_assert_eq!(*others.begin < *attempt && *attempt < *others.end, a == b);
    }

    #[test]
    fn due_ranges_contain_due_jobs(due_ms: i64, now_ms: i64, bytes in bytes()) {
        let (keys, ty, id) = (Keys::new(), ty("mail"), id(&bytes));
        let timed = keys.index(&ty, &id, &Position::Timed(Class::Normal, None, due_ms));
        let due = keys.due(&ty, Class::Normal, id.timed_bucket(), now_ms);
        prop_assert_eq!(*due.begin <= *timed && *timed < *due.end, due_ms <= now_ms);
        // The end of time never expires.
        prop_assume!(due_ms < i64::MAX);
        let finished = keys.index(&ty, &id, &Position::Finished(due_ms));
        let expired = keys.expired(&ty, id.bucket(), now_ms);
        prop_assert_eq!(*expired.begin <= *finished && *finished < *expired.end, due_ms <= now_ms);
    }

    #[test]
    fn ready_ranges_cover_all_rows(order in order(), bytes in bytes(), shard in 0..1024_u16) {
        let (keys, ty, id) = (Keys::new(), ty("mail"), id(&bytes));
        let key = keys.index(&ty, &id, &Position::Ready(Class::Normal, None, order));
        let within = |range: &KeyRange| *range.begin <= *key && *key < *range.end;
        let (after, before) = keys.ready(&ty, Class::Normal, shard);
        prop_assert_eq!(within(&after), id.shard() >= shard);
        prop_assert_eq!(within(&before), id.shard() < shard);
    }

    #[test]
    fn turns_are_in_the_order_of_class_and_virtual_time(
        a in (class(), any::<i64>(), bytes()),
        b in (class(), any::<i64>(), bytes()),
    ) {
        let (keys, ty) = (Keys::new(), ty("mail"));
        let key = |(class, vtime, tenant): &(Class, i64, Vec<u8>)| {
            keys.turn(&ty, &(*class, tenant.clone().into()), *vtime)
        };
        prop_assert_eq!(key(&a).cmp(&key(&b)), a.cmp(&b));
        let (all, tenant) = (keys.turns(&ty, None), (a.0, Bytes::from(a.2.clone())));
        prop_assert_eq!(Keys::turn_of(&all, &key(&a)).unwrap(), (tenant.clone(), a.1));
        prop_assert!(keys.turns(&ty, Some(a.0)).contains(&key(&a)));
        let there = keys.there(&ty, &tenant);
        prop_assert_eq!(Keys::there_of(&keys.all_there(&ty), &there).unwrap(), tenant.clone());
        let vtime = keys.vtime(&ty, &tenant.1);
        prop_assert_eq!(Keys::tenant_of(&keys.vtimes(&ty), &vtime).unwrap(), Some(tenant.1));
    }

    #[test]
    fn ready_jobs_of_a_tenant_are_together(
        tenants in ((class(), bytes()), (class(), bytes())),
        order in order(),
        bytes in bytes(),
        shard in 0..1024_u16,
    ) {
        let (keys, ty, id) = (Keys::new(), ty("mail"), id(&bytes));
        let (a, b): ((_, Bytes), (_, Bytes)) =
            ((tenants.0.0, tenants.0.1.into()), (tenants.1.0, tenants.1.1.into()));
        let key = keys.index(&ty, &id, &Position::Shared(a.0, a.1.clone(), order));
        prop_assert_eq!(keys.shared_by(&ty, &b).contains(&key), a == b);
        let (after, before) = keys.shared_around(&ty, &a, shard);
        prop_assert_eq!(after.contains(&key), id.shard() >= shard);
        prop_assert_eq!(before.contains(&key), id.shard() < shard);
        prop_assert!(keys.all_shared(&ty).contains(&key));
    }

    #[test]
    fn types_have_separate_keys(bytes in bytes(), position in position()) {
        let keys = Keys::new();
        let (a, b) = (ty("mail"), ty("mail2"));
        let key = keys.index(&b, &id(&bytes), &position);
        let range = keys.state(&a, state_of(&position));
        prop_assert!(!(*range.begin <= *key && *key < *range.end));
    }

    #[test]
    fn any_type_has_a_prefix(name in "[a\\x00\u{e9}]{1,20}", position in position(), bytes in bytes()) {
        let (keys, ty, id) = (Keys::new(), ty(&name), id(&bytes));
        let key = keys.index(&ty, &id, &position);
        let state = state_of(&position);
        prop_assert_eq!(keys.state(&ty, state).begin.len(), keys.prefix_len(&ty));
        prop_assert_eq!(keys.position(&ty, state, &key).unwrap(), (position, id));
    }

    #[test]
    fn garbage_is_rejected(rest: Vec<u8>) {
        let (keys, ty) = (Keys::new(), ty("mail"));
        for state in State::ALL {
            let key = [&*keys.state(&ty, state).begin, &*rest].concat();
            let _ = keys.position(&ty, state, &key);
            prop_assert!(keys.position(&ty, state, &rest).is_err());
        }
    }
}

/// Stored bytes, which can never change.
#[test]
fn keys_are_pinned() {
    let (keys, ty, id) = (Keys::new(), ty("mail"), id(b"a\x00b"));
    let order = Order {
        incarnation: 1,
        version: 300,
    };
    let tenant = (Class::Normal, Bytes::from_static(b"anna"));
    let rows = [
        keys.job(&ty, &id),
        keys.index(&ty, &id, &Position::Ready(Class::Normal, None, order)),
        keys.index(&ty, &id, &Position::Timed(Class::Normal, None, 1_000)),
        keys.sleeper(&ty, 7),
        keys.notifier(&ty, 7),
        keys.type_row(&ty),
        keys.index(&ty, &id, &Position::Active),
        keys.chunk(&ty, &id, 2, 0),
        keys.index(&ty, &id, &Position::Finished(i64::MAX)),
        keys.attempt(&ty, &id, 9),
        keys.count(
            &ty,
            31,
            edge(Some((State::Pending, 0)), Some((State::Running, 0))),
        ),
        keys.lease(&ty, 5),
        keys.note(&ty, 7, &id),
        keys.types(),
        keys.index(&ty, &id, &Position::Dead(1_000)),
        keys.index(
            &ty,
            &id,
            &Position::Shared(Class::Urgent, tenant.1.clone(), order),
        ),
        keys.turn(&ty, &tenant, 1_000),
        keys.vtime(&ty, &tenant.1),
        keys.there(&ty, &tenant),
        keys.shares(&ty, &tenant.1),
    ];
    let shown: Vec<_> = rows
        .iter()
        .map(|key| key.escape_ascii().to_string())
        .collect();
    assert_eq!(shown, PINNED);
}

const PINNED: [&str; 20] = [
    r"\x153\x15\x01\x02mail\x00\x15\x10\x01a\x00\xffb\x00",
    r"\x153\x15\x02\x02mail\x00\x14\x16\x02\x0e\x15\x01\x16\x01,\x01a\x00\xffb\x00",
    r"\x153\x15\x02\x02mail\x00\x15\x01\x15\x83\x16\x03\xe8\x01a\x00\xffb\x00",
    r"\x153\x15\x03\x02mail\x00\x15\x07",
    r"\x153\x15\x04\x02mail\x00\x15\x07",
    r"\x153\x15\x05\x02mail\x00",
    r"\x153\x15\x06\x02mail\x00\x15\x10\x01a\x00\xffb\x00",
    r"\x153\x15\x07\x02mail\x00\x15\x10\x01a\x00\xffb\x00\x15\x02\x14",
    r"\x153\x15\x08\x02mail\x00\x15\x10\x1c\x7f\xff\xff\xff\xff\xff\xff\xff\x01a\x00\xffb\x00",
    r"\x153\x15\t\x02mail\x00\x15\x10\x01a\x00\xffb\x00\x15\t",
    r"\x153\x15\n\x02mail\x00\x15\x1f\x15\n",
    r"\x153\x15\x0b\x02mail\x00\x15\x05",
    r"\x153\x15\x0c\x02mail\x00\x15\x07\x01a\x00\xffb\x00",
    r"\x153\x15\r",
    r"\x153\x15\x15\x02mail\x00\x15\x10\x16\x03\xe8\x01a\x00\xffb\x00",
    r"\x153\x15\x02\x02mail\x00\x15\x07\x13\xfe\x01anna\x00\x16\x02\x0e\x15\x01\x16\x01,\x01a\x00\xffb\x00",
    r"\x153\x15\x0e\x02mail\x00\x14\x16\x03\xe8\x01anna\x00",
    r"\x153\x15\x16\x02mail\x00\x01anna\x00",
    r"\x153\x15\x18\x02mail\x00\x14\x01anna\x00",
    r"\x153\x15\x1a\x02mail\x00\x01anna\x00",
];

#[test]
fn transitions_tell_their_ends() {
    let states = State::ALL;
    let tags = [0, 1, LABELS - 1, tag(0, Class::Bulk), tag(7, Class::Urgent)];
    let kinds = states
        .iter()
        .flat_map(|state| tags.map(|tag| Some((*state, tag))));
    let kinds: Vec<Kind> = kinds.chain([None]).collect();
    let mut seen = std::collections::BTreeSet::new();
    for old in &kinds {
        for new in &kinds {
            let edge = edge(*old, *new);
            assert!(seen.insert(edge));
            assert_eq!(edge_ends(edge), [*old, *new]);
            for state in states {
                let is = |kind: &Kind| i64::from(kind.is_some_and(|(of, _)| of == state));
                assert_eq!(edge_adds(edge, state), is(new) - is(old));
            }
        }
    }
}
