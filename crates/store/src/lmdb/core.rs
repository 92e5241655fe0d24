//! The state of the store in this process: the layers above the tree, and the history that open
//! snapshots need.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use tokio::time::{Duration, Instant};

use super::layer::Layer;
use super::log::Position;
use super::record::Op;
use super::stack::Stack;
use super::tree::{Mark, TreeState};
use super::view::View;
use crate::pending::{CommitRequest, Mutation, Stamp, add};
use crate::{Error, KeyRange, Result};

#[derive(Debug)]
pub(super) struct Core {
    pub(super) version: u64,
    /// After the record of `version`.
    pub(super) position: Position,
    pub(super) stack: Arc<Stack>,
    /// Layers that are in the tree, kept to detect conflicts with older snapshots; oldest first.
    past: VecDeque<Arc<Layer>>,
    /// The history up to this version is dropped.
    floor: u64,
    /// Views that were replaced by newer ones, oldest first.
    retired: VecDeque<(Instant, Weak<View>)>,
}

impl Core {
    pub(super) fn new(tree: TreeState) -> Self {
        let Mark { version, position } = tree.mark;
        Self {
            version,
            position,
            stack: Arc::new(Stack {
                tree: Arc::new(tree),
                layers: vec![Arc::new(Layer::new(version))],
            }),
            past: VecDeque::new(),
            floor: version,
            retired: VecDeque::new(),
        }
    }

    pub(super) fn tree(&self) -> Mark {
        self.stack.tree.mark
    }

    /// The bytes of log that are not in the tree.
    pub(super) fn backlog_bytes(&self) -> u64 {
        (self.position.bytes).saturating_sub(self.tree().position.bytes)
    }

    /// Applies a commit from the log.
    pub(super) fn replay(&mut self, version: u64, ops: &[Op]) {
        for op in ops {
            self.top().apply(version, op);
        }
        self.version = version;
    }

    /// Checks a commit for conflicts and applies it as `version`, which the caller publishes or rolls
    /// back. After an error nothing is applied.
    pub(super) fn admit(&self, request: CommitRequest, version: u64) -> Result<(Stamp, Vec<Op>)> {
        if let Some(read_version) = request.read_version {
            self.check_reads(&request.reads, read_version)?;
        }
        let mut stamp = [0; 10];
        stamp[..8].copy_from_slice(&version.to_be_bytes());
        match self.apply(request, version, &stamp) {
            Ok(ops) => Ok((stamp, ops)),
            Err(error) => {
                self.roll_back(version - 1);
                Err(error)
            }
        }
    }

    fn apply(&self, request: CommitRequest, version: u64, stamp: &Stamp) -> Result<Vec<Op>> {
        let mut ops = Vec::with_capacity(request.mutations.len() + request.writes.len());
        for range in request.writes {
            ops.push(Op::Touch { range });
            self.top().apply(version, &ops[ops.len() - 1]);
        }
        for mutation in request.mutations {
            let op = match mutation.resolve(stamp) {
                Mutation::Set { key, value } => Op::Put { key, value },
                Mutation::Clear { key } => Op::Clear { key },
                Mutation::ClearRange { range } => Op::ClearRange { range },
                Mutation::Add { key, delta } => {
                    let old = self.stack.get(&key, version)?;
                    let value = add(old.value.as_deref(), delta);
                    Op::Put { key, value }
                }
                Mutation::StampedKey { .. } | Mutation::StampedValue { .. } => {
                    unreachable!("resolve has filled in the stamps")
                }
            };
            self.top().apply(version, &op);
            ops.push(op);
        }
        Ok(ops)
    }

    /// Removes what was applied after `version`.
    pub(super) fn roll_back(&self, version: u64) {
        self.top().roll_back(version);
    }

    /// Starts a new top layer and returns those below, which no longer change.
    pub(super) fn freeze(&mut self) -> Vec<Arc<Layer>> {
        let mut layers = self.stack.layers.clone();
        layers.retain(|layer| !layer.is_empty());
        self.set_stack(Arc::clone(&self.stack.tree), layers.clone());
        layers
    }

    /// Switches to a newer state of the tree and drops the layers it includes.
    pub(super) fn rebase(&mut self, tree: TreeState) {
        let version = tree.mark.version;
        let (past, layers) = (self.stack.layers.iter().cloned())
            .partition::<Vec<_>, _>(|layer| layer.last() <= version);
        self.past
            .extend(past.into_iter().filter(|layer| !layer.is_empty()));
        self.set_stack(Arc::new(tree), layers);
    }

    /// Starts over from a state of the tree: the log before it was recycled.
    pub(super) fn restart(&mut self, tree: TreeState) {
        let retired = std::mem::take(&mut self.retired);
        *self = Self {
            retired,
            ..Self::new(tree)
        };
    }

    pub(super) fn retire(&mut self, view: &Arc<View>) {
        self.retired
            .push_back((Instant::now(), Arc::downgrade(view)));
    }

    /// Removes the history that no snapshot needs. It is returned because dropping it takes long, and
    /// the caller holds a lock.
    pub(super) fn forget(&mut self) -> Vec<Arc<Layer>> {
        let mut forgotten = Vec::new();
        let oldest = self.oldest();
        while let Some(layer) = self.past.pop_front_if(|layer| layer.last() <= oldest) {
            self.floor = self.floor.max(layer.last());
            forgotten.push(layer);
        }
        forgotten
    }

    /// The version of the oldest snapshot; the newest version if there is none.
    fn oldest(&mut self) -> u64 {
        while (self.retired.front()).is_some_and(|(_, view)| view.strong_count() == 0) {
            self.retired.pop_front();
        }
        let oldest = self.retired.front().and_then(|(_, view)| view.upgrade());
        oldest.map_or(self.version, |view| view.version)
    }

    /// Drops the history up to a version, or up to the oldest snapshot. Returns up to where.
    pub(super) fn forget_until(&mut self, version: u64) -> u64 {
        let until = self.oldest().min(version);
        self.floor = self.floor.max(until);
        until
    }

    /// The views that were replaced longer than `age` ago and are still in use.
    pub(super) fn take_overdue(&mut self, age: Duration) -> Vec<Arc<View>> {
        let mut overdue = Vec::new();
        while let Some((_, view)) = self.retired.pop_front_if(|(at, _)| at.elapsed() >= age) {
            overdue.extend(view.upgrade());
        }
        overdue
    }

    fn check_reads(&self, reads: &[KeyRange], version: u64) -> Result<()> {
        if reads.is_empty() {
            return Ok(());
        }
        if version < self.floor {
            return Err(Error::TooOld);
        }
        for layer in self.past.iter().chain(&self.stack.layers) {
            if layer.is_newer(reads, version) {
                return Err(Error::Conflict);
            }
        }
        Ok(())
    }

    fn top(&self) -> &Layer {
        self.stack
            .layers
            .last()
            .expect("a stack always has a top layer")
    }

    /// Adds a top layer unless the last one is empty. So every snapshot that has rows of the top layer has them above the same
    /// state of the tree, which [`sweep`](super::engine::Engine::sweep) relies on.
    fn set_stack(&mut self, tree: Arc<TreeState>, mut layers: Vec<Arc<Layer>>) {
        if layers.last().is_none_or(|layer| !layer.is_empty()) {
            layers.push(Arc::new(Layer::new(self.version)));
        }
        self.stack = Arc::new(Stack { tree, layers });
    }
}
