//! Regular expressions with bounded running time.
//!
//! Patterns that need no backtracking are matched in linear time. Look-around and back-references use backtracking,
//! limited to short texts and a number of steps.

use fancy_regex::RegexBuilder;
use regex_automata::meta;

use super::{Budget, TooExpensive};

const PATTERN_BYTES_MAX: usize = 16 * 1024;
/// Maximum sizes of automata, with the relative cost per byte at that size.
const SIZES: [(usize, u64); 3] = [(64 << 10, 1), (512 << 10, 8), (2 << 20, 32)];
/// The relative cost of backtracking.
const BACKTRACKING_WEIGHT: u64 = 8;
/// Maximum backtracking steps; few patterns need more than the first number.
const STEPS_BACK: [usize; 2] = [2_000, 50_000];
/// Maximum length of a text matched by backtracking.
const BACKTRACKING_BYTES_MAX: usize = 8 * 1024;
/// Maximum size of the parts that need no backtracking.
const PART_BYTES_MAX: usize = 64 << 10;
/// Memory for the states of a lazy automaton.
const CACHE_BYTES: usize = 256 << 10;

/// A compiled regular expression. It searches: without `^` it matches anywhere in a text.
#[derive(Debug)]
pub struct Pattern {
    engine: Engine,
    /// Its size: the total of a selector's patterns is bounded.
    pub(super) weight: u64,
}

#[derive(Debug)]
enum Engine {
    Linear(Box<meta::Regex>),
    Backtracking(Box<[fancy_regex::Regex; 2]>),
}

/// Why a pattern cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is malformed, or uses what the engines do not have.
    Invalid,
    /// It is too long, or its automaton would be.
    TooLarge,
}

impl Pattern {
    /// In Perl's syntax, as far as the crate `fancy-regex` supports it.
    pub(super) fn perl(pattern: &str) -> Result<Self, Unusable> {
        Self::new(&perl_dollar(pattern))
    }

    /// In the syntax of the crate `fancy-regex`.
    pub fn new(pattern: &str) -> Result<Self, Unusable> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(Unusable::TooLarge);
        }
        for (bytes, weight) in SIZES {
            let config = meta::Config::new()
                .nfa_size_limit(Some(bytes))
                .hybrid_cache_capacity(CACHE_BYTES);
            match meta::Builder::new().configure(config).build(pattern) {
                Ok(regex) => {
                    let engine = Engine::Linear(Box::new(regex));
                    return Ok(Self { engine, weight });
                }
                Err(error) if error.size_limit().is_some() => {}
                Err(_) => return Self::backtracking(pattern),
            }
        }
        Err(Unusable::TooLarge)
    }

    fn backtracking(pattern: &str) -> Result<Self, Unusable> {
        let build = |steps| {
            RegexBuilder::new(pattern)
                .backtrack_limit(steps)
                .delegate_size_limit(PART_BYTES_MAX)
                .delegate_dfa_size_limit(PART_BYTES_MAX)
                .build()
                .map_err(|_| Unusable::Invalid)
        };
        let engines = [build(STEPS_BACK[0])?, build(STEPS_BACK[1])?];
        Ok(Self {
            engine: Engine::Backtracking(Box::new(engines)),
            weight: BACKTRACKING_WEIGHT,
        })
    }

    pub(super) fn backtracks(&self) -> bool {
        matches!(self.engine, Engine::Backtracking(_))
    }

    pub fn is_match(&self, text: &str, budget: &mut Budget) -> Result<bool, TooExpensive> {
        match &self.engine {
            Engine::Linear(regex) => {
                budget.spend(self.weight * (1 + text.len() as u64))?;
                Ok(regex.is_match(text))
            }
            Engine::Backtracking(regexes) => {
                backtrack(regexes, text, budget, |regex| regex.is_match(text))
            }
        }
    }

    /// What the groups of the first match contain, after the match itself; `None` if there is no match.
    pub fn groups(
        &self,
        text: &str,
        budget: &mut Budget,
    ) -> Result<Option<Vec<Option<String>>>, TooExpensive> {
        let regexes = match &self.engine {
            Engine::Linear(regex) => {
                budget.spend(self.weight * (1 + text.len() as u64))?;
                let mut found = regex.create_captures();
                regex.captures(text, &mut found);
                let group = |span: regex_automata::Span| text[span.range()].to_owned();
                let groups = found.iter().map(|span| span.map(group));
                return Ok(found.is_match().then(|| groups.collect()));
            }
            Engine::Backtracking(regexes) => regexes,
        };
        backtrack(regexes, text, budget, |regex| {
            let found = regex.captures(text)?;
            let group = |group: fancy_regex::Match<'_>| group.as_str().to_owned();
            Ok(found.map(|found| found.iter().map(|found| found.map(group)).collect()))
        })
    }
}

/// Searches with few steps first.
fn backtrack<T>(
    regexes: &[fancy_regex::Regex; 2],
    text: &str,
    budget: &mut Budget,
    search: impl Fn(&fancy_regex::Regex) -> fancy_regex::Result<T>,
) -> Result<T, TooExpensive> {
    if text.len() > BACKTRACKING_BYTES_MAX {
        return Err(TooExpensive);
    }
    for (regex, steps) in regexes.iter().zip(STEPS_BACK) {
        budget.spend(steps as u64)?;
        if let Ok(found) = search(regex) {
            return Ok(found);
        }
    }
    Err(TooExpensive)
}

/// Perl's `$` also matches before a final newline; in the regex crates it does not.
fn perl_dollar(pattern: &str) -> String {
    if !pattern.contains('$') || pattern.contains("(?") {
        return pattern.to_owned();
    }
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut letters = pattern.chars().peekable();
    let mut in_class = false;
    let mut depth = 0_u32;
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => {
                out.push(letter);
                out.extend(letters.next());
                continue;
            }
            '[' if !in_class => {
                in_class = true;
                out.push(letter);
                // A closing bracket that comes first is a literal.
                if let Some(caret) = letters.next_if_eq(&'^') {
                    out.push(caret);
                }
                if letters.next_if_eq(&']').is_some() {
                    out.push_str(r"\]");
                }
                continue;
            }
            // A named class such as `[:alpha:]` has brackets of its own.
            '[' if letters.peek() == Some(&':') => {
                out.push(letter);
                for letter in letters.by_ref() {
                    out.push(letter);
                    if out.ends_with(":]") {
                        break;
                    }
                }
                continue;
            }
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            '$' if !in_class => {
                // Where nothing can follow, no look-ahead is needed, and the pattern needs no backtracking.
                let last = depth == 0 && matches!(letters.peek(), None | Some('|'));
                out.push_str(if last { r"\n?\z" } else { r"(?=\n?\z)" });
                continue;
            }
            _ => {}
        }
        out.push(letter);
    }
    out
}
