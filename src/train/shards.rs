//! `--shards`: everything of a step that would depend on how shards are dealt out to ranks is added up along one binary
//! tree over shards. A rank has neighbouring leaves: it makes the lower levels, and recursive doubling between ranks
//! the upper ones. Gradients go through `Accumulation`; here are losses and running statistics.

use crate::comm::World;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory};
use crate::error::Result;

/// Sums along a binary tree of leaves that come one after the other, as a counter in binary: a level's sum waits for
/// its neighbour.
#[derive(Default)]
pub struct Tree {
    /// Sums that wait, and of how many leaves each is: ever fewer.
    waiting: Vec<(usize, Vec<f32>)>,
}

impl Tree {
    pub fn push(&mut self, leaf: Vec<f32>) {
        let (mut leaves, mut sum) = (1, leaf);
        while let Some((_, left)) = self.waiting.pop_if(|(of, _)| *of == leaves) {
            sum.iter_mut().zip(left).for_each(|(right, left)| *right += left);
            leaves *= 2;
        }
        self.waiting.push((leaves, sum));
    }

    /// The sum of a power of two of leaves.
    pub fn take(&mut self) -> Vec<f32> {
        debug_assert!(self.waiting.len() <= 1, "leaves are a power of two");
        self.waiting.pop().map(|(_, sum)| sum).unwrap_or_default()
    }
}

/// The sum of numbers along the tree.
pub fn sum(numbers: &[f32]) -> f32 {
    let mut tree = Tree::default();
    numbers.iter().for_each(|&number| tree.push(vec![number]));
    tree.take().first().copied().unwrap_or(0.0)
}

/// Running statistics: every shard begins with those of the step before, and the mean of what shards come to is the
/// step's.
pub struct Statistics {
    pub peers: World,
    pub memory: Memory,
    /// Of all ranks in a step.
    pub shards: usize,
    /// What every shard begins with.
    before: Vec<f32>,
    own: Tree,
}

impl Statistics {
    pub fn new(peers: World, memory: Memory, shards: usize) -> Statistics {
        Statistics { peers, memory, shards, before: Vec::new(), own: Tree::default() }
    }

    /// Before a step.
    pub fn begin(&mut self, device: &dyn Device) -> Result<()> {
        self.before.resize(self.memory.bytes() / 4, 0.0);
        device.download(&self.memory, bytes_of_mut(&mut self.before))
    }

    /// After a shard; `last` of this rank's. Then it is collective.
    pub fn take(&mut self, device: &dyn Device, last: bool) -> Result<()> {
        if self.before.is_empty() {
            return Ok(());
        }
        let mut found = vec![0f32; self.before.len()];
        device.download(&self.memory, bytes_of_mut(&mut found))?;
        self.own.push(found);
        if !last {
            return device.upload(bytes_of(&self.before), &self.memory);
        }
        let mut all = self.of_all_ranks()?;
        let share = 1.0 / self.shards as f32;
        all.iter_mut().for_each(|value| *value *= share);
        device.upload(bytes_of(&all), &self.memory)
    }

    /// The sum over all ranks, made by the first one.
    fn of_all_ranks(&mut self) -> Result<Vec<f32>> {
        let (mut own, ranks) = (self.own.take(), self.peers.size());
        if ranks == 1 {
            return Ok(own);
        }
        let mut rows = if self.peers.is_first() { vec![0f32; ranks * own.len()] } else { Vec::new() };
        self.peers.gather(&own, (self.peers.is_first()).then_some(&mut rows[..]))?;
        if self.peers.is_first() {
            let mut tree = Tree::default();
            rows.chunks(own.len()).for_each(|row| tree.push(row.to_vec()));
            own = tree.take();
        }
        self.peers.broadcast(&mut own)?;
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_one_order_of_adding() {
        let numbers: Vec<f32> = (0..16).map(|index| if index == 0 { 1e8 } else { 1.0 }).collect();
        let by_hand = |range: &[f32]| -> f32 {
            fn add(range: &[f32]) -> f32 {
                match range {
                    [one] => *one,
                    _ => add(&range[..range.len() / 2]) + add(&range[range.len() / 2..]),
                }
            }
            add(range)
        };
        assert_eq!(sum(&numbers), by_hand(&numbers));
        assert_ne!(sum(&numbers), numbers.iter().sum::<f32>());
        // However many neighbouring leaves each of several trees has.
        for ranks in [1, 2, 4, 8, 16] {
            let parts: Vec<f32> = numbers.chunks(16 / ranks).map(sum).collect();
            assert_eq!(sum(&parts), by_hand(&numbers), "{ranks} ranks");
        }
        assert_eq!(sum(&[]), 0.0);
    }
}
