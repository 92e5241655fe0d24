//! Cookie sessions: `POST /_session` once, then a cookie.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::{Url, form_urlencoded};

use super::renewal::{EARLY_PAUSE, LastFailure, renewed_early};
use super::{AuthSettings, Verdict};
use crate::error::{Error, Request};
use crate::login::{Form, submit};
use crate::net::{Profile, ProfileKey};
use crate::secret::{Basic, Secret, sensitive};

const UNAUTHORIZED: &str = "session_request_unauthorized";
const FORBIDDEN: &str = "session_request_forbidden";

/// What must be equal for two endpoints to share a session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) profile: ProfileKey,
    pub(crate) url: Url,
    pub(crate) basic: Basic,
}

pub(crate) struct Session {
    profile: Arc<Profile>,
    url: Url,
    basic: Basic,
    settings: AuthSettings,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Incremented with each new cookie.
    epoch: u64,
    cookie: Option<HeaderValue>,
    /// When a refused request last renewed it.
    refused: Option<Instant>,
    /// Whether it is not renewed yet since.
    is_refused: bool,
    renew_at: Option<Instant>,
    /// When the cookie expires. From then on the server may treat requests as anonymous instead of refusing them.
    expires_at: Option<Instant>,
    /// Whether the server wants Basic credentials even for `_session` (`require_valid_user`).
    needs_basic: bool,
    /// Whether the server lacks sessions.
    unsupported: bool,
    failure: LastFailure,
}

/// Whether a login failed because of its name or password.
fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Auth { tag, .. } if [UNAUTHORIZED, FORBIDDEN].contains(tag))
}

/// The URL of `_session` for an endpoint: at the root of its host, without a query.
pub(crate) fn session_url(endpoint: &Url) -> Url {
    let mut url = endpoint.clone();
    url.set_path("/_session");
    url.set_query(None);
    url.set_fragment(None);
    url
}

impl Session {
    pub(crate) fn new(
        profile: Arc<Profile>,
        url: Url,
        basic: Basic,
        settings: AuthSettings,
    ) -> Self {
        Self {
            profile,
            url,
            basic,
            settings,
            state: Mutex::default(),
        }
    }

    /// Logs in, unless that was done already. `false`: the server has no sessions, and Basic
    /// credentials are the way.
    pub(crate) async fn open(&self) -> Result<bool, Error> {
        let began = Instant::now();
        let mut state = self.state.lock().await;
        if state.cookie.is_none() && !state.unsupported {
            self.renew(&mut state, began).await?;
        }
        Ok(!state.unsupported)
    }

    /// The `Cookie` header and its epoch. A cookie that cannot be renewed is used until it expires, or it or the login is
    /// refused.
    pub(super) async fn cookie(&self) -> Result<(HeaderValue, u64), Error> {
        let began = Instant::now();
        let mut state = self.state.lock().await;
        if state.renew_at.is_some_and(|at| at <= Instant::now()) {
            let is_expired = state.expires_at.is_some_and(|at| at <= Instant::now());
            if state.is_refused || is_expired {
                self.renew(&mut state, began).await?;
                state.is_refused = false;
            } else if !renewed_early(&self.url, self.renew(&mut state, began), is_refused).await? {
                let at = Instant::now() + EARLY_PAUSE;
                state.renew_at = Some(state.expires_at.map_or(at, |expires| expires.min(at)));
            }
        }
        match &state.cookie {
            Some(cookie) => Ok((cookie.clone(), state.epoch)),
            None => Err(self.error("session_unexpected_result", "no session".to_owned())),
        }
    }

    pub(super) async fn after(
        &self,
        epoch: u64,
        status: StatusCode,
        headers: &HeaderMap,
        now: Instant,
    ) -> Verdict {
        if status.is_success() {
            // A server whose cookie is about to expire sends the next one with any response.
            if headers.contains_key(header::SET_COOKIE)
                && let Some((cookie, max_age)) = auth_cookie(headers)
            {
                self.state
                    .lock()
                    .await
                    .update(&cookie, max_age, now, &self.settings);
            }
            return Verdict::Stands;
        }
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Verdict::Stands;
        }
        self.state.lock().await.refuse(epoch, now, &self.settings)
    }

    /// Logs in again, unless that has failed since `began`.
    async fn renew(&self, state: &mut State, began: Instant) -> Result<(), Error> {
        state.failure.since(began)?;
        let renewed = self.log_in(state).await;
        if let Err(error) = &renewed {
            state.failure.set(error);
        }
        renewed
    }

    async fn log_in(&self, state: &mut State) -> Result<(), Error> {
        let body = form_urlencoded::Serializer::new(String::new())
            .append_pair("name", &self.basic.username)
            .append_pair("password", self.basic.password.expose())
            .finish();
        loop {
            let basic = state
                .needs_basic
                .then(|| sensitive(&self.basic.header()))
                .transpose()?;
            let form = Form {
                body: Secret::from(body.as_str()),
                authorization: basic,
            };
            let answer = submit(&self.profile, &self.url, form, "session_request_failed").await?;
            match answer.status {
                StatusCode::OK => {
                    let Some((cookie, max_age)) = auth_cookie(&answer.headers) else {
                        let reason = "200 without an AuthSession cookie".to_owned();
                        return Err(self.error("session_unexpected_result", reason));
                    };
                    // If it is the same one, it is not renewed again until it is refused.
                    state.renew_at = None;
                    state.update(&cookie, max_age, Instant::now(), &self.settings);
                    return Ok(());
                }
                StatusCode::NOT_FOUND => {
                    state.unsupported = true;
                    state.renew_at = None;
                    return Ok(());
                }
                StatusCode::UNAUTHORIZED
                    if !state.needs_basic
                        && answer.headers.contains_key(header::WWW_AUTHENTICATE) =>
                {
                    state.needs_basic = true;
                }
                StatusCode::UNAUTHORIZED => {
                    return Err(self.error(UNAUTHORIZED, answer.reason(&self.secrets())));
                }
                StatusCode::FORBIDDEN => {
                    return Err(self.error(FORBIDDEN, answer.reason(&self.secrets())));
                }
                _ => {
                    return Err(
                        self.error("session_unexpected_result", answer.reason(&self.secrets()))
                    );
                }
            }
        }
    }

    fn secrets(&self) -> Vec<Secret> {
        let mut secrets = self.profile.secrets();
        secrets.extend(self.basic.spellings());
        secrets
    }

    fn error(&self, tag: &'static str, reason: String) -> Error {
        Error::Auth {
            tag,
            request: Request::new("POST", &self.url),
            reason,
        }
    }
}

impl State {
    fn update(
        &mut self,
        cookie: &HeaderValue,
        max_age: Option<u64>,
        now: Instant,
        settings: &AuthSettings,
    ) {
        if self.cookie.as_ref() == Some(cookie) {
            return;
        }
        self.cookie = Some(cookie.clone());
        self.epoch += 1;
        self.is_refused = false;
        let max_age = max_age.map(|seconds| seconds.min(u32::MAX.into()));
        // A tenth is deducted for the time in transit and clock skew.
        let lifetime = max_age.map_or(settings.session_refresh, |seconds| {
            Duration::from_secs(seconds * 9 / 10)
        });
        self.renew_at = Some(now + lifetime);
        self.expires_at = max_age.map(|seconds| now + Duration::from_secs(seconds));
    }

    /// A request with the cookie of `epoch` was refused.
    fn refuse(&mut self, epoch: u64, now: Instant, settings: &AuthSettings) -> Verdict {
        if self.epoch > epoch {
            return Verdict::Again;
        }
        // Others sent at the same time are refused as well, and all of them wait for the same renewal.
        if self.is_refused {
            self.renew_by(now);
            return Verdict::Again;
        }
        // A restarted server may reject even a new cookie; but a request refused with two in a row is
        // refused for another reason.
        let since = self.refused.map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|since| since < settings.session_min_update) {
            self.renew_by(now + settings.session_min_update);
            return Verdict::Stands;
        }
        self.refused = Some(now);
        self.is_refused = true;
        self.renew_by(now);
        Verdict::Again
    }

    fn renew_by(&mut self, at: Instant) {
        self.renew_at = Some(self.renew_at.map_or(at, |due| due.min(at)));
    }
}

/// The first `AuthSession` of the `Set-Cookie` headers, as a `Cookie` header, with its `Max-Age`.
fn auth_cookie(headers: &HeaderMap) -> Option<(HeaderValue, Option<u64>)> {
    headers
        .get_all(header::SET_COOKIE)
        .iter()
        .find_map(|value| {
            let value = std::str::from_utf8(value.as_bytes()).ok()?;
            let pairs = || value.split(';').filter_map(|pair| pair.split_once('='));
            let find = |name: &str| {
                pairs()
                    .find(|(key, _)| key.trim().eq_ignore_ascii_case(name))
                    .map(|(_, value)| value.trim().trim_matches('"'))
            };
            let cookie = sensitive(&Secret::from(format!(
                "AuthSession={}",
                find("AuthSession")?
            )));
            Some((
                cookie.ok()?,
                find("Max-Age").and_then(|age| age.parse().ok()),
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::YOUNG;

    fn cookies(values: &[&str]) -> Option<(String, Option<u64>)> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::SET_COOKIE, value.parse().unwrap());
        }
        auth_cookie(&headers).map(|(cookie, age)| (cookie.to_str().unwrap().to_owned(), age))
    }

    fn check(values: &[&str], expected: Option<(&str, Option<u64>)>) {
        let expected = expected.map(|(cookie, age)| (format!("AuthSession={cookie}"), age));
        assert_eq!(cookies(values), expected);
    }

    #[test]
    fn cookies_of_answers() {
        let whole = "AuthSession=abc; Version=1; Path=/; HttpOnly";
        check(&[whole], Some(("abc", None)));
        check(
            &["authsession=a=b; MAX-AGE= 600 ;"],
            Some(("a=b", Some(600))),
        );
        let several = ["Other=1", "AuthSession=x", "AuthSession=y"];
        check(&several, Some(("x", None)));
        check(&["Other=1"], None);
        check(&[], None);
        for age in ["-10", "\u{feff}10", "*", "1 1", ""] {
            check(
                &[&format!("AuthSession=a; Max-Age={age}")],
                Some(("a", None)),
            );
        }
    }

    #[test]
    fn addresses() {
        for (endpoint, session) in [
            ("http://host/db", "http://host/_session"),
            ("http://host/x/y/z", "http://host/_session"),
            ("https://host:5984/db?q=1", "https://host:5984/_session"),
            ("http://[::1]:5984?q=4", "http://[::1]:5984/_session"),
            ("http://[::1]", "http://[::1]/_session"),
        ] {
            assert_eq!(
                session_url(&Url::parse(endpoint).unwrap()).as_str(),
                session
            );
        }
    }

    fn settings() -> AuthSettings {
        AuthSettings {
            session_refresh: Duration::from_secs(550),
            session_min_update: YOUNG,
            jwt_directory: None,
        }
    }

    /// Two requests are out when the server forgets the session.
    #[tokio::test(start_paused = true)]
    async fn all_requests_with_a_lost_session_are_repeated() {
        let (mut state, settings, now) = (State::default(), settings(), Instant::now());
        state.update(&HeaderValue::from_static("c"), None, now, &settings);
        for _ in 0..2 {
            assert_eq!(state.refuse(1, now, &settings), Verdict::Again);
            assert_eq!(state.renew_at, Some(now));
        }
        state.update(&HeaderValue::from_static("d"), None, now, &settings);
        assert_eq!(state.refuse(1, now, &settings), Verdict::Again);
        assert_eq!(state.refuse(2, now, &settings), Verdict::Stands);
        assert_eq!(state.refuse(2, now + YOUNG, &settings), Verdict::Again);
    }

    #[tokio::test(start_paused = true)]
    async fn renewal_times() {
        let settings = settings();
        let now = Instant::now();
        for (max_age, seconds) in [(None, 550), (Some(100), 90), (Some(5), 4), (Some(0), 0)] {
            let mut state = State::default();
            state.update(&HeaderValue::from_static("c"), max_age, now, &settings);
            assert_eq!(state.renew_at, Some(now + Duration::from_secs(seconds)));
            assert_eq!(state.epoch, 1);
            state.update(&HeaderValue::from_static("c"), None, now + YOUNG, &settings);
            assert_eq!(state.epoch, 1, "the same cookie");
            state.update(&HeaderValue::from_static("d"), None, now + YOUNG, &settings);
            assert_eq!(state.epoch, 2);
        }
    }
}
