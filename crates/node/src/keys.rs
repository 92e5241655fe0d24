//! The key file: keys that seal credentials in the store. They must not be in the store.
//!
//! Each line has a name and 64 hexadecimal digits. The first key seals, all of them open. To change keys, add a line at
//! the end, and move it to the front when every node knows it. The file is created at first start, readable only by its
//! owner. If several processes start at once, one of them creates it and all use it.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use aws_lc_rs::hmac;
use seal::Sealer;
use wire::{hex, unhex};

use crate::config::Config;

const FILE: &str = "davenport.keys";
const ABOUT: &str = "# Davenport's keys: what credentials in the store are sealed with. Without them they cannot be read.\n\
    # Keep a copy in a safe place, apart from copies of the store. Every node of a store needs the same file.\n\
    # The first key seals, all of them open. To change keys add a line behind them on every node, then put it in front,\n\
    # and take the old one away when `davenport keys list` says that it is not needed.\n";

/// Keys by name; the first one seals.
pub struct KeyRing(Vec<(String, [u8; 32])>);

#[derive(Debug, thiserror::Error)]
#[error("other users can read or write the key file {path}; run: chmod 600 {path}", path = .0.display())]
pub struct Exposed(PathBuf);

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

impl KeyRing {
    /// A ring with one key that is not saved.
    pub fn drawn(random: [u8; 32]) -> Self {
        Self(vec![(name_of(&random), random)])
    }

    /// Reads a file, or creates it from these random bits.
    pub fn open(path: &Path, random: [u8; 32]) -> anyhow::Result<Self> {
        if let Some(ring) = Self::read(path)? {
            return Ok(ring);
        }
        make(path, &random)
            .with_context(|| format!("cannot create the key file {}", path.display()))?;
        let ring = Self::read(path)?;
        ring.with_context(|| format!("the key file {} was removed", path.display()))
    }

    /// Reads a file; `None` if it does not exist.
    pub fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("cannot read the key file {}", path.display()))?,
        };
        let mode = fs::metadata(path)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(Exposed(path.to_owned()).into());
        }
        let ring = Self::parse(&text);
        ring.with_context(|| format!("cannot read the key file {}", path.display()))
            .map(Some)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = line
                .split_once(char::is_whitespace)
                .and_then(|(name, key)| {
                    Some((name.to_owned(), unhex(key.trim())?.try_into().ok()?))
                });
            let Some(key) = key else {
                bail!(
                    "line {}: must be a name and 64 hexadecimal digits",
                    number + 1
                );
            };
            keys.push(key);
        }
        if keys.is_empty() {
            bail!("it has no keys");
        }
        Ok(Self(keys))
    }

    /// The names of the keys; the first one seals.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    pub fn sealer(&self) -> anyhow::Result<Sealer> {
        Sealer::new(self.0.clone()).context("cannot read the keys")
    }

    /// A secret for another purpose, derived from each key: the same on all nodes, and not in the store.
    pub fn derive(&self, purpose: &str) -> Vec<[u8; 32]> {
        let derive = |(_, key): &(String, [u8; 32])| {
            let root = hmac::Key::new(hmac::HMAC_SHA256, key);
            let tag = hmac::sign(&root, purpose.as_bytes());
            tag.as_ref().try_into().expect("the hash has 32 bytes")
        };
        self.0.iter().map(derive).collect()
    }
}

/// The path of the key file; `None` for an in-memory store.
pub fn path(config: &Config, file: Option<&Path>, state: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = &config.keys.file {
        return Some(path.clone());
    }
    match config.store.url.split_once(':') {
        // Next to the directory: all processes that share it find the same file, and copies of it do not contain the
        // keys.
        Some(("lmdb", directory)) => {
            let directory = directory.trim_end_matches('/');
            Some(PathBuf::from(format!("{directory}.keys")))
        }
        Some(("memory", _)) => None,
        _ => {
            let beside = file.and_then(Path::parent).or(state);
            Some(beside.unwrap_or(Path::new("")).join(FILE))
        }
    }
}

/// Creates the file, unless another process was faster.
fn make(path: &Path, random: &[u8; 32]) -> anyhow::Result<()> {
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        fs::create_dir_all(parent)?;
    }
    let name = name_of(random);
    let draft = path.with_extension(format!("{name}.draft"));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    let written = writeln!(file, "{ABOUT}{name} {}", hex(random)).and_then(|()| file.sync_all());
    // A link appears atomically, and never replaces an existing file.
    let linked = written.and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error.into()),
        Err(_) => Ok(()),
        Ok(()) => {
            fs::set_permissions(path, Permissions::from_mode(0o600))?;
            tracing::warn!(
                file = %path.display(),
                "created a key file; keep a copy, since credentials in the store cannot be read without it"
            );
            Ok(())
        }
    }
}

/// Identifies a key without revealing anything about it.
fn name_of(key: &[u8; 32]) -> String {
    let tag = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, key),
        b"davenport key name",
    );
    format!("k{}", hex(&tag.as_ref()[..4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_once_and_for_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/davenport.keys");
        let first = KeyRing::open(&path, [1; 32]).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let second = KeyRing::open(&path, [2; 32]).unwrap();
        assert_eq!(first.derive("x"), second.derive("x"));
        assert_ne!(first.derive("x"), first.derive("y"));
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing else is left");
        assert!(!format!("{first:?}").contains(&hex(&[1; 32])));
        let sealed = first.sealer().unwrap().seal("here", "text").unwrap();
        assert_eq!(
            second.sealer().unwrap().open("here", &sealed).unwrap(),
            "text"
        );
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("davenport.keys");
        KeyRing::open(&path, [1; 32]).unwrap();
        for mode in [0o640, 0o604, 0o660, 0o644, 0o601] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = format!("{:#}", KeyRing::open(&path, [2; 32]).unwrap_err());
            let command = format!("chmod 600 {}", path.display());
            assert!(error.contains(&command), "{error}");
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            KeyRing::open(&path, [2; 32]).unwrap();
        }
    }

    #[test]
    fn many_that_start_at_once_use_one_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("davenport.keys");
        let rings: Vec<Vec<[u8; 32]>> = std::thread::scope(|scope| {
            let path = &path;
            let open = |n| move || KeyRing::open(path, [n; 32]).unwrap().derive("x");
            let threads: Vec<_> = (0..8).map(|n| scope.spawn(open(n))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(rings.iter().all(|ring| *ring == rings[0]));
    }

    #[test]
    fn a_new_key_in_front_seals() {
        let old = format!("old {}\n", hex(&[3; 32]));
        let new = format!("# a new one\n  new   {}\n\n{old}", hex(&[4; 32]));
        let (old, new) = (KeyRing::parse(&old).unwrap(), KeyRing::parse(&new).unwrap());
        let sealed = old.sealer().unwrap().seal("here", "text").unwrap();
        let sealer = new.sealer().unwrap();
        assert_eq!(sealer.open("here", &sealed).unwrap(), "text");
        assert!(sealer.is_stale(&sealed));
        assert_eq!(new.derive("x")[1], old.derive("x")[0]);
        for wrong in ["", "# none", "a", "a 00", &format!("a {}", "g".repeat(64))] {
            assert!(KeyRing::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_are_never_in_the_store() {
        let at = |url: &str, file: Option<&str>, state: Option<&str>| {
            let mut config = Config::default();
            url.clone_into(&mut config.store.url);
            let path = path(&config, file.map(Path::new), state.map(Path::new));
            path.map(|path| path.display().to_string())
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(at("lmdb:./data/", None, None), text("./data.keys"));
        assert_eq!(at("memory:", None, None), None);
        let cluster = "fdb:/etc/foundationdb/fdb.cluster";
        assert_eq!(
            at(cluster, Some("/etc/d/d.toml"), Some("/s")),
            text("/etc/d/davenport.keys")
        );
        assert_eq!(
            at(cluster, None, Some("/var/lib/d")),
            text("/var/lib/d/davenport.keys")
        );
        assert_eq!(at(cluster, None, None), text("davenport.keys"));
    }
}
