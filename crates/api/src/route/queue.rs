//! `/_jobs`: jobs of users.

use ::queue::Right;
use http::Method;

use super::Access;
use crate::Error;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueRoute {
    /// `/_jobs`
    Types,
    /// `/_jobs/{type}`: the settings, by `PUT`; new jobs, by `POST`; a listing; its end, by `DELETE`
    Type(String),
    /// `/_jobs/{type}/_something`
    Part(String, TypePart),
    /// `/_jobs/{type}/{id}`
    Job(String, String),
    /// `/_jobs/{type}/{id}/_something`
    JobPart(String, String, JobPart),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypePart {
    /// Settings and numbers.
    Info,
    Claim,
    Beat,
    Finish,
    Retry,
    Pause,
    Resume,
    Feed,
    /// Failed jobs by error.
    Failures,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPart {
    Wait,
    Retry,
}

impl QueueRoute {
    pub(super) fn parse(rest: &[&str]) -> Result<Self, Error> {
        let part = |ty: &str, part| Self::Part(ty.to_owned(), part);
        Ok(match *rest {
            [] => Self::Types,
            [ty] => Self::Type(ty.to_owned()),
            [ty, "_type"] => part(ty, TypePart::Info),
            [ty, "_claim"] => part(ty, TypePart::Claim),
            [ty, "_beat"] => part(ty, TypePart::Beat),
            [ty, "_finish"] => part(ty, TypePart::Finish),
            [ty, "_retry"] => part(ty, TypePart::Retry),
            [ty, "_pause"] => part(ty, TypePart::Pause),
            [ty, "_resume"] => part(ty, TypePart::Resume),
            [ty, "_feed"] => part(ty, TypePart::Feed),
            [ty, "_failures"] => part(ty, TypePart::Failures),
            [_, id] if id.starts_with('_') => return Err(Error::not_found("missing")),
            [ty, id] => Self::Job(ty.to_owned(), id.to_owned()),
            [ty, id, "_wait"] => Self::JobPart(ty.to_owned(), id.to_owned(), JobPart::Wait),
            [ty, id, "_retry"] => Self::JobPart(ty.to_owned(), id.to_owned(), JobPart::Retry),
            _ => return Err(Error::not_found("missing")),
        })
    }

    /// The type in the path.
    pub(crate) fn type_name(&self) -> Option<&str> {
        match self {
            Self::Types => None,
            Self::Type(ty) | Self::Part(ty, _) | Self::Job(ty, _) | Self::JobPart(ty, ..) => {
                Some(ty)
            }
        }
    }

    /// Whether a request has a time limit of its own, because it may wait for jobs.
    pub(crate) fn waits(&self) -> bool {
        matches!(
            self,
            Self::Part(
                _,
                TypePart::Claim | TypePart::Finish | TypePart::Feed | TypePart::Retry
            ) | Self::JobPart(_, _, JobPart::Wait)
        )
    }

    pub(super) fn access(&self, method: &Method) -> Access {
        match self {
            Self::Types => Access::Authenticated,
            Self::Type(_) if *method == Method::POST => Access::Type(Right::Enqueue),
            Self::Type(_) if *method == Method::PUT => Access::Admin,
            Self::Type(_) | Self::Job(..) if *method == Method::DELETE => Access::Admin,
            Self::Part(_, TypePart::Claim | TypePart::Beat | TypePart::Finish) => {
                Access::Type(Right::Work)
            }
            Self::Part(_, TypePart::Retry | TypePart::Pause | TypePart::Resume)
            | Self::JobPart(_, _, JobPart::Retry) => Access::Admin,
            Self::Type(_)
            | Self::Job(..)
            | Self::Part(_, TypePart::Info | TypePart::Feed | TypePart::Failures)
            | Self::JobPart(_, _, JobPart::Wait) => Access::Type(Right::Read),
        }
    }
}
