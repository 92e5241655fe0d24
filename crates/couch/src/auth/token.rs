//! Bearer tokens that have to be fetched: from a token server, or from a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::form_urlencoded::{Serializer, byte_serialize};

use super::renewal::{EARLY_PAUSE, LastFailure, renewed_early};
use super::{AuthSettings, Verdict, YOUNG};
use crate::endpoint::{AuthMethod, ClientCredentials, IamKey};
use crate::error::{Error, Request};
use crate::login::{Answered, Form, submit};
use crate::net::{Profile, ProfileKey};
use crate::secret::{Basic, Secret, sensitive, spellings};

/// Tokens are renewed this long before they expire, or after half their lifetime if that is short.
const RENEW_BEFORE: Duration = Duration::from_mins(5);
/// The lifetime of a token without `expires_in`.
const LIFE_DEFAULT_S: u64 = 3600;
/// How often a token file is checked.
const FILE_CHECK: Duration = Duration::from_secs(10);
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// What must be equal for two endpoints to share a token.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct TokenKey {
    pub(crate) profile: ProfileKey,
    pub(crate) method: AuthMethod,
}

/// The grant that is exchanged for tokens.
pub(crate) enum Grant {
    ClientCredentials(ClientCredentials),
    Iam(IamKey),
}

/// Fetches tokens from a token server.
pub(crate) struct TokenSource {
    profile: Arc<Profile>,
    grant: Grant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    epoch: u64,
    token: Option<Token>,
    /// Whether the server wants client and secret in the body instead of the header.
    in_body: bool,
    failure: LastFailure,
}

struct Token {
    header: HeaderValue,
    fetched: Instant,
    renew_at: Instant,
    expires_at: Instant,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    expires_in: Option<serde_json::Value>,
}

impl TokenSource {
    pub(crate) fn new(profile: Arc<Profile>, grant: Grant) -> Self {
        Self {
            profile,
            grant,
            state: Mutex::default(),
        }
    }

    /// The `Authorization` header and its epoch. A token that cannot be renewed is used until it expires.
    pub(super) async fn token(&self) -> Result<(HeaderValue, u64), Error> {
        let began = Instant::now();
        let mut state = self.state.lock().await;
        let now = Instant::now();
        match &state.token {
            Some(token) if now < token.renew_at => {}
            Some(token) if now < token.expires_at => {
                let renewal = self.renew(&mut state, began);
                if !renewed_early(self.grant.url(), renewal, |_| false).await?
                    && let Some(token) = &mut state.token
                {
                    token.renew_at = token.expires_at.min(Instant::now() + EARLY_PAUSE);
                }
            }
            _ => self.renew(&mut state, began).await?,
        }
        match &state.token {
            Some(token) => Ok((token.header.clone(), state.epoch)),
            None => Err(self.error("token_unusable", "no token".to_owned())),
        }
    }

    /// Fetches a token, unless that has failed since `began`.
    async fn renew(&self, state: &mut State, began: Instant) -> Result<(), Error> {
        state.failure.since(began)?;
        let answer = self.ask(state).await;
        match answer.and_then(|answer| self.read(&answer)) {
            Ok(token) => {
                state.epoch += 1;
                state.token = Some(token);
                Ok(())
            }
            Err(error) => {
                state.failure.set(&error);
                Err(error)
            }
        }
    }

    /// A request with the token of `epoch` was answered by 401.
    pub(super) async fn refused(&self, epoch: u64, now: Instant) -> Verdict {
        let mut state = self.state.lock().await;
        if state.epoch > epoch {
            return Verdict::Again;
        }
        match &state.token {
            Some(token) if now.saturating_duration_since(token.fetched) < YOUNG => Verdict::Stands,
            _ => {
                state.token = None;
                Verdict::Again
            }
        }
    }

    async fn ask(&self, state: &mut State) -> Result<Answered, Error> {
        loop {
            let form = self.grant.form(state.in_body)?;
            let answer = submit(
                &self.profile,
                self.grant.url(),
                form,
                "token_request_failed",
            )
            .await?;
            let may_be_misplaced = matches!(
                answer.status,
                StatusCode::UNAUTHORIZED | StatusCode::BAD_REQUEST
            );
            let other_place = matches!(self.grant, Grant::ClientCredentials(_)) && !state.in_body;
            if answer.status == StatusCode::OK {
                return Ok(answer);
            }
            if !(may_be_misplaced && other_place) {
                return Err(self.error("token_request_refused", answer.reason(&self.secrets())));
            }
            state.in_body = true;
        }
    }

    fn secrets(&self) -> Vec<Secret> {
        let mut secrets = self.profile.secrets();
        if let Grant::ClientCredentials(client) = &self.grant {
            secrets.extend(basic(client).spellings());
        }
        secrets.extend(spellings(self.grant.secret()));
        secrets
    }

    fn read(&self, answer: &Answered) -> Result<Token, Error> {
        let unusable = || {
            self.error(
                "token_unusable",
                "the response has no usable token".to_owned(),
            )
        };
        let parsed: TokenAnswer = serde_json::from_slice(&answer.body).map_err(|_| unusable())?;
        let life_s = match &parsed.expires_in {
            Some(serde_json::Value::Number(number)) => number.as_u64(),
            Some(serde_json::Value::String(text)) => text.trim().parse().ok(),
            _ => None,
        };
        let life = Duration::from_secs(life_s.unwrap_or(LIFE_DEFAULT_S).min(u64::from(u32::MAX)));
        let fetched = Instant::now();
        let header = bearer(&parsed.access_token).map_err(|_| unusable())?;
        Ok(Token {
            header,
            fetched,
            renew_at: fetched + life.saturating_sub(RENEW_BEFORE).max(life / 2),
            expires_at: fetched + life,
        })
    }

    fn error(&self, tag: &'static str, reason: String) -> Error {
        Error::Auth {
            tag,
            request: Request::new("POST", self.grant.url()),
            reason,
        }
    }
}

/// A client as Basic credentials: RFC 6749 wants both form-encoded before they are joined.
fn basic(client: &ClientCredentials) -> Basic {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    Basic {
        username: encoded(&client.client_id),
        password: encoded(client.client_secret.expose()).into(),
    }
}

impl Grant {
    fn url(&self) -> &url::Url {
        match self {
            Self::ClientCredentials(client) => &client.token_url,
            Self::Iam(iam) => &iam.token_url,
        }
    }

    fn secret(&self) -> &Secret {
        match self {
            Self::ClientCredentials(client) => &client.client_secret,
            Self::Iam(iam) => &iam.api_key,
        }
    }

    fn form(&self, in_body: bool) -> Result<Form, Error> {
        let mut body = Serializer::new(String::new());
        let mut authorization = None;
        match self {
            Self::Iam(iam) => {
                body.append_pair("grant_type", "urn:ibm:params:oauth:grant-type:apikey");
                body.append_pair("apikey", iam.api_key.expose());
            }
            Self::ClientCredentials(client) => {
                body.append_pair("grant_type", "client_credentials");
                if in_body {
                    body.append_pair("client_id", &client.client_id);
                    body.append_pair("client_secret", client.client_secret.expose());
                } else {
                    authorization = Some(sensitive(&basic(client).header())?);
                }
                let optional = [("scope", &client.scope), ("audience", &client.audience)];
                for (name, value) in optional {
                    if let Some(value) = value {
                        body.append_pair(name, value);
                    }
                }
            }
        }
        Ok(Form {
            body: Secret::from(body.finish()),
            authorization,
        })
    }
}

/// Reads a token from a file that another process keeps fresh.
pub(crate) struct JwtFile {
    path: PathBuf,
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    epoch: u64,
    token: Option<HeaderValue>,
    modified: Option<SystemTime>,
    checked: Option<Instant>,
}

impl JwtFile {
    pub(crate) fn new(name: &str, settings: &AuthSettings) -> Result<Self, Error> {
        let Some(directory) = &settings.jwt_directory else {
            return Err(Error::Config("`auth.jwt` needs a jwt_directory".to_owned()));
        };
        Ok(Self {
            path: directory.join(name),
            state: Mutex::default(),
        })
    }

    pub(super) async fn token(&self) -> Result<(HeaderValue, u64), Error> {
        let mut state = self.state.lock().await;
        let now = Instant::now();
        if state
            .checked
            .is_none_or(|at| now.saturating_duration_since(at) >= FILE_CHECK)
        {
            self.check(&mut state).await?;
            state.checked = Some(now);
        }
        match &state.token {
            Some(token) => Ok((token.clone(), state.epoch)),
            None => Err(self.unreadable("it is empty")),
        }
    }

    /// A request with the token of `epoch` was answered by 401: the file may have a newer one.
    pub(super) async fn refused(&self, epoch: u64) -> Verdict {
        let mut state = self.state.lock().await;
        if state.epoch == epoch {
            let _ = self.check(&mut state).await;
        }
        if state.epoch > epoch {
            Verdict::Again
        } else {
            Verdict::Stands
        }
    }

    async fn check(&self, state: &mut FileState) -> Result<(), Error> {
        let unreadable = |error: std::io::Error| self.unreadable(&error.to_string());
        let metadata = tokio::fs::metadata(&self.path).await.map_err(unreadable)?;
        let modified = metadata.modified().ok();
        if state.token.is_some() && modified.is_some() && modified == state.modified {
            return Ok(());
        }
        if metadata.len() > FILE_BYTES_MAX {
            return Err(self.unreadable("it is too large"));
        }
        let text = tokio::fs::read_to_string(&self.path)
            .await
            .map_err(unreadable)?;
        let token = bearer(text.trim()).map_err(|_| self.unreadable("it has no token"))?;
        state.modified = modified;
        if state.token.as_ref() != Some(&token) {
            state.epoch += 1;
            state.token = Some(token);
        }
        Ok(())
    }

    fn unreadable(&self, why: &str) -> Error {
        let name = self
            .path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Error::Config(format!("token file {name} cannot be used: {why}"))
    }
}

fn bearer(token: &str) -> Result<HeaderValue, Error> {
    if token.is_empty() {
        return Err(Error::Config("an empty token".to_owned()));
    }
    sensitive(&Secret::from(format!("Bearer {token}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn token_files_are_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tok");
        let settings = AuthSettings {
            session_refresh: YOUNG,
            session_min_update: YOUNG,
            jwt_directory: Some(directory.path().to_owned()),
        };
        let file = JwtFile::new("tok", &settings).unwrap();
        assert!(file.token().await.is_err(), "no file");

        let write = |text: &str, age_s: u64| {
            std::fs::write(&path, text).unwrap();
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(age_s);
            std::fs::File::options()
                .append(true)
                .open(&path)
                .unwrap()
                .set_modified(at)
                .unwrap();
        };
        write("one\n", 1);
        let (token, epoch) = file.token().await.unwrap();
        assert_eq!(token, "Bearer one");
        assert!(token.is_sensitive());

        write("two", 2);
        assert_eq!(file.token().await.unwrap().0, "Bearer one", "just looked");
        assert_eq!(file.refused(epoch).await, Verdict::Again);
        let (token, epoch) = file.token().await.unwrap();
        assert_eq!(token, "Bearer two");
        assert_eq!(file.refused(epoch).await, Verdict::Stands, "nothing newer");

        write("three", 3);
        tokio::time::advance(FILE_CHECK).await;
        assert_eq!(file.token().await.unwrap().0, "Bearer three");
        write(&"x".repeat(70_000), 4);
        tokio::time::advance(FILE_CHECK).await;
        let error = file.token().await.unwrap_err().to_string();
        assert_eq!(error, "token file tok cannot be used: it is too large");
    }
}
