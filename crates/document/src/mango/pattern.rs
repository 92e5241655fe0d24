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

#[derive(Debug)]
pub(super) struct Pattern {
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
pub(super) enum Unusable {
    Invalid,
    TooLarge,
}

impl Pattern {
    pub(super) fn new(pattern: &str) -> Result<Self, Unusable> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(Unusable::TooLarge);
        }
        let pattern = perl_dollar(pattern);
        for (bytes, weight) in SIZES {
            let config = meta::Config::new()
                .nfa_size_limit(Some(bytes))
                .hybrid_cache_capacity(CACHE_BYTES);
            match meta::Builder::new().configure(config).build(&pattern) {
                Ok(regex) => {
                    let engine = Engine::Linear(Box::new(regex));
                    return Ok(Self { engine, weight });
                }
                Err(error) if error.size_limit().is_some() => {}
                Err(_) => return Self::backtracking(&pattern),
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

    pub(super) fn is_match(&self, text: &str, budget: &mut Budget) -> Result<bool, TooExpensive> {
        match &self.engine {
            Engine::Linear(regex) => {
                budget.spend(self.weight * (1 + text.len() as u64))?;
                Ok(regex.is_match(text))
            }
            Engine::Backtracking(_) if text.len() > BACKTRACKING_BYTES_MAX => Err(TooExpensive),
            Engine::Backtracking(regexes) => {
                for (regex, steps) in regexes.iter().zip(STEPS_BACK) {
                    budget.spend(steps as u64)?;
                    if let Ok(matched) = regex.is_match(text) {
                        return Ok(matched);
                    }
                }
                Err(TooExpensive)
            }
        }
    }
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
