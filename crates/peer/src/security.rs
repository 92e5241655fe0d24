//! Access rights of a database: its `_security` object.

use serde_json::Value;

use crate::functions::UserContext;
use crate::refusal::Refusal;

/// A security object, as sent and as parsed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    pub(crate) json: String,
    admins: Group,
    members: Group,
}

#[derive(Clone, Debug, Default)]
struct Group {
    names: Vec<String>,
    roles: Vec<String>,
}

impl Group {
    fn includes(&self, user: &UserContext) -> bool {
        user.roles.iter().any(|role| self.roles.contains(role))
            || user
                .name
                .as_ref()
                .is_some_and(|name| self.names.contains(name))
    }

    fn parse(security: &Value, keys: &[&str]) -> Result<Self, &'static str> {
        let Some(group) = keys.iter().find_map(|key| security.get(key)) else {
            return Ok(Self::default());
        };
        let group = group
            .as_object()
            .ok_or("admins or members must be a JSON list of strings")?;
        let texts = |key: &str, error: &'static str| {
            let Some(list) = group.get(key) else {
                return Ok(Vec::new());
            };
            let texts = list
                .as_array()
                .map(|list| list.iter().map(|text| text.as_str().map(str::to_owned)));
            texts.and_then(Iterator::collect).ok_or(error)
        };
        Ok(Self {
            names: texts("names", "names must be a JSON list of strings")?,
            roles: texts("roles", "roles must be a JSON list of strings")?,
        })
    }
}

impl Security {
    /// That of a new database: administrators only, or open to all.
    pub(crate) fn initial(admin_only: bool) -> Self {
        if !admin_only {
            return Self {
                json: "{}".to_owned(),
                ..Self::default()
            };
        }
        let json = r#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#;
        Self::parse(json).expect("this is a security object")
    }

    pub(crate) fn parse(json: &str) -> Result<Self, Refusal> {
        let value: Value =
            serde_json::from_str(json).map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))?;
        if !value.is_object() {
            return Err(Refusal::bad_request(""));
        }
        let refuse = |reason| Refusal::internal("unknown_error", reason);
        let admins = Group::parse(&value, &["admins"]).map_err(refuse)?;
        let members = Group::parse(&value, &["members", "readers"]).map_err(refuse)?;
        Ok(Self {
            json: value.to_string(),
            admins,
            members,
        })
    }

    pub(crate) fn is_admin(&self, user: &UserContext) -> bool {
        user.is_server_admin() || self.admins.includes(user)
    }

    pub(crate) fn check_admin(&self, user: &UserContext) -> Result<(), Refusal> {
        if self.is_admin(user) {
            return Ok(());
        }
        Err(refuse(
            user,
            "You are not a db or server admin.",
            "You are not a db or server admin.",
        ))
    }

    pub(crate) fn check_member(&self, user: &UserContext) -> Result<(), Refusal> {
        let public = self.members.names.is_empty() && self.members.roles.is_empty();
        if self.is_admin(user) || public || self.members.includes(user) {
            return Ok(());
        }
        Err(refuse(
            user,
            "You are not authorized to access this db.",
            "You are not allowed to access this db.",
        ))
    }
}

fn refuse(user: &UserContext, anonymous: &'static str, named: &'static str) -> Refusal {
    match user.name {
        None => Refusal::unauthorized(anonymous),
        Some(_) => Refusal::forbidden(named),
    }
}

impl UserContext {
    /// An administrator without a name.
    pub(crate) fn admin() -> Self {
        Self {
            name: None,
            roles: vec!["_admin".to_owned()],
        }
    }

    pub(crate) fn is_server_admin(&self) -> bool {
        self.roles.iter().any(|role| role == "_admin")
    }
}
