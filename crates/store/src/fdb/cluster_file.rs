//! Validates the cluster file, because the client waits forever if it is malformed.

use std::sync::Arc;

use crate::{Error, Result};

pub(super) fn check(path: &str) -> Result<()> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::Open {
        message: format!(
            "the FoundationDB cluster file {path:?} cannot be read: copy it from a machine of the \
             cluster, where it is /etc/foundationdb/fdb.cluster, or name another one as fdb:FILE"
        ),
        source: Some(Arc::new(error)),
    })?;
    if is_connection_string(&text) {
        return Ok(());
    }
    Err(Error::open(format!(
        "{path:?} is not a FoundationDB cluster file: one line NAME:ID@ADDRESS:PORT[,ADDRESS:PORT]... \
         is expected; copy the file from a machine of the cluster"
    )))
}

/// As the client parses it: comments and one line of `name:id@` and coordinators.
fn is_connection_string(text: &str) -> bool {
    let mut lines = (text.lines())
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty());
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return false;
    };
    let Some((name, coordinators)) = line.split_once('@') else {
        return false;
    };
    let word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    (name.split_once(':')).is_some_and(|(description, id)| word(description) && word(id))
        && coordinators.split(',').all(is_coordinator)
}

/// `127.0.0.1:4500`, `[::1]:4500` or `host.name:4500`, optionally followed by `:tls`.
fn is_coordinator(coordinator: &str) -> bool {
    let coordinator = coordinator.trim();
    let address = coordinator.strip_suffix(":tls").unwrap_or(coordinator);
    address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings_are_told_from_others() {
        for right in [
            "davenport:local@127.0.0.1:4500",
            "# DO NOT EDIT!\nfdb:Zk3b0a@10.0.0.1:4500,10.0.0.2:4500:tls\n\n",
            "a_b:1@[::1]:4500, db.example.org:4501  # both",
        ] {
            assert!(is_connection_string(right), "{right}");
        }
        for wrong in [
            "",
            "# only a comment",
            "127.0.0.1:4500",
            "name@127.0.0.1:4500",
            "name:id@",
            "name:id@127.0.0.1",
            "name:id@:4500",
            "name:id@127.0.0.1:45000000",
            "na me:id@127.0.0.1:4500",
            "a:b@127.0.0.1:4500\na:b@127.0.0.1:4501",
        ] {
            assert!(!is_connection_string(wrong), "{wrong}");
        }
    }

    #[test]
    fn the_error_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fdb.cluster");
        let path = path.to_str().unwrap();
        let missing = check(path).unwrap_err().to_string();
        assert!(missing.contains("cannot be read: copy it"), "{missing}");
        std::fs::write(path, "nonsense").unwrap();
        let malformed = check(path).unwrap_err().to_string();
        assert!(
            malformed.contains("is not a FoundationDB cluster file"),
            "{malformed}"
        );
        std::fs::write(path, [0xff, 0xfe]).unwrap();
        assert!(matches!(check(path), Err(Error::Open { .. })));
        std::fs::write(path, "a:b@127.0.0.1:4500").unwrap();
        check(path).unwrap();
    }
}
