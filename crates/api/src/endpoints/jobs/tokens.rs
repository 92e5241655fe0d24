//! `/_tokens`: API tokens of programs that use `/_jobs`.

use http::{Method, StatusCode};
use queue::{NewToken, Token};
use serde_json::{Value, json};

use super::{body, time};
use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};

pub(crate) async fn all(call: &mut Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD,POST")?;
    call.query.only(&[])?;
    if call.method == Method::POST {
        return make(call).await;
    }
    let tokens = call.shared.queue.tokens().await?;
    let tokens: Vec<Value> = tokens.iter().map(|token| shown(call, token)).collect();
    Ok(reply::ok(&json!({"tokens": tokens})))
}

async fn make(call: &mut Call) -> Result<Reply, Error> {
    let new: NewToken = body(call).await?;
    let by = call.caller().name.clone().unwrap_or_default();
    let (token, text) = call.shared.queue.make_token(new, &by).await?;
    let mut told = shown(call, &token);
    told["ok"] = true.into();
    told["token"] = text.into();
    Ok(reply::json(StatusCode::CREATED, &told))
}

/// `/_tokens/{name}`
pub(crate) async fn one(call: &Call, name: &str) -> Result<Reply, Error> {
    call.allow("DELETE")?;
    call.query.only(&[])?;
    call.shared.queue.revoke_token(name).await?;
    Ok(reply::ok(&json!({"ok": true})))
}

fn shown(call: &Call, token: &Token) -> Value {
    let now_ms = call.shared.queue.jobs().clock().now_ms();
    json!({
        "name": token.name,
        "types": token.scope.types,
        "rights": token.scope.rights,
        "created": time(token.created_ms),
        "created_by": token.created_by,
        "expires": token.expires_ms.map(time),
        "expired": token.has_expired(now_ms),
    })
}
