//! Names and roles vouched for by a proxy in front. `CouchDB` makes the token optional. It is required here: without
//! it, any client that reaches the port could claim any name.

use aws_lc_rs::hmac;

use super::Identity;

/// The header names are `CouchDB`'s defaults.
pub const NAME_HEADER: &str = "x-auth-couchdb-username";
/// Comma-separated.
pub const ROLES_HEADER: &str = "x-auth-couchdb-roles";
/// The HMAC of the name, in hexadecimal.
pub const TOKEN_HEADER: &str = "x-auth-couchdb-token";

/// The identity in the headers, if the token is the HMAC of the name under one of the secrets. `CouchDB` signs with
/// SHA-256, older versions with SHA-1.
pub fn identity(
    secrets: &[Vec<u8>],
    name: &str,
    roles: Option<&str>,
    token: Option<&str>,
) -> Option<Identity> {
    let token = wire::unhex(token?)?;
    let algorithm = match token.len() {
        32 => hmac::HMAC_SHA256,
        20 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        _ => return None,
    };
    let signed = secrets.iter().any(|secret| {
        hmac::verify(&hmac::Key::new(algorithm, secret), name.as_bytes(), &token).is_ok()
    });
    let roles = roles.unwrap_or_default().split(',').map(str::trim);
    signed.then(|| Identity {
        name: Some(name.to_owned()),
        roles: roles
            .filter(|role| !role.is_empty())
            .map(str::to_owned)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::identity;

    /// `printf foo | openssl dgst -sha256 -hmac the_secret`, the example from `CouchDB`'s manual, and the same with
    /// `-sha1`.
    const SHA256: &str = "3f0786e96b20b0102b77f1a49c041be6977cfb3bf78c41a12adc121cd9b4e68a";
    const SHA1: &str = "22047ebd7c4ec67dfbcbad7213a693249dbfbf86";

    #[test]
    fn a_name_needs_its_token() {
        let secrets = [b"other".to_vec(), b"the_secret".to_vec()];
        let roles = Some("users, blogger,");
        for token in [SHA256, SHA1] {
            let foo = identity(&secrets, "foo", roles, Some(token)).unwrap();
            assert_eq!(foo.name.as_deref(), Some("foo"));
            assert_eq!(foo.roles, ["users", "blogger"]);
            assert_eq!(identity(&secrets, "bar", roles, Some(token)), None);
            assert_eq!(identity(&[], "foo", roles, Some(token)), None);
        }
        for token in [None, Some(""), Some("zz"), Some("00")] {
            assert_eq!(identity(&secrets, "foo", roles, token), None);
        }
    }
}
