//! What an allreduce takes, predicted from the rounds that a schedule really has.
//!
//! A message of n bytes takes α + β·n seconds (Roger Hockney: "The communication challenge for MPP: Intel Paragon and
//! Meiko CS-2", Parallel Computing 20, 1994), and a byte that is added γ more, as in Rajeev Thakur, Rolf Rabenseifner,
//! William Gropp: "Optimization of collective communication operations in MPICH", Int. J. High Perform. Comput. Appl.
//! 19 (2005). There are three levels with an α and a β each: messages within a node, messages between nodes, and memory
//! that a node shares. The ranks of a node share its link to other nodes, so what they send in one round is added up;
//! what they do within the node was measured while all of them did it. Messages go both ways at once.
//!
//! Rounds are taken one after the other. That chunks of one round overlap with those of the next is left out, as is
//! whatever else a machine does to one algorithm more than to another: that is what measured times are for (`tuning`).

use super::schedule::{Apply, Group, Round};
use super::steps::Steps;
use super::tuning::{Parameters, Tuning};
use crate::comm::Topology;
use crate::config::{AllreduceKind, NodeMemory, Pattern, Vendor, Wire};
use crate::cuts::{Cuts, segment};

/// Which ranks share a node: the ranks of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes(pub Vec<Vec<usize>>);

impl Nodes {
    /// Where the ranks of a job are.
    pub fn of(world: &Topology) -> Nodes {
        Nodes(world.ranks_by_node())
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Whether every node has as many ranks.
    pub fn is_even(&self) -> bool {
        self.0.iter().all(|node| node.len() == self.0[0].len())
    }

    /// "2+2": how many ranks each node has. Many alike are "64x8", nodes times ranks.
    pub fn describe(&self) -> String {
        if self.is_even() && self.0.len() > 4 {
            return format!("{}x{}", self.0.len(), self.0[0].len());
        }
        self.0.iter().map(|node| node.len().to_string()).collect::<Vec<_>>().join("+")
    }

    /// Nodes whose ranks are looked at: the first, middle and last, in neighbouring pairs since algorithms treat odd
    /// and even ranks differently.
    fn sample(&self) -> Vec<usize> {
        let nodes = self.0.len();
        let mut sample: Vec<usize> =
            [0, nodes / 2, nodes.saturating_sub(2)].into_iter().flat_map(|at| [at, at + 1]).collect();
        sample.retain(|&node| node < nodes);
        sample.sort_unstable();
        sample.dedup();
        sample
    }
}

/// What a round moves, in elements: the most on any rank, or between nodes on any node.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Step {
    /// To or from one rank of the same node.
    within: usize,
    /// To or from other nodes by all ranks of a node.
    between: usize,
    added: usize,
    /// Rounded before they leave or after they came, where numbers travel as halves.
    rounded: usize,
    messages_within: bool,
    messages_between: bool,
}

/// α + β·n of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AlphaBeta {
    /// Seconds.
    pub fixed: f64,
    /// Seconds a byte of the range.
    pub per_byte: f64,
}

impl AlphaBeta {
    fn at(self, bytes: usize) -> f64 {
        self.fixed + self.per_byte * bytes as f64
    }
}

/// Predicts what an algorithm takes on the ranks of a job.
#[derive(Debug, Clone)]
pub struct Cost {
    /// For each algorithm that can run there: as numbers travel, and as f32.
    lines: Vec<(AllreduceKind, AlphaBeta, AlphaBeta)>,
    nodes: usize,
    tuning: Tuning,
}

/// Elements of the range for which rounds are walked: divided by any number of ranks it leaves next to nothing.
const WALKED: usize = 1 << 30;

impl Cost {
    /// The costs of all algorithms between these nodes, by what `tuning` has measured.
    pub fn new(nodes: &Nodes, wire: Wire, tuning: &Tuning) -> Cost {
        let lines = CANDIDATES.iter().filter_map(|&kind| {
            let line = |wire| line(kind, nodes, wire, &tuning.parameters);
            Some((kind, line(wire)?, line(Wire::F32)?))
        });
        Cost { lines: lines.collect(), nodes: nodes.0.len(), tuning: tuning.of_ranks(&nodes.describe()) }
    }

    /// Seconds that a range of so many bytes of f32 takes; `None` where the algorithm cannot run.
    pub fn seconds(&self, kind: AllreduceKind, bytes: usize) -> Option<f64> {
        let (_, line, as_f32) = self.lines.iter().find(|(other, ..)| *other == kind)?;
        let modelled = line.at(bytes);
        // Measured with f32. What the wire changes the model says.
        let Some((at, measured)) = self.tuning.measured(kind, bytes) else { return Some(modelled) };
        Some(measured * (modelled / as_f32.at(bytes).max(1e-12)) * beyond(*as_f32, bytes, at))
    }

    /// The fastest of the algorithms whose answer a repeat gives again, and its seconds. A later one of `CANDIDATES`
    /// must be clearly faster than those before it: medians of two that take as long differ by some per cent.
    pub fn best(&self, bytes: usize, shared: bool) -> (AllreduceKind, f64) {
        let usable = |kind| match kind {
            AllreduceKind::Shm => shared,
            AllreduceKind::HIERARCHICAL => shared && self.nodes > 1,
            // The library is free to add in another order next time.
            other => other != AllreduceKind::MPI,
        };
        let each = self.lines.iter().filter(|(kind, ..)| usable(*kind));
        let timed = each.filter_map(|&(kind, ..)| Some((kind, self.seconds(kind, bytes)?)));
        timed
            .reduce(|best, next| if next.1 < CLEARLY * best.1 { next } else { best })
            .unwrap_or((AllreduceKind::RING, 0.0))
    }
}

/// A faster algorithm takes at most this share of another's time.
const CLEARLY: f64 = 0.95;

/// Beyond the sizes that were measured times grow as the model says.
fn beyond(line: AlphaBeta, bytes: usize, measured_at: usize) -> f64 {
    line.at(bytes) / line.at(measured_at).max(1e-12)
}

/// In the order in which ties are broken.
pub const CANDIDATES: [AllreduceKind; 7] = [
    AllreduceKind::Shm,
    AllreduceKind::RING,
    AllreduceKind::HIERARCHICAL,
    AllreduceKind::HALVING_DOUBLING,
    AllreduceKind::TORUS,
    AllreduceKind::RECURSIVE_DOUBLING,
    AllreduceKind::MPI,
];

/// The line of an algorithm; `None` where it cannot run.
fn line(kind: AllreduceKind, nodes: &Nodes, wire: Wire, parameters: &Parameters) -> Option<AlphaBeta> {
    let local = nodes.0[0].len();
    match kind {
        // GPUs do without the host.
        AllreduceKind::Auto
        | AllreduceKind::Hierarchical(NodeMemory::Gpus)
        | AllreduceKind::Vendor(Vendor::Nccl) => None,
        AllreduceKind::Shm if nodes.0.len() > 1 => None,
        AllreduceKind::HIERARCHICAL if !nodes.is_even() => None,
        AllreduceKind::Shm => Some(in_memory(local, 1.0, parameters)),
        AllreduceKind::Hierarchical(NodeMemory::Host) => {
            let between = priced(&walk_alike(nodes), wire, parameters);
            // Each element is read on its way to its sum, and the rank's own share of the sums once more.
            let within = in_memory(local, 1.0 + 0.5 / local as f64, parameters);
            Some(AlphaBeta {
                fixed: between.fixed + within.fixed,
                per_byte: between.per_byte + if local > 1 { within.per_byte } else { 0.0 },
            })
        }
        // Libraries double recursively for short ranges and halve for long ones (Thakur et al.).
        AllreduceKind::Vendor(Vendor::Mpi) => {
            let line = |kind| line(kind, nodes, Wire::F32, parameters);
            let (tree, halving) =
                (line(AllreduceKind::RECURSIVE_DOUBLING)?, line(AllreduceKind::HALVING_DOUBLING)?);
            Some(AlphaBeta { fixed: tree.fixed, per_byte: halving.per_byte })
        }
        AllreduceKind::Messages(pattern) => Some(priced(&walk(nodes, Steps::Sum(pattern)), wire, parameters)),
    }
}

/// A sum in memory that a node shares: two waits for all of its ranks, and `copies` times the range copied by each.
fn in_memory(ranks: usize, copies: f64, parameters: &Parameters) -> AlphaBeta {
    if ranks == 1 {
        return AlphaBeta { fixed: 0.0, per_byte: 0.0 };
    }
    let shared = parameters.shared;
    AlphaBeta { fixed: 2.0 * shared.latency(), per_byte: copies * shared.per_byte() }
}

/// Seconds of all rounds.
fn priced(steps: &[Step], wire: Wire, parameters: &Parameters) -> AlphaBeta {
    let Parameters { within, between, .. } = parameters;
    let on_wire = match wire {
        Wire::F32 => 4.0,
        Wire::Bf16 | Wire::F16 => 2.0,
    };
    let mut line = AlphaBeta { fixed: 0.0, per_byte: 0.0 };
    let share = |elements: usize| elements as f64 / WALKED as f64 / 4.0;
    for step in steps {
        let inside = share(step.within) * on_wire * within.per_byte();
        let outside = share(step.between) * on_wire * between.per_byte();
        let latency = |sent: bool, latency: f64| if sent { latency } else { 0.0 };
        line.fixed += latency(step.messages_within, within.latency())
            .max(latency(step.messages_between, between.latency()));
        line.per_byte += inside.max(outside);
        let added = share(step.added) * 4.0 / parameters.add_per_second();
        let rounded = share(step.rounded) * 4.0 / parameters.round_per_second();
        line.per_byte += added + if wire == Wire::F32 { 0.0 } else { rounded };
    }
    line
}

/// The rounds of an algorithm among all ranks.
fn walk(nodes: &Nodes, steps: Steps) -> Vec<Step> {
    let ranks = nodes.ranks();
    let cuts = Cuts::even(&(0..WALKED), ranks);
    add_up(nodes, |_, rank| steps.rounds(&Group::all(rank, ranks), &cuts))
}

/// The rings of `hierarchical`: one for each local rank, of a segment each.
fn walk_alike(nodes: &Nodes) -> Vec<Step> {
    let local = nodes.0[0].len();
    add_up(nodes, |node, rank| {
        let index = nodes.0[node].iter().position(|&other| other == rank).unwrap_or(0);
        let alike = nodes.0.iter().map(|ranks| ranks[index]).collect();
        let cuts = Cuts::even(&segment(&(0..WALKED), local, index), nodes.0.len());
        Steps::Sum(Pattern::Ring).rounds(&Group { ranks: alike, place: node }, &cuts)
    })
}

/// What each round moves, from the rounds of each rank of a node.
fn add_up(nodes: &Nodes, rounds: impl Fn(usize, usize) -> Vec<Round>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for node in nodes.sample() {
        let here = |rank: usize| nodes.0[node].contains(&rank);
        // What leaves the node and what comes to it, in each round.
        let mut crossing: Vec<[usize; 2]> = Vec::new();
        for &rank in &nodes.0[node] {
            for (index, round) in rounds(node, rank).iter().enumerate() {
                if steps.len() <= index {
                    steps.resize(index + 1, Step::default());
                }
                if crossing.len() <= index {
                    crossing.resize(index + 1, [0; 2]);
                }
                let (step, crossing) = (&mut steps[index], &mut crossing[index]);
                let received = round.receive.as_ref().map(|(part, _)| part);
                let mut rounded = 0;
                for (part, direction) in [(round.send.as_ref(), 0), (received, 1)] {
                    let Some(part) = part else { continue };
                    let elements = part.range.len();
                    rounded += elements;
                    if here(part.peer) {
                        step.within = step.within.max(elements);
                        step.messages_within = true;
                    } else {
                        crossing[direction] += elements;
                        step.messages_between = true;
                    }
                }
                step.rounded = step.rounded.max(rounded);
                if let Some((part, Apply::Add)) = &round.receive {
                    step.added = step.added.max(part.range.len());
                }
            }
        }
        for (step, [leaving, coming]) in steps.iter_mut().zip(crossing) {
            step.between = step.between.max(leaving).max(coming);
        }
    }
    steps
}

/// Also what other tests build nodes with.
#[cfg(test)]
pub mod tests {
    use super::super::schedule::Schedule;
    use super::super::tuning::{Level, Times};
    use super::*;
    use crate::config::Pattern;
    use AllreduceKind::Shm;

    /// Ranks in their order on so many nodes.
    pub fn nodes(count: usize, ranks: usize) -> Nodes {
        Nodes((0..count).map(|node| (node * ranks..(node + 1) * ranks).collect()).collect())
    }

    /// Where everything is free but messages, which take a second each and a second an element of the range.
    fn counting() -> Parameters {
        let free = Level { latency_us: 0.0, gb_per_s: f64::INFINITY };
        let message = Level { latency_us: 1e6, gb_per_s: 1e-9 };
        Parameters {
            within: message,
            between: message,
            shared: free,
            add_gb_per_s: f64::INFINITY,
            round_gb_per_s: f64::INFINITY,
            gflops_per_thread: 1.0,
        }
    }

    /// The table of docs/algorithms.md: steps, and bytes that go through a rank one after the other, in units of N·S.
    /// That is what a rank sends at most; with a pair before and after, one of both is idle, and both take their time.
    #[test]
    fn steps_and_bytes_are_those_of_the_table() {
        for p in [2usize, 3, 4, 5, 6, 7, 8, 9, 16, 17, 36] {
            let q = 1 << p.ilog2();
            let (pf, qf, log, pairs) =
                (p as f64, q as f64, f64::from(p.ilog2()), if p == q { 0.0 } else { 2.0 });
            let columns = super::super::torus::columns(p);
            let around = 2.0 * (pf - 1.0) / pf;
            for (kind, steps, bytes) in [
                (AllreduceKind::RING, 2.0 * (pf - 1.0), around),
                (AllreduceKind::TORUS, 2.0 * (columns + p / columns - 2) as f64, around),
                (AllreduceKind::HALVING_DOUBLING, 2.0 * log + pairs, 2.0 * (qf - 1.0) / qf + pairs),
                (AllreduceKind::RECURSIVE_DOUBLING, log + pairs, log + pairs),
            ] {
                for nodes in [nodes(p, 1), nodes(1, p)] {
                    let line = line(kind, &nodes, Wire::F32, &counting()).unwrap();
                    let close = (line.per_byte - bytes).abs() < 1e-6 * bytes;
                    assert!(
                        line.fixed == steps && close,
                        "{kind:?} of {p}: {line:?}, not {steps} and {bytes}"
                    );
                    let halves = super::line(kind, &nodes, Wire::Bf16, &counting()).unwrap();
                    assert!(
                        (halves.per_byte - bytes / 2.0).abs() < 1e-6 * bytes,
                        "{kind:?} of {p} in halves"
                    );
                }
            }
        }
    }

    /// The same from the messages that are really sent. Ranks of which none idles send all the way.
    #[test]
    fn bytes_are_those_of_the_schedules() {
        for pattern in [Pattern::Ring, Pattern::Torus, Pattern::HalvingDoubling, Pattern::RecursiveDoubling] {
            for p in [2usize, 4, 8, 16] {
                let rounds = Steps::Sum(pattern).rounds(&Group::all(1, p), &Cuts::even(&(0..1 << 20), p));
                let sent: usize =
                    Schedule::new(&rounds, 1000).sends.iter().map(|message| message.range.len()).sum();
                let predicted = line(AllreduceKind::Messages(pattern), &nodes(1, p), Wire::F32, &counting())
                    .unwrap()
                    .per_byte;
                assert!((sent as f64 / f64::from(1 << 20) - predicted).abs() < 1e-4, "{pattern:?} of {p}");
            }
        }
    }

    #[test]
    fn memory_that_all_share_is_the_choice_within_a_node() {
        for ranks in [2, 3, 4, 8, 16] {
            let cost = Cost::new(&nodes(1, ranks), Wire::F32, &Tuning::built_in());
            for bytes in [4 << 10, 1 << 20, 16 << 20, 256 << 20] {
                assert_eq!(cost.best(bytes, true).0, Shm, "{ranks} ranks, {bytes} bytes");
            }
        }
    }

    #[test]
    fn what_leaves_a_node_shares_its_link() {
        let between = |kind, nodes: &Nodes| {
            let free = Level { latency_us: 0.0, gb_per_s: f64::INFINITY };
            let parameters = Parameters { within: free, ..counting() };
            line(kind, nodes, Wire::F32, &parameters).unwrap().per_byte
        };
        // One ring passes between nodes once; each of L rings of hierarchical has an L-th: 2(M−1)/M in all.
        assert!((between(AllreduceKind::RING, &nodes(2, 4)) - 2.0 * 7.0 / 8.0).abs() < 1e-6);
        assert!((between(AllreduceKind::HIERARCHICAL, &nodes(2, 4)) - 1.0).abs() < 1e-6);
        assert!((between(AllreduceKind::HIERARCHICAL, &nodes(4, 2)) - 1.5).abs() < 1e-6);
        // HalvingDoubling first goes furthest, with half of the range from each rank: all four at once through one
        // link.
        assert!((between(AllreduceKind::HALVING_DOUBLING, &nodes(2, 4)) - 4.0).abs() < 1e-6);
    }

    #[test]
    fn more_bytes_never_take_less() {
        let times = Times {
            algorithm: "ring".into(),
            bytes: vec![1000, 10_000, 1_000_000],
            us: vec![5.0, 5.0, 900.0],
        };
        let mut measured = Tuning { measured: vec![times], ..Tuning::built_in() };
        measured.machine.ranks = "2+2".into();
        for (tuning, wire) in [(Tuning::built_in(), Wire::Bf16), (measured, Wire::F32)] {
            let cost = Cost::new(&nodes(2, 2), wire, &tuning);
            for kind in CANDIDATES {
                let sizes = (0..120).map(|i| (1.2f64.powi(i)) as usize);
                let times: Vec<f64> = sizes.filter_map(|bytes| cost.seconds(kind, bytes)).collect();
                // But for rounding.
                assert!(times.windows(2).all(|pair| pair[0] <= pair[1] * (1.0 + 1e-12)), "{kind:?}");
                assert_eq!(times.is_empty(), kind == Shm, "{kind:?}");
            }
        }
    }

    #[test]
    fn a_measured_time_counts_where_there_is_one() {
        let times = Times { algorithm: "ring".into(), bytes: vec![1000, 100_000], us: vec![10.0, 1000.0] };
        let mut tuning = Tuning { measured: vec![times], ..Tuning::built_in() };
        tuning.machine.ranks = "1+1".into();
        let seconds =
            |wire, bytes| Cost::new(&nodes(2, 1), wire, &tuning).seconds(AllreduceKind::RING, bytes).unwrap();
        assert!((seconds(Wire::F32, 10_000) - 100e-6).abs() < 1e-9);
        // Beyond, as much more as the model says.
        let built_in = Cost::new(&nodes(2, 1), Wire::F32, &Tuning::built_in());
        let ratio = built_in.seconds(AllreduceKind::RING, 1 << 30).unwrap()
            / built_in.seconds(AllreduceKind::RING, 100_000).unwrap();
        assert!((seconds(Wire::F32, 1 << 30) / 1000e-6 / ratio - 1.0).abs() < 1e-9);
        // Of other ranks the times say nothing.
        let seconds =
            |tuning| Cost::new(&nodes(3, 1), Wire::F32, tuning).seconds(AllreduceKind::RING, 10_000);
        assert_eq!(seconds(&tuning), seconds(&Tuning::built_in()));
        // Halves were not measured.
        let between = |parameters| Tuning { parameters, ..tuning.clone() };
        let slow = Parameters {
            between: Level { latency_us: 1.0, gb_per_s: 0.01 },
            ..Tuning::built_in().parameters
        };
        let halves = Cost::new(&nodes(2, 1), Wire::Bf16, &between(slow))
            .seconds(AllreduceKind::RING, 100_000)
            .unwrap();
        assert!((halves / 500e-6 - 1.0).abs() < 0.1, "{halves}");
    }

    #[test]
    fn a_choice_fits_where_ranks_are() {
        let best = |nodes: &Nodes, bytes, shared| {
            Cost::new(nodes, Wire::F32, &Tuning::built_in()).best(bytes, shared).0
        };
        for bytes in [4, 4 << 10, 1 << 20, 256 << 20] {
            assert_eq!(best(&nodes(1, 1), bytes, true), Shm);
            assert_eq!(best(&nodes(1, 4), bytes, true), Shm);
            for nodes in [nodes(1, 8), nodes(16, 1), nodes(4, 4), nodes(3, 3)] {
                assert!(
                    ![Shm, AllreduceKind::HIERARCHICAL, AllreduceKind::MPI]
                        .contains(&best(&nodes, bytes, false))
                );
            }
        }
        assert_eq!(best(&nodes(4, 4), 64 << 20, true), AllreduceKind::HIERARCHICAL);
        assert_eq!(best(&nodes(16, 1), 64, true), AllreduceKind::RECURSIVE_DOUBLING);
        assert!(
            [AllreduceKind::RING, AllreduceKind::HALVING_DOUBLING, AllreduceKind::TORUS].contains(&best(
                &nodes(16, 1),
                64 << 20,
                true
            ))
        );
        assert_eq!(best(&nodes(2, 1), 64 << 20, true), AllreduceKind::RING);
        let uneven = Nodes(vec![vec![0, 1], vec![2]]);
        assert!(![Shm, AllreduceKind::HIERARCHICAL].contains(&best(&uneven, 64 << 20, true)));
    }

    #[test]
    fn many_ranks_are_no_hindrance() {
        let cost = Cost::new(&nodes(512, 8), Wire::F32, &Tuning::built_in());
        // A ring of 4096 ranks has 8190 steps.
        assert!(
            cost.seconds(AllreduceKind::RING, 4).unwrap() > 1e-3
                && cost.best(64 << 20, true).0 != AllreduceKind::RING
        );
    }
}
