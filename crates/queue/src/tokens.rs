//! API tokens: secrets of programs, each with rights to types of jobs.
//!
//! A token is `dvt_NAME_SECRET`. The store has only a hash of it; one round of SHA-256 is enough for 256 random bits. Every
//! request reads the row of its token, so that all nodes refuse a revoked token at once.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use store::{RangeOptions, Transaction};

use crate::name::check_name;
use crate::{Error, Queue, Result, Right, Seconds, TypeName, keys, row};

const PREFIX: &str = "dvt_";
const TOKENS_MAX: usize = 1_000;
const TYPES_MAX: usize = 1_000;

/// What a token allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// `None` for all types of users.
    pub types: Option<Vec<String>>,
    pub rights: Vec<Right>,
}

/// A token to be made, as clients write it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    pub name: String,
    pub types: Option<Vec<String>>,
    pub rights: Vec<Right>,
    pub expires_sec: Option<Seconds>,
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub name: String,
    pub scope: Scope,
    pub created_ms: i64,
    pub created_by: String,
    pub expires_ms: Option<i64>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    hash: [u8; 32],
    scope: Scope,
    created_ms: i64,
    created_by: String,
    expires_ms: Option<i64>,
}

impl Scope {
    pub fn allows(&self, right: Right, ty: &TypeName) -> bool {
        let has_type = |types: &Vec<String>| types.iter().any(|name| name == ty.as_str());
        self.rights.contains(&right) && self.types.as_ref().is_none_or(has_type)
    }
}

impl NewToken {
    fn check(&self) -> Result<()> {
        check_name("a token", &self.name)?;
        if self.rights.is_empty() {
            return Err(Error::Invalid(
                "`rights` must name at least one of enqueue, work and read".into(),
            ));
        }
        for name in self.types.iter().flatten() {
            let name = TypeName::new(name)?;
            if name.is_reserved() {
                return Err(Error::own_type(&name));
            }
        }
        let types = self.types.as_ref();
        if types.is_some_and(|types| types.is_empty() || types.len() > TYPES_MAX) {
            return Err(Error::Invalid(format!(
                "`types` must name 1 to {TYPES_MAX} job types; leave it out to allow all"
            )));
        }
        if self.expires_sec.is_some_and(|sec| sec.ms() == 0) {
            return Err(Error::Invalid("`expires_sec` must be above 0".into()));
        }
        Ok(())
    }
}

impl Token {
    fn of(name: String, row: Row) -> Self {
        Self {
            name,
            scope: row.scope,
            created_ms: row.created_ms,
            created_by: row.created_by,
            expires_ms: row.expires_ms,
        }
    }

    /// Whether a bearer's text is meant as a token. A JWT never begins like this.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    pub fn has_expired(&self, now_ms: i64) -> bool {
        self.expires_ms
            .is_some_and(|expires_ms| expires_ms <= now_ms)
    }
}

impl Queue {
    /// Makes a token; also returns its text, which is not stored. Replaces an expired one of that name.
    pub async fn make_token(&self, new: NewToken, by: &str) -> Result<(Token, String)> {
        new.check()?;
        let now_ms = self.jobs().clock().now_ms();
        let secret = [(); 2].map(|()| self.jobs().entropy().bits());
        let text = format!("{PREFIX}{}_{:032x}{:032x}", new.name, secret[0], secret[1]);
        let token = &Token {
            name: new.name,
            scope: Scope {
                types: new.types.map(distinct),
                rights: distinct(new.rights),
            },
            created_ms: now_ms,
            created_by: by.to_owned(),
            expires_ms: (new.expires_sec).map(|sec| now_ms.saturating_add(sec.ms_signed())),
        };
        let hash = hash(&text);
        (self.jobs().store())
            .transact("make_token", |tx| async move {
                let old = read(&tx, &token.name).await?;
                // A try whose outcome was unknown may have written it.
                if old.as_ref().is_some_and(|old| old.hash == hash) {
                    return Ok(());
                }
                if let Some(old) = old
                    && old.expires_ms.is_none_or(|expires_ms| expires_ms > now_ms)
                {
                    return Err(Error::Conflict(format!(
                        "there is a token `{}`; revoke it first, or choose another name",
                        token.name
                    )));
                }
                let all = tx
                    .snapshot()
                    .get_range(keys::tokens(), RangeOptions::limit(TOKENS_MAX));
                if all.collect().await?.len() >= TOKENS_MAX {
                    return Err(Error::Invalid(format!(
                        "there are {TOKENS_MAX} tokens, which is the maximum; revoke some"
                    )));
                }
                let row = Row {
                    hash,
                    scope: token.scope.clone(),
                    created_ms: now_ms,
                    created_by: token.created_by.clone(),
                    expires_ms: token.expires_ms,
                };
                tx.set(&keys::token(&token.name), &row::encode(&row)?);
                Ok(())
            })
            .await?;
        Ok((token.clone(), text))
    }

    /// All tokens, by name.
    pub async fn tokens(&self) -> Result<Vec<Token>> {
        let rows = (self.jobs().store())
            .transact("tokens", |tx| async move {
                let rows = tx
                    .snapshot()
                    .get_range(keys::tokens(), RangeOptions::default());
                Ok::<_, Error>(rows.collect().await?)
            })
            .await?;
        let tokens = rows.iter().map(|found| {
            let row = row::decode(&found.value, "a token")?;
            Ok(Token::of(keys::name(&found.key)?, row))
        });
        tokens.collect()
    }

    /// The token with this text; `None` if it was revoked, has expired, or never existed.
    pub async fn token(&self, text: &str) -> Result<Option<Token>> {
        let Some((name, _)) = text
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.rsplit_once('_'))
        else {
            return Ok(None);
        };
        let row = (self.jobs().store())
            .transact("token", |tx| async move { read(&tx, name).await })
            .await?;
        // What differs first in two hashes tells nothing about the secret.
        let row = row.filter(|row| row.hash == hash(text));
        let token = row.map(|row| Token::of(name.to_owned(), row));
        let now_ms = self.jobs().clock().now_ms();
        Ok(token.filter(|token| !token.has_expired(now_ms)))
    }

    /// Revokes a token, at once on all nodes.
    pub async fn revoke_token(&self, name: &str) -> Result<()> {
        (self.jobs().store())
            .transact("revoke_token", |tx| async move {
                if read(&tx, name).await?.is_none() && !tx.maybe_committed() {
                    return Err(Error::NotFound(format!("there is no token `{name}`")));
                }
                tx.clear(&keys::token(name));
                Ok(())
            })
            .await
    }
}

/// Each once, in the order given.
fn distinct<T: PartialEq>(given: Vec<T>) -> Vec<T> {
    let mut distinct = Vec::with_capacity(given.len());
    for one in given {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

async fn read(tx: &Transaction, name: &str) -> Result<Option<Row>> {
    let row = tx.get(&keys::token(name)).await?;
    row.map(|row| row::decode(&row, "a token")).transpose()
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

#[cfg(test)]
mod tests {
    use jobs::{Clock, Entropy, Jobs, Options};
    use store::{KeyRange, Store};

    use super::*;

    fn queue(store: &Store, seed: u64) -> Queue {
        queue_at(1_000, store, seed)
    }

    fn queue_at(now_ms: i64, store: &Store, seed: u64) -> Queue {
        let jobs = Jobs::new(
            store.clone(),
            Clock::standing(now_ms),
            Entropy::seeded(seed),
        );
        Queue::new(jobs, Options::default(), seal::Sealer::plain())
    }

    fn new(text: &str) -> NewToken {
        serde_json::from_str(text).unwrap()
    }

    #[tokio::test]
    async fn all_nodes_refuse_a_revoked_token_at_once() {
        let store = Store::open("memory:").await.unwrap();
        let (here, there) = (queue(&store, 1), queue(&store, 2));
        let ci = new(r#"{"name":"ci_2","types":["mail"],"rights":["work"]}"#);
        let (token, text) = here.make_token(ci.clone(), "root").await.unwrap();
        assert_eq!(there.token(&text).await.unwrap(), Some(token.clone()));
        assert!(here.make_token(ci.clone(), "root").await.is_err());
        for wrong in [
            "",
            "dvt_",
            "dvt_ci_2",
            &text[..text.len() - 1],
            &format!("{text}0"),
        ] {
            assert_eq!(there.token(wrong).await.unwrap(), None, "{wrong}");
        }
        let stored = (store.transact("look", |tx| async move {
            let all = tx.get_range(KeyRange::prefix(b""), RangeOptions::default());
            all.collect().await
        }))
        .await
        .unwrap();
        let secret = text.rsplit_once('_').unwrap().1;
        let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(secret);
        assert!(!stored.iter().any(|row| has(&row.key) || has(&row.value)));
        here.revoke_token("ci_2").await.unwrap();
        assert_eq!(there.token(&text).await.unwrap(), None);
        assert!(here.revoke_token("ci_2").await.is_err());
        // Another token of that name is another token.
        let (_, second) = here.make_token(ci, "root").await.unwrap();
        assert_eq!(there.token(&text).await.unwrap(), None);
        assert!(there.token(&second).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn tokens_have_rights_to_types_until_they_expire() {
        let store = Store::open("memory:").await.unwrap();
        let (queue, before) = (queue(&store, 1), queue_at(0, &store, 2));
        let names = ["mail", "news"].map(|name| TypeName::new(name).unwrap());
        let (one, _) = (queue)
            .make_token(
                new(r#"{"name":"a","types":["mail","mail"],"rights":["work","work"]}"#),
                "",
            )
            .await
            .unwrap();
        let scope = Scope {
            types: Some(vec!["mail".to_owned()]),
            rights: vec![Right::Work],
        };
        assert_eq!(one.scope, scope, "each is kept once");
        assert!(one.scope.allows(Right::Work, &names[0]));
        assert!(
            !one.scope.allows(Right::Work, &names[1]) && !one.scope.allows(Right::Read, &names[0])
        );
        let over = new(r#"{"name":"b","rights":["read"],"expires_sec":1}"#);
        let (over, text) = before.make_token(over, "").await.unwrap();
        assert!(before.token(&text).await.unwrap().is_some());
        assert!(over.scope.allows(Right::Read, &names[1]) && over.has_expired(1_000));
        assert_eq!(queue.token(&text).await.unwrap(), None);
        let later = new(r#"{"name":"b","rights":["read"],"expires_sec":1}"#);
        let (_, text) = queue.make_token(later, "").await.unwrap();
        assert!(queue.token(&text).await.unwrap().is_some());
        for bad in [
            r#"{"name":"C","rights":["read"]}"#,
            r#"{"name":"c","rights":[]}"#,
            r#"{"name":"c","rights":["read"],"types":[]}"#,
            r#"{"name":"c","rights":["read"],"types":["Mail"]}"#,
            r#"{"name":"c","rights":["read"],"expires_sec":0}"#,
            r#"{"name":"c","rights":["read"],"expires_sec":0.0001}"#,
        ] {
            assert!(queue.make_token(new(bad), "").await.is_err(), "{bad}");
        }
        let names: Vec<_> = queue
            .tokens()
            .await
            .unwrap()
            .into_iter()
            .map(|t| t.name)
            .collect();
        assert_eq!(names, ["a", "b"]);
    }
}
