//! Where gradients are cut into buckets, from the times at which they become ready and what their sums take.
//!
//! A small bucket leaves early and is soon there; a large one pays the fixed price of a sum once. With sums one after
//! the other, buckets of which one starts when its last gradient is ready and the one before is done end at a time that
//! is least for one set of cuts: dynamic programming over them finds it, after Shi, Chu and Li: "MG-WFBP: efficient
//! data communication for distributed synchronous SGD algorithms", INFOCOM 2019, who merge gradients by the same model
//! greedily. Of the cuts that end nearly as early, those are taken whose sums take least in all, since what a sum takes
//! is in part the time of the thread that computes. The first bucket is small, as in Li et al.: "PyTorch distributed:
//! experiences on accelerating data parallel training", VLDB 2020: ready times are estimates, and what can leave
//! should.

use std::ops::Range;

use crate::collective::tuning::Parameters;
use crate::plan::{Plan, PlannedStep};

/// Bytes of the first bucket, at most, unless its first gradients are larger.
const FIRST: usize = 1 << 20;

/// Bytes of any other, at most, unless its one gradient is larger: from `FIRST` on doubled until a longer one is hardly
/// faster a byte. More in one bucket would only wait: between two steps of a rank a few chunks of each bucket under way
/// go on, so that several of a moderate length use a link better than one.
const LARGEST: usize = 32 << 20;

/// Cuts are as good as the best ones if they end later by no more than this share of what the sum of all takes.
const SLACK: f64 = 0.01;

/// What leaves together at the earliest.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradient {
    /// Bytes of the gradient.
    pub bytes: usize,
    /// Seconds from the start of the backward pass.
    pub ready: f64,
}

/// Runs of gradients, given in ready order, that are to be buckets. `seconds` says what the sum of so many bytes takes.
/// The last run waits until `end`, when the backward pass is over.
pub fn runs(gradients: &[Gradient], end: f64, seconds: impl Fn(usize) -> f64) -> Vec<Range<usize>> {
    let count = gradients.len();
    let mut starts = vec![0; count + 1];
    for (index, gradient) in gradients.iter().enumerate() {
        starts[index + 1] = starts[index] + gradient.bytes;
    }
    // What becomes ready together is not separated.
    let may_end = |to: usize| to == count || gradients[to].ready > gradients[to - 1].ready;
    let mut best: Vec<Vec<Cuts>> = vec![Vec::new(); count + 1];
    best[0].push(Cuts { ends: 0.0, busy: 0.0, from: 0, entry: 0 });
    let enough = enough(&seconds);
    for to in (1..=count).filter(|&to| may_end(to)) {
        let ready = if to == count { end } else { gradients[to - 1].ready };
        let mut found = Vec::new();
        for from in 0..to {
            let bytes = starts[to] - starts[from];
            let most = if from == 0 { FIRST } else { enough };
            let divisible = (from + 1..to).any(may_end);
            if bytes > most && divisible {
                continue;
            }
            let takes = seconds(bytes);
            found.extend(best[from].iter().enumerate().map(|(entry, before)| Cuts {
                ends: before.ends.max(ready) + takes,
                busy: before.busy + takes,
                from,
                entry,
            }));
        }
        best[to] = undominated(found);
    }
    let soonest = best[count].first().map_or(0.0, |cuts| cuts.ends);
    let late = soonest + SLACK * seconds(starts[count]);
    let last = best[count].iter().rposition(|cuts| cuts.ends <= late).unwrap_or(0);
    trace(&best, count, last)
}

/// Bytes from which on the fixed price of a sum is at most a twentieth of it.
fn enough(seconds: impl Fn(usize) -> f64) -> usize {
    let mut bytes = FIRST;
    while bytes < LARGEST && 2.0 * seconds(bytes) > 1.05 * seconds(2 * bytes) {
        bytes *= 2;
    }
    bytes
}

/// The best known of what can be cut up to some gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cuts {
    /// When the last sum is there.
    ends: f64,
    /// What all sums take.
    busy: f64,
    /// Where the last run starts, and which of the cuts up to there are before it.
    from: usize,
    entry: usize,
}

/// Those than which no other ends as early and takes as little, by their ends.
fn undominated(mut cuts: Vec<Cuts>) -> Vec<Cuts> {
    cuts.sort_by(|a, b| a.ends.total_cmp(&b.ends).then(a.busy.total_cmp(&b.busy)));
    let mut least = f64::INFINITY;
    cuts.retain(|cut| {
        cut.busy < least && {
            least = cut.busy;
            true
        }
    });
    cuts
}

fn trace(best: &[Vec<Cuts>], mut to: usize, mut entry: usize) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    while to > 0 {
        let Cuts { from, entry: before, .. } = best[to][entry];
        runs.push(from..to);
        (to, entry) = (from, before);
    }
    runs.reverse();
    runs
}

/// Cuts the gradients of a plan; on every rank the same way if they are given the same. `threads` compute a step.
pub fn cut(plan: &mut Plan, parameters: &Parameters, threads: usize, seconds: impl Fn(usize) -> f64) {
    let times = step_seconds(plan, parameters, threads);
    let mut clock = 0.0;
    let ends: Vec<f64> = times[plan.forward_steps..]
        .iter()
        .map(|time| {
            clock += time;
            clock
        })
        .collect();
    let ready = |after: usize| after.checked_sub(plan.forward_steps).map_or(0.0, |index| ends[index]);
    let gradients: Vec<Gradient> = (plan.gradients.iter())
        .map(|(bytes, after)| Gradient { bytes: bytes.len(), ready: ready(*after) })
        .collect();
    if !gradients.is_empty() {
        plan.cut(&runs(&gradients, clock, seconds));
    }
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
    use proptest::prelude::*;

    /// A fixed price of 10 µs and a gigabyte a second.
    fn seconds(bytes: usize) -> f64 {
        10e-6 + bytes as f64 * 1e-9
    }

    /// When the last sum is there.
    fn finish(gradients: &[Gradient], end: f64, runs: &[Range<usize>]) -> f64 {
        runs.iter().fold(0.0, |before: f64, run| {
            let run_ready = if run.end == gradients.len() { end } else { gradients[run.end - 1].ready };
            before.max(run_ready)
                + seconds(gradients[run.clone()].iter().map(|gradient| gradient.bytes).sum())
        })
    }

    fn evenly(count: usize, bytes: usize, apart: f64) -> Vec<Gradient> {
        (0..count).map(|index| Gradient { bytes, ready: (index + 1) as f64 * apart }).collect()
    }

    proptest! {
        /// Every gradient is in one bucket, in order; what is ready together stays together; only the first is short of
        /// necessity; and no threshold's cut with buckets as long ends much earlier.
        #[test]
        fn buckets_are_all_gradients_in_order(
            sizes in prop::collection::vec((1usize..4_000_000, 0u8..3), 1..40),
            pace in 1e-5f64..1e-2,
        ) {
            let mut clock = 0.0;
            let gradients: Vec<Gradient> = sizes.iter().map(|&(bytes, steps)| {
                clock += f64::from(steps) * pace;
                Gradient { bytes, ready: clock }
            }).collect();
            let end = clock + pace;
            let found = runs(&gradients, end, seconds);
            prop_assert_eq!(&found, &runs(&gradients, end, seconds));
            prop_assert_eq!(found[0].start, 0);
            prop_assert_eq!(found[found.len() - 1].end, gradients.len());
            for pair in found.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert!(gradients[pair[0].end - 1].ready < gradients[pair[1].start].ready);
            }
            let bytes = |run: &Range<usize>| gradients[run.clone()].iter().map(|g| g.bytes).sum::<usize>();
            let at_once = |run: &Range<usize>| gradients[run.start].ready == gradients[run.end - 1].ready;
            prop_assert!(bytes(&found[0]) <= FIRST || at_once(&found[0]));
            prop_assert!(found.iter().all(|run| bytes(run) <= LARGEST || at_once(run)));
            // A bucket for each moment is one of the cuts that were looked at.
            let all: f64 = seconds(gradients.iter().map(|g| g.bytes).sum());
            let mut single: Vec<Range<usize>> = Vec::new();
            for index in 0..gradients.len() {
                match single.last_mut().filter(|run| gradients[run.start].ready == gradients[index].ready) {
                    Some(run) => run.end = index + 1,
                    None => single.push(index..index + 1),
                }
            }
            let slack = SLACK * all + 1e-9;
            prop_assert!(finish(&gradients, end, &found) <= finish(&gradients, end, &single) + slack);
        }
    }

    #[test]
    fn tails_are_short_and_what_is_in_between_is_merged() {
        // 200 gradients of 20 kB, each a millisecond after the one before: each alone would be there in time.
        let gradients = evenly(200, 20_000, 1e-3);
        let found = runs(&gradients, 0.2, seconds);
        let last = found[found.len() - 1].len();
        assert!(last <= 2, "the last of {found:?}");
        assert!(found.len() <= 20, "{found:?}");
        assert!(found[0].len() <= FIRST / 20_000);
    }

    #[test]
    fn the_first_leaves_early_even_where_each_sum_has_a_high_price() {
        let gradients = evenly(200, 100_000, 1e-3);
        let found = runs(&gradients, 0.2, |bytes| 2e-3 + seconds(bytes));
        assert!(found[0].len() <= FIRST / 100_000 && found[1].len() > FIRST / 100_000, "{found:?}");
    }

    #[test]
    fn a_slow_network_is_kept_busy() {
        // All is ready long before it can be sent: the price of each sum counts.
        let gradients = evenly(300, 10_000, 1e-6);
        let found = runs(&gradients, 300e-6, seconds);
        assert!(found.len() <= 6, "{found:?}");
        let ends = finish(&gradients, 300e-6, &found);
        assert!(ends < 3e-3 * 1.05, "{ends}");
    }
}
