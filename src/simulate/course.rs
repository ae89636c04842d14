//! What a collective does, without doing it: the rounds that ranks would go through on other nodes, for how long
//! (`Course::seconds`) and message by message (`Course::of_rank`).
//!
//! The rounds are those of the schedules. A round of a rank is over when its message has left and the other has come;
//! then it adds. That chunks of one round overlap with those of the next is left out, as in `cost`. What ranks do in
//! memory that their node shares takes what `cost` says of it.

use super::machine::{Among, LoadKey, Machine, RankGroups, Together};
use super::network::Rounds;
use crate::collective::Steps;
use crate::collective::schedule::{Apply, Group, PeerRange, Phase, Round};
use crate::config::{AllreduceKind, NodeMemory, Pattern, Vendor, Wire};
use crate::cuts::{Cuts, segment};

/// A part of a course.
enum Leg {
    /// The ranks of a node wait for each other.
    Meet,
    /// Every rank is busy for so many seconds.
    Work(f64),
    /// Messages in rounds.
    Messages { steps: Steps, cuts: Cuts, among: Among },
    /// Messages that start at a time.
    Together(Together),
}

/// What all ranks go through.
pub struct Course {
    legs: Vec<Leg>,
    wire: Wire,
}

/// What one rank does, and then it does the next.
#[derive(Debug, Clone, PartialEq)]
pub enum Deed {
    /// Waits for the others of its node.
    Meet,
    /// Is busy for so many seconds.
    Work(f64),
    /// Sends so many bytes to a rank and gets so many of one, both at a time.
    Exchange {
        /// To whom, and how many.
        send: Option<(usize, usize)>,
        /// Of whom, and how many.
        receive: Option<(usize, usize)>,
    },
    /// The same to and from several ranks, all at a time.
    Together {
        /// To whom, and how many.
        sends: Vec<(usize, usize)>,
        /// Of whom, and how many.
        receives: Vec<(usize, usize)>,
    },
}

/// What a rank gets of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    All,
    /// What it owns.
    Own,
}

impl Course {
    /// A sum of elements by an algorithm; `None` where a library or a GPU does it, of which nothing is known.
    pub fn sum(
        kind: AllreduceKind,
        share: Share,
        cuts: &Cuts,
        wire: Wire,
        machine: &Machine,
    ) -> Option<Course> {
        let of = |steps, among| Leg::Messages { steps, cuts: cuts.clone(), among };
        let messages = |steps| of(steps, Among::All);
        let between = |steps| of(steps, Among::Alike);
        // A sum whose halves there are not is made whole.
        let ring = if share == Share::Own { Steps::Scatter } else { Steps::Sum(Pattern::Ring) };
        let legs = match kind {
            AllreduceKind::Messages(Pattern::Ring) => vec![messages(ring)],
            AllreduceKind::HALVING_DOUBLING if share == Share::Own => vec![messages(Steps::Halve)],
            AllreduceKind::Messages(pattern) => vec![messages(Steps::Sum(pattern))],
            AllreduceKind::Shm => {
                vec![Leg::Meet, Leg::Work(in_memory(2.0, 1.0, cuts, machine)), Leg::Meet]
            }
            AllreduceKind::Hierarchical(NodeMemory::Host) if machine.local == 1 => vec![between(ring)],
            AllreduceKind::Hierarchical(NodeMemory::Host) => {
                // Each element is read on its way to its sum, and the rank's own share of the sums once more.
                let read = in_memory(1.0, 0.5 + 0.5 / machine.local as f64, cuts, machine);
                let written = if share == Share::Own { 0.0 } else { in_memory(1.0, 0.5, cuts, machine) };
                vec![Leg::Meet, Leg::Work(read), between(ring), Leg::Work(written), Leg::Meet]
            }
            AllreduceKind::Auto | AllreduceKind::Hierarchical(NodeMemory::Gpus) => return None,
            AllreduceKind::Vendor(Vendor::Mpi | Vendor::Nccl) => return None,
        };
        Some(Course { legs, wire })
    }

    /// What goes by messages alone, as f32.
    pub fn of(steps: Steps, cuts: &Cuts, wire: Wire) -> Course {
        Course { legs: vec![Leg::Messages { steps, cuts: cuts.clone(), among: Among::All }], wire }
    }

    /// What goes by messages alone, in each group.
    pub fn in_groups(groups: RankGroups, steps: Steps, cuts: &Cuts, wire: Wire) -> Course {
        let among = Among::Groups(groups);
        Course { legs: vec![Leg::Messages { steps, cuts: cuts.clone(), among }], wire }
    }

    /// Messages between places of each group, all at a time: from, to, bytes.
    pub fn together(groups: RankGroups, messages: Vec<[usize; 3]>) -> Course {
        Course { legs: vec![Leg::Together(Together { groups, messages })], wire: Wire::F32 }
    }

    /// Each place of a group gives each other one so many bytes.
    pub fn all_to_all(groups: RankGroups, bytes: usize) -> Course {
        let others = |from: usize| (1..groups.size).map(move |on| [from, (from + on) % groups.size, bytes]);
        Course::together(groups, (0..groups.size).flat_map(others).collect())
    }

    /// What every rank owns, for all nodes, in memory that the ranks of a node have in common.
    pub fn between_nodes(cuts: &Cuts) -> Course {
        let messages = Leg::Messages { steps: Steps::Collect, cuts: cuts.clone(), among: Among::Alike };
        Course { legs: vec![Leg::Meet, messages, Leg::Meet], wire: Wire::F32 }
    }

    /// Seconds from when all ranks have started until the last is through. A rank that is through with a round goes on
    /// with the next, whatever the others do; where many rounds are alike each counts as long as the slowest rank of it
    /// takes, which all are soon held up by.
    pub fn seconds(&self, machine: &Machine) -> f64 {
        self.legs.iter().map(|leg| self.of_leg(leg, machine)).sum()
    }

    fn of_leg(&self, leg: &Leg, machine: &Machine) -> f64 {
        match leg {
            Leg::Meet => 0.0,
            Leg::Work(seconds) => *seconds,
            Leg::Together(together) => machine.together(together),
            Leg::Messages { steps, cuts, among: Among::Alike } => {
                self.phases(*steps, &busiest_share(cuts, machine), Among::Alike, machine)
            }
            Leg::Messages { steps, cuts, among } if machine.is_paced(*steps, *among, cuts) => {
                self.paced(*steps, cuts, machine)
            }
            Leg::Messages { steps, cuts, among } => self.phases(*steps, cuts, *among, machine),
        }
    }

    /// Seconds of rounds through which each rank goes at its own pace. Where all parts are alike seconds grow linearly
    /// between powers of four of elements, so that buckets of many sizes take few simulations.
    fn paced(&self, steps: Steps, cuts: &Cuts, machine: &Machine) -> f64 {
        let elements = cuts.range().len();
        if matches!(steps, Steps::ToOwners | Steps::FromOwners) || elements == 0 {
            return machine.paced((steps, self.wire, elements), cuts);
        }
        let below = 1 << (elements.ilog2() / 2 * 2);
        let of = |elements| {
            machine.paced((steps, self.wire, elements), &Cuts::even(&(0..elements), machine.ranks()))
        };
        let least = of(below);
        if elements == below {
            return least;
        }
        let most = of(4 * below);
        least + (most - least) * (elements - below) as f64 / (3 * below) as f64
    }

    /// The rounds that these seconds are made of, where all take part in a round for as long as its slowest message
    /// takes. Of a course in groups those of some of these, by their first ranks.
    pub fn rounds(&self, machine: &Machine, firsts: &[usize]) -> Vec<Rounds> {
        let mut rounds = Vec::new();
        for leg in &self.legs {
            match leg {
                Leg::Meet => {}
                Leg::Work(seconds) => rounds.push(Rounds::off_links(*seconds)),
                Leg::Together(together) => rounds.push(together.at_a_time(machine, firsts)),
                Leg::Messages { .. } => rounds.extend(self.of_messages(leg, machine, firsts)),
            }
        }
        rounds
    }

    fn of_messages(&self, leg: &Leg, machine: &Machine, firsts: &[usize]) -> Vec<Rounds> {
        let Leg::Messages { steps, cuts, among } = leg else { return Vec::new() };
        let rounds = self.of_phases(*steps, cuts, *among, machine, firsts);
        // Some are through earlier than the slowest.
        let sum: f64 = rounds.iter().map(|of| of.count as f64 * machine.seconds(of)).sum();
        let share = match among {
            Among::All if sum > 0.0 => self.of_leg(leg, machine) / sum,
            _ => 1.0,
        };
        rounds.into_iter().map(|of| of.shortened(share)).collect()
    }

    /// The rounds, and seconds of each, in which ranks pass on what came in the round before. What goes straight from
    /// one rank to another has none.
    pub fn relayed(&self, machine: &Machine) -> Vec<(usize, f64)> {
        let passes_on = |leg: &&Leg| match leg {
            Leg::Meet | Leg::Work(_) | Leg::Together(_) => false,
            Leg::Messages { steps, among, .. } => steps.pass_on() && !matches!(among, Among::Groups(_)),
        };
        let all = self.legs.iter().filter(passes_on).flat_map(|leg| self.of_messages(leg, machine, &[]));
        all.map(|of| (of.count, machine.seconds(&of))).collect()
    }

    fn of_phases(
        &self,
        steps: Steps,
        cuts: &Cuts,
        among: Among,
        machine: &Machine,
        firsts: &[usize],
    ) -> Vec<Rounds> {
        let share = (among == Among::Alike).then(|| busiest_share(cuts, machine));
        let phases = steps.phases(share.as_ref().unwrap_or(cuts)).into_iter().enumerate();
        let of = |(index, phase): (usize, Phase)| {
            let bytes = 4 * self.wire.words(phase.elements);
            let handled = self.handled(2 * phase.elements, phase.elements, phase.adds, machine);
            let firsts = matches!(among, Among::Groups(_)).then_some(firsts);
            let pairs = || machine.pairs(among, &phase, firsts);
            let near = if machine.local > 1 { machine.within(pairs().into_iter(), bytes) } else { 0.0 };
            let shared = LoadKey::Phase(steps, among, index, firsts.map(<[usize]>::to_vec));
            let load = machine.load(shared, || pairs().into_iter().map(|ends| (ends, 1.0)).collect());
            machine.round(load, [phase.rounds, bytes], near, handled)
        };
        phases.filter(Self::is_sent).map(of).collect()
    }

    fn is_sent((_, phase): &(usize, Phase)) -> bool {
        phase.elements > 0 && phase.rounds > 0
    }

    fn phases(&self, steps: Steps, cuts: &Cuts, among: Among, machine: &Machine) -> f64 {
        let (mut clocks, mut floor, mut latest) = (vec![0.0f64; cuts.ranks()], 0.0f64, 0.0f64);
        for (index, phase) in steps.phases(cuts).into_iter().enumerate().filter(Self::is_sent) {
            let bytes = (4 * self.wire.words(phase.elements)) as f64;
            let handled = self.handled(2 * phase.elements, phase.elements, phase.adds, machine);
            let loads = machine.loads((steps, among, index), &phase);
            if phase.rounds > 1 || among != Among::All {
                latest += phase.rounds as f64 * (loads.seconds(bytes) + handled);
                floor = latest;
                continue;
            }
            // Both ends wait for the message; who gets one then adds.
            let begun = |place: usize| clocks[place].max(floor);
            let over = |((from, to), seconds): ((usize, usize), f64)| {
                (from, to, begun(from).max(begun(to)) + seconds)
            };
            let messages: Vec<_> = phase.pairs().into_iter().zip(loads.each(bytes)).map(over).collect();
            for &(from, to, over) in &messages {
                clocks[from] = clocks[from].max(over);
                clocks[to] = clocks[to].max(over);
            }
            for &(from, to, _) in &messages {
                clocks[to] += handled;
                latest = latest.max(clocks[to]).max(clocks[from]);
            }
        }
        latest
    }

    /// Seconds to round numbers that leave or come, and to add those that came.
    fn handled(&self, rounded: usize, came: usize, adds: bool, machine: &Machine) -> f64 {
        let rounding = match self.wire {
            Wire::F32 => 0.0,
            Wire::Bf16 | Wire::F16 => 4.0 * rounded as f64 / machine.parameters.round_per_second(),
        };
        let adding = if adds { 4.0 * came as f64 / machine.parameters.add_per_second() } else { 0.0 };
        rounding + adding
    }

    /// What one rank does. Messages without elements are not sent.
    pub fn of_rank(&self, rank: usize, machine: &Machine) -> Vec<Deed> {
        let (node, local) = (rank / machine.local, rank % machine.local);
        let mut deeds = Vec::new();
        for leg in &self.legs {
            match leg {
                Leg::Meet => deeds.push(Deed::Meet),
                Leg::Work(seconds) => deeds.push(Deed::Work(*seconds)),
                Leg::Together(Together { groups, messages }) => {
                    let (first, place) = groups.place(rank);
                    let other = |place: usize| groups.rank(first, place);
                    let of = |own: usize, theirs: usize| {
                        let own = messages.iter().filter(move |message| message[own] == place);
                        own.map(|message| (other(message[theirs]), message[2])).collect()
                    };
                    deeds.push(Deed::Together { sends: of(0, 1), receives: of(1, 0) });
                }
                Leg::Messages { steps, cuts, among } => {
                    let rounds = match among {
                        Among::All => steps.rounds(&Group::all(rank, cuts.ranks()), cuts),
                        Among::Alike => {
                            let alike = (0..machine.nodes).map(|node| node * machine.local + local).collect();
                            let cuts = share_of(cuts, local, machine);
                            steps.rounds(&Group { ranks: alike, place: node }, &cuts)
                        }
                        Among::Groups(groups) => {
                            let (first, place) = groups.place(rank);
                            let ranks = (0..groups.size).map(|place| groups.rank(first, place)).collect();
                            steps.rounds(&Group { ranks, place }, cuts)
                        }
                    };
                    rounds.iter().for_each(|round| self.exchange(round, machine, &mut deeds));
                }
            }
        }
        deeds
    }

    fn exchange(&self, round: &Round, machine: &Machine, deeds: &mut Vec<Deed>) {
        let some = |part: &PeerRange| {
            let elements = part.range.len();
            (elements > 0).then_some((part.peer, 4 * self.wire.words(elements)))
        };
        let send = round.send.as_ref().and_then(some);
        let receive = round.receive.as_ref().and_then(|(part, _)| some(part));
        if send.is_none() && receive.is_none() {
            return;
        }
        deeds.push(Deed::Exchange { send, receive });
        let length = |part: Option<&PeerRange>| part.map_or(0, |part| part.range.len());
        let came = length(round.receive.as_ref().map(|(part, _)| part));
        let adds = matches!(round.receive, Some((_, Apply::Add)));
        let seconds = self.handled(length(round.send.as_ref()) + came, came, adds, machine);
        deeds.extend((seconds > 0.0).then_some(Deed::Work(seconds)));
    }
}

/// Seconds in memory that a node shares: so many waits for all of its ranks, and so many times the range copied by
/// each.
fn in_memory(waits: f64, copies: f64, cuts: &Cuts, machine: &Machine) -> f64 {
    let shared = machine.parameters.shared;
    match machine.local {
        1 => 0.0,
        _ => waits * shared.latency() + copies * 4.0 * cuts.range().len() as f64 * shared.per_byte(),
    }
}

/// What the ranks with one local rank work on, by node: where each rank owns a part, those; else a segment of the whole
/// for each local rank, of which each node has a part.
fn share_of(cuts: &Cuts, local: usize, machine: &Machine) -> Cuts {
    let alike: Vec<usize> = (0..machine.nodes).map(|node| node * machine.local + local).collect();
    match cuts.ranks() == machine.ranks() {
        true => cuts.among(&alike, [0, 1]),
        false => Cuts::even(&segment(cuts.range(), machine.local, local), machine.nodes),
    }
}

/// Of all local ranks that which has most to send.
fn busiest_share(cuts: &Cuts, machine: &Machine) -> Cuts {
    let most = |local: usize| {
        let of = share_of(cuts, local, machine);
        (0..machine.nodes).map(|node| of.part(node).len()).max()
    };
    let local = (0..machine.local).max_by_key(|&local| most(local)).unwrap_or(0);
    share_of(cuts, local, machine)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::machine::PIECES;
    use super::super::network::{Interconnect, Topology as Joined};
    use super::*;
    use crate::collective::cost::tests::nodes;
    use crate::collective::cost::{CANDIDATES, Cost};
    use crate::collective::tuning::{Level, Parameters, Tuning};

    fn machine(nodes: usize, local: usize) -> Machine {
        let parameters = Tuning::built_in().parameters;
        let between = parameters.between;
        let network = Interconnect::flat(between.latency(), 1.0 / between.per_byte());
        Machine::new(network, nodes, local, parameters)
    }

    /// Where only nodes have links, the course takes what the cost model says, which walks the rounds in another way.
    #[test]
    fn on_a_flat_network_a_course_takes_what_the_cost_model_says() {
        for (count, local) in [(2, 1), (5, 1), (8, 1), (4, 2), (3, 4)] {
            let machine = machine(count, local);
            let cost = Cost::new(&nodes(count, local), Wire::F32, &Tuning::built_in());
            let range = 0..1 << 20;
            let cuts = Cuts::even(&range, count * local);
            for kind in CANDIDATES {
                let Some(course) = Course::sum(kind, Share::All, &cuts, Wire::F32, &machine) else {
                    continue;
                };
                let Some(expected) = cost.seconds(kind, 4 << 20) else { continue };
                let seconds = course.seconds(&machine);
                // Segments differ by an element, and the cost model takes the slower of a round's messages within a
                // node and between nodes by latency and by bytes apart: that is more for rings over both.
                let both = local > 1 && matches!(kind, AllreduceKind::Messages(_));
                let close = (seconds / expected - 1.0).abs() < 1e-4 || (both && seconds <= expected * 1.0001);
                assert!(close, "{kind:?} on {count} × {local}: {seconds}, not {expected}");
            }
        }
    }

    /// By recursive doubling, of six ranks on three nodes, three ranges pass the busiest links of their rounds, and two
    /// the busiest link of all: in chunks that takes two. On nodes of one rank, and for a power of two of ranks, every
    /// link has as much to carry in each round.
    #[test]
    fn chunks_of_unlike_rounds_pass_unlike_links() {
        let of = |nodes, local, in_chunks| {
            let free = Level { latency_us: 0.0, gb_per_s: f64::INFINITY };
            let parameters =
                Parameters { within: free, add_gb_per_s: f64::INFINITY, ..Tuning::built_in().parameters };
            let machine = Machine::new(Interconnect::flat(0.0, 1.0), nodes, local, parameters);
            let machine = if in_chunks { machine.in_chunks() } else { machine };
            let cuts = Cuts::even(&(0..1 << 18), nodes * local);
            let course =
                Course::sum(AllreduceKind::RECURSIVE_DOUBLING, Share::All, &cuts, Wire::F32, &machine);
            let course = course.unwrap();
            let seconds = course.seconds(&machine);
            // What passes messages on between two steps counts as many seconds.
            let relayed: f64 =
                course.relayed(&machine).iter().map(|(count, each)| *count as f64 * each).sum();
            assert!((relayed / seconds - 1.0).abs() < 1e-9, "{relayed}, not {seconds}");
            seconds / f64::from(4 << 18)
        };
        assert!((of(3, 2, false) - 3.0).abs() < 1e-6);
        let piece = 1.0 / PIECES as f64;
        assert!((2.0..=2.0 + 2.0 * piece).contains(&of(3, 2, true)), "{}", of(3, 2, true));
        for (nodes, local) in [(4, 2), (3, 1), (4, 1)] {
            assert_eq!(of(nodes, local, true), of(nodes, local, false));
        }
    }

    /// Four ranks on two nodes, a second a message and a second a byte between nodes: a tenth of both within.
    #[test]
    fn groups_are_in_the_way_of_each_other_between_nodes_alone() {
        let parameters = Parameters {
            within: Level { latency_us: 1e5, gb_per_s: 1e-8 },
            add_gb_per_s: f64::INFINITY,
            ..Tuning::built_in().parameters
        };
        let machine = Machine::new(Interconnect::flat(1.0, 1.0), 2, 2, parameters);
        let near = RankGroups::of_neighbours(2);
        let far = RankGroups { size: 2, stride: 2 };
        let all = RankGroups::of_neighbours(4);
        let seconds = |course: Course| course.seconds(&machine);
        let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one}, not {other}");
        close(seconds(Course::all_to_all(near, 10)), 0.1 + 1.0);
        // Both ranks of a node send over its link.
        close(seconds(Course::all_to_all(far, 10)), 1.0 + 20.0);
        // Each of both to each of the other node.
        close(seconds(Course::all_to_all(all, 10)), 1.0 + 40.0);
        // Unlike messages of one group: the link of the first node carries both out.
        close(seconds(Course::together(all, vec![[0, 2, 10], [1, 3, 5], [2, 1, 3]])), 1.0 + 15.0);
        let cuts = Cuts::even(&(0..100), 2);
        let sum = |groups| seconds(Course::in_groups(groups, Steps::Sum(Pattern::Ring), &cuts, Wire::F32));
        let ring = Course::in_groups(far, Steps::Sum(Pattern::Ring), &cuts, Wire::F32);
        let rounds = |firsts: &[usize]| -> Vec<(usize, f64, f64)> {
            let of = |of: Rounds| (of.count, of.before, machine.seconds(&of));
            ring.rounds(&machine, firsts).into_iter().map(of).collect()
        };
        assert_eq!(rounds(&[0, 1]), [(1, 1.0, 401.0); 2]);
        // A group alone.
        assert_eq!(rounds(&[1]), [(1, 1.0, 201.0); 2]);
        close(sum(near), 2.0 * (0.1 + 20.0));
        close(sum(far), 2.0 * (1.0 + 400.0));
        let firsts = |groups: RankGroups| groups.first_ranks(8).collect::<Vec<_>>();
        assert_eq!(firsts(RankGroups { size: 2, stride: 2 }), [0, 1, 4, 5]);
        assert_eq!(firsts(RankGroups { size: 4, stride: 2 }), [0, 1]);
        assert_eq!((RankGroups { size: 4, stride: 2 }.place(5), near.place(5)), ((1, 2), (4, 1)));
        // Messages have both ends.
        for rank in 0..4 {
            let [Deed::Together { sends, receives }] =
                &Course::all_to_all(far, 7).of_rank(rank, &machine)[..]
            else {
                panic!("one deed")
            };
            assert_eq!((sends, receives), (&vec![((rank + 2) % 4, 7)], &vec![((rank + 2) % 4, 7)]));
        }
    }

    /// Formulas by hand: four nodes, a second a message and a second a byte, nothing to add.
    #[test]
    fn the_formulas_hold_on_a_flat_network() {
        let parameters = Parameters { add_gb_per_s: f64::INFINITY, ..Tuning::built_in().parameters };
        let machine = Machine::new(Interconnect::flat(1.0, 1.0), 4, 1, parameters);
        let cuts = Cuts::even(&(0..100), 4);
        let of = |kind| Course::sum(kind, Share::All, &cuts, Wire::F32, &machine).unwrap().seconds(&machine);
        assert_eq!(of(AllreduceKind::RING), 6.0 * (1.0 + 100.0));
        assert_eq!(of(AllreduceKind::HIERARCHICAL), 6.0 * (1.0 + 100.0));
        assert_eq!(of(AllreduceKind::RECURSIVE_DOUBLING), 2.0 * (1.0 + 400.0));
        assert_eq!(of(AllreduceKind::HALVING_DOUBLING), 2.0 * (1.0 + 200.0 + 1.0 + 100.0));
        let half = Course::sum(AllreduceKind::RING, Share::Own, &cuts, Wire::F32, &machine).unwrap();
        assert_eq!(half.seconds(&machine), 3.0 * (1.0 + 100.0));
        let server = Cuts::whole(&(0..100), 4, 3);
        assert_eq!(Course::of(Steps::ToOwners, &server, Wire::F32).seconds(&machine), 3.0 * (1.0 + 400.0));
        assert_eq!(Course::of(Steps::Shift(1), &cuts, Wire::F32).seconds(&machine), 401.0);
        let halves = Course::of(Steps::Shift(1), &cuts, Wire::Bf16).seconds(&machine);
        // 200 elements are rounded, at 1.5 GB/s.
        assert!((halves - (201.0 + 800.0 / 1.5e9)).abs() < 1e-9, "{halves}");
    }

    /// A rank sends what docs/algorithms.md says, and two ranks agree on every message between them.
    #[test]
    fn every_message_has_both_ends_and_the_bytes_are_those_of_the_table() {
        let machine = machine(4, 2);
        let elements = 64 * 8;
        let cuts = Cuts::even(&(0..elements), 8);
        for (kind, bytes) in [
            (AllreduceKind::RING, 2 * 7 * elements / 8 * 4),
            (AllreduceKind::TORUS, 2 * 7 * elements / 8 * 4),
            (AllreduceKind::HALVING_DOUBLING, 2 * 7 * elements / 8 * 4),
            (AllreduceKind::RECURSIVE_DOUBLING, 3 * elements * 4),
            (AllreduceKind::HIERARCHICAL, 2 * 3 * elements / 4 / 2 * 4),
        ] {
            let course = Course::sum(kind, Share::All, &cuts, Wire::F32, &machine).unwrap();
            let mut between: HashMap<(usize, usize), [Vec<usize>; 2]> = HashMap::new();
            for rank in 0..8 {
                let mut sent = 0;
                for deed in course.of_rank(rank, &machine) {
                    let Deed::Exchange { send, receive } = deed else { continue };
                    if let Some((to, bytes)) = send {
                        sent += bytes;
                        between.entry((rank, to)).or_default()[0].push(bytes);
                    }
                    if let Some((from, bytes)) = receive {
                        between.entry((from, rank)).or_default()[1].push(bytes);
                    }
                }
                assert_eq!(sent, bytes, "{kind:?}");
            }
            assert!(between.values().all(|[sent, received]| sent == received), "{kind:?}");
        }
    }

    /// 65,536 nodes are looked at in a moment, whatever joins them.
    #[test]
    fn many_ranks_are_no_hindrance() {
        let topology = Joined::FatTree { down: vec![32, 32, 64], up: vec![1, 16, 16] };
        let network = Interconnect { hop: 1e-7, topology, ..Interconnect::flat(1e-5, 1.2e9) };
        let machine = Machine::new(network, 1 << 16, 1, Tuning::built_in().parameters);
        let cuts = Cuts::even(&(0..1 << 24), 1 << 16);
        let of = |pattern| {
            let kind = AllreduceKind::Messages(pattern);
            Course::sum(kind, Share::All, &cuts, Wire::F32, &machine).unwrap().seconds(&machine)
        };
        // 131,070 rounds of five links' latency at the least.
        assert!(of(Pattern::Ring) > 131_070.0 * (1e-5 + 4e-7));
        assert!(of(Pattern::HalvingDoubling) < of(Pattern::Ring));
    }
}
