//! What this process knows of the store: the layers above the tree, and what has to be remembered
//! for snapshots that are still read.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use tokio::time::{Duration, Instant};

use super::layer::Layer;
use super::log::Position;
use super::record::Op;
use super::tree::{Mark, TreeState};
use super::view::{Stack, View};
use crate::pending::{CommitRequest, Mutation, Stamp, add};
use crate::{Error, KeyRange, Result};

#[derive(Debug)]
pub(super) struct Core {
    pub(super) version: u64,
    /// Behind the record of `version`.
    pub(super) position: Position,
    pub(super) stack: Arc<Stack>,
    /// Layers that the tree has, kept to find conflicts with older snapshots; oldest first.
    past: VecDeque<Arc<Layer>>,
    /// What was written up to here is not known any more.
    floor: u64,
    /// Views that newer ones have replaced, oldest first.
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

    /// The state of the tree that is read.
    pub(super) fn tree(&self) -> Mark {
        self.stack.tree.mark
    }

    /// Bytes of log that the tree does not have.
    pub(super) fn backlog_bytes(&self) -> u64 {
        (self.position.bytes).saturating_sub(self.tree().position.bytes)
    }

    /// Applies a commit of another process, or of an earlier one.
    pub(super) fn replay(&mut self, version: u64, ops: &[Op]) {
        for op in ops {
            self.growing().apply(version, op);
        }
        self.version = version;
    }

    /// Judges a commit and applies it as `version`, which the caller publishes or takes back. After
    /// an error nothing is applied.
    pub(super) fn admit(&self, request: CommitRequest, version: u64) -> Result<(Stamp, Vec<Op>)> {
        if let Some(read_version) = request.read_version {
            self.check_reads(&request.reads, read_version)?;
        }
        let mut stamp = [0; 10];
        stamp[..8].copy_from_slice(&version.to_be_bytes());
        match self.apply(request, version, &stamp) {
            Ok(ops) => Ok((stamp, ops)),
            Err(error) => {
                self.take_back(version - 1);
                Err(error)
            }
        }
    }

    fn apply(&self, request: CommitRequest, version: u64, stamp: &Stamp) -> Result<Vec<Op>> {
        let mut ops = Vec::with_capacity(request.mutations.len() + request.writes.len());
        for range in request.writes {
            ops.push(Op::Touch { range });
            self.growing().apply(version, &ops[ops.len() - 1]);
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
            self.growing().apply(version, &op);
            ops.push(op);
        }
        Ok(ops)
    }

    /// Takes back what was applied after `version`.
    pub(super) fn take_back(&self, version: u64) {
        self.growing().forget_after(version);
    }

    /// Sees to it that the layers there are, oldest first, do not change any more.
    pub(super) fn freeze(&mut self) -> Vec<Arc<Layer>> {
        let mut layers = self.stack.layers.clone();
        layers.retain(|layer| !layer.is_empty());
        self.set_stack(Arc::clone(&self.stack.tree), layers.clone());
        layers
    }

    /// Reads a newer state of the tree from now on, and lets go of the layers it has.
    pub(super) fn rebase(&mut self, tree: TreeState) {
        let version = tree.mark.version;
        let (past, layers) = (self.stack.layers.iter().cloned())
            .partition::<Vec<_>, _>(|layer| layer.last() <= version);
        self.past
            .extend(past.into_iter().filter(|layer| !layer.is_empty()));
        self.set_stack(Arc::new(tree), layers);
    }

    /// Starts over from a state of the tree, because the log has been used again up to there.
    pub(super) fn restart(&mut self, tree: TreeState) {
        let retired = std::mem::take(&mut self.retired);
        *self = Self {
            retired,
            ..Self::new(tree)
        };
    }

    /// Remembers a view that was replaced.
    pub(super) fn retire(&mut self, view: &Arc<View>) {
        self.retired
            .push_back((Instant::now(), Arc::downgrade(view)));
    }

    /// Forgets what no snapshot can ask for any more. Dropping it takes a while.
    pub(super) fn forget(&mut self) -> Vec<Arc<Layer>> {
        let mut forgotten = Vec::new();
        while (self.retired.front()).is_some_and(|(_, view)| view.strong_count() == 0) {
            self.retired.pop_front();
        }
        let oldest = self.retired.front().and_then(|(_, view)| view.upgrade());
        let oldest = oldest.map_or(self.version, |view| view.version);
        while let Some(layer) = self.past.pop_front_if(|layer| layer.last() <= oldest) {
            self.floor = self.floor.max(layer.last());
            forgotten.push(layer);
        }
        forgotten
    }

    /// The views that were replaced longer than `age` ago and are still read.
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
            if reads.iter().any(|range| layer.is_newer(range, version)) {
                return Err(Error::Conflict);
            }
        }
        Ok(())
    }

    fn growing(&self) -> &Layer {
        self.stack
            .layers
            .last()
            .expect("a stack always has a layer that grows")
    }

    /// The layers will not change any more: new writes go into one above.
    fn set_stack(&mut self, tree: Arc<TreeState>, mut layers: Vec<Arc<Layer>>) {
        if layers.last().is_none_or(|layer| !layer.is_empty()) {
            layers.push(Arc::new(Layer::new(self.version)));
        }
        self.stack = Arc::new(Stack { tree, layers });
    }
}
