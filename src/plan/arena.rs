//! Memory by lifetime: tensors that are never alive at the same time share bytes.
//!
//! Offsets are given greedily (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020):
//! the largest first, each at the lowest offset where it overlaps no other that is alive with it.

use std::ops::RangeInclusive;

use crate::device::memory::ALIGNMENT;

/// A piece of memory that must hold its content during some steps.
#[derive(Debug, Clone)]
pub struct Block {
    pub bytes: usize,
    /// From the step that writes it first to the last that reads it.
    pub alive: RangeInclusive<usize>,
}

impl Block {
    fn meets(&self, other: &Block) -> bool {
        self.alive.start() <= other.alive.end() && other.alive.start() <= self.alive.end()
    }
}

/// An offset for each block, and the bytes needed in all: the best of three greedy placements. By size is nearly always
/// as good as can be; where a large short-lived block leaves gaps below those that live long, by lifetime or by both
/// is.
pub fn place(blocks: &[Block]) -> (Vec<usize>, usize) {
    let steps = |block: &Block| block.alive.end() - block.alive.start() + 1;
    let placements = [
        place_by(blocks, |block| block.bytes),
        place_by(blocks, steps),
        place_by(blocks, |block| block.bytes.saturating_mul(steps(block))),
    ];
    // The first of equals: the placement must be the same on every rank.
    placements.into_iter().min_by_key(|(_, total)| *total).unwrap_or_default()
}

/// The greedy placement, the blocks with the largest `key` first.
fn place_by(blocks: &[Block], key: impl Fn(&Block) -> usize) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    // Ties by size, then by index.
    order.sort_by_key(|&index| {
        (std::cmp::Reverse(key(&blocks[index])), std::cmp::Reverse(blocks[index].bytes), index)
    });
    let mut offsets = vec![0; blocks.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(blocks.len());
    let mut total = 0;
    for index in order {
        let block = &blocks[index];
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&other| blocks[other].meets(block))
            .map(|&other| (offsets[other], offsets[other] + blocks[other].bytes))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + block.bytes <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(ALIGNMENT));
        }
        offsets[index] = offset;
        total = total.max(offset + block.bytes);
        placed.push(index);
    }
    (offsets, total.next_multiple_of(ALIGNMENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_alive_together_never_overlap(
            raw in prop::collection::vec((1usize..10_000, 0usize..30, 0usize..10), 0..60)
        ) {
            let blocks: Vec<Block> =
                raw.iter().map(|&(bytes, from, more)| Block { bytes, alive: from..=from + more }).collect();
            let (offsets, total) = place(&blocks);
            for (i, a) in blocks.iter().enumerate() {
                prop_assert!(offsets[i] % ALIGNMENT == 0 && offsets[i] + a.bytes <= total);
                for (j, b) in blocks.iter().enumerate().skip(i + 1).filter(|(_, b)| a.meets(b)) {
                    let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                    prop_assert!(apart, "{i} and {j}");
                }
            }
            // No step can do with less than what is alive in it.
            let needed = (0..40).map(|step| {
                blocks.iter().filter(|b| b.alive.contains(&step)).map(|b| b.bytes).sum::<usize>()
            }).max().unwrap_or(0);
            prop_assert!(total >= needed);
        }
    }

    /// Each of these needs no more than what is alive at once, and by size alone would need one unit more.
    #[test]
    fn what_lives_long_goes_first_where_that_is_better() {
        for (blocks, least) in [
            ([(3, 3..=7), (5, 1..=2), (5, 1..=4), (4, 4..=5)], 12),
            ([(5, 0..=2), (2, 2..=4), (2, 3..=7), (4, 5..=8)], 7),
        ] {
            let blocks = blocks.map(|(units, alive)| Block { bytes: units * ALIGNMENT, alive });
            assert!(place_by(&blocks, |block| block.bytes).1 > least * ALIGNMENT);
            assert_eq!(place(&blocks).1, least * ALIGNMENT);
        }
    }

    #[test]
    fn a_chain_needs_two_buffers_only() {
        let blocks: Vec<Block> = (0..10).map(|i| Block { bytes: 640, alive: i..=i + 1 }).collect();
        assert_eq!(place(&blocks).1, 1280);
    }
}
