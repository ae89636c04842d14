//! A rank's actions: its passes, what leaves and comes beside them, and the update.

use std::ops::Range;
use std::rc::Rc;

use super::flow::Flow;
use super::{Action, Manner, Outline, Part, Script, TransferId, Turn};
use crate::plan::windows::Windows;
use crate::plan::{ChunkPass, Pass, Phase};
use crate::strategy::Seat;

/// Waits for transfers.
fn waits(ids: &[TransferId]) -> impl Iterator<Item = Vec<Action>> + '_ {
    ids.iter().map(|&id| vec![Action::Wait(id)])
}

fn first_transfer(actions: &[Action]) -> Option<TransferId> {
    actions.iter().find_map(|action| match action {
        Action::Wait(id) => Some(*id),
        _ => None,
    })
}

/// The scripts of some ranks, of data parallelism in any manner.
pub fn scripts(manner: &Manner, outline: &Outline, ranks: impl IntoIterator<Item = usize>) -> Vec<Script> {
    let (flow, transfers) = Flow::new(manner, outline);
    let transfers = Rc::new(transfers);
    let seats = Seat::all(&manner.nodes);
    let script = |rank: usize| {
        // Every rank of the mesh has images of its own, unless it is of another stage.
        let at = rank * manner.mesh.tensor + manner.tensor;
        let bytes = |index| manner.owners.owned(index, rank, seats[at], outline.share);
        let part = |bucket: usize| {
            let bytes = bytes(bucket);
            let sum = match outline.summed_in(manner) {
                Some(windows) => {
                    windows.gradients[bucket].bytes.start + bytes.start - outline.buckets[bucket].bytes.start
                }
                None => bytes.start,
            };
            Part { bucket, bytes, sum }
        };
        let mut script = Script {
            rank: manner.mesh.rank([rank, manner.stage, manner.tensor]),
            // Ranks of other stages have other parameters: they meet at no barrier.
            node: manner.stage * manner.mesh.ranks() + manner.nodes[at],
            mesh: manner.mesh,
            owners: manner.owners,
            wire: manner.wire,
            accumulates: manner.micro_steps > 1,
            relaxed: manner.relaxed.is_some(),
            contexts: outline.contexts,
            passes: outline.gradients.clone(),
            windows: outline.windows.iter().flat_map(|w| &w.gradients).map(|w| w.bytes.clone()).collect(),
            keeps: outline.summed_in(manner).is_some() && (manner.clip || manner.unscale),
            sums: outline.sums,
            transfers: transfers.clone(),
            parts: (0..outline.buckets.len()).map(part).collect(),
            actions: Vec::new(),
        };
        match manner.owners.serves(rank) {
            true if manner.asynchronous => script.actions.push(Action::Serve),
            true => script.serve(&flow),
            false => script.compute(manner, outline, &flow),
        }
        match manner.relaxed {
            _ if manner.asynchronous => {}
            Some(turn) => script.update_own(manner, &flow, turn),
            None => match outline.summed_in(manner) {
                Some(windows) => script.update_from(windows, manner, outline, &flow),
                None => script.update(manner, outline, &flow),
            },
        }
        script
    };
    ranks.into_iter().map(script).collect()
}

impl Script {
    /// A stage's passes in the order of its schedule, what comes and goes with them, and the sums that leave. What lies
    /// in a context belongs to messages from the first pass of a micro-batch to that of the next one in that context.
    fn compute(&mut self, manner: &Manner, outline: &Outline, flow: &Flow) {
        if let Some(Turn::Mix { .. }) = manner.relaxed {
            self.actions.extend(flow.sums.iter().map(|&id| Action::Start(id)));
        }
        let leaving = self.leaving(manner, outline, flow);
        let mut sent: Vec<Vec<TransferId>> = vec![Vec::new(); outline.contexts.count];
        for work in manner.schedule.order(manner.stage, manner.mesh.pipeline, manner.micro_steps) {
            let context = work.micro % outline.contexts.count;
            if work.phase == Phase::Forward && work.chunk == manner.stage {
                self.actions.extend(sent[context].drain(..).map(Action::Wait));
                let comes = outline.edges.iter().zip(&flow.edges).filter(|(edge, _)| !edge.sends);
                self.actions.extend(comes.map(|(_, ids)| Action::Start(ids[context])));
                self.actions.extend(outline.ends[0].then_some(Action::Read { micro: work.micro }));
            }
            self.pass(manner, outline, flow, work, &leaving, &mut sent[context]);
        }
        self.actions.extend(sent.into_iter().flatten().map(Action::Wait));
        if manner.asynchronous {
            self.actions.extend(Self::push(manner, flow));
        } else {
            self.actions.push(Action::Tail);
            let late = leaving.into_iter().filter(|(step, _)| *step >= outline.last());
            self.actions.extend(late.flat_map(|(_, actions)| actions));
            self.actions.extend(flow.tail.map(Action::Start));
        }
        let unread = outline.readers.iter().zip(&flow.parameters);
        let unread = unread.filter(|(reader, _)| **reader >= outline.steps);
        self.actions.extend(unread.map(|(_, &id)| Action::Wait(id)));
    }

    /// Behind which step each sum leaves, and in which order. What ranks with parameters of their own add up leaves
    /// when these are updated.
    fn leaving(&self, manner: &Manner, outline: &Outline, flow: &Flow) -> Vec<(usize, Vec<Action>)> {
        let sums = if manner.relaxed.is_some() || manner.asynchronous { &[][..] } else { &flow.sums };
        let windows = outline.summed_in(manner);
        let early = manner.micro_steps == 1 && manner.overlap;
        let (asks_early, mut unread) = (self.asks_early(manner, outline), 0);
        let mut leaving = Vec::new();
        for (index, (bucket, &id)) in outline.buckets.iter().zip(sums).enumerate() {
            let ready = if early { bucket.after } else { outline.last() };
            let ready = windows.map_or(ready, |windows| windows.gradients[index].ready);
            let pad = windows.into_iter().flat_map(|windows| windows.padding(index));
            leaving.push((ready, pad.chain([Action::Start(id)]).collect()));
            if asks_early {
                // In the order of buckets, which is that in which owners send.
                unread = unread.max(ready).max(outline.last_readers[index]);
                leaving.push((unread, vec![Action::Start(flow.parameters[index])]));
            }
        }
        leaving.sort_by_key(|(step, _)| *step);
        leaving
    }

    /// Whether this rank lets new parameters come as soon as no step reads the old ones, while it still computes: it
    /// owns none itself, and its owners answer buckets as they come. Ranks that ask late hold them up. Ranks that have
    /// parameters in common ask when all of their node are through.
    fn asks_early(&self, manner: &Manner, outline: &Outline) -> bool {
        let owns = self.parts.iter().any(|part| !part.bytes.is_empty());
        let waits = manner.clip || manner.unscale || manner.in_common;
        let at_once = manner.micro_steps == 1 && manner.overlap && outline.windows.is_none();
        let all_are_read = outline.readers.iter().all(|&reader| reader < outline.steps);
        let answers = self.owners.are_apart() && !self.owners.are_all_apart(manner.mesh.data);
        answers && !owns && !waits && at_once && all_are_read
    }

    /// One pass: new parameters are awaited before their first reader.
    fn pass(
        &mut self,
        manner: &Manner,
        outline: &Outline,
        flow: &Flow,
        work: ChunkPass,
        leaving: &[(usize, Vec<Action>)],
        sent: &mut Vec<TransferId>,
    ) {
        let is_it = |pass: &&Pass| (pass.chunk, pass.phase) == (work.chunk, work.phase);
        let Some(pass) = outline.passes.iter().find(is_it) else { return };
        let (steps, context) = (&pass.steps, work.micro % outline.contexts.count);
        let mut before: Vec<(usize, Vec<Action>)> = Vec::new();
        let mut after: Vec<(usize, Vec<Action>)> = Vec::new();
        let edges = outline.edges.iter().zip(&flow.edges);
        for (edge, ids) in edges.filter(|(edge, _)| steps.contains(&edge.step)) {
            match edge.sends {
                true => {
                    after.push((edge.step, vec![Action::Start(ids[context])]));
                    sent.push(ids[context]);
                }
                false => before.push((edge.step, vec![Action::Wait(ids[context])])),
            }
        }
        for ((step, ..), &id) in outline.exchanges.iter().zip(&flow.exchanges) {
            after.push((*step, vec![Action::Start(id), Action::Wait(id)]));
        }
        after.extend(outline.behind(manner, pass, work.micro));
        after.extend(leaving.iter().filter(|(step, _)| *step < outline.last()).cloned());
        if work.micro == 0 {
            before.extend(outline.readers.iter().copied().zip(waits(&flow.parameters)));
        }
        before.sort_unstable_by_key(|(step, actions)| (*step, first_transfer(actions)));
        if let Some(windows) = outline.summed_in(manner) {
            let in_time = windows.gradients.iter().enumerate().take(windows.freed_in_time(outline.steps));
            before.extend(in_time.map(|(index, window)| (window.freed, self.sum_comes(index, manner, flow))));
        }
        before.extend(outline.windows.iter().flat_map(|windows| windows.gathering(&flow.gathers)));
        for actions in [&mut before, &mut after] {
            actions.retain(|(step, _)| steps.contains(step));
            actions.sort_by_key(|(step, _)| *step);
        }
        self.run(work.micro, steps.clone(), before, after);
    }

    /// Some steps, with what comes before and after some of them.
    fn run(
        &mut self,
        micro: usize,
        steps: Range<usize>,
        before: Vec<(usize, Vec<Action>)>,
        after: Vec<(usize, Vec<Action>)>,
    ) {
        let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
        let mut start = steps.start;
        let cut = |actions: &mut Vec<Action>, start: &mut usize, at: usize| {
            if *start < at {
                actions.push(Action::Run { steps: *start..at, micro });
                *start = at;
            }
        };
        for step in steps.clone() {
            while let Some((_, actions)) = before.next_if(|(reader, _)| *reader == step) {
                cut(&mut self.actions, &mut start, step);
                self.actions.extend(actions);
            }
            while let Some((_, actions)) = after.next_if(|(behind, _)| *behind == step) {
                cut(&mut self.actions, &mut start, step + 1);
                self.actions.extend(actions);
            }
        }
        cut(&mut self.actions, &mut start, steps.end);
    }

    /// A step's gradients go to their owners, and new parameters are asked for. They are the rank's own: so is their
    /// norm.
    fn push(manner: &Manner, flow: &Flow) -> Vec<Action> {
        let clip = manner.clip.then_some([Action::Norm, Action::Clip]);
        let starts = flow.sums.iter().chain(&flow.parameters).map(|&id| Action::Start(id));
        let ends = flow.sums.iter().map(|&id| Action::Wait(id));
        let knocked = clip.into_iter().flatten().chain([Action::Knock]);
        knocked.chain(starts).chain([Action::Hear]).chain(ends).collect()
    }

    /// A rank without a graph: it waits for its parameters to have left, and for sums.
    fn serve(&mut self, flow: &Flow) {
        self.actions.extend(flow.parameters.iter().map(|&id| Action::Wait(id)));
        self.actions.push(Action::Tail);
        self.actions.extend(flow.sums.iter().chain(&flow.tail).map(|&id| Action::Start(id)));
    }

    /// Sums come in, parts are updated, and where owners are apart new parameters leave. Where every rank is an owner,
    /// those leave first that the next forward pass reads first: the others come while it computes. Rank 0 and servers
    /// send in the order in which sums come, since their links carry both ways at a time. So do owners whose devices
    /// copy all parameters in halves for the first reader: that one waits for all.
    fn update(&mut self, manner: &Manner, outline: &Outline, flow: &Flow) {
        let shared = manner.in_common;
        let late = manner.clip || manner.unscale;
        if shared {
            self.actions.push(Action::Arrive);
        }
        let mut read = shared;
        let mut order: Vec<usize> = (0..flow.sums.len()).collect();
        if manner.owners.are_all_apart(manner.mesh.data) && !outline.copies {
            order.reverse();
        }
        // While the steps ran.
        let asked = flow.parameters.first().is_some_and(|&id| self.actions.contains(&Action::Start(id)));
        for &index in &order {
            self.actions.push(Action::Wait(flow.sums[index]));
            if !late && !asked {
                // The others of the node still read what is written now.
                self.actions.extend(std::mem::take(&mut read).then_some(Action::Await { updated: false }));
                self.new_parameters(index, manner, flow);
            }
        }
        if late {
            self.scale(manner, flow);
            self.actions.extend(read.then_some(Action::Await { updated: false }));
            order.into_iter().for_each(|index| self.new_parameters(index, manner, flow));
        }
        self.actions.extend(flow.tail.map(Action::Wait));
        // Else new parameters are awaited.
        if shared && !manner.owners.are_apart() {
            self.actions.extend([Action::Arrive, Action::Await { updated: true }]);
        }
    }

    /// Where sums come in windows: those behind the last step, and what is left to do with those before it. Whoever has
    /// started all sums reads the old parameters no more, so that the ranks of a node need no barrier.
    fn update_from(&mut self, windows: &Windows, manner: &Manner, outline: &Outline, flow: &Flow) {
        for index in windows.freed_in_time(outline.steps)..flow.sums.len() {
            let actions = self.sum_comes(index, manner, flow);
            self.actions.extend(actions);
        }
        if self.keeps {
            self.scale(manner, flow);
            (0..flow.sums.len()).for_each(|index| self.new_parameters(index, manner, flow));
        }
        self.actions.extend(flow.tail.map(Action::Wait));
    }

    /// What is done with a sum in a window, which then is free: an update, unless that wants all sums.
    fn sum_comes(&self, index: usize, manner: &Manner, flow: &Flow) -> Vec<Action> {
        let mut actions = vec![Action::Wait(flow.sums[index])];
        match self.keeps {
            true if self.parts[index].bytes.is_empty() => {}
            true => actions.push(Action::Keep(index)),
            false => actions.extend(self.renewed(index, manner, flow)),
        }
        actions
    }

    /// A rank with parameters of its own updates them by its own gradients, and meets the others if it is time.
    fn update_own(&mut self, manner: &Manner, flow: &Flow, turn: Turn) {
        self.scale(manner, flow);
        let all = 0..self.parts.len();
        if let Turn::Mix { .. } = turn {
            let mix = |part| [Action::Wait(flow.sums[part]), Action::Mix(part), Action::Update(part)];
            self.actions.extend(all.flat_map(mix));
            self.actions.extend(flow.tail.map(Action::Wait));
            return;
        }
        self.actions.extend(all.clone().map(Action::Update));
        if turn != Turn::Alone {
            for part in all.clone() {
                self.actions.push(Action::Drift(part));
                self.actions.extend((turn == Turn::Elastic).then_some(Action::Pull(part)));
                self.actions.push(Action::Start(flow.sums[part]));
            }
            self.actions.extend(all.flat_map(|part| [Action::Wait(flow.sums[part]), Action::Meet(part)]));
            self.actions.extend((turn == Turn::Anchor { resets: true }).then_some(Action::Forget));
        }
        self.actions.extend(flow.tail.map(Action::Wait));
    }

    /// What is done to gradients when all of them are there. Where owners are apart, norms go between ranks, and a
    /// broken gradient makes a broken norm.
    fn scale(&mut self, manner: &Manner, flow: &Flow) {
        self.actions.extend(manner.unscale.then_some(Action::Unscale));
        if let Some(norms) = flow.norms {
            self.actions.extend([Action::Norm, Action::Start(norms), Action::Wait(norms)]);
        }
        self.actions.extend(manner.unscale.then_some(Action::Check));
        if manner.clip {
            self.actions.extend(flow.norms.is_none().then_some(Action::Norm));
            self.actions.push(Action::Clip);
        }
    }

    fn new_parameters(&mut self, index: usize, manner: &Manner, flow: &Flow) {
        let actions = self.renewed(index, manner, flow);
        self.actions.extend(actions);
    }

    fn renewed(&self, index: usize, manner: &Manner, flow: &Flow) -> Vec<Action> {
        let mut actions = Vec::new();
        if !self.parts[index].bytes.is_empty() {
            actions.push(Action::Update(index));
            actions.extend(manner.average.then_some(Action::Average(index)));
        }
        actions.extend(flow.parameters.get(index).map(|&id| Action::Start(id)));
        actions
    }
}
