//! Authenticates requests.
//!
//! Sessions and tokens are shared by all endpoints of a node that have the same origin, user and
//! password (or key): ten thousand jobs against one server log in once.

mod renewal;
mod session;
mod token;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tokio::time::Instant;

pub(crate) use session::{Session, SessionKey, session_url};
pub(crate) use token::{Grant, JwtFile, TokenKey, TokenSource};

use crate::error::Error;
use crate::secret::Secret;

/// A token younger than this is not renewed because of a 401.
const YOUNG: Duration = Duration::from_secs(5);

/// When sessions and tokens are renewed.
#[derive(Clone, Debug)]
pub(crate) struct AuthSettings {
    pub(crate) session_refresh: Duration,
    pub(crate) session_min_update: Duration,
    pub(crate) jwt_directory: Option<PathBuf>,
}

/// How an endpoint's requests are authenticated.
#[derive(Clone)]
pub(crate) enum Authenticator {
    Anonymous,
    /// Basic credentials or a token that does not change.
    Fixed(HeaderValue),
    Session(Arc<Session>),
    Token(Arc<TokenSource>),
    JwtFile(Arc<JwtFile>),
}

/// The credentials of one request, and the renewal they stem from.
pub(crate) struct Ticket {
    pub(crate) header: Option<(HeaderName, HeaderValue)>,
    epoch: u64,
}

impl Ticket {
    /// The cookie or token without its prefix.
    pub(crate) fn secret(&self) -> Option<Secret> {
        let (_, value) = self.header.as_ref()?;
        let text = value.to_str().ok()?;
        Some(Secret::from(
            text.split_once([' ', '='])
                .map_or(text, |(_, secret)| secret),
        ))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Stands,
    /// The request is to be sent again, with a new ticket.
    Again,
}

impl Authenticator {
    /// The credentials of the next request, renewed first if due.
    pub(crate) async fn ticket(&self) -> Result<Ticket, Error> {
        let bearer = |(value, epoch)| Ticket {
            header: Some((header::AUTHORIZATION, value)),
            epoch,
        };
        match self {
            Self::Anonymous => Ok(Ticket {
                header: None,
                epoch: 0,
            }),
            Self::Fixed(value) => Ok(bearer((value.clone(), 0))),
            Self::Session(session) => {
                let (cookie, epoch) = session.cookie().await?;
                Ok(Ticket {
                    header: Some((header::COOKIE, cookie)),
                    epoch,
                })
            }
            Self::Token(source) => source.token().await.map(bearer),
            Self::JwtFile(file) => file.token().await.map(bearer),
        }
    }

    /// Handles a response to a request that carried `ticket`.
    pub(crate) async fn after(
        &self,
        ticket: &Ticket,
        status: StatusCode,
        headers: &HeaderMap,
        now: Instant,
    ) -> Verdict {
        match self {
            Self::Session(session) => session.after(ticket.epoch, status, headers, now).await,
            Self::Token(source) if status == StatusCode::UNAUTHORIZED => {
                source.refused(ticket.epoch, now).await
            }
            Self::JwtFile(file) if status == StatusCode::UNAUTHORIZED => {
                file.refused(ticket.epoch).await
            }
            Self::Anonymous | Self::Fixed(_) | Self::Token(_) | Self::JwtFile(_) => Verdict::Stands,
        }
    }
}
