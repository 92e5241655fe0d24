//! Sets of refs that are to be pushed, and which refs a remote gets under which names.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A larger set becomes all refs.
const NAMES_MAX: usize = 256;
/// Likewise, a set with longer names: it has to fit into a value of the store.
const BYTES_MAX: usize = 32_768;

/// Refs of a project: some, or all that it has when they are pushed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Refs {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) all: bool,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) names: BTreeSet<String>,
}

impl Refs {
    pub(crate) fn all() -> Self {
        Self {
            all: true,
            names: BTreeSet::new(),
        }
    }

    pub(crate) fn of<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        let mut refs = Self::default();
        let names = names.into_iter().map(Into::into).collect();
        refs.merge(&Self { all: false, names });
        refs
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.all && self.names.is_empty()
    }

    /// Adds refs. False if they were all in the set.
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        let before = (self.all, self.names.len());
        if !self.all {
            self.all = other.all;
            self.names.extend(other.names.iter().cloned());
        }
        let bytes: usize = self.names.iter().map(String::len).sum();
        if self.all || self.names.len() > NAMES_MAX || bytes > BYTES_MAX {
            *self = Self::all();
        }
        before != (self.all, self.names.len())
    }

    /// For people: up to two names.
    pub(crate) fn shown(&self) -> String {
        if self.all {
            return "all refs".to_owned();
        }
        let first: Vec<&str> = self.names.iter().take(2).map(String::as_str).collect();
        match (first.join(", "), self.names.len()) {
            (first, 0..=2) => first,
            (first, count) => format!("{first}, {} more", count - 2),
        }
    }
}

/// Whether git accepts this as the whole name of a ref, so that it can be neither an option nor a refspec.
pub(crate) fn is_ref(name: &str) -> bool {
    let component = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && part.strip_suffix(".lock").is_none()
    };
    let forbidden = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    name.starts_with("refs/")
        && name.split('/').all(component)
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
        && !name.contains(forbidden)
}

/// One value of `remote.NAME.push`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refspec {
    pub(crate) force: bool,
    /// `^refs/…`: what it matches is not pushed. See [`by_target`].
    pub(crate) negative: bool,
    from: String,
    to: String,
}

impl Refspec {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let negative = text.starts_with('^');
        let force = text.starts_with('+');
        let text = text.strip_prefix(['^', '+']).unwrap_or(text);
        let (from, to) = match text.split_once(':') {
            Some((from, to)) if !negative => (from, to),
            Some(_) => return Err("a negative refspec has no target"),
            None => (text, text),
        };
        for side in [from, to] {
            if side.matches('*').count() > 1 || !is_ref(&side.replacen('*', "x", 1)) {
                return Err("give refs by their whole names, as in +refs/heads/*:refs/heads/*");
            }
        }
        if from.contains('*') != to.contains('*') {
            return Err("both sides of a refspec have a `*`, or neither");
        }
        let (from, to) = (from.to_owned(), to.to_owned());
        Ok(Self {
            force,
            negative,
            from,
            to,
        })
    }

    /// The name that a ref gets at the target; none if this refspec is not about it. A pattern takes the place of a name
    /// if this refspec is about all that it matches.
    pub(crate) fn target(&self, name: &str) -> Option<String> {
        match self.from.split_once('*') {
            Some((start, end)) => {
                let star = name.strip_prefix(start)?.strip_suffix(end)?;
                Some(self.to.replacen('*', star, 1))
            }
            None => (name == self.from).then(|| self.to.clone()),
        }
    }

    /// The one ref that it is about, if it has no `*`.
    pub(crate) fn name(&self) -> Option<&str> {
        (!self.negative && !self.from.contains('*')).then_some(&self.from)
    }

    /// Names at the target of what this refspec would push and a negative one withholds.
    fn withheld(&self, not: &Self) -> Result<Option<String>, String> {
        if not.target(&self.from).is_some() {
            return Err(format!(
                "{} pushes nothing, because {} withholds all of it; remove one of them",
                self.whole(),
                not.whole()
            ));
        }
        if let Some(part) = self.target(&not.from) {
            return Ok(Some(part));
        }
        let ends = (self.from.split_once('*'), not.from.split_once('*'));
        let (Some((start, end)), Some((not_start, not_end))) = ends else {
            return Ok(None);
        };
        let meet = (start.starts_with(not_start) && not_end.ends_with(end))
            || (not_start.starts_with(start) && end.ends_with(not_end));
        if !meet {
            return Ok(None);
        }
        if self.from == self.to {
            return Ok(Some(not.from.clone()));
        }
        Err(format!(
            "{} renames refs, and {} withholds only some of them; name these refs more closely",
            self.whole(),
            not.whole()
        ))
    }

    /// The refspec for a push of all refs.
    pub(crate) fn whole(&self) -> String {
        match self {
            Self { negative: true, .. } => format!("^{}", self.from),
            Self { force: true, .. } => format!("+{}:{}", self.from, self.to),
            _ => format!("{}:{}", self.from, self.to),
        }
    }

    /// The refspec that deletes the one ref that it is about from the target.
    pub(crate) fn deletion(&self) -> String {
        format!(":{}", self.to)
    }
}

/// A remote's refspecs as git needs them: it compares negative ones with the names at the target, but they are written
/// with the names here.
pub(crate) fn by_target(specs: Vec<Refspec>) -> Result<Vec<Refspec>, String> {
    let (negative, mut specs): (Vec<_>, Vec<_>) = specs.into_iter().partition(|spec| spec.negative);
    let mut withheld = BTreeSet::new();
    for spec in &specs {
        for not in &negative {
            withheld.extend(spec.withheld(not)?);
        }
    }
    specs.extend(withheld.into_iter().map(|to| Refspec {
        force: false,
        negative: true,
        from: to.clone(),
        to,
    }));
    Ok(specs)
}

/// The refspecs that push one ref, or delete it from the target if it does not exist any more; none if the remote does not
/// get this ref. They are those that git chooses in a push of all refs: each with exactly this name, and the first pattern,
/// unless its target is named by another refspec.
pub(crate) fn one<'a>(
    specs: &'a [Refspec],
    name: &'a str,
    exists: bool,
) -> impl Iterator<Item = String> {
    let (negative, positive): (Vec<_>, Vec<_>) = specs.iter().partition(|spec| spec.negative);
    let is_named = |spec: &&Refspec| spec.name().is_some();
    let (named, patterns): (Vec<_>, Vec<_>) = positive.into_iter().partition(is_named);
    let target = move |spec: &'a Refspec| Some((spec, spec.target(name)?));
    let pattern = patterns.into_iter().find_map(target);
    let pattern = pattern.filter(|(_, to)| named.iter().all(|spec| spec.to != *to));
    let chosen = named.into_iter().filter_map(target).chain(pattern);
    let chosen = chosen.filter(move |(_, to)| negative.iter().all(|not| not.target(to).is_none()));
    chosen.map(move |(spec, to)| match (exists, spec.force) {
        (true, true) => format!("+{name}:{to}"),
        (true, false) => format!("{name}:{to}"),
        (false, _) => format!(":{to}"),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gr_t146_sets_merge_and_all_refs_are_one_mark() {
        let mut refs = Refs::of(["refs/heads/a"]);
        assert!(!refs.merge(&Refs::of(["refs/heads/a"])));
        assert!(refs.merge(&Refs::of(["refs/heads/b"])));
        assert_eq!(refs.shown(), "refs/heads/a, refs/heads/b");
        assert!(refs.merge(&Refs::all()));
        assert!(!refs.merge(&Refs::of(["refs/heads/c"])));
        assert_eq!(refs, Refs::all());
    }

    #[test]
    fn large_sets_become_all_refs() {
        let many = |count: usize| Refs::of((0..count).map(|n| format!("refs/heads/{n}")));
        assert!(!many(NAMES_MAX).all);
        assert!(many(NAMES_MAX + 1).all);
        let long = (0..40).map(|n| format!("refs/heads/{}{n}", "x".repeat(1_000)));
        assert!(Refs::of(long).all);
    }

    #[test]
    fn names_are_checked() {
        for good in [
            "refs/heads/main",
            "refs/changes/01/1/meta",
            "refs/tags/v1.0",
            "refs/heads/é",
        ] {
            assert!(is_ref(good), "{good}");
        }
        for bad in [
            "HEAD",
            "main",
            "--mirror",
            "refs/heads/",
            "refs//a",
            "refs/heads/a..b",
            "refs/heads/a b",
            "refs/heads/a:b",
            "refs/heads/*",
            "refs/heads/.a",
            "refs/heads/a.lock",
            "refs/heads/a\n",
            "+refs/heads/a",
            "refs/heads/@{0}",
        ] {
            assert!(!is_ref(bad), "{bad}");
        }
    }

    #[test]
    fn refspecs_map_refs() {
        let specs = |texts: &[&str]| -> Vec<_> {
            texts
                .iter()
                .map(|text| Refspec::parse(text).unwrap())
                .collect()
        };
        let one = |specs, name, exists| -> Vec<_> { one(specs, name, exists).collect() };
        let all = specs(&["refs/*:refs/*", "^refs/meta/config", "^refs/changes/*/meta"]);
        assert_eq!(
            one(&all, "refs/heads/a", true),
            ["refs/heads/a:refs/heads/a"]
        );
        assert_eq!(one(&all, "refs/heads/a", false), [":refs/heads/a"]);
        assert!(one(&all, "refs/meta/config", true).is_empty());
        assert!(one(&all, "refs/changes/01/1/meta", true).is_empty());
        let some = specs(&["+refs/heads/*:refs/mirror/*/x", "refs/tags/v1"]);
        assert_eq!(
            one(&some, "refs/heads/a/b", true),
            ["+refs/heads/a/b:refs/mirror/a/b/x"]
        );
        assert_eq!(
            one(&some, "refs/tags/v1", true),
            ["refs/tags/v1:refs/tags/v1"]
        );
        assert!(one(&some, "refs/tags/v2", true).is_empty());
        // As git does it in a push of all refs.
        let both = specs(&[
            "refs/heads/*:refs/heads/*",
            "refs/heads/*:refs/other/*",
            "refs/heads/main:refs/heads/prod",
            "+refs/heads/wip:refs/heads/wip",
        ]);
        assert_eq!(
            one(&both, "refs/heads/main", true),
            [
                "refs/heads/main:refs/heads/prod",
                "refs/heads/main:refs/heads/main"
            ]
        );
        assert_eq!(
            one(&both, "refs/heads/wip", true),
            ["+refs/heads/wip:refs/heads/wip"]
        );
        assert!(one(&both, "refs/heads/prod", true).is_empty());
        let whole: Vec<_> = some.iter().chain(&all).map(Refspec::whole).collect();
        assert_eq!(whole[0], "+refs/heads/*:refs/mirror/*/x");
        assert_eq!(whole[3], "^refs/meta/config");
        for bad in [
            "HEAD:refs/heads/main",
            "refs/heads/*:refs/heads/x",
            "--all",
            "^refs/a:refs/b",
            "refs/*/*",
            "",
        ] {
            assert!(Refspec::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn negative_refspecs_withhold_refs_under_their_names_at_the_target() {
        let translated = |texts: &[&str]| {
            let specs = texts.iter().map(|text| Refspec::parse(text).unwrap());
            let specs = by_target(specs.collect())?;
            Ok::<Vec<_>, String>(specs.iter().map(Refspec::whole).collect())
        };
        for (given, expected) in [
            (
                &["+refs/*:refs/backup/*", "^refs/meta/config", "^refs/a/*/b"][..],
                &[
                    "+refs/*:refs/backup/*",
                    "^refs/backup/a/*/b",
                    "^refs/backup/meta/config",
                ][..],
            ),
            (
                &["refs/heads/*:refs/m/*/x", "^refs/tags/*", "^refs/heads/s/*"],
                &["refs/heads/*:refs/m/*/x", "^refs/m/s/*/x"],
            ),
            (
                &["refs/heads/*:refs/heads/*", "^refs/*/meta"],
                &["refs/heads/*:refs/heads/*", "^refs/*/meta"],
            ),
        ] {
            assert_eq!(translated(given).unwrap(), expected);
        }
        let partly = translated(&["refs/heads/*:refs/m/*", "^refs/*/meta"]);
        assert!(partly.unwrap_err().contains("^refs/*/meta"));
        for (push, not) in [
            ("refs/heads/*:refs/m/*", "^refs/*"),
            ("refs/heads/*:refs/heads/*", "^refs/heads/*"),
            ("refs/heads/a:refs/m/a", "^refs/heads/*"),
        ] {
            assert_eq!(
                translated(&[push, not]).unwrap_err(),
                format!(
                    "{push} pushes nothing, because {not} withholds all of it; remove one of them"
                )
            );
        }
    }

    proptest! {
        /// Merging is a union, in any order.
        #[test]
        fn merging_is_commutative(sets in proptest::collection::vec(proptest::collection::btree_set("refs/heads/[a-c]{1,3}", 0..20), 1..20)) {
            let sets: Vec<Refs> = sets.into_iter().map(Refs::of).collect();
            let merged = |order: &mut dyn Iterator<Item = &Refs>| {
                let mut merged = Refs::default();
                order.for_each(|refs| { merged.merge(refs); });
                merged
            };
            prop_assert_eq!(merged(&mut sets.iter()), merged(&mut sets.iter().rev()));
        }
    }
}
