//! The order in which a stage of a pipeline does its passes.
//!
//! - GPipe: all forward passes, then all backward passes. Huang et al., "GPipe: efficient training of giant neural
//!   networks using pipeline parallelism", NeurIPS 2019.
//! - 1F1B: a backward pass as soon as one can be, so that a stage keeps the activations of at most as many micro-batches
//!   as there are stages behind it and one. Narayanan et al., "PipeDream", SOSP 2019 (the flushing variant).
//! - Interleaved: several chunks of the network a stage, which shortens the bubble by their number. Narayanan et al.,
//!   "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021.
//!
//! In all of them the forward passes of a chunk, and its backward passes, are in the order of micro-batches: gradients
//! are added up in the order of gradient accumulation, and running statistics too.

use crate::config::PipelineSchedule;

/// A pass of a chunk for a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Of all chunks.
    pub chunk: usize,
    /// In which direction.
    pub backward: bool,
    /// Which micro-batch.
    pub micro: usize,
}

impl PipelineSchedule {
    /// What a stage does with so many micro-batches.
    pub fn order(self, stage: usize, stages: usize, micro_batches: usize) -> Vec<Work> {
        let chunks = self.chunks();
        let all = chunks * micro_batches;
        // The passes of one direction in their order: in groups of as many micro-batches as there are stages.
        let pass = |index: usize, backward: bool| {
            let group = stages * chunks;
            let of_group = (micro_batches - index / group * stages).min(stages);
            let within = index % group;
            let nth = within / of_group;
            Work {
                chunk: stage + stages * if backward { chunks - 1 - nth } else { nth },
                backward,
                micro: index / group * stages + within % of_group,
            }
        };
        let ahead = match self {
            PipelineSchedule::GPipe => all,
            PipelineSchedule::OneForwardOneBackward => stages - 1 - stage,
            PipelineSchedule::Interleaved(_) => 2 * (stages - 1 - stage) + (chunks - 1) * stages,
        };
        let ahead = ahead.min(all);
        let first = (0..ahead).map(|index| pass(index, false));
        let between = (ahead..all).flat_map(|index| [pass(index, false), pass(index - ahead, true)]);
        let last = (all - ahead..all).map(|index| pass(index, true));
        first.chain(between).chain(last).collect()
    }

    /// Of how many micro-batches a stage keeps activations at a time.
    pub fn in_flight(self, stage: usize, stages: usize, micro_batches: usize) -> usize {
        let (mut most, mut done) = (0, 0);
        for work in self.order(stage, stages, micro_batches) {
            // A micro-batch is over with its last backward pass, that of the first chunk.
            if work.backward && work.chunk == stage {
                done = work.micro + 1;
            }
            if !work.backward {
                most = most.max(work.micro + 1 - done);
            }
        }
        most
    }

    /// The share of a step in which a stage has nothing to do, where all passes take equally long and messages no time:
    /// Narayanan et al. 2021, section 2.2.
    pub fn bubble(self, stages: usize, micro_batches: usize) -> f64 {
        let idle = (stages - 1) as f64 / self.chunks() as f64;
        idle / (micro_batches as f64 + idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [PipelineSchedule; 4] = [
        PipelineSchedule::GPipe,
        PipelineSchedule::OneForwardOneBackward,
        PipelineSchedule::Interleaved(2),
        PipelineSchedule::Interleaved(3),
    ];

    #[test]
    fn every_pass_is_done_once_and_those_of_a_chunk_in_the_order_of_micro_batches() {
        for schedule in ALL {
            for stages in 1..5 {
                for micro_batches in [stages, 2 * stages, 3 * stages, 8 * stages] {
                    for stage in 0..stages {
                        let order = schedule.order(stage, stages, micro_batches);
                        assert_eq!(order.len(), 2 * schedule.chunks() * micro_batches);
                        for chunk in (stage..stages * schedule.chunks()).step_by(stages) {
                            let place = |backward: bool, micro: usize| {
                                let wanted = Work { chunk, backward, micro };
                                order.iter().position(|work| *work == wanted).expect("every pass is there")
                            };
                            for micro in 0..micro_batches {
                                assert!(
                                    place(false, micro) < place(true, micro),
                                    "{schedule} {chunk} {micro}"
                                );
                                for backward in [false, true] {
                                    let before = micro.checked_sub(1).map(|before| place(backward, before));
                                    assert!(
                                        before < Some(place(backward, micro)),
                                        "{schedule} {chunk} {micro}"
                                    );
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
            }
        }
        assert_eq!(PipelineSchedule::GPipe.bubble(4, 8), 3.0 / 11.0);
        assert_eq!(PipelineSchedule::Interleaved(2).bubble(4, 8), 1.5 / 9.5);
    }
}
