//! Parses a configuration file into settings with their positions.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use api::auth::password::PasswordHash;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use zeroize::Zeroizing;

use super::Setting;
use super::problem::{Origin, Problem, nearest};
use super::schema::{self, Section};

/// Reads a file and collects its problems.
pub(super) fn read(path: &Path, problems: &mut Vec<Problem>) -> Vec<Setting> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text, problems),
        Err(error) => {
            let origin = Origin::File {
                path: path.to_owned(),
                at: None,
            };
            problems.push(Problem::new(
                origin,
                None,
                format!("cannot be read: {error}"),
            ));
            Vec::new()
        }
    }
}

/// The secrets among the settings of a file, if users outside its group can read it.
pub(super) fn exposed(path: &Path, settings: &[Setting]) -> Vec<String> {
    let is_open = std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o004 != 0);
    let secrets = settings
        .iter()
        .filter(|setting| is_open && is_secret(setting));
    secrets.map(|setting| setting.path.clone()).collect()
}

fn is_secret(setting: &Setting) -> bool {
    let path = setting.path.as_str();
    // Other keys of tokens are public.
    let is_key = path.starts_with("secrets.") || path.starts_with("jwt_keys.hmac:");
    let is_password = || {
        let hash = setting.value.as_str().and_then(PasswordHash::from_config);
        path.starts_with("admins.") && hash.is_none()
    };
    is_key || path == "chttpd_auth.proxy_secrets" || is_password() || has_password(&setting.value)
}

/// Whether there is a password in a URL.
fn has_password(value: &toml::Value) -> bool {
    match value {
        toml::Value::String(text) => {
            url::Url::parse(text).is_ok_and(|url| url.password().is_some())
        }
        toml::Value::Array(values) => values.iter().any(has_password),
        toml::Value::Table(values) => values.values().any(has_password),
        _ => false,
    }
}

/// Reads a file of administrators, one per line, and collects its problems.
pub(super) fn admins(path: &Path, problems: &mut Vec<Problem>) -> Vec<(Origin, String, String)> {
    let origin = |line: usize| Origin::File {
        path: path.to_owned(),
        at: Some((line, 1)),
    };
    let mut refuse = |origin, what: String| problems.push(Problem::new(origin, None, what));
    let whole = || Origin::File {
        path: path.to_owned(),
        at: None,
    };
    let text = match read_private(path) {
        Ok(Some(text)) => text,
        Ok(None) => {
            let what = "other users can read these passwords; run: chmod 600";
            refuse(whole(), what.to_owned());
            return Vec::new();
        }
        Err(error) => {
            refuse(whole(), format!("cannot be read: {error}"));
            return Vec::new();
        }
    };
    let mut admins = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        match text.split_once(':') {
            Some((name, password)) => {
                admins.push((origin(line), name.to_owned(), password.to_owned()));
            }
            None => refuse(origin(line), "write NAME:PASSWORD".to_owned()),
        }
    }
    admins
}

/// The text of a file, unless its group or other users may read it.
fn read_private(path: &Path) -> io::Result<Option<Zeroizing<String>>> {
    let mut file = File::open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        return Ok(None);
    }
    let mut text = Zeroizing::default();
    file.read_to_string(&mut text)?;
    Ok(Some(text))
}

pub(super) fn parse(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Vec<Setting> {
    let mut reader = Reader {
        path: path.to_owned(),
        text,
        problems,
        settings: Vec::new(),
    };
    let parsed = DeTable::parse(text).and_then(|spanned| {
        let values = toml::from_str::<toml::Table>(text)?;
        Ok((spanned, values))
    });
    match parsed {
        Ok((spanned, values)) => reader.top(spanned.get_ref(), &values),
        Err(error) => {
            let origin = reader.origin(error.span());
            let what = error.message().to_owned();
            reader.problems.push(Problem::new(origin, None, what));
        }
    }
    reader.settings
}

struct Reader<'a> {
    path: PathBuf,
    text: &'a str,
    problems: &'a mut Vec<Problem>,
    settings: Vec<Setting>,
}

type Entry<'t, 'i> = (
    &'t Spanned<std::borrow::Cow<'i, str>>,
    &'t Spanned<DeValue<'i>>,
);

impl Reader<'_> {
    fn top(&mut self, table: &DeTable<'_>, values: &toml::Table) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let Some(section) = schema::section(name) else {
                let sections = schema::sections().iter();
                let known = sections.map(|section| section.name.as_str());
                let what = format!("unknown section{}", nearest(name, known));
                self.refuse(key.span(), &format!("[{name}]"), what);
                continue;
            };
            self.section(section, (key, value), values.get(name));
        }
    }

    fn section(&mut self, section: &Section, entry: Entry<'_, '_>, values: Option<&toml::Value>) {
        let (key, value) = entry;
        let name = &section.name;
        let (DeValue::Table(table), Some(toml::Value::Table(values))) = (value.get_ref(), values)
        else {
            let what = format!("is a section; start it with a line [{name}]");
            return self.refuse(key.span(), name, what);
        };
        for (key, value) in table {
            let path = format!("{name}.{}", key.get_ref());
            let given = values.get(key.get_ref().as_ref());
            if let Some(inner) = schema::section(&path) {
                self.section(inner, (key, value), given);
            } else if schema::form(&path).is_none() {
                let what = unknown(section, key.get_ref());
                self.refuse(key.span(), &path, what);
            } else if let Some(given) = given {
                let origin = self.origin(Some(key.span()));
                self.settings.push(Setting {
                    path,
                    value: given.clone(),
                    origin,
                });
            }
        }
    }

    fn refuse(&mut self, span: Range<usize>, key: &str, what: String) {
        let origin = self.origin(Some(span));
        self.problems.push(Problem::new(origin, Some(key), what));
    }

    fn origin(&self, span: Option<Range<usize>>) -> Origin {
        let before = span.and_then(|span| self.text.get(..span.start));
        Origin::File {
            path: self.path.clone(),
            at: before.map(|before| {
                let line = before.matches('\n').count() + 1;
                let start = before.rfind('\n').map_or(0, |newline| newline + 1);
                (line, before[start..].chars().count() + 1)
            }),
        }
    }
}

/// The message for an unknown option.
pub(super) fn unknown(section: &Section, key: &str) -> String {
    let elsewhere = schema::sections()
        .iter()
        .find(|other| other.keys.iter().any(|known| known.name == key));
    let hint = match elsewhere {
        Some(other) => format!("; it is an option of [{}]", other.name),
        None => nearest(key, section.keys.iter().map(|known| known.name.as_str())),
    };
    format!("unknown option{hint}")
}
