//! What a script needs to know of a plan.

use std::ops::Range;

use super::{Action, Kind, Manner, Script, representatives, scripts};
use crate::config::Rule;
use crate::plan::windows::{Windows, learned};
use crate::plan::{Bucket, Contexts, Edge, Pass, Phase, Plan, PlannedStep};
use crate::strategy::{OwnerShare, Owners, Seat};

/// What a script needs to know of a plan.
pub struct Outline<'a> {
    /// How many steps it has.
    pub steps: usize,
    /// Its buckets.
    pub buckets: &'a [Bucket],
    /// For each bucket the first step that reads one of its parameters.
    pub readers: Vec<usize>,
    /// For each bucket the last step that reads one of its parameters.
    pub last_readers: Vec<usize>,
    /// Whether a device copies all parameters in halves before one of them is read.
    pub copies: bool,
    /// What ranks tell each other in between (statistics, rows of images, parts of split layers): after which step,
    /// where it lies in the arena, how, and how many neighbours do so.
    pub exchanges: Vec<(usize, Range<usize>, Kind, usize)>,
    /// Bytes of the gradients of split layers: the first ones, which only ranks with the same parts add up.
    pub split: usize,
    /// Where gradients take turns: where and when.
    pub windows: Option<&'a Windows>,
    /// The bytes of where gradients are added up over ranks, with their tail.
    pub sums: usize,
    /// How a bucket is divided among owners.
    pub share: OwnerShare<'a>,
    /// What a stage of a pipeline exchanges with others.
    pub edges: &'a [Edge],
    /// The forward and the backward pass, or those of each chunk.
    pub passes: Vec<Pass>,
    /// Bytes of the gradients of each backward pass.
    pub gradients: Vec<Range<usize>>,
    /// What is there once for each micro-batch in flight.
    pub contexts: Contexts,
    /// Whether this rank reads images, and whether losses are found here.
    pub ends: [bool; 2],
}

impl Plan {
    /// Bytes of each bucket's parameters that a rank updates.
    pub fn owned(&self, owners: Owners, rule: &Rule, seat: Seat, rank: usize) -> Vec<Range<usize>> {
        let share =
            |bucket: usize, index: usize, count: usize| self.share(&self.buckets[bucket], rule, index, count);
        (0..self.buckets.len()).map(|bucket| owners.owned(bucket, rank, seat, &share)).collect()
    }

    /// Bytes of the gradients that each backward pass writes, or in windows of each bucket.
    pub fn gradients_of_passes(&self) -> Vec<Range<usize>> {
        if let Some(windows) = &self.windows {
            return self.buckets.iter().map(|bucket| learned(bucket, windows.whole)).collect();
        }
        let of = |pass: &Pass| {
            let ready = self.gradients.iter().filter(|(_, after)| pass.steps.contains(after));
            let (start, end) = ready.fold((usize::MAX, 0), |(start, end), (bytes, _)| {
                (start.min(bytes.start), end.max(bytes.end))
            });
            start.min(end)..end
        };
        self.passes.iter().filter(|pass| pass.phase != Phase::Forward).map(of).collect()
    }

    /// Ranks of the data axis that stand for all where scripts are rehearsed.
    pub fn representatives(&self, manner: &Manner, rule: &Rule) -> Vec<usize> {
        // Whoever has parts of layers updates all of them by itself: the first group stands for the others.
        if manner.mesh.tensor > 1 {
            return vec![0];
        }
        let share =
            |bucket: usize, index: usize, count: usize| self.share(&self.buckets[bucket], rule, index, count);
        representatives(manner, self.buckets.len(), &share)
    }

    /// The scripts of some ranks of the data axis, in ascending order.
    pub fn scripts(
        &self,
        manner: &Manner,
        rule: &Rule,
        ranks: impl IntoIterator<Item = usize>,
    ) -> Vec<Script> {
        let share =
            |bucket: usize, index: usize, count: usize| self.share(&self.buckets[bucket], rule, index, count);
        let ends = |bucket: &Bucket| {
            let mut readers = self.readers(bucket);
            let first = readers.next().unwrap_or(self.steps.len());
            (first, readers.next_back().unwrap_or(first))
        };
        let (readers, last_readers) = self.buckets.iter().map(ends).unzip();
        // Those of micro-steps are added up where each has a place of its own.
        let sums = match &self.windows {
            Some(windows) if manner.micro_steps > 1 => windows.whole,
            _ => self.sizes.gradients,
        };
        let rows =
            |step: &PlannedStep| step.outputs[0].offset..step.outputs[0].offset + step.outputs[0].bytes;
        let told = self.steps.iter().enumerate().filter_map(|(index, step)| {
            self.exchanging(step).map(|(kind, ranks)| (index, rows(step), kind, ranks))
        });
        let trades = self.trades().into_iter().map(|trading| {
            let start =
                trading.received.first().or(trading.sent.first()).map_or(0, |(_, place)| place.offset);
            let [sent, received] = trading.bytes();
            let kind = Kind::Trade { tag: trading.tag };
            (trading.step, start..start + sent.max(received), kind, trading.ranks)
        });
        let mut exchanges: Vec<_> = told.chain(trades).collect();
        exchanges.sort_by_key(|(step, ..)| *step);
        let (passes, edges) = match manner.mesh.pipeline {
            // A stage by itself does as the whole network does.
            1 => (Pass::of_whole(self.forward_steps, self.steps.len()).to_vec(), &[][..]),
            _ => (self.passes.clone(), &self.edges[..]),
        };
        scripts(
            manner,
            &Outline {
                steps: self.steps.len(),
                buckets: &self.buckets,
                readers,
                last_readers,
                copies: self.steps.iter().any(|step| step.kernel.halved.is_some()),
                exchanges,
                split: self.split,
                windows: self.windows.as_ref(),
                sums,
                share: &share,
                edges,
                passes,
                gradients: self.gradients_of_passes(),
                contexts: self.contexts,
                ends: [self.host.images.bytes > 0, self.host.losses.bytes > 0],
            },
            ranks,
        )
    }
}

impl<'a> Outline<'a> {
    /// The windows in which gradients are summed over ranks: those in which steps write them, unless they are added up
    /// over micro-steps before.
    pub(super) fn summed_in(&self, manner: &Manner) -> Option<&'a Windows> {
        self.windows.filter(|_| manner.micro_steps == 1)
    }

    /// The last step.
    pub(super) fn last(&self) -> usize {
        self.steps.saturating_sub(1)
    }

    /// What is done when a pass is over, besides what leaves: behind which step.
    pub(super) fn behind(&self, manner: &Manner, pass: &Pass, micro: usize) -> Vec<(usize, Vec<Action>)> {
        let last = pass.steps.end.saturating_sub(1);
        let alone = manner.mesh.pipeline == 1;
        let mut backward = self.passes.iter().filter(|pass| pass.phase != Phase::Forward);
        // Losses are read late: a device with a queue would run dry while the host waits for them. But they are read
        // before parameters change, and before the next micro-batch of a stage.
        let reads_late = alone && self.summed_in(manner).is_none();
        let mut actions = Vec::new();
        if pass.phase == Phase::Forward {
            if self.ends[1] && backward.all(|other| other.chunk <= pass.chunk) {
                actions.push(Action::Losses { micro });
                actions.extend((!reads_late).then_some(Action::Metrics { micro }));
            }
            return vec![(last, actions)];
        }
        actions.extend(alone.then_some(Action::Prefetch { micro }));
        actions.extend(reads_late.then_some(Action::Metrics { micro }));
        actions.extend(manner.shards.then_some(Action::Statistics { micro }));
        let accumulated = |(pass, bucket): (usize, &Bucket)| {
            let pad = self.windows.into_iter().flat_map(|windows| windows.padding(pass));
            (bucket.after, pad.chain([Action::Accumulate { micro, pass }]).collect())
        };
        let mut behind = vec![(last, actions)];
        match self.windows {
            _ if manner.micro_steps == 1 => {}
            Some(_) => behind.extend(self.buckets.iter().enumerate().map(accumulated)),
            None => {
                let pass = backward.position(|other| other == pass);
                behind.extend(pass.map(|pass| (last, vec![Action::Accumulate { micro, pass }])));
            }
        }
        behind
    }
}
