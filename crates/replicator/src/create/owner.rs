//! Whose document it is.

use docstore::{Db, Edit};
use document::json::Json;

use super::Replications;
use crate::fault::ServiceError;
use crate::params::Replication;
use crate::strip;

const OTHERS: &str = "Can't update replication documents from other users.";

/// Who writes a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Somebody who asked for it.
    User {
        /// The name; nobody in particular has none.
        name: Option<String>,
        /// An administrator of the database, or of the server.
        is_admin: bool,
    },
    /// The replicator itself. No client can be it, whatever its roles.
    Replicator,
}

/// Whether a document of this owner may be changed, deleted or replaced.
pub(super) fn check_owner(owner: Option<&str>, writer: &Writer) -> Result<(), ServiceError> {
    match writer {
        Writer::Replicator | Writer::User { is_admin: true, .. } => Ok(()),
        Writer::User { name, .. } if name.as_deref() == owner => Ok(()),
        Writer::User { .. } => Err(ServiceError::Forbidden(OTHERS)),
    }
}

/// The body with its owner filled in: `None` when it stays as it is.
fn fill_owner(body: &Json, writer: &Writer) -> Result<Option<Json>, ServiceError> {
    let Writer::User { name, is_admin } = writer else {
        return Ok(None);
    };
    let mine = name.clone().map_or(Json::Null, Json::String);
    match body.get("owner") {
        Some(given) if *given == mine => return Ok(None),
        Some(_) if !is_admin => return Err(ServiceError::Forbidden(OTHERS)),
        Some(given) if *given != Json::Null => return Ok(None),
        _ => {}
    }
    let mut members = body.as_object().unwrap_or_default().to_vec();
    members.retain(|(member, _)| member != "owner");
    members.push(("owner".to_owned(), mine));
    Ok(Some(Json::Object(members)))
}

impl Replications {
    /// Checks an edit, fills its owner in and seals its credentials; to be called before the transaction that writes it
    /// with [`hook`](Replications::hook). Design and `_local` documents are none of its business.
    pub fn prepare(&self, db: &Db, edit: Edit, writer: &Writer) -> Result<Edit, ServiceError> {
        if edit.is_local() || edit.id.starts_with("_design/") {
            return Ok(edit);
        }
        let body = Json::parse(&edit.body)
            .map_err(|_| docstore::Error::Invalid(document::doc::Invalid::Json))?;
        let mut edit = edit;
        if (!edit.deleted || body.get("owner").is_some())
            && let Some(filled) = fill_owner(&body, writer)?
        {
            edit.body = filled.to_string();
        }
        let failed = body.get("_replication_state").and_then(Json::as_str) == Some("failed");
        if !edit.deleted && !failed && *writer != Writer::Replicator {
            let wanted = Replication::from_document(&body, &self.defaults())?;
            check_paused(&body)?;
            if wanted.is_privileged() && !matches!(writer, Writer::User { is_admin: true, .. }) {
                return Err(ServiceError::Forbidden(PRIVILEGED));
            }
        }
        edit.sealed = strip::seal_body(&self.0.sealer, db, &edit.id, &edit.body);
        Ok(edit)
    }
}

pub(crate) const PRIVILEGED: &str =
    "Only an administrator may set `tls` or name a token file of the server.";

fn check_paused(body: &Json) -> Result<(), ServiceError> {
    match body.get("paused") {
        None | Some(Json::Bool(_)) => Ok(()),
        Some(_) => Err(crate::params::Invalid::new("`paused` must be a boolean").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: Option<&str>, is_admin: bool) -> Writer {
        let name = name.map(str::to_owned);
        Writer::User { name, is_admin }
    }

    fn filled(body: &str, writer: &Writer) -> Result<String, String> {
        let body = Json::parse(body).unwrap();
        match fill_owner(&body, writer) {
            Ok(new) => Ok(new.unwrap_or(body).to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn owners_are_filled_in() {
        let (joe, admin, nobody) = (
            user(Some("joe"), false),
            user(Some("adm"), true),
            user(None, true),
        );
        let refused = Err("Can't update replication documents from other users.".to_owned());
        for (body, writer, expected) in [
            (r#"{"a":1}"#, &joe, Ok(r#"{"a":1,"owner":"joe"}"#)),
            (r#"{"a":1}"#, &nobody, Ok(r#"{"a":1,"owner":null}"#)),
            (r#"{"owner":"joe"}"#, &joe, Ok(r#"{"owner":"joe"}"#)),
            (r#"{"owner":"eve"}"#, &joe, Err(())),
            (r#"{"owner":null}"#, &joe, Err(())),
            (r#"{"owner":7}"#, &joe, Err(())),
            (r#"{"owner":"joe"}"#, &admin, Ok(r#"{"owner":"joe"}"#)),
            (r#"{"owner":null}"#, &admin, Ok(r#"{"owner":"adm"}"#)),
            (r#"{"owner":null}"#, &nobody, Ok(r#"{"owner":null}"#)),
            (
                r#"{"owner":"eve"}"#,
                &Writer::Replicator,
                Ok(r#"{"owner":"eve"}"#),
            ),
            ("{}", &Writer::Replicator, Ok("{}")),
        ] {
            let expected = expected.map(str::to_owned).or(refused.clone());
            assert_eq!(filled(body, writer), expected, "{body} {writer:?}");
        }
    }

    #[test]
    fn only_owners_and_administrators_change_documents() {
        let may = |owner, writer: &Writer| check_owner(owner, writer).is_ok();
        assert!(may(Some("joe"), &user(Some("joe"), false)));
        assert!(may(Some("joe"), &user(Some("adm"), true)));
        assert!(may(Some("joe"), &Writer::Replicator));
        assert!(!may(Some("joe"), &user(Some("eve"), false)));
        assert!(!may(Some("joe"), &user(None, false)));
        assert!(!may(None, &user(Some("joe"), false)));
    }
}
