//! `_session`.

use http::header::{CONTENT_TYPE, SET_COOKIE};
use http::{Method, StatusCode};
use serde_json::Value;

use crate::functions::UserContext;
use crate::refusal::Refusal;
use crate::render;
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::server::Server;

pub(super) async fn session(
    server: &Server,
    request: Request,
    handler: Option<&'static str>,
) -> Result<Reply, Refusal> {
    match request.method {
        Method::GET if request.user.name.is_none() && request.flag("basic") => {
            Err(Refusal::unauthorized("Please login."))
        }
        Method::GET => Ok(reply::json(
            StatusCode::OK,
            session_info(&request.user, handler),
        )),
        Method::POST => log_in(server, request).await,
        Method::DELETE => Ok(reply::with(
            reply::ok(StatusCode::OK),
            &SET_COOKIE,
            &server.cookie_header(""),
        )),
        _ => Err(Refusal::method("GET,HEAD,POST,DELETE")),
    }
}

fn session_info(user: &UserContext, handler: Option<&'static str>) -> Vec<u8> {
    let mut body = b"{\"ok\":true,\"userCtx\":{".to_vec();
    name_and_roles(&mut body, user);
    body.extend_from_slice(b"},\"info\":{\"authentication_handlers\":[\"cookie\",\"default\"]");
    if let Some(handler) = handler {
        body.extend_from_slice(format!(",\"authenticated\":\"{handler}\"").as_bytes());
    }
    body.extend_from_slice(b"}}");
    body
}

fn name_and_roles(out: &mut Vec<u8>, user: &UserContext) {
    out.extend_from_slice(b"\"name\":");
    match &user.name {
        Some(name) => render::string(out, name),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"roles\":");
    render::list(out, &user.roles, |out, role| render::string(out, role));
}

async fn log_in(server: &Server, mut request: Request) -> Result<Reply, Refusal> {
    let (name, password) = credentials(&mut request).await?;
    let Some(user) = server.check_password(&name, &password) else {
        let reply = Reply::from(Refusal::unauthorized("Name or password is incorrect."));
        return Ok(reply::with(reply, &SET_COOKIE, &server.cookie_header("")));
    };
    let mut body = b"{\"ok\":true,".to_vec();
    name_and_roles(&mut body, &user);
    body.push(b'}');
    let reply = reply::json(StatusCode::OK, body);
    Ok(match server.begin_session(&name) {
        Some(cookie) => reply::with(reply, &SET_COOKIE, &cookie),
        None => reply,
    })
}

async fn credentials(request: &mut Request) -> Result<(String, String), Refusal> {
    let kind = request.header(&CONTENT_TYPE).unwrap_or_default().to_owned();
    let fields: Vec<(String, String)> = if kind.starts_with("application/x-www-form-urlencoded") {
        url::form_urlencoded::parse(&request.body().await?)
            .into_owned()
            .collect()
    } else if kind.starts_with("application/json") {
        let body: Value = serde_json::from_str(&request.json_object().await?).unwrap_or_default();
        let members = body.as_object().into_iter().flatten();
        members
            .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect()
    } else {
        let reason =
            "Content-Type must be 'application/x-www-form-urlencoded' or 'application/json'";
        return Err(Refusal::content_type(reason));
    };
    let field = |name: &str| {
        fields
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
    };
    let name = match (field("name"), field("username")) {
        (None, None) => return Err(Refusal::bad_request("request body must contain a username")),
        (Some(name), Some(username)) if name != username => {
            return Err(Refusal::bad_request(
                "request body contains different usernames",
            ));
        }
        (Some(name), _) | (None, Some(name)) => name,
    };
    Ok((name, field("password").unwrap_or_default()))
}
