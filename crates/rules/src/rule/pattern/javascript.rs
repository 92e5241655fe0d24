//! Translates a JavaScript regular expression to the syntax of `fancy-regex`.
//!
//! The grammar is ECMAScript's without flags and with Annex B, so that `a{`, `]` and `\-` are literals. It differs in
//! what follows: `\d`, `\w` and `\b` are about ASCII, `$` matches only at the end, `.` does not match four line ends,
//! and a reference to a group that took no part matches nothing rather than failing.

use std::fmt::Write as _;

use super::BadPattern;
use super::class::{Class, LINE_ENDS};

/// How the texts start that a pattern matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Anywhere,
    Prefix(String),
    /// It matches this text only.
    Exact(String),
}

#[derive(Debug)]
pub(super) struct Translated {
    pub(super) text: String,
    /// The names of the groups, in order.
    pub(super) groups: Vec<Option<String>>,
    pub(super) start: Start,
}

const BOUNDARY: [&str; 2] = [
    r"(?-u:\b)",
    "(?:(?<=[0-9A-Za-z_])(?![0-9A-Za-z_])|(?<![0-9A-Za-z_])(?=[0-9A-Za-z_]))",
];
const NO_BOUNDARY: [&str; 2] = [
    r"(?-u:\B)",
    "(?:(?<=[0-9A-Za-z_])(?=[0-9A-Za-z_])|(?<![0-9A-Za-z_])(?![0-9A-Za-z_]))",
];
const UNICODE: &str = "needs the flag u, which rules do not have; write \\uXXXX, a pair of them, or the character itself";

/// `backtracks`: for the engine that has look-around, but no ASCII word boundaries.
pub(super) fn translate(pattern: &str, backtracks: bool) -> Result<Translated, BadPattern> {
    let mut reader = Reader {
        chars: pattern.chars().collect(),
        at: 0,
        out: String::new(),
        groups: Vec::new(),
        backtracks: usize::from(backtracks),
        open: Vec::new(),
        repeatable: false,
        prefix: None,
        start: Start::Anywhere,
    };
    reader.groups = reader.find_groups()?;
    while reader.at < reader.chars.len() {
        reader.term()?;
    }
    if let Some(open) = reader.open.pop() {
        return Err(BadPattern::new(open, "the group is not closed; add a `)`"));
    }
    if let Some(prefix) = reader.prefix.take() {
        reader.start = Start::Prefix(prefix);
    }
    Ok(Translated {
        text: reader.out,
        groups: reader.groups,
        start: reader.start,
    })
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    out: String,
    groups: Vec<Option<String>>,
    backtracks: usize,
    /// Where the open groups begin.
    open: Vec<usize>,
    /// A quantifier may follow.
    repeatable: bool,
    /// The literals since `^`, while there is nothing else.
    prefix: Option<String>,
    start: Start,
}

impl Reader {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = (text.chars().enumerate()).all(|(nth, char)| self.peek(nth) == Some(char));
        if found {
            self.at += text.chars().count();
        }
        found
    }

    /// The names of all groups, which references may come before.
    fn find_groups(&self) -> Result<Vec<Option<String>>, BadPattern> {
        let (mut groups, mut in_class, mut at) = (Vec::new(), false, 0);
        while let Some(char) = self.chars.get(at) {
            let next = |nth: usize| self.chars.get(at + nth).copied();
            match char {
                '\\' => at += 1,
                '[' => in_class = true,
                ']' => in_class = false,
                '(' if !in_class && next(1) != Some('?') => groups.push(None),
                '(' if !in_class && next(2) == Some('<') && !matches!(next(3), Some('=' | '!')) => {
                    let name = self.name(at + 3)?;
                    if groups.iter().any(|other| other.as_ref() == Some(&name)) {
                        let reason = format!("two groups have the name `{name}`; rename one");
                        return Err(BadPattern::new(at, reason));
                    }
                    groups.push(Some(name));
                }
                _ => {}
            }
            at += 1;
        }
        Ok(groups)
    }

    /// The name of a group, up to its `>`.
    fn name(&self, at: usize) -> Result<String, BadPattern> {
        let rest = self.chars.get(at..).unwrap_or_default();
        let name: String = rest.iter().take_while(|char| **char != '>').collect();
        let valid = |char: char| char.is_alphanumeric() || matches!(char, '_' | '$');
        let starts_well = name.starts_with(|first: char| valid(first) && !first.is_numeric());
        if !starts_well || !name.chars().all(valid) || name.chars().count() == rest.len() {
            let reason = "a group's name is letters, digits, `_` and `$`, does not start with a digit and ends with `>`, \
                          as in `(?<name>…)`";
            return Err(BadPattern::new(at, reason));
        }
        Ok(name)
    }

    fn term(&mut self) -> Result<(), BadPattern> {
        let start = self.at;
        let char = self.chars[start];
        self.at += 1;
        match char {
            '^' => {
                self.assertion(r"\A");
                let is_first = start == 0;
                self.prefix = is_first.then(String::new);
                return Ok(());
            }
            '$' => {
                if self.at == self.chars.len()
                    && let Some(text) = self.prefix.take()
                {
                    self.start = Start::Exact(text);
                }
                self.assertion(r"\z");
            }
            '(' => self.group(start)?,
            ')' => {
                if self.open.pop().is_none() {
                    return Err(BadPattern::new(
                        start,
                        "no group is open here; write `\\)` for a parenthesis",
                    ));
                }
                self.out.push(')');
                self.repeatable = true;
            }
            '|' => {
                if self.open.is_empty() {
                    (self.prefix, self.start) = (None, Start::Anywhere);
                }
                self.assertion("|");
                return Ok(());
            }
            '*' | '+' | '?' => self.quantifier(start, &char.to_string())?,
            '{' => match self.counts()? {
                Some(counts) => self.quantifier(start, &counts)?,
                None => self.literal('{'),
            },
            '.' => self.class(&Class::of(&LINE_ENDS).negated()),
            '[' => {
                let class = self.bracket(start)?;
                self.class(&class);
            }
            '\\' => self.escape(start)?,
            char => self.literal(char),
        }
        Ok(())
    }

    /// Something of no length, or that starts anew.
    fn assertion(&mut self, text: &str) {
        self.end_prefix();
        self.out.push_str(text);
        self.repeatable = false;
    }

    fn class(&mut self, class: &Class) {
        self.end_prefix();
        class.push_to(&mut self.out);
        self.repeatable = true;
    }

    fn literal(&mut self, char: char) {
        if let Some(prefix) = self.prefix.as_mut().filter(|_| self.open.is_empty()) {
            prefix.push(char);
        }
        if r"\.+*?()|[]{}^$#&-~".contains(char) {
            self.out.push('\\');
        }
        self.out.push(char);
        self.repeatable = true;
    }

    /// What follows is no literal.
    fn end_prefix(&mut self) {
        if let Some(prefix) = self.prefix.take() {
            self.start = Start::Prefix(prefix);
        }
    }

    fn group(&mut self, start: usize) -> Result<(), BadPattern> {
        self.end_prefix();
        let opening = ["?:", "?=", "?!", "?<=", "?<!"];
        if let Some(opening) = opening.iter().find(|opening| self.eat(opening)) {
            self.out.push('(');
            self.out.push_str(opening);
        } else if self.eat("?<") {
            self.at += self.name(self.at)?.chars().count() + 1;
            self.out.push('(');
        } else if self.peek(0) == Some('?') {
            return Err(BadPattern::new(
                start,
                "JavaScript has no such group: use (…), (?:…), (?<name>…), (?=…), (?!…), (?<=…) or (?<!…), and \
                 character classes such as [aA] for flags",
            ));
        } else {
            self.out.push('(');
        }
        self.open.push(start);
        self.repeatable = false;
        Ok(())
    }

    /// The rest of `{2}`, `{2,}` or `{2,3}`, or nothing if the brace is a literal.
    fn counts(&mut self) -> Result<Option<String>, BadPattern> {
        let rest = &self.chars[self.at..];
        let Some(length) = rest.iter().position(|char| *char == '}') else {
            return Ok(None);
        };
        let inner: String = rest[..length].iter().collect();
        let (least, most) = inner.split_once(',').unwrap_or((&inner, ""));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(least) || !(most.is_empty() || is_number(most)) {
            return Ok(None);
        }
        let number = |text: &str| text.parse().unwrap_or(u64::MAX);
        if !most.is_empty() && number(least) > number(most) {
            let reason = format!("the numbers in `{{{inner}}}` are out of order; swap them");
            return Err(BadPattern::new(self.at - 1, reason));
        }
        self.at += length + 1;
        Ok(Some(format!("{{{inner}}}")))
    }

    fn quantifier(&mut self, start: usize, text: &str) -> Result<(), BadPattern> {
        if !self.repeatable {
            return Err(BadPattern::new(
                start,
                format!(
                    "`{text}` has nothing to repeat; write `\\{text}` for the character itself"
                ),
            ));
        }
        if let Some(mut prefix) = self.prefix.take() {
            // The last one may be repeated or missing.
            prefix.pop();
            self.start = Start::Prefix(prefix);
        }
        self.out.push_str(text);
        if self.peek(0) == Some('?') {
            self.at += 1;
            self.out.push('?');
        }
        self.repeatable = false;
        Ok(())
    }

    fn bracket(&mut self, start: usize) -> Result<Class, BadPattern> {
        let negated = self.eat("^");
        let mut class = Class::default();
        loop {
            let at = self.at;
            let item = self.class_item(start)?;
            let Some(item) = item else { break };
            if self.peek(0) != Some('-') || matches!(self.peek(1), None | Some(']')) {
                item.add_to(&mut class);
                continue;
            }
            self.at += 1;
            let last = self.class_item(start)?;
            match (item, last) {
                (Item::Char(first), Some(Item::Char(last))) if first <= last => {
                    class.add(first, last);
                }
                (Item::Char(first), Some(Item::Char(last))) => {
                    let reason = format!("the range {first}-{last} is out of order; swap its ends");
                    return Err(BadPattern::new(at, reason));
                }
                // As in `[\w-.]`: the hyphen is a character.
                (first, last) => {
                    class.add('-', '-');
                    for item in [Some(first), last].into_iter().flatten() {
                        item.add_to(&mut class);
                    }
                }
            }
        }
        Ok(if negated { class.negated() } else { class })
    }

    /// The next part of a class; `None` at its end.
    fn class_item(&mut self, start: usize) -> Result<Option<Item>, BadPattern> {
        let Some(char) = self.peek(0) else {
            return Err(BadPattern::new(
                start,
                "the character class is not closed; add a `]`, or write `\\[` for a bracket",
            ));
        };
        let at = self.at;
        self.at += 1;
        Ok(match char {
            ']' => None,
            '\\' if self.eat("b") => Some(Item::Char('\u{8}')),
            '\\' => Some(self.escaped(at, true)?),
            char => Some(Item::Char(char)),
        })
    }

    fn escape(&mut self, start: usize) -> Result<(), BadPattern> {
        match self.peek(0) {
            Some('b') => self.assertion(BOUNDARY[self.backtracks]),
            Some('B') => self.assertion(NO_BOUNDARY[self.backtracks]),
            Some('k') if self.groups.iter().any(Option::is_some) => return self.named(start),
            Some('1'..='9') => {
                let digits = self.chars[self.at..]
                    .iter()
                    .map_while(|char| char.to_digit(10));
                let digits: Vec<u32> = digits.collect();
                let number = (digits.iter()).fold(0_usize, |number, digit| {
                    number.saturating_mul(10).saturating_add(*digit as usize)
                });
                if number <= self.groups.len() {
                    self.at += digits.len();
                    self.reference(number);
                    return Ok(());
                }
                let escaped = self.escaped(start, false)?;
                self.item(&escaped);
                return Ok(());
            }
            _ => {
                let escaped = self.escaped(start, false)?;
                self.item(&escaped);
                return Ok(());
            }
        }
        self.at += 1;
        Ok(())
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Char(char) => self.literal(*char),
            Item::Class(class) => self.class(class),
        }
    }

    /// `\k<name>`.
    fn named(&mut self, start: usize) -> Result<(), BadPattern> {
        if self.eat("k<") {
            let name = self.name(self.at)?;
            let number = (self.groups.iter()).position(|group| group.as_ref() == Some(&name));
            if let Some(number) = number {
                self.at += name.chars().count() + 1;
                self.reference(number + 1);
                return Ok(());
            }
        }
        let reason = "`\\k` refers to a group by its name, as in `\\k<name>`; there is no group of this name";
        Err(BadPattern::new(start, reason))
    }

    fn reference(&mut self, number: usize) {
        self.end_prefix();
        // Writing to a string does not fail.
        let _ = write!(self.out, "(?:(?({number})\\{number}|))");
        self.repeatable = true;
    }

    /// What a backslash at `start` and what follows it stand for, except for references and assertions.
    fn escaped(&mut self, start: usize, in_class: bool) -> Result<Item, BadPattern> {
        let Some(char) = self.peek(0) else {
            return Err(BadPattern::new(
                start,
                "the backslash escapes nothing; write `\\\\` for a backslash",
            ));
        };
        self.at += 1;
        if let Some(class) = Class::named(char) {
            return Ok(Item::Class(class));
        }
        Ok(Item::Char(match char {
            't' => '\t',
            'n' => '\n',
            'v' => '\u{b}',
            'f' => '\u{c}',
            'r' => '\r',
            '0'..='7' => self.octal(char),
            'c' => match self.peek(0) {
                Some(letter) if letter.is_ascii_alphabetic() => {
                    self.at += 1;
                    char::from(letter as u8 % 32)
                }
                Some(sign) if in_class && (sign.is_ascii_digit() || sign == '_') => {
                    self.at += 1;
                    char::from(sign as u8 % 32)
                }
                // The backslash is a literal, and so is the letter.
                _ => {
                    self.at -= 1;
                    '\\'
                }
            },
            'x' => self.hex(2).and_then(char::from_u32).unwrap_or('x'),
            'u' => self.unicode(start)?,
            'p' | 'P' if self.peek(0) == Some('{') => {
                let reason = format!("`\\{char}{{…}}` {UNICODE}, or a range of them");
                return Err(BadPattern::new(start, reason));
            }
            other => other,
        }))
    }

    /// Up to three digits, not above 255.
    fn octal(&mut self, first: char) -> char {
        let mut value = first.to_digit(8).unwrap_or_default();
        while let Some(digit) = self.peek(0).and_then(|char| char.to_digit(8))
            && value * 8 + digit <= 255
        {
            value = value * 8 + digit;
            self.at += 1;
        }
        char::from_u32(value).unwrap_or_default()
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let text = self.chars.get(self.at..self.at + digits)?;
        if !text.iter().all(char::is_ascii_hexdigit) {
            return None;
        }
        let text: String = text.iter().collect();
        self.at += digits;
        u32::from_str_radix(&text, 16).ok()
    }

    fn unicode(&mut self, start: usize) -> Result<char, BadPattern> {
        if self.peek(0) == Some('{') {
            return Err(BadPattern::new(start, format!("`\\u{{…}}` {UNICODE}")));
        }
        let Some(unit) = self.hex(4) else {
            return Ok('u');
        };
        if let Some(char) = char::from_u32(unit) {
            return Ok(char);
        }
        let low = if self.eat("\\u") { self.hex(4) } else { None };
        let units = [Some(unit), low].map(|unit| u16::try_from(unit?).ok());
        let decoded = char::decode_utf16(units.into_iter().flatten())
            .next()
            .and_then(Result::ok);
        decoded.ok_or_else(|| {
            let reason =
                "half a surrogate pair matches no text; write both halves next to each other";
            BadPattern::new(start, reason)
        })
    }
}

enum Item {
    Char(char),
    Class(Class),
}

impl Item {
    fn add_to(&self, class: &mut Class) {
        match self {
            Self::Char(char) => class.add(*char, *char),
            Self::Class(other) => class.extend(other),
        }
    }
}
