//! Regular expressions as JavaScript reads them without flags, except that characters are code points.

mod class;
mod javascript;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use document::mango::{self, Budget, TooExpensive, Unusable};

use javascript::{Start, translate};

/// The part of a text that a named group matched, by the name of the group.
pub type Captures = BTreeMap<String, String>;

/// Why a regular expression is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the regular expression cannot be used{}: {reason}", place(*at))]
pub struct BadPattern {
    /// The number of the character, from 0; `None` if no single one is to blame.
    pub at: Option<usize>,
    /// With advice.
    pub reason: String,
}

fn place(at: Option<usize>) -> String {
    at.map_or_else(String::new, |at| format!(" at character {}", at + 1))
}

impl BadPattern {
    fn new(at: usize, reason: impl Into<String>) -> Self {
        Self {
            at: Some(at),
            reason: reason.into(),
        }
    }
}

#[derive(Debug)]
pub struct Pattern {
    /// As JavaScript has it.
    source: String,
    start: Start,
    /// The names of the groups, in order.
    groups: Vec<Option<String>>,
    /// Compiled when it is first needed: of many rules most are about other databases.
    engine: OnceLock<Result<mango::Pattern, Unusable>>,
}

impl Pattern {
    pub fn parse(source: &str) -> Result<Self, BadPattern> {
        let pattern = Self::accepted(source)?;
        if pattern.exact().is_none() {
            pattern.engine().map_err(|unusable| BadPattern {
                at: None,
                reason: match unusable {
                    Unusable::Invalid => {
                        "the engine does not support its combination of look-behind, back-references and repetitions; \
                         write it without them"
                    }
                    Unusable::TooLarge => "it is too large; use smaller repetitions, or several rules",
                }
                .to_owned(),
            })?;
        }
        Ok(pattern)
    }

    /// A pattern that [`Self::parse`] has accepted before, which is quicker.
    pub(super) fn accepted(source: &str) -> Result<Self, BadPattern> {
        let translated = translate(source, false)?;
        Ok(Self {
            source: source.to_owned(),
            start: translated.start,
            groups: translated.groups,
            engine: OnceLock::new(),
        })
    }

    fn engine(&self) -> Result<&mango::Pattern, Unusable> {
        let compile = |backtracks| {
            let translated = translate(&self.source, backtracks).map_err(|_| Unusable::Invalid)?;
            mango::Pattern::new(&translated.text)
        };
        let engine = self.engine.get_or_init(|| match compile(false) {
            Err(Unusable::Invalid) => compile(true),
            engine => engine,
        });
        engine.as_ref().map_err(|unusable| *unusable)
    }

    /// The only text that it matches, if there is only one.
    pub fn exact(&self) -> Option<&str> {
        match &self.start {
            Start::Exact(text) => Some(text),
            _ => None,
        }
    }

    /// What all texts start with that it matches.
    pub fn prefix(&self) -> &str {
        match &self.start {
            Start::Anywhere => "",
            Start::Prefix(text) | Start::Exact(text) => text,
        }
    }

    pub fn is_match(&self, text: &str, budget: &mut Budget) -> Result<bool, TooExpensive> {
        match self.exact() {
            Some(only) => Ok(only == text),
            None => (self.engine().map_err(|_| TooExpensive)?).is_match(text, budget),
        }
    }

    /// The names of its groups.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().flatten().map(String::as_str)
    }

    /// What its named groups matched; `None` if it does not match. A group that took no part is empty.
    pub fn captures(
        &self,
        text: &str,
        budget: &mut Budget,
    ) -> Result<Option<Captures>, TooExpensive> {
        if self.names().next().is_none() {
            return Ok(self.is_match(text, budget)?.then(Captures::new));
        }
        let engine = self.engine().map_err(|_| TooExpensive)?;
        let Some(groups) = engine.groups(text, budget)? else {
            return Ok(None);
        };
        let named = self.groups.iter().zip(groups.into_iter().skip(1));
        let named =
            named.filter_map(|(name, text)| Some((name.clone()?, text.unwrap_or_default())));
        Ok(Some(named.collect()))
    }
}

#[cfg(test)]
mod tests;
