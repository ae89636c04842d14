//! The order in which a stage of a pipeline does its passes.
//!
//! - GPipe: all forward passes, then all backward passes. Huang et al., "GPipe: efficient training of giant neural
//!   networks using pipeline parallelism", NeurIPS 2019.
//! - 1F1B: a backward pass as soon as one can be, so that a stage keeps the activations of at most as many
//!   micro-batches as there are stages behind it and one. Narayanan et al., "PipeDream", SOSP 2019 (the flushing
//!   variant).
//! - Interleaved: several chunks of the network a stage, which shortens the bubble by their number. Narayanan et al.,
//!   "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021.
//! - ZB-H1: the gradients of weights are passes of their own, done where a stage would wait. Qi et al., "Zero bubble
//!   pipeline parallelism", ICLR 2024.
//!
//! In all of them the forward passes of a chunk, and its backward passes, are in the order of micro-batches: gradients
//! are added up in the order of gradient accumulation, and running statistics too.

use crate::config::PipelineSchedule;

/// What of a chunk a pass computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Activations.
    Forward,
    /// Their gradients; and those of weights, unless these have a pass of their own.
    Backward,
    /// The gradients of weights.
    Weights,
}

/// A pass of a chunk for a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPass {
    /// Of all chunks.
    pub chunk: usize,
    /// What of it.
    pub phase: Phase,
    /// Which micro-batch.
    pub micro: usize,
}

impl PipelineSchedule {
    /// What a stage does with so many micro-batches.
    pub fn order(self, stage: usize, stages: usize, micro_batches: usize) -> Vec<ChunkPass> {
        if self == PipelineSchedule::ZeroBubble {
            return zero_bubble(stage, stages, micro_batches);
        }
        let chunks = self.chunks();
        let all = chunks * micro_batches;
        // The passes of one direction in their order: in groups of as many micro-batches as there are stages.
        let pass = |index: usize, phase: Phase| {
            let group = stages * chunks;
            let of_group = (micro_batches - index / group * stages).min(stages);
            let within = index % group;
            let nth = within / of_group;
            ChunkPass {
                chunk: stage + stages * if phase == Phase::Forward { nth } else { chunks - 1 - nth },
                phase,
                micro: index / group * stages + within % of_group,
            }
        };
        let ahead = match self {
            PipelineSchedule::GPipe => all,
            PipelineSchedule::OneForwardOneBackward | PipelineSchedule::ZeroBubble => stages - 1 - stage,
            PipelineSchedule::Interleaved(_) => 2 * (stages - 1 - stage) + (chunks - 1) * stages,
        };
        let ahead = ahead.min(all);
        let [forward, backward] = [Phase::Forward, Phase::Backward];
        let first = (0..ahead).map(|index| pass(index, forward));
        let between = (ahead..all).flat_map(|index| [pass(index, forward), pass(index - ahead, backward)]);
        let last = (all - ahead..all).map(|index| pass(index, backward));
        first.chain(between).chain(last).collect()
    }

    /// Of how many micro-batches a stage keeps activations at a time.
    pub fn in_flight(self, stage: usize, stages: usize, micro_batches: usize) -> usize {
        let (mut most, mut done) = (0, 0);
        for work in self.order(stage, stages, micro_batches) {
            // A micro-batch is over with its last pass, that of the first chunk.
            let last = if self.splits_weights() { Phase::Weights } else { Phase::Backward };
            match work.phase {
                Phase::Forward => most = most.max(work.micro + 1 - done),
                phase if phase == last && work.chunk == stage => done = work.micro + 1,
                _ => {}
            }
        }
        most
    }

    /// The share of a step in which a stage has nothing to do, where all passes take equally long and messages no time:
    /// Narayanan et al. 2021, section 2.2; of ZB-H1 at best a third, where its three
    /// passes take equally long.
    pub fn bubble(self, stages: usize, micro_batches: usize) -> f64 {
        let shorter = if self.splits_weights() { 3 } else { self.chunks() };
        let idle = (stages - 1) as f64 / shorter as f64;
        idle / (micro_batches as f64 + idle)
    }
}

/// What a stage does by ZB-H1. All stages are played with passes that take equally long: each does a backward pass if
/// one can be, else a forward pass unless it is as far ahead as with 1F1B or keeps as much as the first stage does
/// there, else the gradients of weights.
fn zero_bubble(stage: usize, stages: usize, micro_batches: usize) -> Vec<ChunkPass> {
    // For each stage when each pass of each phase was over.
    let mut over = vec![[const { Vec::<usize>::new() }; 3]; stages];
    let mut order = Vec::new();
    let mut now = 0;
    while over.iter().any(|stage| stage[Phase::Weights as usize].len() < micro_batches) {
        let next: Vec<Option<Phase>> = (0..stages)
            .map(|own| {
                let done = |at: usize, phase: Phase, micro: usize| {
                    over[at][phase as usize].get(micro) <= Some(&now)
                        && over[at][phase as usize].len() > micro
                };
                let [forward, backward, weights] = over[own].each_ref().map(Vec::len);
                let comes_back = match own + 1 == stages {
                    true => backward < forward,
                    false => done(own + 1, Phase::Backward, backward),
                };
                let comes = own == 0 || done(own - 1, Phase::Forward, forward);
                let has_room = forward - backward < stages - own && forward - weights < stages;
                match () {
                    () if backward < forward && comes_back => Some(Phase::Backward),
                    () if forward < micro_batches && comes && has_room => Some(Phase::Forward),
                    () if weights < backward => Some(Phase::Weights),
                    () => None,
                }
            })
            .collect();
        now += 1;
        for (own, phase) in next.into_iter().enumerate() {
            let Some(phase) = phase else { continue };
            if own == stage {
                order.push(ChunkPass { chunk: stage, phase, micro: over[own][phase as usize].len() });
            }
            over[own][phase as usize].push(now);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [PipelineSchedule; 5] = [
        PipelineSchedule::GPipe,
        PipelineSchedule::OneForwardOneBackward,
        PipelineSchedule::Interleaved(2),
        PipelineSchedule::Interleaved(3),
        PipelineSchedule::ZeroBubble,
    ];

    #[test]
    fn every_pass_is_done_once_and_those_of_a_chunk_in_the_order_of_micro_batches() {
        for schedule in ALL {
            for stages in 1..5 {
                for micro_batches in [stages, 2 * stages, 3 * stages, 8 * stages] {
                    for stage in 0..stages {
                        let order = schedule.order(stage, stages, micro_batches);
                        let phases = match schedule.splits_weights() {
                            true => vec![Phase::Forward, Phase::Backward, Phase::Weights],
                            false => vec![Phase::Forward, Phase::Backward],
                        };
                        assert_eq!(order.len(), phases.len() * schedule.chunks() * micro_batches);
                        for chunk in (stage..stages * schedule.chunks()).step_by(stages) {
                            let place = |phase: Phase, micro: usize| {
                                let wanted = ChunkPass { chunk, phase, micro };
                                order.iter().position(|work| *work == wanted).expect("every pass is there")
                            };
                            for micro in 0..micro_batches {
                                for pair in phases.windows(2) {
                                    assert!(
                                        place(pair[0], micro) < place(pair[1], micro),
                                        "{schedule} {chunk} {micro}"
                                    );
                                }
                                for &phase in &phases {
                                    let before = micro.checked_sub(1).map(|before| place(phase, before));
                                    assert!(before < Some(place(phase, micro)), "{schedule} {chunk} {micro}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn activations_are_kept_as_the_papers_say() {
        for (stages, micro_batches) in [(1, 1), (2, 1), (2, 4), (4, 8), (4, 3), (3, 16)] {
            for stage in 0..stages {
                let of = |schedule: PipelineSchedule| schedule.in_flight(stage, stages, micro_batches);
                assert_eq!(of(PipelineSchedule::GPipe), micro_batches);
                let least = micro_batches.min(stages - stage);
                assert_eq!(of(PipelineSchedule::OneForwardOneBackward), least, "{stage} of {stages}");
                assert!(of(PipelineSchedule::ZeroBubble) <= micro_batches.min(stages), "{stage} of {stages}");
            }
        }
        assert_eq!(PipelineSchedule::GPipe.bubble(4, 8), 3.0 / 11.0);
        assert_eq!(PipelineSchedule::Interleaved(2).bubble(4, 8), 1.5 / 9.5);
    }
}
