//! Opening a store, and recovery from the log by the first process.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

use rand::RngExt;

use super::control::Control;
use super::core::Core;
use super::directory::{Directory, Locked};
use super::engine::{Engine, Tuning};
use super::failure::{self, RESTORE};
use super::log::{Found, Log, Position};
use super::meta;
use super::tree::{Mark, Tree};
use super::view::View;
use crate::watch::Watches;
use crate::{Error, OpenOptions, Result};

/// How long opening waits for a process that opens the store or commits.
const PATIENCE: Duration = Duration::from_secs(30);

/// Opens the store in a directory. The first process recovers it; later ones join.
pub(super) fn open(
    directory: Directory,
    options: &OpenOptions,
    tuning: Tuning,
) -> Result<Arc<Engine>> {
    let path = directory.path().to_owned();
    let fail = |doing: &'static str| {
        let path = path.clone();
        move |error| failure::open_error(doing, &path, error)
    };
    let commit_lock = directory.lock_file("commit.lock")?;
    // Keeps other processes from opening the store and from committing meanwhile.
    let committing = commit_lock.lock_within(PATIENCE)?;
    let open_lock = directory.lock_file("open.lock")?;
    let alone = open_lock.try_lock().map_err(fail("locking the store"))?;
    let is_alone = alone.is_some();
    let file = directory.open_file("control")?;
    let control = Control::map(&file).map_err(fail("mapping the control page"))?;
    let map_bytes = if is_alone {
        options.map_size_bytes.next_multiple_of(1 << 16)
    } else {
        join(&control, &path, options)?
    };
    let tree = Arc::new(open_tree(&path, map_bytes, is_alone)?);
    let log = Log::new(&path, tuning.segment_bytes);
    if tree.mark()?.is_none() {
        begin(&tree, &log, &path)?;
    }
    let mut core = Core::new(tree.state()?);
    if is_alone {
        recover(&log, &control, &mut core, &path)?;
        control.reset(core.version, core.tree().version, map_bytes);
    }
    let sharing = alone.map_or_else(|| open_lock.lock_shared(), Locked::share);
    sharing.map_err(fail("sharing the store"))?;
    drop(committing);
    let checkpoint_lock = directory.lock_file("checkpoint.lock")?;
    let view = View::new(core.version, core.position.segment, Arc::clone(&core.stack));
    let engine = Engine {
        directory,
        tuning,
        control,
        log,
        tree,
        commit_lock,
        checkpoint_lock,
        _open_lock: open_lock,
        watches: Watches::default(),
        unsynced: AtomicU64::new(core.tree().position.segment),
        core: Mutex::new(core),
        view: RwLock::new(Arc::new(view)),
        stopped: OnceLock::new(),
    };
    engine.catch_up(&mut engine.core())?;
    Ok(Arc::new(engine))
}

/// Opens the tree. LMDB would crash on reading beyond the end of a file that is too short.
fn open_tree(path: &Path, map_bytes: u64, is_alone: bool) -> Result<Tree> {
    let fail = |error| failure::open_error("looking at data.mdb", path, error);
    let file = match File::options()
        .read(true)
        .write(true)
        .open(path.join("data.mdb"))
    {
        Ok(file) if is_alone => file,
        Ok(_) => return Tree::open(path, map_bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Tree::open(path, map_bytes);
        }
        Err(error) => return Err(fail(error)),
    };
    let bytes = file.metadata().map_err(fail)?.len();
    if bytes == 0 {
        return Tree::open(path, map_bytes);
    }
    let Some(wanted) = meta::file_bytes(&file).map_err(fail)? else {
        return Err(failure::damaged(path, "has malformed meta pages"));
    };
    if bytes >= wanted {
        return Tree::open(path, map_bytes);
    }
    if wanted > map_bytes {
        return Err(failure::damaged(
            path,
            "is shorter than its meta pages require",
        ));
    }
    // Possibly only free pages are missing, which were never written.
    file.set_len(wanted).map_err(fail)?;
    let tree = Tree::open(path, map_bytes).and_then(|tree| tree.verify().map(|()| tree));
    if tree.is_err() {
        file.set_len(bytes).map_err(fail)?;
        return Err(failure::damaged(path, "is shorter than it was"));
    }
    tree
}

/// Checks that this process can share the store with those that have it open. Returns their map size.
fn join(control: &Control, path: &Path, options: &OpenOptions) -> Result<u64> {
    if control.failed() {
        return Err(Error::open(format!(
            "the processes that have {} open could not sync it; stop all of them first",
            path.display()
        )));
    }
    let theirs = control.map_bytes();
    if options.map_size_bytes > theirs {
        return Err(Error::open(format!(
            "other processes have {} open with a map_size of {theirs} bytes; stop them to make it \
             larger",
            path.display()
        )));
    }
    Ok(theirs)
}

/// Gives a new tree its mark and the log its beginning.
fn begin(tree: &Tree, log: &Log, path: &Path) -> Result<()> {
    let fail = |error| failure::open_error("making the log", path, error);
    if log
        .numbers()
        .map_err(fail)?
        .iter()
        .any(|number| *number > 1)
    {
        return Err(Error::corrupt(format!(
            "{} has a redo log and an empty tree; {RESTORE}",
            path.display()
        )));
    }
    log.make_first(1).map_err(fail)?;
    log.sync_directory().map_err(fail)?;
    tree.create(Mark {
        version: 0,
        position: Position {
            segment: 1,
            offset: 0,
            // Whatever the segment may hold does not continue this log.
            chain: rand::rng().random(),
            bytes: 0,
        },
    })
}

/// Replays the log from the tree's position to its end, and checks that no acknowledged commit is
/// missing after it.
fn recover(log: &Log, control: &Control, core: &mut Core, path: &Path) -> Result<()> {
    let fail = |error| failure::open_error("reading the log", path, error);
    let start = core.position;
    let mut durable = control.left_durable();
    if !(log.numbers().map_err(fail)?).contains(&start.segment) {
        return Err(Error::corrupt(format!(
            "the redo log in {} is missing segment {:016x}; {RESTORE}",
            path.display(),
            start.segment
        )));
    }
    while let Found::Record(record, next) = log.read(core.position).map_err(fail)? {
        if record.first_version() != core.version + 1 {
            return Err(Error::corrupt(format!(
                "the redo log in {} has version {} after version {}; {RESTORE}",
                path.display(),
                record.first_version(),
                core.version
            )));
        }
        durable = durable.max(record.header.durable);
        for (version, ops) in (core.version + 1..).zip(&record.commits) {
            core.replay(version, ops);
        }
        core.position = next;
    }
    durable = durable.max(log.durable_behind(core.position).map_err(fail)?);
    if durable > core.version {
        return Err(Error::corrupt(format!(
            "the redo log in {} ends after version {}, but version {durable} was acknowledged; \
             nothing was changed; {RESTORE}",
            path.display(),
            core.version
        )));
    }
    if core.position != start {
        log.rewrite(start, core.position).map_err(fail)?;
        let commits = core.version - core.tree().version;
        tracing::info!(
            commits,
            version = core.version,
            "recovered from the redo log"
        );
    }
    Ok(())
}
