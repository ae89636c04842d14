//! How a step is done, and which ranks stand for others that do the same.

use std::collections::HashMap;

use crate::config::{MeshShape, PipelineSchedule, Wire};
use crate::strategy::{ModelAveraging, OwnerShare, Owners, Relaxed, Seat};

/// How a step is done.
#[derive(Debug, Clone)]
pub struct Manner {
    /// How many ranks there are on each axis.
    pub mesh: MeshShape,
    /// Which stage of the pipeline this is of: an uncut network is one.
    pub stage: usize,
    /// In which order passes are done.
    pub schedule: PipelineSchedule,
    /// Where layers are split: which place of the tensor axis this is of.
    pub tensor: usize,
    /// On which node each rank is, but for those of other stages.
    pub nodes: Vec<usize>,
    /// Who updates what.
    pub owners: Owners,
    /// The type in which gradients travel to where they are added.
    pub wire: Wire,
    /// Where ranks have parameters of their own: whether they meet in this step.
    pub relaxed: Option<Turn>,
    /// Whether owners update by what each rank pushes, as it comes.
    pub asynchronous: bool,
    /// Whether the ranks of a node have parameters in common.
    pub in_common: bool,
    /// Micro-steps of an update.
    pub micro_steps: usize,
    /// Whether each of them is a shard, whose running statistics are its own.
    pub shards: bool,
    /// Whether gradients are clipped by their norm.
    pub clip: bool,
    /// Whether the loss is scaled.
    pub unscale: bool,
    /// Whether parameters have a moving average.
    pub average: bool,
    /// Whether sums begin in the backward pass.
    pub overlap: bool,
}

/// What a rank with parameters of its own does at the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing: it goes on by itself.
    Alone,
    /// All meet, and go on from their anchor.
    Anchor {
        /// With optimizers that start anew.
        resets: bool,
    },
    /// All meet, and are drawn towards their anchor.
    Elastic,
    /// Every rank averages its parameters with those of another.
    Mix {
        /// How many places away this one is.
        distance: usize,
    },
}

impl Turn {
    /// Of the last step of a round, for so many ranks.
    fn last(relaxed: Relaxed, ranks: usize) -> Turn {
        match relaxed.meeting {
            ModelAveraging::Anchor { resets, .. } => Turn::Anchor { resets },
            ModelAveraging::Elastic { .. } => Turn::Elastic,
            ModelAveraging::Gossip if ranks == 1 => Turn::Alone,
            ModelAveraging::Gossip => Turn::Mix { distance: 1 << (relaxed.every - 1) },
        }
    }
}

impl Manner {
    /// How the steps of a round are done. The last of these is that of the last step; where there are fewer than steps
    /// the first one stands for all others. Where all ranks have the same parameters a round is a step.
    pub fn of_round(&self, relaxed: Option<Relaxed>) -> Vec<Manner> {
        let Some(relaxed) = relaxed else { return vec![self.clone()] };
        let last = Turn::last(relaxed, self.mesh.data);
        let before = match last {
            Turn::Mix { .. } => (0..relaxed.every - 1).map(|hop| Turn::Mix { distance: 1 << hop }).collect(),
            _ if relaxed.every > 1 => vec![Turn::Alone],
            _ => Vec::new(),
        };
        let of = |turn| Manner { relaxed: Some(turn), ..self.clone() };
        before.into_iter().chain([last]).map(of).collect()
    }

    /// Plain data parallelism over ranks on these nodes.
    pub fn plain(nodes: Vec<usize>) -> Manner {
        Manner {
            mesh: MeshShape::of_data(nodes.len()),
            stage: 0,
            schedule: PipelineSchedule::default(),
            tensor: 0,
            nodes,
            owners: Owners::Everyone,
            wire: Wire::F32,
            relaxed: None,
            asynchronous: false,
            in_common: false,
            micro_steps: 1,
            shards: false,
            clip: false,
            unscale: false,
            average: false,
            overlap: true,
        }
    }
}

/// What the ranks of a node do: of each, whether it serves, and of which buckets it has a part.
type Does = Vec<(bool, Vec<bool>)>;

/// Ranks that stand for all: nodes whose ranks do the same actions are rehearsed as few of them, with every rank that
/// has most to update of a bucket, or of all. Where shares are even that is one node of each kind, and their times are
/// those of all; where they differ by a cache line, the slowest rank is among them but for what that takes.
pub fn representatives(manner: &Manner, buckets: usize, share: OwnerShare) -> Vec<usize> {
    let (owners, seats) = (manner.owners, Seat::all(&manner.nodes));
    let owned = |rank: usize| -> Vec<usize> {
        (0..buckets).map(|bucket| owners.owned(bucket, rank, seats[rank], share).len()).collect()
    };
    let mut nodes: Vec<Vec<usize>> = vec![Vec::new(); manner.nodes.iter().max().map_or(0, |last| last + 1)];
    manner.nodes.iter().enumerate().for_each(|(rank, &node)| nodes[node].push(rank));
    // Of each kind of node: for every bucket, and for all, the most bytes and where they are.
    let mut kinds: HashMap<Does, Vec<(usize, usize)>> = HashMap::new();
    for (node, ranks) in nodes.iter().enumerate() {
        let bytes: Vec<Vec<usize>> = ranks.iter().map(|&rank| owned(rank)).collect();
        let does = |(&rank, bytes): (&usize, &Vec<usize>)| {
            (owners.serves(rank), bytes.iter().map(|&bytes| bytes > 0).collect())
        };
        let largest = kinds
            .entry(ranks.iter().zip(&bytes).map(does).collect())
            .or_insert_with(|| vec![(0, node); buckets + 1]);
        for bytes in bytes {
            let all = bytes.iter().sum();
            for (most, bytes) in largest.iter_mut().zip(bytes.into_iter().chain([all])) {
                *most = if bytes > most.0 { (bytes, node) } else { *most };
            }
        }
    }
    let mut wanted: Vec<usize> = kinds.into_values().flatten().map(|(_, node)| node).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut ranks: Vec<usize> = wanted.into_iter().flat_map(|node| nodes[node].iter().copied()).collect();
    ranks.sort_unstable();
    ranks
}
