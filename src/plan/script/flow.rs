//! The transfers of a step.

use std::ops::Range;

use super::{Area, Axis, Kind, Manner, Outline, Transfer, TransferId, Turn};
use crate::cuts::Cuts;
use crate::plan::windows::learned;
use crate::plan::{Bucket, Region, TAIL};

/// The transfers of a step, by what they are for.
pub(super) struct Flow {
    /// Of each bucket: its sum, or in a gossip what comes from another rank; and where owners are apart its new
    /// parameters.
    pub sums: Vec<TransferId>,
    pub parameters: Vec<TransferId>,
    /// Where sums do not come to all in every step: of losses and hits. Where owners are apart: of norms.
    pub tail: Option<TransferId>,
    pub norms: Option<TransferId>,
    pub exchanges: Vec<TransferId>,
    /// Of parameters that are gathered before they are read.
    pub gathers: Vec<TransferId>,
    /// In a pipeline: each edge for each micro-batch in flight.
    pub edges: Vec<Vec<TransferId>>,
}

impl Flow {
    /// All ranks have the same ones in the same order.
    pub fn new(manner: &Manner, outline: &Outline) -> (Flow, Vec<Transfer>) {
        let mut list = List { manner, outline, transfers: Vec::new() };
        let [sums, parameters] = list.buckets();
        let gathers = list.gathers();
        let exchanges = list.exchanges();
        let [tail, norms] = list.numbers();
        let edges = list.edges();
        (Flow { sums, parameters, tail, norms, exchanges, gathers, edges }, list.transfers)
    }
}

/// The list that they are added to.
struct List<'a> {
    manner: &'a Manner,
    outline: &'a Outline<'a>,
    transfers: Vec<Transfer>,
}

impl List<'_> {
    fn add(&mut self, axis: Axis, kind: Kind, area: Area, cuts: Cuts) -> TransferId {
        self.transfers.push(Transfer { axis, members: 0..cuts.ranks(), kind, area, cuts });
        self.transfers.len() - 1
    }

    /// Whether losses and hits are no part of the last bucket's sum.
    fn tail_is_alone(&self) -> bool {
        let apart = self.manner.owners.are_apart() || self.manner.relaxed.is_some();
        apart || self.manner.mesh.divides_parameters() || self.outline.windows.is_some()
    }

    /// Bytes of all gradients, each at a place of its own.
    fn whole(&self) -> usize {
        self.outline.buckets.last().map_or(0, |bucket| bucket.bytes.end).saturating_sub(TAIL)
    }

    /// Each bucket's sum, and its new parameters.
    fn buckets(&mut self) -> [Vec<TransferId>; 2] {
        let [mut sums, mut parameters] = [Vec::new(), Vec::new()];
        let buckets = self.outline.buckets;
        let Some(Turn::Mix { distance: own }) = self.manner.relaxed else {
            for (index, bucket) in buckets.iter().enumerate() {
                let (sum, renewed) = self.bucket(index, bucket);
                sums.push(sum);
                parameters.extend(renewed);
            }
            return [sums, parameters];
        };
        // All steps of a round have one list of transfers.
        let hops = (0..).map(|hop| 1 << hop).take_while(|&places| places < self.manner.mesh.data);
        for distance in hops {
            for (index, bucket) in buckets.iter().enumerate() {
                let (axis, cuts) = self.cuts(index, bucket);
                let id = self.add(axis, Kind::Mix { distance }, Area::Of(Region::Parameters), cuts);
                sums.extend((own == distance).then_some(id));
            }
        }
        [sums, parameters]
    }

    /// Who owns what of a bucket, of the ranks that add it up.
    fn cuts(&self, index: usize, Bucket { bytes, .. }: &Bucket) -> (Axis, Cuts) {
        // The tail is everybody's.
        let end = if self.tail_is_alone() { bytes.end.min(self.whole()) } else { bytes.end };
        // Of what is not split all ranks have the same.
        let mesh = self.manner.mesh;
        let (axis, ranks) = match mesh.tensor > 1 && bytes.start >= self.outline.split {
            true => (Axis::Job, mesh.ranks()),
            false => (Axis::Data, mesh.data),
        };
        (axis, self.manner.owners.cuts(index, &(bytes.start..end), ranks, self.outline.share))
    }

    fn bucket(&mut self, index: usize, bucket: &Bucket) -> (TransferId, Option<TransferId>) {
        let (axis, cuts) = self.cuts(index, bucket);
        let summed = match self.outline.summed_in(self.manner) {
            Some(windows) => cuts.moved(windows.gradients[index].bytes.start),
            None => cuts.clone(),
        };
        if !self.manner.owners.are_apart() {
            return (self.add(axis, Kind::Sum, Area::Sums, summed), None);
        }
        let [to_owners, from_owners] = match self.manner.asynchronous {
            true => [Kind::Push, Kind::Pull],
            false => [Kind::SumToOwners, Kind::FromOwners],
        };
        let sum = self.add(axis, to_owners, Area::Sums, summed);
        let come = self.outline.windows.is_none_or(|windows| windows.gathers.is_empty());
        (sum, come.then(|| self.add(axis, from_owners, Area::Of(Region::Parameters), cuts)))
    }

    /// Parameters that are gathered before they are read.
    fn gathers(&mut self) -> Vec<TransferId> {
        let (manner, whole) = (self.manner, self.whole() + TAIL);
        let area = if manner.micro_steps > 1 { Area::Of(Region::Gradients) } else { Area::Sums };
        let mut ids = Vec::new();
        for gathered in self.outline.windows.iter().flat_map(|windows| &windows.gathers) {
            let bytes = learned(&self.outline.buckets[gathered.bucket], whole);
            let cuts = manner.owners.cuts(gathered.bucket, &bytes, manner.mesh.data, self.outline.share);
            ids.push(self.add(Axis::Data, Kind::FromOwners, area, cuts.moved(gathered.bytes.start)));
        }
        ids
    }

    /// What ranks tell each other between two steps. Servers have no statistics. A rank that is rehearsed alone has no
    /// neighbours.
    fn exchanges(&mut self) -> Vec<TransferId> {
        let manner = self.manner;
        let computing = (0..manner.mesh.data).filter(|&rank| !manner.owners.serves(rank)).count();
        let (over, most) = match manner.mesh.tensor {
            1 => (Axis::Data, computing),
            all => (Axis::Tensor, all),
        };
        let mut ids = Vec::new();
        for (_, rows, kind, ranks) in &self.outline.exchanges {
            ids.push(self.add(over, *kind, Area::Of(Region::Arena), Cuts::even(rows, most.min(*ranks))));
        }
        ids
    }

    /// The step's own numbers: losses and hits, and norms. Of all stages, where there are some.
    fn numbers(&mut self) -> [Option<TransferId>; 2] {
        let (manner, end) = (self.manner, self.outline.sums);
        let (all, axis) = match self.manner.mesh.divides_parameters() {
            true => (manner.mesh.ranks(), Axis::Job),
            false => (manner.mesh.data, Axis::Data),
        };
        // With the last bucket it would be the last owner's: so it is added up in the same order.
        let cuts = Cuts::whole(&(end.saturating_sub(TAIL)..end), all, all - 1);
        let alone = self.tail_is_alone() && !manner.asynchronous;
        let tail = alone.then(|| self.add(axis, Kind::Sum, Area::Sums, cuts));
        let unlike =
            (manner.owners.are_apart() || self.manner.mesh.divides_parameters()) && !manner.asynchronous;
        let normed = unlike && (manner.clip || manner.unscale);
        let cuts = Cuts::even(&(0..8 * all), all);
        [tail, normed.then(|| self.add(axis, Kind::Gather, Area::Norms, cuts))]
    }

    /// What goes between stages: each edge for each micro-batch in flight.
    fn edges(&mut self) -> Vec<Vec<TransferId>> {
        let (outline, stages) = (self.outline, self.manner.mesh.pipeline);
        let mut ids = Vec::new();
        for edge in outline.edges {
            let kind = match edge.sends {
                true => Kind::Send { to: edge.peer, tag: edge.number },
                false => Kind::Receive { from: edge.peer, tag: edge.number },
            };
            let mut of = |context: usize| {
                let start = edge.place.offset + outline.contexts.shift(edge.place.offset, context);
                // In whole numbers of four bytes, as all messages are: memory between two tensors is nobody's.
                let bytes: Range<usize> = start..start + edge.place.bytes.next_multiple_of(4);
                let cuts = Cuts::whole(&bytes, stages, edge.peer);
                self.add(Axis::Pipeline, kind, Area::Of(Region::Arena), cuts)
            };
            ids.push((0..outline.contexts.count).map(&mut of).collect());
        }
        ids
    }
}
