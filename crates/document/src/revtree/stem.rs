//! Dropping old ancestors (`revs_limit`).

use super::{NONE, RevTree};

impl<V> RevTree<V> {
    /// Keeps the newest `limit` revisions of every leaf's history, the leaf included. A limit of 0 counts as 1.
    pub fn stem(&mut self, limit: usize) {
        if self.nodes.len() <= limit {
            return;
        }
        // Steps from each node to its nearest leaf; children follow parents, so one backwards pass is enough.
        let mut steps = vec![usize::MAX; self.nodes.len()];
        for index in (0..self.nodes.len()).rev() {
            if self.nodes[index].leaf {
                steps[index] = 0;
            }
            if let Some(parent) = self.parent(index) {
                steps[parent] = steps[parent].min(steps[index] + 1);
            }
        }
        let mut kept = 0;
        let renumbered: Vec<u32> = (steps.iter())
            .map(|&steps| {
                if steps >= limit.max(1) {
                    return NONE;
                }
                kept += 1;
                kept - 1
            })
            .collect();
        let mut index = 0;
        self.nodes.retain_mut(|slot| {
            let keep = renumbered[index] != NONE;
            index += 1;
            if keep && slot.parent != NONE {
                slot.parent = renumbered[slot.parent as usize];
            }
            keep
        });
    }
}
