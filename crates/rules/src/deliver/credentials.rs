//! The credentials in a URL.

use couch::{Basic, Secret};
use scheduler::Passwords;
use url::Url;

/// Takes the credentials out of a URL. A user without a password gets that of `passwords` or `secrets` for the server.
pub(super) fn take_credentials(
    url: &mut Url,
    passwords: &Passwords,
    secrets: &scheduler::Secrets,
) -> Option<Basic> {
    let decoded = |text: &str| percent_decoded(text);
    let (user, stands) = (decoded(url.username()), url.password().map(decoded));
    // Neither fails for a URL with a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    if user.is_empty() && stands.is_none() {
        return None;
    }
    let of_secrets = || {
        let mut basics = secrets
            .values()
            .filter_map(|secret| secret.members_for(url)?.get("basic"));
        basics.find_map(|basic| (basic["username"] == *user).then(|| basic["password"].as_str()))?
    };
    let password = (stands.map(Secret::from))
        .or_else(|| passwords.find(url, &user).cloned())
        .or_else(|| of_secrets().map(Secret::from));
    Some(Basic {
        username: user,
        password: password.unwrap_or_else(|| "".into()),
    })
}

fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text)
        .decode_utf8_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn passwords() -> Passwords {
        let text = json!({
            "example.com": {"bob": "p@ss/w:rd", "eve": "old"},
            "Other.example.com:8443": {"bob": "of the port"},
            "other.example.com": {"bob": "of the host"},
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text.to_string()).unwrap();
        Passwords::load(file.path()).unwrap()
    }

    /// The URL that is called, and the credentials.
    fn taken(url: &str, passwords: &Passwords) -> (String, Option<(String, String)>) {
        let mut url = Url::parse(url).unwrap();
        let basic = take_credentials(&mut url, passwords, &scheduler::Secrets::new());
        let basic = basic.map(|basic| (basic.username, basic.password.expose().to_owned()));
        (url.into(), basic)
    }

    #[test]
    fn sp_t100_passwords_are_found_by_host_and_user() {
        let bob = |password: &str| Some(("bob".to_owned(), password.to_owned()));
        let with = passwords();
        let none = Passwords::default();
        for (url, passwords, expected) in [
            ("https://bob@example.com/", &none, bob("")),
            ("https://bob@example.com/", &with, bob("p@ss/w:rd")),
            ("http://bob@EXAMPLE.com:5984/", &with, bob("p@ss/w:rd")),
            (
                "https://bob@other.example.com:8443/",
                &with,
                bob("of the port"),
            ),
            ("https://bob@other.example.com/", &with, bob("of the host")),
            ("https://bob:own@example.com/", &with, bob("own")),
            (
                "https://ann@example.com/",
                &with,
                Some(("ann".into(), String::new())),
            ),
            ("https://bob@unknown.example.com/", &with, bob("")),
            ("https://example.com/", &with, None),
        ] {
            assert_eq!(taken(url, passwords).1, expected, "{url}");
        }
    }

    #[test]
    fn d6_sp_t042_query_and_fragment_stay_and_the_password_is_not_in_the_url() {
        let (url, basic) = taken("https://bob@example.com/a%2Fb?x=1&y=%26#z", &passwords());
        assert_eq!(url, "https://example.com/a%2Fb?x=1&y=%26#z");
        assert_eq!(basic, Some(("bob".into(), "p@ss/w:rd".into())));
        let (_, basic) = taken("https://b%6Fb@example.com/", &passwords());
        assert_eq!(basic, Some(("bob".into(), "p@ss/w:rd".into())));
    }

    #[test]
    fn secrets_serve_their_own_servers() {
        let secret = json!({"origins": ["https://a.example"], "basic": {"username": "bob", "password": "s3cret"}});
        let secret = couch::NamedSecret::parse(secret.as_object().unwrap()).unwrap();
        let secrets = scheduler::Secrets::from([("hook".to_owned(), secret)]);
        let password = |url: &str| {
            let mut url = Url::parse(url).unwrap();
            let basic = take_credentials(&mut url, &Passwords::default(), &secrets);
            basic.unwrap().password.expose().to_owned()
        };
        assert_eq!(password("https://bob@a.example/x"), "s3cret");
        assert_eq!(
            password("https://bob:of%20the%20rule@a.example/x"),
            "of the rule"
        );
        assert_eq!(password("https://ann@a.example/x"), "");
        assert_eq!(password("https://bob@b.example/x"), "");
    }
}
