//! Faults to inject: a script of faults for certain requests, or faults drawn from a seed.
//!
//! ```
//! use peer::{Fault, Faults, On};
//!
//! let script = Faults::script([
//!     (On::post("*/_bulk_docs").nth(2), Fault::LoseAnswer),
//!     (On::get("*/_changes").first(3), Fault::CutBody { after_bytes: 100 }),
//!     (On::any("/db/doc*"), Fault::Latency { ms: 50 }),
//! ]);
//! ```
//!
//! Of a script all rules that match a request apply, in order. A seed decides by method, path and how often that path was asked for, so the
//! same requests meet the same faults whatever order they arrive in.

mod draw;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

pub use draw::Profile;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Faults for certain requests.
    pub script: Vec<(On, Fault)>,
    /// Faults drawn for all requests.
    pub seeded: Option<(u64, Profile)>,
}

impl Faults {
    pub fn none() -> Self {
        Self::default()
    }

    /// Injects the given faults into the given requests.
    pub fn script(rules: impl IntoIterator<Item = (On, Fault)>) -> Self {
        Self {
            script: rules.into_iter().collect(),
            seeded: None,
        }
    }

    /// Draws faults for every request.
    pub fn seeded(seed: u64, profile: Profile) -> Self {
        Self {
            script: Vec::new(),
            seeded: Some((seed, profile)),
        }
    }
}

/// The requests that get a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct On {
    /// The method, or any. `HEAD` is not `GET` here.
    pub method: Option<String>,
    /// The decoded path, in which `*` stands for any text. After a `?` comes the query as sent.
    pub path: String,
    /// The first of the matching requests that gets the fault, counted from 1.
    pub from: u64,
    /// The last of them, or all.
    pub to: Option<u64>,
}

impl On {
    /// Requests with any method.
    pub fn any(path: &str) -> Self {
        Self {
            method: None,
            path: path.to_owned(),
            from: 1,
            to: None,
        }
    }

    pub fn get(path: &str) -> Self {
        Self {
            method: Some("GET".to_owned()),
            ..Self::any(path)
        }
    }

    pub fn put(path: &str) -> Self {
        Self {
            method: Some("PUT".to_owned()),
            ..Self::any(path)
        }
    }

    pub fn post(path: &str) -> Self {
        Self {
            method: Some("POST".to_owned()),
            ..Self::any(path)
        }
    }

    /// Only the nth of them, counted from 1.
    #[must_use]
    pub fn nth(self, nth: u64) -> Self {
        Self {
            from: nth,
            to: Some(nth),
            ..self
        }
    }

    /// Only the first few of them.
    #[must_use]
    pub fn first(self, count: u64) -> Self {
        Self {
            from: 1,
            to: Some(count),
            ..self
        }
    }

    /// The nth of them, counted from 1, and all that follow.
    #[must_use]
    pub fn from(self, nth: u64) -> Self {
        Self {
            from: nth,
            to: None,
            ..self
        }
    }

    fn concerns(&self, method: &str, path: &str, query: &str) -> bool {
        if self.method.as_ref().is_some_and(|only| only != method) {
            return false;
        }
        match self.path.split_once('?') {
            None => matches(&self.path, path),
            Some((pattern, wanted)) => matches(pattern, path) && matches(wanted, query),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    Latency {
        ms: u64,
    },
    /// The request is refused without reading its body.
    Status {
        status: u16,
        /// `Retry-After`: seconds, or any other text; `date+N` becomes the date in N seconds.
        retry_after: Option<String>,
    },
    /// Another answer is sent without reading the request's body.
    Answer {
        status: u16,
        headers: Vec<(String, String)>,
        body: String,
    },
    /// The request is refused after part of its body was read, and the connection closed.
    RefuseEarly {
        status: u16,
        after_bytes: u64,
    },
    /// The connection is reset before the request is handled.
    Reset,
    /// The request is handled, and the connection reset instead of an answer.
    LoseAnswer,
    /// There is no answer, and the connection stays open.
    Hang,
    /// The connection is closed in the middle of the answer's body.
    CutBody {
        after_bytes: usize,
    },
    /// The answer's body ends early, but like a complete one.
    TruncateBody {
        after_bytes: usize,
    },
    /// The answer's body is sent slowly.
    SlowBody {
        bytes_per_second: u64,
    },
    /// The answer's body is sent byte by byte.
    Dribble,
    /// `Content-Length` is wrong.
    DeclareLength {
        by: i64,
    },
    /// The answer's body is followed by endless spaces.
    EndlessBody,
    /// The server's clock is skewed from now on.
    ClockSkew {
        seconds: i64,
    },
    /// The server restarts: all connections and sessions are lost, the data stays.
    Restart {
        down_ms: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    pub method: String,
    pub path: String,
    pub fault: Fault,
}

/// Decides which faults a request gets.
#[derive(Debug)]
pub(crate) struct Injector {
    idle: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    plan: Faults,
    /// The number of requests that matched each rule of the script.
    concerned: Vec<u64>,
    /// The number of requests per method and path.
    asked: HashMap<(String, String), u64>,
    drawn: u64,
    injected: Vec<Injected>,
}

impl Injector {
    pub(crate) fn new(plan: Faults) -> Self {
        let injector = Self {
            idle: AtomicBool::new(true),
            state: Mutex::default(),
        };
        injector.set(plan);
        injector
    }

    /// Replaces the plan; counting starts over.
    pub(crate) fn set(&self, plan: Faults) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.idle.store(plan == Faults::none(), Ordering::Release);
        let concerned = vec![0; plan.script.len()];
        *state = State {
            plan,
            concerned,
            injected: std::mem::take(&mut state.injected),
            ..State::default()
        };
    }

    pub(crate) fn injected(&self) -> Vec<Injected> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .injected
            .clone()
    }

    /// The faults of a request.
    pub(crate) fn decide(&self, method: &str, path: &str, query: &str) -> Vec<Fault> {
        if self.idle.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let mut faults = Vec::new();
        for ((on, fault), count) in state.plan.script.iter().zip(&mut state.concerned) {
            if on.concerns(method, path, query) {
                *count += 1;
                if *count >= on.from && on.to.is_none_or(|to| *count <= to) {
                    faults.push(fault.clone());
                }
            }
        }
        if let Some((seed, profile)) = &state.plan.seeded
            && state.drawn < profile.faults_max
        {
            let nth = state
                .asked
                .entry((method.to_owned(), path.to_owned()))
                .or_insert(0);
            *nth += 1;
            let drawn = profile.draw(*seed, method, path, *nth);
            state.drawn += drawn.len() as u64;
            faults.extend(drawn);
        }
        let injected = |fault: &Fault| Injected {
            method: method.to_owned(),
            path: path.to_owned(),
            fault: fault.clone(),
        };
        state.injected.extend(faults.iter().map(injected));
        faults
    }
}

/// Whether a pattern, in which `*` stands for any text, matches a whole text.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(first) else {
        return false;
    };
    let starts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    starts.into_iter().any(|at| matches(rest, &text[at..]))
}
