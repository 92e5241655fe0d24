//! Who may write a document.

use docstore::{Db, Edit};
use document::json::Json;

use super::meaning::{Meaning, Prepared};
use crate::fault::ServiceError;
use crate::service::Replications;
use crate::strip;
use couch::Reach;
use replication::params::{Grant, Invalid, Replication};

const OTHERS: &str = "Can't update replication documents from other users.";
const LENT: &str = "A plain name in `source` or `target` is copied with the rights of the document's owner, so only the owner \
                    may write it: give URLs in its place.";
const USER_CTX: &str = "Only a server administrator may write a `user_ctx` of another user or with roles: it means nothing \
                        here, so leave it out.";
const PRIVILEGED: &str =
    "Only a server administrator may set `tls`, `auth.jwt` or `auth.secret_ref` of an endpoint.";
pub(super) const OUTLIVED: &str = "A session, expiring token or proxy login would end before this replication: send name and \
                                   password with the request, or give `source` and `target` as URLs with credentials of \
                                   their own.";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A client.
    User {
        /// `None` for an anonymous client.
        name: Option<String>,
        /// The user's rights beyond its own documents.
        rank: Rank,
    },
    /// The replicator itself. No client can become it, whatever its roles.
    Replicator,
}

impl Writer {
    /// Whether it may write only its own documents.
    pub(super) fn is_member(&self) -> bool {
        matches!(
            self,
            Self::User {
                rank: Rank::Member,
                ..
            }
        )
    }
}

/// A user's rights beyond writing its own documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Nothing.
    Member,
    /// May write other users' documents in this database.
    DatabaseAdmin,
    /// May do everything, including use the server's files and secrets.
    ServerAdmin,
}

impl Rank {
    pub(super) fn reach(self) -> Reach {
        match self {
            Self::ServerAdmin => Reach::Private,
            Self::Member | Self::DatabaseAdmin => Reach::Public,
        }
    }
}

/// Whether a document of this owner may be changed, deleted or replaced.
pub(super) fn check_owner(owner: Option<&str>, writer: &Writer) -> Result<(), ServiceError> {
    match writer {
        Writer::Replicator => Ok(()),
        Writer::User { rank, .. } if *rank > Rank::Member => Ok(()),
        Writer::User { name, .. } if name.as_deref() == owner => Ok(()),
        Writer::User { .. } => Err(ServiceError::Forbidden(OTHERS)),
    }
}

/// The body with its owner filled in; `None` if unchanged.
fn fill_owner(body: &Json, writer: &Writer) -> Result<Option<Json>, ServiceError> {
    let Writer::User { name, rank } = writer else {
        return Ok(None);
    };
    let mine = name.clone().map_or(Json::Null, Json::String);
    match body.get("owner") {
        Some(given) if *given == mine => return Ok(None),
        Some(_) if *rank == Rank::Member => return Err(ServiceError::Forbidden(OTHERS)),
        Some(given) if *given != Json::Null => return Ok(None),
        _ => {}
    }
    let mut members = body.as_object().unwrap_or_default().to_vec();
    members.retain(|(member, _)| member != "owner");
    members.push(("owner".to_owned(), mine));
    Ok(Some(Json::Object(members)))
}

impl Replications {
    /// [`Self::prepare_granted`] of an edit without plain names.
    pub fn prepare(&self, db: &Db, edit: Edit, writer: &Writer) -> Result<Edit, ServiceError> {
        Ok(self.prepare_granted(db, edit, writer, None)?.edit)
    }

    /// Checks an edit, fills in its owner and seals its credentials. Call it before the transaction that writes the
    /// edit with [`hook`](Replications::hook); for a large body, on a thread that may block. Plain database names use
    /// the writer's `grant`, if the document is the writer's own; an import by the replicator keeps its grant as it is.
    /// Design and `_local` documents are not changed.
    pub fn prepare_granted(
        &self,
        db: &Db,
        mut edit: Edit,
        writer: &Writer,
        grant: Option<&Grant>,
    ) -> Result<Prepared, ServiceError> {
        if edit.is_local() || edit.id.starts_with("_design/") {
            return Ok(Prepared {
                edit,
                meaning: None,
            });
        }
        let mut body = Json::parse(&edit.body)
            .map_err(|_| docstore::Error::Invalid(document::doc::Invalid::Json))?;
        if (!edit.deleted || body.get("owner").is_some())
            && let Some(filled) = fill_owner(&body, writer)?
        {
            edit.body = filled.to_string();
            body = filled;
        }
        let grant = match writer {
            _ if edit.deleted => None,
            Writer::User { rank, .. } => Grant::of(&body, grant, rank.reach()),
            Writer::Replicator => grant.cloned(),
        };
        let wanted = Replication::granted(&body, grant.as_ref(), &self.defaults());
        if let Writer::User { name, rank } = writer
            && !edit.deleted
        {
            // In any state: another user may remove the state later, and is not checked for the rest.
            let wanted = wanted.as_ref().map_err(Clone::clone)?;
            check_paused(&body)?;
            check_user_ctx(&body, name.as_deref(), *rank)?;
            self.check_privileges(wanted, *rank)?;
            if let Some(grant) = grant.as_ref().filter(|grant| grant.has_rights()) {
                check_lent(&body, name.as_deref(), grant)?;
            }
        }
        let sealer = &self.0.sealer;
        edit.sealed = strip::seal_body(sealer, db, &edit.id, &body, grant.as_ref());
        let meaning = Meaning {
            body,
            grant,
            wanted,
        };
        Ok(Prepared {
            edit,
            meaning: Some(meaning),
        })
    }

    /// Checks that a user of this rank may have this replication, that its literal addresses are allowed, and that the
    /// secrets it names may be sent to its endpoints.
    pub(super) fn check_privileges(
        &self,
        wanted: &Replication,
        rank: Rank,
    ) -> Result<(), ServiceError> {
        if wanted.is_privileged() && rank < Rank::ServerAdmin {
            return Err(ServiceError::Forbidden(PRIVILEGED));
        }
        for endpoint in [&wanted.source, &wanted.target] {
            if let Some(policy) = &self.0.policy {
                (policy.check(endpoint))
                    .map_err(|error| ServiceError::Egress(error.to_string()))?;
            }
            let secret = endpoint.secret_ref();
            // An unknown secret may exist on another node.
            if let Some(secret) = secret.and_then(|name| self.0.secrets.get(name)) {
                endpoint.with_secret(secret).map_err(Invalid::from)?;
            }
        }
        Ok(())
    }
}

/// A user's rights are for that user's own documents.
fn check_lent(body: &Json, name: Option<&str>, grant: &Grant) -> Result<(), ServiceError> {
    if body.get("owner").and_then(Json::as_str) != name {
        return Err(ServiceError::Forbidden(LENT));
    }
    if grant.expires() {
        return Err(ServiceError::Forbidden(OUTLIVED));
    }
    Ok(())
}

/// Old replicators ran documents with the roles in their `user_ctx`, and documents are copied between systems.
fn check_user_ctx(body: &Json, name: Option<&str>, rank: Rank) -> Result<(), ServiceError> {
    let Some(given) = body.get("user_ctx").filter(|_| rank < Rank::ServerAdmin) else {
        return Ok(());
    };
    let is_own = match given.get("name") {
        None | Some(Json::Null) => true,
        Some(given) => given.as_str() == name && name.is_some(),
    };
    let has_roles = match given.get("roles") {
        None | Some(Json::Null) => false,
        Some(roles) => roles.as_array().is_none_or(|roles| !roles.is_empty()),
    };
    if given.as_object().is_none() || !is_own || has_roles {
        return Err(ServiceError::Forbidden(USER_CTX));
    }
    Ok(())
}

fn check_paused(body: &Json) -> Result<(), ServiceError> {
    match body.get("paused") {
        None | Some(Json::Bool(_)) => Ok(()),
        Some(_) => Err(Invalid::new("`paused` must be a boolean").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: Option<&str>, is_admin: bool) -> Writer {
        let rank = if is_admin {
            Rank::DatabaseAdmin
        } else {
            Rank::Member
        };
        let name = name.map(str::to_owned);
        Writer::User { name, rank }
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
        let (joe, admin, anonymous) = (
            user(Some("joe"), false),
            user(Some("adm"), true),
            user(None, true),
        );
        let refused = Err("Can't update replication documents from other users.".to_owned());
        for (body, writer, expected) in [
            (r#"{"a":1}"#, &joe, Ok(r#"{"a":1,"owner":"joe"}"#)),
            (r#"{"a":1}"#, &anonymous, Ok(r#"{"a":1,"owner":null}"#)),
            (r#"{"owner":"joe"}"#, &joe, Ok(r#"{"owner":"joe"}"#)),
            (r#"{"owner":"eve"}"#, &joe, Err(())),
            (r#"{"owner":null}"#, &joe, Err(())),
            (r#"{"owner":7}"#, &joe, Err(())),
            (r#"{"owner":"joe"}"#, &admin, Ok(r#"{"owner":"joe"}"#)),
            (r#"{"owner":null}"#, &admin, Ok(r#"{"owner":"adm"}"#)),
            (r#"{"owner":null}"#, &anonymous, Ok(r#"{"owner":null}"#)),
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
