//! Ranks on nodes, and what their messages take of the links between these.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::course::Course;
use super::messages;
use super::network::{self, Contention, Interconnect, Loads, Rounds, Routes};
use crate::collective::schedule::Phase;
use crate::collective::tuning::Parameters;
use crate::collective::{AHEAD, Steps};
use crate::comm::Topology;
use crate::config::{Pattern, Wire};
use crate::cuts::Cuts;

/// Where ranks are, and what is known of it.
pub struct Machine {
    /// Between the nodes.
    pub network: Interconnect,
    /// How many nodes.
    pub nodes: usize,
    /// Ranks on each.
    pub local: usize,
    /// Within a node, and what a rank adds.
    pub parameters: Parameters,
    node_of: Vec<usize>,
    /// What was found out of the rounds of an algorithm, and what finds it.
    known: RefCell<HashMap<(Steps, Among, usize), Rc<Loads>>>,
    /// Seconds of messages that are under way at a time.
    together: RefCell<HashMap<Together, f64>>,
    contention: RefCell<Contention>,
    /// What may be on the links beside other things, and the number of it that rounds of an algorithm have.
    loads: RefCell<Vec<LinkLoad>>,
    numbered: RefCell<HashMap<LoadKey, Option<usize>>>,
    /// Seconds of rounds of so many elements through which each rank goes at its own pace.
    paced: RefCell<HashMap<(Steps, Wire, usize), f64>>,
    /// In how many pieces such rounds are thought to go.
    pieces: usize,
    /// Groups that have the same part of all links.
    classes: RefCell<HashMap<[usize; 3], Vec<usize>>>,
}

/// Messages that are on their links at a time.
struct LinkLoad {
    routes: Routes,
    /// Seconds until the first byte of the last is there, and bytes a second of the slowest if there is nothing else.
    latency: f64,
    rate: f64,
}

/// Whose messages a load is.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum LoadKey {
    /// Those of a phase, which is one of several, in all groups or in those with some first ranks.
    Phase(Steps, Among, usize, Option<Vec<usize>>),
    /// Those that start at a time, in groups with some first ranks.
    Together(Together, Vec<usize>),
    /// Between pairs of ranks.
    Pairs(Vec<[usize; 2]>),
}

impl Machine {
    /// Nodes with as many ranks each, which are numbered node by node.
    pub fn new(network: Interconnect, nodes: usize, local: usize, parameters: Parameters) -> Machine {
        Machine::of(network, &Topology::of_nodes(nodes, local), parameters)
    }

    /// The ranks of a job, or of a group of them.
    pub fn of(network: Interconnect, world: &Topology, parameters: Parameters) -> Machine {
        let (nodes, local) = (world.nodes(), world.local_size());
        let node_of = (0..world.size()).map(|rank| world.node_of(rank)).collect();
        let contention = RefCell::new(Contention::new(&network, nodes));
        Machine {
            network,
            nodes,
            local,
            parameters,
            node_of,
            known: RefCell::default(),
            together: RefCell::default(),
            contention,
            loads: RefCell::default(),
            numbered: RefCell::default(),
            paced: RefCell::default(),
            pieces: 1,
            classes: RefCell::default(),
        }
    }

    /// The same where one chunk of what ranks send passes a link while another one of an earlier round passes another
    /// link, as in the executor. The traces for SimGrid know nothing of that.
    pub fn in_chunks(self) -> Machine {
        Machine { pieces: PIECES, ..self }
    }

    /// Bytes a second of the slowest message of each of some loads that are under way at a time.
    pub fn rates(&self, loads: &[usize]) -> Vec<f64> {
        let known = self.loads.borrow();
        if let [load] = loads {
            return vec![known[*load].rate];
        }
        let loads: Vec<&Routes> = loads.iter().map(|&load| &known[load].routes).collect();
        self.contention.borrow_mut().rates(&loads)
    }

    /// The number of messages between ranks, of so many bytes each; none if all stay within nodes.
    pub(super) fn load(
        &self,
        shared: LoadKey,
        messages: impl FnOnce() -> Vec<([usize; 2], f64)>,
    ) -> Option<usize> {
        *self.numbered.borrow_mut().entry(shared).or_insert_with(|| {
            let messages = messages();
            let nodes = |(ends, bytes): &([usize; 2], f64)| (ends.map(|rank| self.node_of[rank]), *bytes);
            let mut contention = self.contention.borrow_mut();
            let (routes, latency) = contention.routes(messages.iter().map(nodes));
            let rate = contention.rates(&[&routes])[0];
            let mut loads = self.loads.borrow_mut();
            loads.push(LinkLoad { routes, latency, rate });
            rate.is_finite().then_some(loads.len() - 1)
        })
    }

    /// Seconds of each of some rounds, if nothing else is on the links.
    pub(super) fn seconds(&self, rounds: &Rounds) -> f64 {
        let carried = rounds.carried.map_or(0.0, |(load, bytes)| bytes / self.rates(&[load])[0]);
        rounds.before + carried + rounds.behind
    }

    /// Rounds of messages of so many bytes that start at a time: those between nodes pass the network, at the rate of
    /// the slowest; those within a node take seconds of their own. Then what came is handled.
    pub(super) fn round(
        &self,
        load: Option<usize>,
        [count, bytes]: [usize; 2],
        near: f64,
        handled: f64,
    ) -> Rounds {
        let Some(number) = load else {
            return Rounds { count, before: near, carried: None, behind: handled };
        };
        let (loads, bytes) = (self.loads.borrow(), bytes as f64);
        let LinkLoad { latency, rate, .. } = loads[number];
        // What stays within nodes may take longer.
        let behind = handled + (near - latency - bytes / rate).max(0.0);
        Rounds { count, before: latency, carried: Some((number, bytes)), behind }
    }

    /// Seconds of so many bytes within a node, if some of these messages stay there.
    pub(super) fn within(&self, mut messages: impl Iterator<Item = [usize; 2]>, bytes: usize) -> f64 {
        let within = self.parameters.within;
        match messages.any(|[from, to]| self.node_of[from] == self.node_of[to]) {
            true => within.latency() + bytes as f64 * within.per_byte(),
            false => 0.0,
        }
    }

    /// A message from rank to rank, of each of some pairs.
    pub fn messages(&self, pairs: Vec<[usize; 2]>, bytes: usize) -> Rounds {
        let near = self.within(pairs.iter().copied(), bytes);
        let all = pairs.iter().map(|&ends| (ends, 1.0)).collect();
        self.round(self.load(LoadKey::Pairs(pairs), || all), [1, bytes], near, 0.0)
    }

    /// Which of some groups of ranks, whose messages to each other are of the same kinds in the same order, have the
    /// same part of all links: the number of the first that has, for each. There are so many groups of so many ranks,
    /// and so many classes at most.
    pub fn alike(&self, shape: [usize; 3], members: impl FnOnce() -> Vec<Vec<[usize; 2]>>) -> Vec<usize> {
        let find = || {
            let nodes = |ends: [usize; 2]| ends.map(|rank| self.node_of[rank]);
            let mut members = members();
            members.iter_mut().flatten().for_each(|ends| *ends = nodes(*ends));
            self.contention.borrow_mut().alike(&members, shape[2])
        };
        self.classes.borrow_mut().entry(shape).or_insert_with(find).clone()
    }

    /// Whether some ranks are through with rounds earlier than others, so that messages of unlike rounds meet on links:
    /// of ranks that are no power of two, which add up in pairs first, and of several servers. To simulate all messages
    /// of more ranks than `MOST_PACED` would take too long; those of a round are then counted at one time.
    pub(super) fn is_paced(&self, steps: Steps, among: Among, cuts: &Cuts) -> bool {
        let shares = self.local > 1 || self.network.topology != network::Topology::Flat;
        let folds = shares && !self.ranks().is_power_of_two();
        let owners = || (0..cuts.ranks()).filter(|&rank| !cuts.part(rank).is_empty()).count();
        let unlike = match steps {
            Steps::Sum(Pattern::RecursiveDoubling | Pattern::HalvingDoubling) | Steps::Halve => folds,
            Steps::ToOwners | Steps::FromOwners => owners() > 1,
            _ => false,
        };
        unlike && among == Among::All && self.ranks() <= MOST_PACED
    }

    /// Seconds of such rounds.
    pub(super) fn paced(&self, known: (Steps, Wire, usize), cuts: &Cuts) -> f64 {
        if let Some(seconds) = self.paced.borrow().get(&known) {
            return *seconds;
        }
        let (steps, wire, elements) = known;
        // Servers' messages are pieces, and of many ranks few pieces are simulated as long as many of a few.
        let pieces = if steps.pass_on() { self.pieces.min(MOST_PACED / self.ranks()) } else { 1 };
        let pieces = pieces.clamp(1, elements.max(1));
        let cuts = if pieces > 1 { &Cuts::even(&(0..elements / pieces), self.ranks()) } else { cuts };
        let course = Course::of(steps, cuts, wire);
        let deeds = (0..self.ranks()).map(|rank| course.of_rank(rank, self)).collect();
        let within = [self.parameters.within.latency(), self.parameters.within.per_byte()];
        let ahead = (self.pieces > 1 && steps.pass_on()).then_some(AHEAD as f64);
        let mut contention = self.contention.borrow_mut();
        let seconds = messages::seconds(deeds, pieces, ahead, &self.node_of, within, &mut contention);
        self.paced.borrow_mut().insert(known, seconds);
        seconds
    }

    /// How many ranks it has.
    pub fn ranks(&self) -> usize {
        self.node_of.len()
    }

    /// What the messages of a phase take, which is one of several.
    pub(super) fn loads(&self, (steps, among, index): (Steps, Among, usize), phase: &Phase) -> Rc<Loads> {
        let mut known = self.known.borrow_mut();
        let found = known.entry((steps, among, index)).or_insert_with(|| {
            let node = |[from, to]: [usize; 2]| (self.node_of[from], self.node_of[to]);
            let messages: Vec<(usize, usize)> =
                self.pairs(among, phase, None).into_iter().map(node).collect();
            let within = self.parameters.within;
            let loads = self.contention.borrow_mut().of(&messages, [within.latency(), within.per_byte()]);
            Rc::new(if phase.rounds > 1 || among != Among::All { loads.slowest() } else { loads })
        });
        found.clone()
    }

    /// The ranks at both ends of the messages of a phase; of groups all, or those with some first ranks.
    pub(super) fn pairs(&self, among: Among, phase: &Phase, firsts: Option<&[usize]>) -> Vec<[usize; 2]> {
        let pairs = phase.pairs();
        match among {
            Among::Alike => {
                let of = |local: usize| {
                    let rank = move |node: usize| node * self.local + local;
                    pairs.iter().map(move |&(from, to)| [rank(from), rank(to)])
                };
                (0..self.local).flat_map(of).collect()
            }
            Among::All => pairs.into_iter().map(|(from, to)| [from, to]).collect(),
            Among::Groups(groups) => {
                let of = |first: usize| {
                    pairs.iter().map(move |&(from, to)| [groups.rank(first, from), groups.rank(first, to)])
                };
                match firsts {
                    Some(firsts) => firsts.iter().copied().flat_map(of).collect(),
                    None => groups.first_ranks(self.ranks()).flat_map(of).collect(),
                }
            }
        }
    }

    /// Seconds until messages of all groups are there that start at a time.
    pub(super) fn together(&self, together: &Together) -> f64 {
        let mut known = self.together.borrow_mut();
        if let Some(seconds) = known.get(together) {
            return *seconds;
        }
        let Together { groups, messages } = together;
        let of = |first: usize| {
            let node = move |place: usize| self.node_of[groups.rank(first, place)];
            messages.iter().map(move |&[from, to, bytes]| ([node(from), node(to)], bytes as f64))
        };
        let all: Vec<([usize; 2], f64)> = groups.first_ranks(self.ranks()).flat_map(of).collect();
        let between = self.contention.borrow_mut().together(&all);
        let near = |first: usize| self.near(together, first);
        let seconds = groups.first_ranks(self.ranks()).map(near).fold(between, f64::max);
        known.insert(together.clone(), seconds);
        seconds
    }

    /// Seconds of what stays within nodes: what a rank sends to others of its node it copies, one after the other.
    pub(super) fn near(&self, Together { groups, messages }: &Together, first: usize) -> f64 {
        let mut copied: HashMap<usize, usize> = HashMap::new();
        let node = |place: usize| self.node_of[groups.rank(first, place)];
        for &[from, to, bytes] in messages.iter().filter(|[from, to, _]| node(*from) == node(*to)) {
            debug_assert!(from != to);
            *copied.entry(from).or_default() += bytes;
        }
        let within = self.parameters.within;
        copied.into_values().max().map_or(0.0, |most| within.latency() + most as f64 * within.per_byte())
    }
}

/// Pieces in which such ranks' messages go. More of them come closer to chunks of 60 KB, and take longer to simulate:
/// where all of one round's links rest in the next, the rest that 16 leave is a sixteenth of a round.
pub(super) const PIECES: usize = 16;

/// Ranks of which every message is simulated.
const MOST_PACED: usize = 512;

/// Which ranks of a machine do something with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Among {
    /// All of them.
    All,
    /// Each and its like on the other nodes.
    Alike,
    /// Those of each group.
    Groups(RankGroups),
}

/// Groups of ranks, of which there are as many as the machine has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RankGroups {
    /// How many ranks are in one.
    pub size: usize,
    /// Ranks from one of them to the next: 1 of neighbours.
    pub stride: usize,
}

impl RankGroups {
    /// Runs of so many neighbours.
    pub fn of_neighbours(size: usize) -> RankGroups {
        RankGroups { size, stride: 1 }
    }

    /// The first rank of each.
    pub(super) fn first_ranks(self, ranks: usize) -> impl Iterator<Item = usize> {
        let RankGroups { size, stride } = self;
        (0..ranks / size).map(move |group| group / stride * stride * size + group % stride)
    }

    /// The rank at a place of the group with this first one.
    pub(super) fn rank(self, first: usize, place: usize) -> usize {
        first + place * self.stride
    }

    /// The first rank of a rank's group, and its place there.
    pub(super) fn place(self, rank: usize) -> (usize, usize) {
        let RankGroups { size, stride } = self;
        let place = rank / stride % size;
        (rank - place * stride, place)
    }
}

/// Messages between places of each group that start at a time: from, to, bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Together {
    pub groups: RankGroups,
    pub messages: Vec<[usize; 3]>,
}

impl Together {
    /// In groups with some first ranks.
    pub(super) fn at_a_time(&self, machine: &Machine, firsts: &[usize]) -> Rounds {
        let Together { groups, messages } = self;
        let largest = messages.iter().map(|[.., bytes]| *bytes).max().unwrap_or(0);
        let of = |&first: &usize| {
            let rank = move |place: usize| groups.rank(first, place);
            messages.iter().map(move |&[from, to, bytes]| ([rank(from), rank(to)], bytes as f64))
        };
        let near = firsts.iter().map(|&first| machine.near(self, first)).fold(0.0, f64::max);
        let shared = LoadKey::Together(self.clone(), firsts.to_vec());
        let load = machine.load(shared, || firsts.iter().flat_map(of).collect());
        machine.round(load, [1, largest], near, 0.0)
    }
}
