//! Redirects.

use http::{HeaderMap, Method, StatusCode, header};
use url::Url;

use super::{Call, Peer};
use crate::error::{Error, Failure, Request};
use crate::net::Trouble;

/// Redirects followed for one request.
const HOPS_MAX: u32 = 5;

/// The URL that a request goes to next.
pub(super) struct Target {
    pub(super) method: Method,
    pub(super) uri: String,
    /// The address is not of the endpoint's origin: neither its credentials nor its headers nor its
    /// client certificate go there, and it stays foreign for the rest of this request.
    pub(super) is_foreign: bool,
    /// A 303 asks to fetch the result by a GET without a body.
    pub(super) drops_body: bool,
    hops: u32,
    shown: Request,
}

impl Target {
    pub(super) fn own(peer: &Peer, call: &Call) -> Self {
        Self {
            method: call.method.clone(),
            uri: peer.address(call),
            is_foreign: false,
            drops_body: false,
            hops: 0,
            shown: peer.shown(call),
        }
    }

    /// Follows a redirect, if the response is one.
    pub(super) fn redirect(
        &mut self,
        call: &Call,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<bool, Trouble> {
        if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(false);
        }
        let Some(location) = headers.get(header::LOCATION) else {
            return Ok(false);
        };
        let bad = |problem: &str| -> Trouble {
            Error::BadAnswer {
                request: self.shown.clone(),
                problem: problem.to_owned(),
            }
            .into()
        };
        self.hops += 1;
        if self.hops > HOPS_MAX {
            let failure = Failure::BadAnswer(format!("more than {HOPS_MAX} redirects"));
            return Err(Trouble::Final(failure));
        }
        let here = Url::parse(&self.uri).map_err(|_| bad("redirect from nowhere"))?;
        let there = location
            .to_str()
            .ok()
            .and_then(|location| here.join(location).ok());
        let mut there = there
            .filter(|there| matches!(there.scheme(), "http" | "https") && there.has_host())
            .ok_or_else(|| bad("it redirects to no http address"))?;
        there.set_fragment(None);
        // The user did not choose credentials in a location.
        let stripped = there
            .set_username("")
            .and_then(|()| there.set_password(None));
        stripped.map_err(|()| bad("it redirects to no http address"))?;
        self.is_foreign |= there.origin() != here.origin();
        if status == StatusCode::SEE_OTHER && call.method != Method::HEAD {
            self.method = Method::GET;
            self.drops_body = true;
        }
        self.uri = there.into();
        Ok(true)
    }
}
