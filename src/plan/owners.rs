//! Who updates which bytes of a bucket: one table, of which each way to share the updates is a row.

use std::fmt;
use std::ops::Range;

use crate::cuts::Cuts;

/// The ranks of the data axis that update parameters, and so must have their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owners {
    /// Every rank updates everything: plain data parallelism.
    Everyone,
    /// The ranks of a node have parameters in common, and each updates its share of them.
    Node,
    /// Every rank owns a share over all nodes: ZeRO-1.
    Data,
    /// The last so many ranks own everything, and compute nothing: parameter servers.
    Servers(usize),
    /// Rank 0 owns everything.
    Root,
}

/// Part `index` of so many into which the bytes of a bucket are divided among its owners (`Plan::share`).
pub type Share<'a> = &'a dyn Fn(usize, usize, usize) -> Range<usize>;

impl Owners {
    /// Whether sums go to their owners alone, and parameters come from them.
    pub fn are_apart(self) -> bool {
        !matches!(self, Owners::Everyone | Owners::Node)
    }

    /// In words, for so many ranks on so many nodes.
    pub fn describe(self, ranks: usize, nodes: usize) -> String {
        let share = "share the updates and the optimizer's state";
        match self {
            Owners::Everyone if ranks == 1 => "one rank".into(),
            Owners::Everyone => "data parallel; every rank updates all parameters".into(),
            Owners::Node if nodes == 1 => format!("data parallel; the {ranks} ranks {share}, as by --zero 1"),
            Owners::Node => format!("data parallel; the ranks of a node {share}"),
            Owners::Data => format!("--zero 1; all {ranks} ranks {share}"),
            Owners::Root => "--sync root; rank 0 updates for all".into(),
            Owners::Servers(1) => format!("--sync server; rank {} updates for the others", ranks - 1),
            Owners::Servers(servers) => format!(
                "--sync server:{servers}; ranks {} to {} update for the others",
                ranks - servers,
                ranks - 1
            ),
        }
    }

    /// Whether a rank has no graph.
    pub fn serves(self, rank: usize, ranks: usize) -> bool {
        matches!(self, Owners::Servers(servers) if rank + servers >= ranks)
    }

    /// Which rank owns which of a bucket's bytes in a sum. Where everyone updates, a sum is cut as if the ranks shared
    /// the update, so that it is made in one order whoever owns what; the last owner has what is behind the parameters
    /// too.
    pub fn cuts(self, bucket: usize, bytes: &Range<usize>, ranks: usize, share: Share) -> Cuts {
        let among = |first: usize, count: usize| {
            let mut parts = vec![bytes.start..bytes.start; ranks];
            for index in 0..count {
                parts[first + index] = share(bucket, index, count);
            }
            parts[first + count - 1].end = bytes.end;
            Cuts::new(bytes.clone(), parts)
        };
        match self {
            Owners::Everyone | Owners::Node | Owners::Data => among(0, ranks),
            Owners::Servers(servers) => among(ranks - servers, servers),
            Owners::Root => among(0, 1),
        }
    }

    /// The bytes of a bucket that a rank updates; `nodes` says on which node each rank is.
    pub fn owned(self, bucket: usize, rank: usize, nodes: &[usize], share: Share) -> Range<usize> {
        let ranks = nodes.len();
        match self {
            Owners::Everyone => share(bucket, 0, 1),
            Owners::Node => {
                let here = |other: &usize| nodes[*other] == nodes[rank];
                share(bucket, (0..rank).filter(here).count(), (0..ranks).filter(here).count())
            }
            Owners::Data => share(bucket, rank, ranks),
            Owners::Servers(servers) => match (rank + servers).checked_sub(ranks) {
                Some(server) => share(bucket, server, servers),
                None => 0..0,
            },
            Owners::Root if rank == 0 => share(bucket, 0, 1),
            Owners::Root => 0..0,
        }
    }
}

impl fmt::Display for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owners::Everyone => f.write_str("every rank updates everything"),
            Owners::Node => f.write_str("the ranks of a node share the updates"),
            Owners::Data => f.write_str("all ranks share the updates"),
            Owners::Servers(servers) => write!(f, "{servers} servers update"),
            Owners::Root => f.write_str("rank 0 updates"),
        }
    }
}
