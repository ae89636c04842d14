//! Where gradients are cut into buckets: at the threshold whose rehearsal is fastest.
//!
//! A small bucket leaves early and is soon there; a large one pays the fixed price of a sum once. PyTorch has one
//! threshold for all (Li et al.: "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020);
//! here the step is rehearsed with each of some, by what a sum is expected to take, at several speeds of a rank.

use super::network::Rounds;
use super::rehearsal::{Prices, rehearse, step_facts};
use crate::collective::tuning::Parameters;
use crate::config::Rule;
use crate::error::Result;
use crate::plan::{Kind, Manner, Plan, PlannedStep, Transfer};

/// Bytes from which a bucket is closed, to choose from. More in one bucket would only wait: between two steps of a rank
/// a few chunks of each bucket under way go on, so that several of a moderate length use a link better than one.
const THRESHOLDS: [usize; 6] = [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20];

/// Where ranks have unlike steps, so that rehearsals of their own would not choose the same one.
pub const ALIKE: usize = 4 << 20;

/// Thresholds are as good as the best one if the step ends later by no more than this share of it. Of these the largest
/// is taken: what a sum takes is in part the time of the thread that computes.
const SLACK: f64 = 0.001;

/// How many times as long as by rates steps are thought to take. Rates are built in where nothing was measured, and
/// small layers do not reach them. For each factor a threshold has a loss: the seconds of its step over those with the
/// best threshold. The threshold whose larger loss is the smallest is taken. Where sums take as long as the backward
/// pass, all thresholds are alike by rates; if steps then take longer, all sums are hidden but the last, which should
/// be short. Chosen by rates alone, mnist_large had buckets of 8 MB on three hosts of two ranks, and took 8 % longer.
const SLOWER: [f64; 2] = [1.0, 4.0];

/// Cuts the gradients of a plan; on every rank the same way if all are given the same. One rank is rehearsed in this
/// manner, since all do the same. `seconds` has what each step of the plan takes, and `sum` says it of a
/// transfer.
///
/// # Errors
/// `Internal` where a script cannot be rehearsed.
pub fn cut(
    plan: &mut Plan,
    manner: &Manner,
    rule: &Rule,
    seconds: &[f64],
    sum: &dyn Fn(&Transfer) -> f64,
) -> Result<()> {
    let prices = Prices {
        transfer: sum,
        // Sums of split layers and of the others are under way at a time.
        rounds: &|transfer, _| match manner.mesh.tensor > 1 && transfer.kind == Kind::Sum {
            true => vec![Rounds::whole(sum(transfer))],
            false => Vec::new(),
        },
        ..Prices::FREE
    };
    let mut losses = [1.0_f64; THRESHOLDS.len()];
    for slower in SLOWER {
        let facts = step_facts(plan, &seconds.iter().map(|seconds| seconds * slower).collect::<Vec<f64>>());
        let rehearsed = |threshold| {
            plan.cut_at(threshold);
            let scripts = plan.scripts(manner, rule, 0..1);
            rehearse(&scripts, &[&facts], &prices).map(|rehearsal| rehearsal.seconds)
        };
        let seconds = THRESHOLDS.map(rehearsed).into_iter().collect::<Result<Vec<f64>>>()?;
        let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        losses.iter_mut().zip(&seconds).for_each(|(loss, seconds)| *loss = loss.max(seconds / best));
    }
    plan.cut_at(THRESHOLDS[largest_good(&losses)]);
    Ok(())
}

/// The last that is as good as the best.
fn largest_good(losses: &[f64]) -> usize {
    let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
    losses.iter().rposition(|&loss| loss <= best * (1.0 + SLACK)).unwrap_or(0)
}

/// What each step of a plan is expected to take, from its arithmetic and the bytes that it moves, whichever takes
/// longer.
pub fn step_seconds(plan: &Plan, parameters: &Parameters, threads: usize) -> Vec<f64> {
    let rate = parameters.gflops_per_thread * 1e9 * threads.max(1) as f64;
    // A byte that is copied is read and written.
    let per_byte = parameters.shared.per_byte() / 2.0;
    let of = |step: &PlannedStep| match step.node {
        Some(id) => {
            let cost = plan.graph.cost(id);
            (cost.flops as f64 / rate).max(cost.bytes as f64 * per_byte)
        }
        None => {
            step.inputs.iter().chain(&step.outputs).map(|place| place.bytes).sum::<usize>() as f64 * per_byte
        }
    };
    plan.steps.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::tuning::Tuning;
    use crate::device::reference::Reference;
    use crate::model;
    use crate::plan::{Options, plan};

    const SGD: Rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };

    fn planned(model: &str, batch: usize) -> (Plan, Vec<f64>) {
        let model = model::find(model).unwrap();
        let graph = model.build(batch, model.image, model.classes).unwrap().simplify().differentiate();
        let options = Options::whole(0);
        let plan = plan(graph, &Reference, &options).unwrap();
        let seconds = step_seconds(&plan, &Tuning::built_in().parameters, 1);
        (plan, seconds)
    }

    fn buckets(sum: &dyn Fn(usize) -> f64, overlap: bool) -> Vec<usize> {
        let (mut plan, seconds) = planned("resnet18", 1);
        let manner = Manner { overlap, ..Manner::plain(vec![0]) };
        let sum = |transfer: &Transfer| sum(transfer.cuts.range().len());
        cut(&mut plan, &manner, &SGD, &seconds, &sum).unwrap();
        plan.bucket_bytes()
    }

    #[test]
    fn a_sum_that_is_long_by_its_bytes_leaves_in_small_buckets() {
        // Twice as fast as the backward pass: what becomes ready last is all that is not hidden.
        let small = buckets(&|bytes| bytes as f64 * 2e-10, true);
        assert!(small.len() > 8 && small[small.len() - 1] < 2 << 20, "{small:?}");
    }

    #[test]
    fn a_sum_with_a_high_price_leaves_in_large_buckets() {
        let large = buckets(&|_| 10.0, true);
        assert!(large.len() <= 3, "{large:?}");
        // Nothing is hidden, so that only prices count.
        assert_eq!(buckets(&|_| 1e-3, false), large);
    }

    /// Sums take twice as long as all steps by rates, so that the price of each counts. If steps take four times as
    /// long all are hidden but the last.
    #[test]
    fn the_last_bucket_is_small_where_steps_may_take_longer() {
        let (mut plan, seconds) = planned("mnist_large", 8);
        let (bytes, step) = (plan.bucket_bytes().iter().sum::<usize>() as f64, seconds.iter().sum::<f64>());
        let sum = |transfer: &Transfer| (0.03 + 2.0 * transfer.cuts.range().len() as f64 / bytes) * step;
        cut(&mut plan, &Manner::plain(vec![0]), &SGD, &seconds, &sum).unwrap();
        let buckets = plan.bucket_bytes();
        assert!(buckets[buckets.len() - 1] < 2 << 20, "{buckets:?}");
    }

    #[test]
    fn what_is_as_good_is_cut_into_fewer_buckets() {
        assert_eq!(largest_good(&[1.0, 1.0009, 1.002]), 1);
        assert_eq!(largest_good(&[f64::NAN, f64::NAN]), 0);
        assert_eq!(buckets(&|_| 0.0, true), buckets(&|_| 10.0, true));
    }
}
