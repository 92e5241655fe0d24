//! The directory of a store: its format and its locks.
//!
//! ```text
//! format           the program and the version of the layout
//! control          the page that all processes share
//! data.mdb         the tree, and LMDB's lock.mdb
//! redo-…           the redo log
//! open.lock        held shared by every process that has the store open
//! commit.lock      held while the log is written
//! checkpoint.lock  held while the tree is written
//! ```
//! Locks are `flock`, which the kernel releases when a process dies.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::failure;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
}

const FORMAT_NAME: &str = "format";
const FORMAT_MAGIC: &str = "davenport embedded store, format ";
/// Format 1 had no checksums in the tree.
const FORMAT: u32 = 2;

/// Whether a directory has a store, of any format.
pub(super) fn has_format(path: &Path) -> bool {
    path.join(FORMAT_NAME).exists()
}

impl Directory {
    /// Creates the directory, or checks that it has a store of a supported format.
    pub(super) fn prepare(path: &Path) -> Result<Self> {
        let fail = |doing| move |error| failure::open_error(doing, path, error);
        (DirBuilder::new().recursive(true).mode(0o700).create(path))
            .map_err(fail("making the directory"))?;
        let path = fs::canonicalize(path).map_err(fail("finding the directory"))?;
        refuse_network(&path)?;
        let directory = Self { path };
        directory.check_format()?;
        Ok(directory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn open_file(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        let options = (OpenOptions::new().read(true).write(true).create(true))
            .truncate(false)
            .mode(0o600)
            .clone();
        (options.open(&path)).map_err(|error| failure::open_error("opening a file", &path, error))
    }

    pub(super) fn lock_file(&self, name: &'static str) -> Result<LockFile> {
        let file = Mutex::new(self.open_file(name)?);
        Ok(LockFile { file, name })
    }

    fn check_format(&self) -> Result<()> {
        let path = self.path.join(FORMAT_NAME);
        let fail = |error| failure::open_error("reading or writing the format", &self.path, error);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.path.join("data.mdb").exists() {
                    return Err(Error::open(format!(
                        "{} holds an LMDB database that is not a Davenport store; name another \
                         directory",
                        self.path.display()
                    )));
                }
                return self.write_format(&path).map_err(fail);
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
            Err(error) => return Err(fail(error)),
        };
        let format = text.trim_end().strip_prefix(FORMAT_MAGIC);
        match format.map(str::parse::<u32>) {
            Some(Ok(FORMAT)) => Ok(()),
            Some(Ok(older @ ..FORMAT)) => Err(Error::open(format!(
                "{} has format {older}, and this version of Davenport needs {FORMAT}: export it with \
                 the version that wrote it, and import that into a new directory with this one",
                self.path.display()
            ))),
            Some(Ok(other)) => Err(Error::open(format!(
                "{} has format {other}, and this version of Davenport supports only {FORMAT}: run the \
                 version that wrote it",
                self.path.display()
            ))),
            _ => Err(Error::open(format!(
                "{} is not a Davenport store: its format file was written by another program",
                self.path.display()
            ))),
        }
    }

    fn write_format(&self, path: &Path) -> io::Result<()> {
        // Two processes may do this at the same time, so each has its own file.
        let temporary = path.with_extension(std::process::id().to_string());
        let options = (OpenOptions::new().write(true).create(true).truncate(true))
            .mode(0o600)
            .clone();
        let mut file = options.open(&temporary)?;
        writeln!(file, "{FORMAT_MAGIC}{FORMAT}")?;
        file.sync_all()?;
        fs::rename(temporary, path)?;
        File::open(&self.path)?.sync_all()
    }
}

#[derive(Debug)]
pub(super) struct LockFile {
    /// The mutex excludes threads of this process, which share the file's lock.
    file: Mutex<File>,
    name: &'static str,
}

/// Releases the lock when dropped.
#[derive(Debug)]
pub(super) struct Locked<'f> {
    file: MutexGuard<'f, File>,
    keep: bool,
}

impl LockFile {
    /// Waits for the lock.
    pub(super) fn lock(&self) -> io::Result<Locked<'_>> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.lock()?;
        Ok(Locked { file, keep: false })
    }

    pub(super) fn try_lock(&self) -> io::Result<Option<Locked<'_>>> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        match file.try_lock() {
            Ok(()) => Ok(Some(Locked { file, keep: false })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Waits for the lock with a time-out: a stopped process may hold it.
    pub(super) fn lock_within(&self, time_limit: Duration) -> Result<Locked<'_>> {
        let begun = Instant::now();
        let pause = (Mutex::new(()), Condvar::new());
        loop {
            match self.try_lock() {
                Ok(Some(locked)) => return Ok(locked),
                Ok(None) if begun.elapsed() < time_limit => {
                    let guard = pause.0.lock().unwrap_or_else(PoisonError::into_inner);
                    drop(pause.1.wait_timeout(guard, Duration::from_millis(5)));
                }
                Ok(None) => {
                    return Err(Error::open(format!(
                        "another process has held {} for {time_limit:?}; check for a stopped process",
                        self.name
                    )));
                }
                Err(error) => {
                    return Err(failure::open_error("locking", Path::new(self.name), error));
                }
            }
        }
    }

    /// Takes the lock in shared mode. The caller knows that no process holds it exclusively.
    pub(super) fn lock_shared(&self) -> io::Result<()> {
        (self.file.lock().unwrap_or_else(PoisonError::into_inner)).lock_shared()
    }
}

impl Locked<'_> {
    /// Changes an exclusive lock to a shared one, which is not atomic: the caller excludes other
    /// processes meanwhile.
    pub(super) fn share(mut self) -> io::Result<()> {
        self.keep = true;
        self.file.lock_shared()
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = self.file.unlock() {
            tracing::error!(%error, "a lock could not be released");
        }
    }
}

/// LMDB and the control page need memory that all processes share, which network file systems do not
/// provide.
#[cfg(target_os = "linux")]
fn refuse_network(path: &Path) -> Result<()> {
    const NETWORK: [(i64, &str); 13] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x564c, "NCP"),
        (0x00c3_6400, "Ceph"),
        (0x0102_1997, "9P"),
        (0x5346_414f, "AFS"),
        (0x7375_7245, "Coda"),
        (0x0bd0_0bd0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x0116_1970, "GFS2"),
        (0x6573_5546, "FUSE"),
    ];
    let stat = rustix::fs::statfs(path)
        .map_err(|error| failure::open_error("looking at the file system", path, error.into()))?;
    #[expect(
        clippy::useless_conversion,
        reason = "the type differs between machines"
    )]
    let kind = i64::from(stat.f_type);
    match NETWORK.iter().find(|(magic, _)| *magic == kind) {
        None => Ok(()),
        Some((_, name)) => Err(Error::open(format!(
            "{} is on {name}, and the embedded store needs a local file system; name a local \
             directory, or use FoundationDB",
            path.display()
        ))),
    }
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "there is no portable way to tell")]
fn refuse_network(_path: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_directory_is_private() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("a/b");
        let directory = Directory::prepare(&path).expect("prepared");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(directory.path()), 0o700);
        assert_eq!(mode(&directory.path().join(FORMAT_NAME)), 0o600);
        Directory::prepare(&path).expect("prepared again");
    }

    #[test]
    fn a_foreign_directory_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let format = directory.path().join(FORMAT_NAME);
        for (text, expected) in [
            (
                "davenport embedded store, format 1\n",
                "has format 1, and this version of Davenport needs 2: export it with the version",
            ),
            (
                "davenport embedded store, format 3\n",
                "has format 3, and this version of Davenport supports only 2: run the version",
            ),
            (
                "davenport embedded store, format x\n",
                "written by another program",
            ),
            ("PNG", "written by another program"),
            ("", "written by another program"),
        ] {
            fs::write(&format, text).expect("written");
            let error = Directory::prepare(directory.path()).expect_err("refused");
            assert!(matches!(error, Error::Open { .. }), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        fs::remove_file(&format).expect("removed");
        fs::write(directory.path().join("data.mdb"), "").expect("written");
        let error = Directory::prepare(directory.path()).expect_err("refused");
        assert!(
            error.to_string().contains("not a Davenport store"),
            "{error}"
        );
    }

    #[test]
    fn a_lock_excludes_threads_and_files() {
        let path = tempfile::tempdir().expect("a directory");
        let directory = Directory::prepare(path.path()).expect("prepared");
        let (a, b) = (
            directory.lock_file("x.lock").expect("a"),
            directory.lock_file("x.lock").expect("b"),
        );
        let held = a.lock().expect("locked");
        assert!(b.try_lock().expect("tried").is_none());
        let error = b.lock_within(Duration::from_millis(20)).expect_err("held");
        assert!(error.to_string().contains("x.lock"), "{error}");
        drop(held);
        drop(b.try_lock().expect("tried").expect("free"));
        a.lock().expect("locked").share().expect("shared");
        assert!(b.try_lock().expect("tried").is_none());
        b.lock_shared().expect("shared");
    }
}
