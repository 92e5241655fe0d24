//! Hides secrets in the command line and the environment from `ps`. The kernel shows the process's own memory, so that
//! is overwritten through `/proc/self/mem`, where a wrong address is an error and not undefined behaviour. Without
//! `/proc` nothing changes, and the caller is told.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Flags whose value is `NAME:PASSWORD`.
const PAIRS: [&[u8]; 2] = [b"--admin", b"--user"];
const SET: &[u8] = b"--set";
/// Options whose values are secrets.
const SECRET_OPTIONS: [&[u8]; 4] = [
    b"admins.",
    b"jwt_keys.",
    b"secrets.",
    b"chttpd_auth.proxy_secrets",
];
/// The fields of `/proc/self/stat` with the addresses of arguments and environment, counted after the program name.
const ARGUMENTS_AT: usize = 45;
const ENVIRONMENT_AT: usize = 47;

/// Overwrites passwords and other secrets in the arguments. The program has already copied them.
pub(crate) fn hide_arguments() -> io::Result<()> {
    overwrite(ARGUMENTS_AT, secrets)
}

/// The positions of secrets in the null-terminated arguments.
fn secrets(arguments: &[u8]) -> Vec<Range<usize>> {
    let mut flag: &[u8] = b"";
    let mut secrets = Vec::new();
    for range in strings(arguments) {
        let text = &arguments[range.clone()];
        secrets.extend(secret(flag, text, range.start));
        flag = text;
        if let Some(at) = split(text, b'=') {
            let value = range.start + at + 1;
            secrets.extend(secret(&text[..at], &text[at + 1..], value));
        }
        // Many flags, options and arguments are URLs.
        let of_urls = passwords_of_urls(text).into_iter();
        secrets.extend(of_urls.map(|at| range.start + at.start..range.start + at.end));
    }
    secrets
}

/// The position of the secret in the value of a flag that starts at `begin`.
fn secret(flag: &[u8], value: &[u8], begin: usize) -> Option<Range<usize>> {
    let at = if PAIRS.contains(&flag) {
        split(value, b':')?
    } else if flag == SET && SECRET_OPTIONS.iter().any(|name| value.starts_with(name)) {
        split(value, b'=')?
    } else {
        return None;
    };
    Some(begin + at + 1..begin + value.len())
}

/// The positions of passwords in the URLs in a text.
fn passwords_of_urls(text: &[u8]) -> Vec<Range<usize>> {
    const SCHEME_END: &[u8] = b"://";
    let ends = text.windows(SCHEME_END.len()).enumerate();
    let begins = ends.filter(|(_, part)| *part == SCHEME_END);
    let begins = begins.map(|(at, _)| at + SCHEME_END.len());
    begins
        .filter_map(|begin| {
            let authority = &text[begin..];
            let authority = &authority[..split(authority, b'/').unwrap_or(authority.len())];
            let at = authority.iter().rposition(|byte| *byte == b'@')?;
            let colon = split(&authority[..at], b':')?;
            Some(begin + colon + 1..begin + at)
        })
        .collect()
}

/// Overwrites the values of variables. They cannot be read from the environment afterwards.
pub(crate) fn hide_variables(is_secret: impl Fn(&[u8]) -> bool) -> io::Result<()> {
    overwrite(ENVIRONMENT_AT, |environment| {
        let values = strings(environment).filter_map(|range| {
            let at = split(&environment[range.clone()], b'=')?;
            let name = &environment[range.start..range.start + at];
            is_secret(name).then_some(range.start + at + 1..range.end)
        });
        values.collect()
    })
}

/// Overwrites what `secrets` finds in the region whose addresses are in this field of `/proc/self/stat`.
fn overwrite(at: usize, secrets: impl Fn(&[u8]) -> Vec<Range<usize>>) -> io::Result<()> {
    let unknown = || io::Error::other("/proc/self/stat has no addresses");
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')').ok_or_else(unknown)?;
    let mut fields = fields.split_ascii_whitespace().skip(at);
    let mut address = || fields.next()?.parse::<u64>().ok();
    let (begin, end) = address().zip(address()).ok_or_else(unknown)?;
    // The kernel says 0 if it hides the address; an environment may be empty.
    let length = end.checked_sub(begin).filter(|_| begin > 0);
    let length = usize::try_from(length.ok_or_else(unknown)?).map_err(io::Error::other)?;
    if length == 0 {
        return Ok(());
    }
    let memory = File::options()
        .read(true)
        .write(true)
        .open("/proc/self/mem")?;
    let mut region = vec![0; length];
    memory.read_exact_at(&mut region, begin)?;
    for secret in secrets(&region) {
        let stars = vec![b'*'; secret.len()];
        memory.write_all_at(&stars, begin + secret.start as u64)?;
    }
    region.fill(0);
    Ok(())
}

/// The positions of the null-terminated strings of a region.
fn strings(region: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut begin = 0;
    region.split(|byte| *byte == 0).map(move |string| {
        let range = begin..begin + string.len();
        begin = range.end + 1;
        range
    })
}

fn split(text: &[u8], at: u8) -> Option<usize> {
    text.iter().position(|byte| *byte == at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `ps` shows.
    fn shown(arguments: &[&str]) -> String {
        let mut region = arguments.join("\0").into_bytes();
        for secret in secrets(&region) {
            region[secret].fill(b'*');
        }
        String::from_utf8(region).unwrap().replace('\0', " ")
    }

    #[test]
    fn secrets_are_found() {
        for (arguments, expected) in [
            (
                &["--from", "http://admin:p@w:1@host:5984/db"][..],
                "--from http://admin:*****@host:5984/db",
            ),
            (&["http://admin:pw@host"], "http://admin:**@host"),
            (
                &["--url=http://anna:pw@host/"],
                "--url=http://anna:**@host/",
            ),
            (
                &["--set", "sources.a.url=https://u:pw@host"],
                "--set sources.a.url=https://u:**@host",
            ),
            (
                &["--set=network.proxies=[\"http://a:b@c\",\"http://d:e@f/\"]"],
                "--set=network.proxies=[\"http://a:*@c\",\"http://d:*@f/\"]",
            ),
            (
                &["http://admin@host:5984/a:b@c"],
                "http://admin@host:5984/a:b@c",
            ),
            (&["http://host:5984/"], "http://host:5984/"),
            (&["user:pw@host"], "user:pw@host"),
            (&["--admin", "anna:pw"], "--admin anna:**"),
            (&["--set", "secrets.a=pw"], "--set secrets.a=**"),
        ] {
            assert_eq!(shown(arguments), expected);
        }
    }
}
