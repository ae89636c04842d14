//! Who updates which bytes of a bucket: one table, of which each strategy is a row.

use std::fmt;
use std::ops::Range;

use crate::cuts::Cuts;

/// The ranks of the data axis that update parameters, and so must have their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owners {
    /// Every rank updates everything.
    Everyone,
    /// The ranks of a node have parameters in common, and each updates its share of them.
    Node,
    /// Some ranks have a share each, and nobody else has it: sums go to their owners, and parameters come from them.
    Apart {
        /// The first of the owners.
        first: usize,
        /// How many there are, one behind the other.
        count: usize,
        /// How many ranks compute: the first ones.
        computing: usize,
    },
}

/// A rank's place among the ranks of its node, and how many these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seat {
    /// From 0.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

impl Seat {
    /// The seats of every rank, if they are on these nodes.
    pub fn all(nodes: &[usize]) -> Vec<Seat> {
        let mut counts = vec![0; nodes.iter().max().map_or(0, |last| last + 1)];
        let next = |&node: &usize| {
            counts[node] += 1;
            counts[node] - 1
        };
        let indices: Vec<usize> = nodes.iter().map(next).collect();
        nodes.iter().zip(indices).map(|(&node, index)| Seat { index, of: counts[node] }).collect()
    }
}

/// Part `index` of so many into which the bytes of a bucket are divided among its owners (`Plan::share`).
pub type OwnerShare<'a> = &'a dyn Fn(usize, usize, usize) -> Range<usize>;

impl Owners {
    /// Whether sums go to their owners alone, and parameters come from them.
    pub fn are_apart(self) -> bool {
        matches!(self, Owners::Apart { .. })
    }

    /// Whether each of so many ranks has a share of its own.
    pub fn are_all_apart(self, ranks: usize) -> bool {
        matches!(self, Owners::Apart { count, .. } if count == ranks)
    }

    /// Whether a rank has no graph.
    pub fn serves(self, rank: usize) -> bool {
        matches!(self, Owners::Apart { computing, .. } if rank >= computing)
    }

    /// In words, for so many ranks on so many nodes.
    pub fn describe(self, ranks: usize, nodes: usize) -> String {
        let share = "share the updates and the optimizer's state";
        match self {
            Owners::Everyone if ranks == 1 => "one rank".into(),
            Owners::Everyone => "data parallel; every rank updates all parameters".into(),
            Owners::Node if nodes == 1 => format!("data parallel; the {ranks} ranks {share}, as by --zero 1"),
            Owners::Node => format!("data parallel; the ranks of a node {share}"),
            Owners::Apart { count, .. } if count == ranks => format!("all {ranks} ranks {share}"),
            Owners::Apart { first, count, computing } => format!(
                "{} for {}",
                match count {
                    1 => format!("rank {first} updates"),
                    _ => format!("ranks {first} to {} update", first + count - 1),
                },
                if computing < ranks { "the others" } else { "all" }
            ),
        }
    }

    /// Which rank owns which of a bucket's bytes in a sum. Where everyone updates, a sum is cut as if the ranks shared
    /// the update, so that it is made in one order whoever owns what; the last owner has what is behind the parameters
    /// too.
    pub fn cuts(self, bucket: usize, bytes: &Range<usize>, ranks: usize, share: OwnerShare) -> Cuts {
        let (first, count) = match self {
            Owners::Everyone | Owners::Node => (0, ranks),
            Owners::Apart { first, count, .. } => (first, count),
        };
        let mut parts = vec![bytes.start..bytes.start; ranks];
        for index in 0..count {
            parts[first + index] = share(bucket, index, count);
        }
        parts[first + count - 1].end = bytes.end;
        Cuts::new(bytes.clone(), parts)
    }

    /// The bytes of a bucket that a rank updates.
    pub fn owned(self, bucket: usize, rank: usize, seat: Seat, share: OwnerShare) -> Range<usize> {
        match self {
            Owners::Everyone => share(bucket, 0, 1),
            Owners::Node => share(bucket, seat.index, seat.of),
            Owners::Apart { first, count, .. } => match rank.checked_sub(first) {
                Some(index) if index < count => share(bucket, index, count),
                _ => 0..0,
            },
        }
    }

    /// The shares, of those that the computing ranks would own, whose squares a rank sums up for the norm of all
    /// gradients: so the norm has the same bits whoever owns what. `None` where an owner has parts of several shares,
    /// and so the norm of its own part.
    pub fn normed(self, rank: usize, computing: usize) -> Option<Range<usize>> {
        let Owners::Apart { first, count, .. } = self else { return Some(0..computing) };
        let of = |owner: usize| match count {
            1 => Some(0..computing),
            _ if count == computing => Some(owner..owner + 1),
            _ => None,
        };
        match rank.checked_sub(first).filter(|&owner| owner < count) {
            Some(owner) => of(owner),
            None => Some(0..0),
        }
    }
}

impl fmt::Display for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owners::Everyone => f.write_str("every rank updates all that it computes"),
            Owners::Node => f.write_str("the ranks of a node share the updates"),
            Owners::Apart { first, count: 1, .. } => write!(f, "rank {first} updates"),
            Owners::Apart { first, count, .. } => {
                write!(f, "ranks {first} to {} share the updates", first + count - 1)
            }
        }
    }
}
