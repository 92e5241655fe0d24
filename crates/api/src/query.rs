//! Query strings.

use document::json::Json;

use crate::Error;

/// Parameters in order. If a name occurs twice, the first counts, as in CouchDB.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        Self(
            url::form_urlencoded::parse(text.as_bytes())
                .into_owned()
                .collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.0.iter().filter(|(given, _)| given == name);
        found.next().map(|(_, value)| value.as_str())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        (self.0.iter()).map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Refuses other parameters than these: a misspelt one would have no effect.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), Error> {
        let mut names = self.iter().map(|(name, _)| name);
        let Some(unknown) = names.find(|name| !known.contains(name)) else {
            return Ok(());
        };
        Err(Error::query(match known {
            [] => format!("`{unknown}` is unknown; this request has no parameters"),
            known => format!("`{unknown}` is unknown; use `{}`", known.join("`, `")),
        }))
    }

    /// Whether a parameter is `true`; like CouchDB, ignores other values.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// Whether a parameter is `true`; rejects other values than `false`.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(Error::query(format!(
                "Invalid boolean parameter: {other:?}"
            ))),
        }
    }

    /// A non-negative number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Error> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let text = text.trim();
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(Error::query(format!("Invalid value for integer: {text:?}")));
        }
        if digits != text && digits.bytes().any(|digit| digit != b'0') {
            return Err(Error::query(format!(
                "Invalid value for positive integer: {text:?}"
            )));
        }
        // Larger than any possible count.
        Ok(Some(digits.parse().unwrap_or(u64::MAX)))
    }

    pub(crate) fn json(&self, name: &str) -> Result<Option<Json>, Error> {
        let parse = |text| Json::parse(text).map_err(|_| Error::not_json());
        self.get(name).map(parse).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn parameters_are_read() {
        let query = Query::parse("a=true&a=false&b=%7B%22x%22:1%7D&c=12&d=&e=a+b&f=-1&g=-0");
        assert!(query.flag("a").unwrap() && !query.flag("none").unwrap());
        assert!(query.flag("c").is_err());
        assert_eq!(query.json("b").unwrap().unwrap().to_string(), r#"{"x":1}"#);
        assert!(query.json("e").is_err());
        assert_eq!(query.number("c").unwrap(), Some(12));
        assert_eq!(query.number("g").unwrap(), Some(0));
        assert_eq!(query.number("none").unwrap(), None);
        for bad in ["d", "e", "f", "b"] {
            assert!(query.number(bad).is_err(), "{bad}");
        }
        assert_eq!(query.get("e"), Some("a b"));
        let huge = Query::parse("n=99999999999999999999999999");
        assert_eq!(huge.number("n").unwrap(), Some(u64::MAX));
    }
}
