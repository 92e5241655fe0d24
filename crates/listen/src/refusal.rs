//! Refusals, which all have the same form.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;

use crate::BodyError;

/// Why a request is refused. As a response, it is the object `{"error": …, "reason": …}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    error: &'static str,
    reason: String,
}

impl Refusal {
    pub fn new(status: StatusCode, error: &'static str, reason: impl Into<String>) -> Self {
        Self {
            status,
            error,
            reason: reason.into(),
        }
    }

    pub fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    pub fn unauthorized(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }

    pub fn forbidden(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({"error": self.error, "reason": self.reason});
        (self.status, Json(body)).into_response()
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        let name = match error {
            BodyError::TooLarge { .. } => "too_large",
            BodyError::NoMemory => "unavailable",
            BodyError::TooSlow(_) => "timeout",
            BodyError::Broken { .. } => "bad_request",
        };
        Self::new(error.status(), name, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use http::header::CONTENT_TYPE;

    use super::*;

    #[tokio::test]
    async fn a_refusal_is_json() {
        let refusal = Refusal::from(BodyError::TooLarge { bytes_max: 9 });
        let response = refusal.into_response();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let body = to_bytes(response.into_body(), 1_000).await.unwrap();
        let expected = r#"{"error":"too_large","reason":"the body is larger than 9 bytes"}"#;
        assert_eq!(body, expected);
    }
}
