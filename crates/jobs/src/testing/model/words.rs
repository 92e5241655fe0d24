//! Readable scripts.

use std::fmt;

use store::CommitFate;

use super::script::{Act, At, End, Kept, Request, Rules, Script, Step, When, Word};
use crate::testing::rules::Token;

/// Shown after "data", if there is any.
struct Data(Option<Token>);

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} steps:", self.0.len())?;
        for (number, step) in (1..).zip(&self.0) {
            writeln!(f, "{number:>4}. {step:?}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Do(act, fate) => write!(f, "{act:?}{}", outcome(*fate)),
            Self::Together { acts, fate, regret } => {
                write!(f, "together: ")?;
                for (number, act) in acts.iter().enumerate() {
                    write!(f, "{}{act:?}", if number == 0 { "" } else { "; " })?;
                }
                let regret = if *regret { " (given up)" } else { "" };
                write!(f, "{}{regret}", outcome(*fate))
            }
            Self::During { outer, inner } => {
                write!(f, "{outer:?}; before that is committed: {inner:?}")
            }
            Self::Pass(ms) => write!(f, "{ms} ms go by"),
            Self::Maintain { silent, verdict } => {
                write!(f, "maintain: runs ^{silent:?} are silent, {verdict:?}")
            }
            Self::SetType(ty, rules) => write!(f, "register t{ty}: {rules:?}"),
            Self::ClearType(ty) => write!(f, "clear t{ty}"),
        }
    }
}

/// The fate of a commit.
fn outcome(fate: CommitFate) -> &'static str {
    match fate {
        CommitFate::Normal => "",
        CommitFate::Conflict => " (conflicts once)",
        CommitFate::UnknownApplied => " (committed, the answer is lost)",
        CommitFate::UnknownLost => " (not committed, and no answer)",
        CommitFate::UnknownLate => " (committed late, and no answer)",
    }
}

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add { ty, requests } => {
                write!(f, "add to t{ty}:")?;
                requests
                    .iter()
                    .try_for_each(|request| write!(f, " {request:?}"))
            }
            Self::Resubmit { at, due, data } => {
                write!(f, "resubmit {at:?}")?;
                if let Some(due) = due {
                    write!(f, " {due:?}")?;
                }
                write!(f, "{:?}", Data(*data))
            }
            Self::Signal {
                ty,
                requests,
                create,
            } => {
                let create = if *create { ", or create" } else { "" };
                write!(f, "signal in t{ty}{create}:")?;
                requests
                    .iter()
                    .try_for_each(|request| write!(f, " {request:?}"))
            }
            Self::Retry(at) => write!(f, "retry {at:?}"),
            Self::Remove(at) => write!(f, "remove {at:?}"),
            Self::Accept {
                ty,
                holder,
                count,
                horizon,
            } => {
                write!(f, "p{holder} accepts up to {count} of t{ty}")?;
                match horizon {
                    Some(ms) => write!(f, " due by now{ms:+}"),
                    None => Ok(()),
                }
            }
            Self::Update(run, data) => write!(f, "update run ^{run}{:?}", Data(*data)),
            Self::RunAgain(run, when, data) => {
                write!(f, "run ^{run} again {when:?}{:?}", Data(*data))
            }
            Self::Finish(ends) => {
                write!(f, "finish")?;
                (ends.iter()).try_for_each(|(run, end)| write!(f, " run ^{run} {end:?}"))
            }
        }
    }
}

impl fmt::Debug for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}/j{}", self.ty, self.id)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (due, data) = (self.due, Data(Some(self.data)));
        write!(f, "(j{} {due:?}{data:?}", self.id)?;
        match self.kept {
            Kept::AsType => write!(f, ")"),
            Kept::Forever => write!(f, ", kept for good)"),
            Kept::Ms(ms) => write!(f, ", kept for {ms} ms)"),
        }
    }
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Soon => write!(f, "soon"),
            Self::Negative => write!(f, "before all time"),
            Self::In(ms) => write!(f, "at now{ms:+}"),
            Self::Never => write!(f, "at the end of time"),
        }
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.again {
            Some(when) if self.failed => write!(f, "as failed, to run again {when:?}")?,
            Some(when) => write!(f, "to run again {when:?}")?,
            None if self.dead => write!(f, "as dead")?,
            None if self.failed => write!(f, "as failed")?,
            None => write!(f, "as done")?,
        }
        if self.unused {
            write!(f, ", unused")?;
        }
        write!(f, "{:?}", Data(self.data))
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy => write!(f, "by the policy"),
            Self::Rerun(due, data) => write!(f, "run again {due:?}{:?}", Data(*data)),
            Self::GiveUp(data) => write!(f, "given up{:?}", Data(*data)),
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kept, stalls) = (self.retention_ms, self.stalls_max);
        let (backoff, healthy) = (self.backoff_ms, self.healthy_ms);
        write!(
            f,
            "kept {kept:?}, stalls {stalls:?}, back-off {backoff}, healthy after {healthy}"
        )
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(token) => write!(f, " data {token}"),
            None => Ok(()),
        }
    }
}
