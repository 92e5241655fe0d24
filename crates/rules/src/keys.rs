//! The data model of this crate, and the only place that knows bytes of its keys. They lie in the layer of
//! [`scheduler`], which uses other tables.
//!
//! ```text
//! (52, 14)                        = versionstamp      changes with every rule; watched
//! (52, 14, instance, document id) = [database, rev]   an enabled rule, in the database of this name
//! (52, 20, server, instance, document id) = rev|source|…  a rule whose databases were looked for, for the source of this name
//! (52, 21, server, database)              = sequence      a database that rules ask for calls about, when it was last looked at; empty: it could not be read
//! (52, 22, instance, document id)         = rev           where the last rule of this id was deleted, or stopped asking for calls
//! (52, 23, instance, document id)         = rev           the same, until the jobs of that rule are removed
//! (52, 23, instance, "")                  = ""            all rules of a deleted database, until their jobs are removed
//! (52, 24, server, page)                  = hashes        databases that were there when rules were first looked for, and these rules
//! ```
//!
//! A row of a rule has no copy of the document, whose credentials may be resealed.

use docstore::InstanceId;
use store::KeyRange;
use store::tuple::{below, pack, unpack};

use crate::rule::set::{Compiled, RuleId};
use crate::source::options::Source;

const LAYER: u16 = 52;
const RULES: u16 = 14;
const SEEDED: u16 = 20;
const SEEN: u16 = 21;
const ENDED: u16 = 22;
const LEFT: u16 = 23;
const THERE: u16 = 24;

pub(crate) fn stamp() -> Vec<u8> {
    pack(&(LAYER, RULES))
}

/// A value of [`stamp`]: a format byte, and the stamp that the commit writes behind it.
pub(crate) fn stamp_value() -> Vec<u8> {
    let mut value = vec![1];
    value.extend([0xff; 10]);
    value.extend(1_u32.to_le_bytes());
    value
}

pub(crate) fn rule(instance: InstanceId, doc: &str) -> Vec<u8> {
    pack(&(LAYER, RULES, &instance.0[..], doc))
}

pub(crate) fn rules() -> KeyRange {
    below(&(LAYER, RULES))
}

/// Those in one database.
pub(crate) fn rules_of(instance: InstanceId) -> KeyRange {
    below(&(LAYER, RULES, &instance.0[..]))
}

pub(crate) fn parse_rule(key: &[u8]) -> Option<RuleId> {
    let (_, _, instance, doc) = unpack::<(u16, u16, Vec<u8>, String)>(key).ok()?;
    let instance = InstanceId(instance.try_into().ok()?);
    Some(RuleId { instance, doc })
}

pub(crate) fn seeded(server: &str, rule: &RuleId) -> Vec<u8> {
    pack(&(
        LAYER,
        SEEDED,
        server,
        &rule.instance.0[..],
        rule.doc.as_str(),
    ))
}

/// The value of [`seeded`]. A source of another name looks again, as the listening jobs are those of a source; so does one
/// that excludes other databases, as those that it excludes no longer are not new.
pub(crate) fn seeded_value(rule: &Compiled, source: &Source) -> Vec<u8> {
    let only_created = rule.rule.databases.only_created();
    let mut value = [&*rule.rev, "|", source.name()].concat();
    for more in [source.excludes(), only_created.then_some("created")] {
        value.extend(more.into_iter().flat_map(|more| ["|", more]));
    }
    value.into()
}

/// Whether a value of [`seeded`] is about this revision of a rule.
pub(crate) fn is_seeded_in(value: &[u8], rev: &str) -> bool {
    value
        .strip_prefix(rev.as_bytes())
        .is_some_and(|rest| rest.starts_with(b"|"))
}

/// All rules whose databases on a server were looked for.
pub(crate) fn all_seeded(server: &str) -> KeyRange {
    below(&(LAYER, SEEDED, server))
}

/// The value of [`seen`] for a database that could not be read. Nodes of earlier versions take it for one whose sequence is
/// not known yet, `null`; what they cannot decode would end their listings.
pub(crate) const UNREAD: &[u8] = b"null ";

pub(crate) fn seen(server: &str, database: &str) -> Vec<u8> {
    pack(&(LAYER, SEEN, server, database))
}

/// All databases of a server that rules ask for calls about.
pub(crate) fn all_seen(server: &str) -> KeyRange {
    below(&(LAYER, SEEN, server))
}

pub(crate) fn seen_database(key: &[u8]) -> Option<String> {
    let (_, _, _, database) = unpack::<(u16, u16, String, String)>(key).ok()?;
    Some(database)
}

pub(crate) fn there(server: &str, page: u32) -> Vec<u8> {
    pack(&(LAYER, THERE, server, page))
}

/// All pages of a server.
pub(crate) fn all_there(server: &str) -> KeyRange {
    below(&(LAYER, THERE, server))
}

pub(crate) fn ended(rule: &RuleId) -> Vec<u8> {
    pack(&(LAYER, ENDED, &rule.instance.0[..], rule.doc.as_str()))
}

/// Those of one database.
pub(crate) fn ended_of(instance: InstanceId) -> KeyRange {
    below(&(LAYER, ENDED, &instance.0[..]))
}

pub(crate) fn left(rule: &RuleId) -> Vec<u8> {
    pack(&(LAYER, LEFT, &rule.instance.0[..], rule.doc.as_str()))
}

pub(crate) fn all_left() -> KeyRange {
    below(&(LAYER, LEFT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_pinned() {
        let instance = InstanceId([7; 16]);
        assert_eq!(stamp().escape_ascii().to_string(), r"\x154\x15\x0e");
        let key = rule(instance, "a");
        let sevens = r"\x07".repeat(16);
        assert_eq!(
            key.escape_ascii().to_string(),
            format!(r"\x154\x15\x0e\x01{sevens}\x00\x02a\x00")
        );
        assert!(rules().contains(&key) && rules_of(instance).contains(&key));
        assert!(!rules().contains(&stamp()) && !rules_of(InstanceId([6; 16])).contains(&key));
        let doc = "a".to_owned();
        let id = RuleId { instance, doc };
        assert_eq!(parse_rule(&key), Some(id.clone()));
        assert_eq!(parse_rule(&left(&id)), Some(id.clone()));
        assert!(ended_of(instance).contains(&ended(&id)) && all_left().contains(&left(&id)));
        assert!(!all_left().contains(&ended(&id)));
        assert_eq!(parse_rule(b"x"), None);
        let key = seen("http://a/", "b");
        assert!(all_seen("http://a/").contains(&key) && !all_seen("http://").contains(&key));
        assert_eq!(seen_database(&key).as_deref(), Some("b"));
        let key = there("http://a/", 300);
        assert!(all_there("http://a/").contains(&key) && !all_there("http://").contains(&key));
    }
}
