//! When concurrent transfers are over that share links (`rehearsal`), by a flow-level simulation: messages between
//! stages, and where layers are split the exchanges of their groups, the sums of their gradients and those of the
//! others.
//!
//! A transfer is a sequence of rounds. A round first waits for its latency, which no other transfer changes. Then its
//! bytes are on their links, at the rate that the network has for them beside all other transfers. Last it adds what
//! came, which no other transfer changes either.

use std::collections::{HashMap, VecDeque};

use super::network::{COMMON, Load, Rounds};

/// How many bytes a second of each of some loads arrive that are on their links at a time.
pub type Rates<'a> = &'a dyn Fn(&[Load]) -> Vec<f64>;

/// Sets of loads of so many at most are remembered, and so many sets: those of long sums come again and again.
const REMEMBERED: [usize; 2] = [64, 4096];

/// What a transfer does at the moment.
enum FlowState {
    Until(f64),
    /// Its links have so many bytes to carry, of which of the rounds.
    Left(usize, f64),
}

/// A transfer, or several that go in step, and how far it is.
struct SharedFlow<K> {
    keys: Vec<K>,
    rounds: Vec<Rounds>,
    /// Of each that joined: its rounds, which carry other loads.
    beside: Vec<Vec<Rounds>>,
    /// Which of the rounds, how many of those that are alike are over, and how many of the three parts of this one.
    at: usize,
    over: usize,
    parts: usize,
    state: FlowState,
}

impl<K> SharedFlow<K> {
    /// Goes on with what comes next at a time at which what was before is over; whether there is anything.
    fn go_on(&mut self, now: f64) -> bool {
        while let Some(&Rounds { count, before, carried, behind }) = self.rounds.get(self.at) {
            if self.over == count {
                (self.at, self.over) = (self.at + 1, 0);
                continue;
            }
            let part = self.parts;
            (self.parts, self.over) = if part == 2 { (0, self.over + 1) } else { (part + 1, self.over) };
            match (part, carried) {
                (0, _) if before > 0.0 => self.state = FlowState::Until(now + before),
                (1, Some((_, bytes))) if bytes > 0.0 => self.state = FlowState::Left(self.at, bytes),
                (2, _) if behind > 0.0 => self.state = FlowState::Until(now + behind),
                _ => continue,
            }
            return true;
        }
        false
    }

    /// What links carry of some rounds that are alike.
    fn loads_at(&self, at: usize) -> impl Iterator<Item = Load> + '_ {
        let all = std::iter::once(&self.rounds).chain(&self.beside);
        all.filter_map(move |rounds| rounds[at].carried.map(|(load, _)| load))
    }

    /// What its links carry at the moment.
    fn loads(&self) -> impl Iterator<Item = Load> + '_ {
        let at = match self.state {
            FlowState::Until(_) => None,
            FlowState::Left(at, _) => Some(at),
        };
        at.into_iter().flat_map(|at| self.loads_at(at))
    }

    /// Whether a transfer that begins then goes in step with it.
    fn is_joined_by(&self, begun: f64, rounds: &[Rounds]) -> bool {
        let alike = |(one, other): (&Rounds, &Rounds)| {
            let bytes = |of: &Rounds| of.carried.map(|(_, bytes)| bytes);
            (one.count, one.before, one.behind) == (other.count, other.before, other.behind)
                && bytes(one) == bytes(other)
        };
        let waits = matches!(self.state, FlowState::Until(end) if end == begun);
        let is_new = (self.at, self.over, self.parts) == (0, 0, 0);
        waits && is_new && self.rounds.len() == rounds.len() && self.rounds.iter().zip(rounds).all(alike)
    }
}

/// All transfers that are under way.
pub(super) struct Traffic<K> {
    now: f64,
    ways: Vec<SharedFlow<K>>,
    over: VecDeque<(K, f64)>,
    known: HashMap<Vec<Load>, Vec<f64>>,
}

impl<K> Default for Traffic<K> {
    fn default() -> Traffic<K> {
        Traffic { now: 0.0, ways: Vec::new(), over: VecDeque::new(), known: HashMap::new() }
    }
}

impl<K> Traffic<K> {
    /// A transfer begins, not before the last that was over. One that joins goes in step with others that do, if they
    /// begin with it and have as many bytes: all wait for the slowest.
    pub(super) fn begin(&mut self, key: K, begun: f64, rounds: Vec<Rounds>, joins: bool) {
        if joins && let Some(way) = self.ways.iter_mut().find(|way| way.is_joined_by(begun, &rounds)) {
            way.keys.push(key);
            way.beside.push(rounds);
            return;
        }
        let state = FlowState::Until(begun);
        self.ways.push(SharedFlow {
            keys: vec![key],
            rounds,
            beside: Vec::new(),
            at: 0,
            over: 0,
            parts: 0,
            state,
        });
    }

    /// The next transfer that is over, and when, if none begins before.
    pub(super) fn next(&mut self, rates: Rates) -> Option<(K, f64)> {
        loop {
            if let Some(over) = self.over.pop_front() {
                return Some(over);
            }
            match self.ways.len() {
                0 => return None,
                1 => self.last(rates),
                _ => self.go_on(rates),
            }
        }
    }

    /// What loads that are on the links at a time have of them.
    fn rates(&mut self, loads: Vec<Load>, rates: Rates) -> Vec<f64> {
        if let Some(found) = self.known.get(&loads) {
            return found.clone();
        }
        let joined: Vec<Load> = loads.iter().copied().filter(|&load| load != COMMON).collect();
        let common = 1.0 / (loads.len() - joined.len()).max(1) as f64;
        let mut of_network = if joined.is_empty() { Vec::new() } else { rates(&joined) }.into_iter();
        let of = |&load: &Load| match load {
            COMMON => common,
            _ => of_network.next().unwrap_or(f64::INFINITY),
        };
        let found: Vec<f64> = loads.iter().map(of).collect();
        let [most, sets] = REMEMBERED;
        if loads.len() <= most {
            if self.known.len() == sets {
                self.known.clear();
            }
            self.known.insert(loads, found.clone());
        }
        found
    }

    /// Seconds of so many bytes of the slowest of loads that are alone on the links.
    fn alone(&mut self, loads: Vec<Load>, bytes: f64, rates: Rates) -> f64 {
        bytes / self.rates(loads, rates).into_iter().fold(f64::INFINITY, f64::min)
    }

    /// What is left alone goes through all of its rounds.
    fn last(&mut self, rates: Rates) {
        let Some(mut way) = self.ways.pop() else { return };
        loop {
            self.now = match way.state {
                FlowState::Until(end) => self.now.max(end),
                FlowState::Left(_, bytes) => self.now + self.alone(way.loads().collect(), bytes, rates),
            };
            // Those that are alike take as long as each other.
            if let Some(&Rounds { count, before, carried, behind }) = way.rounds.get(way.at)
                && way.parts == 0
            {
                let loads = way.loads_at(way.at).collect();
                let each = carried.map_or(0.0, |(_, bytes)| self.alone(loads, bytes, rates));
                self.now += (count - way.over) as f64 * (before + each + behind);
                way.over = count;
            }
            if !way.go_on(self.now) {
                self.over.extend(way.keys.into_iter().map(|key| (key, self.now)));
                return;
            }
        }
    }

    /// Until the next moment at which one of them has done something.
    fn go_on(&mut self, rates: Rates) {
        let loads: Vec<Load> = self.ways.iter().flat_map(SharedFlow::loads).collect();
        let mut rates = if loads.is_empty() { Vec::new() } else { self.rates(loads, rates) }.into_iter();
        let now = self.now;
        let of = |way: &SharedFlow<K>| match way.state {
            FlowState::Until(end) => (end.max(now), 0.0),
            FlowState::Left(_, bytes) => {
                let rate = rates.by_ref().take(way.loads().count()).fold(f64::INFINITY, f64::min);
                (now + bytes / rate, rate)
            }
        };
        let ends: Vec<(f64, f64)> = self.ways.iter().map(of).collect();
        let next = ends.iter().map(|(end, _)| *end).fold(f64::INFINITY, f64::min);
        let mut left = Vec::with_capacity(self.ways.len());
        for (mut way, (end, rate)) in std::mem::take(&mut self.ways).into_iter().zip(ends) {
            if end <= next {
                match way.go_on(next) {
                    true => left.push(way),
                    false => self.over.extend(way.keys.into_iter().map(|key| (key, next))),
                }
                continue;
            }
            if let FlowState::Left(_, bytes) = &mut way.state {
                *bytes -= (next - now) * rate;
            }
            left.push(way);
        }
        (self.now, self.ways) = (next, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(count: usize, before: f64, carried: f64) -> Rounds {
        Rounds { count, before, carried: Some((COMMON, carried)), behind: 0.0 }
    }

    /// When each is over of some that begin at a time each.
    fn over(ways: &[(f64, Rounds)]) -> Vec<f64> {
        let mut traffic = Traffic::default();
        for (key, &(begun, of)) in ways.iter().enumerate() {
            traffic.begin(key, begun, vec![of], false);
        }
        let mut over = vec![0.0; ways.len()];
        while let Some((key, at)) = traffic.next(&|_| unreachable!()) {
            over[key] = at;
        }
        over
    }

    #[test]
    fn what_is_alone_takes_its_rounds_one_after_the_other() {
        assert_eq!(over(&[(1.0, rounds(3, 0.5, 2.0))]), [8.5]);
        assert_eq!(over(&[(1.0, rounds(0, 1.0, 1.0)), (20.0, rounds(1, 0.0, 4.0))]), [1.0, 24.0]);
        let mut traffic = Traffic::default();
        let behind = Rounds { behind: 0.25, ..rounds(2, 0.0, 1.0) };
        traffic.begin((), 1.0, vec![rounds(2, 1.0, 0.0), rounds(3, 0.0, 2.0), behind], false);
        assert_eq!(traffic.next(&|_| unreachable!()), Some(((), 11.5)));
        assert_eq!(traffic.next(&|_| unreachable!()), None);
    }

    #[test]
    fn a_common_link_is_divided_in_equal_parts() {
        // Bytes alone: as long as one after the other, and what begins first is done with its own at half the rate.
        assert_eq!(over(&[(0.0, rounds(1, 0.0, 4.0)), (2.0, rounds(1, 0.0, 4.0))]), [6.0, 8.0]);
        // What one does alone is hidden by what the other has carried, if they take turns.
        assert_eq!(over(&[(0.0, rounds(4, 1.0, 1.0)), (1.0, rounds(4, 1.0, 1.0))]), [8.0, 9.0]);
        // At the same time they are in each other's way: 1 + 2 a round.
        assert_eq!(over(&[(0.0, rounds(4, 1.0, 1.0)), (0.0, rounds(4, 1.0, 1.0))]), [12.0, 12.0]);
        // Behind its bytes a transfer is in nobody's way either.
        let adds = Rounds { behind: 1.0, ..rounds(1, 0.0, 2.0) };
        assert_eq!(over(&[(0.0, adds), (0.0, rounds(1, 0.0, 3.0))]), [5.0, 5.0]);
    }

    /// Load 1 has a rate of 2 alone and 1 beside load 0, which keeps its own.
    #[test]
    fn the_network_says_what_loads_have_of_their_links() {
        let rates = |loads: &[Load]| -> Vec<f64> {
            let of = |load: &Load| if *load == 1 && loads.len() == 1 { 2.0 } else { 1.0 };
            loads.iter().map(of).collect()
        };
        let mut traffic = Traffic::default();
        let of = |load| vec![Rounds { carried: Some((load, 4.0)), ..rounds(1, 0.0, 0.0) }];
        traffic.begin("first", 0.0, of(0), false);
        traffic.begin("second", 3.0, of(1), false);
        // A byte of the second until 4, and three at twice the rate.
        assert_eq!(traffic.next(&rates), Some(("first", 4.0)));
        traffic.begin("third", 5.0, of(COMMON), false);
        assert_eq!(traffic.next(&rates), Some(("second", 5.5)));
        assert_eq!(traffic.next(&rates), Some(("third", 9.0)));
    }

    /// Load 0 has a rate of 1 and load 1 one of 2: together they take as long as the slower one.
    #[test]
    fn those_that_join_go_in_step() {
        let rates = |loads: &[Load]| -> Vec<f64> { loads.iter().map(|load| 1.0 + *load as f64).collect() };
        let of = |load| vec![Rounds { carried: Some((load, 4.0)), ..rounds(2, 1.0, 0.0) }];
        let over = |joins: bool| {
            let mut traffic = Traffic::default();
            traffic.begin(0, 1.0, of(0), joins);
            traffic.begin(1, 1.0, of(1), joins);
            // It begins at another time.
            traffic.begin(2, 2.0, of(1), joins);
            let mut over = [0.0; 3];
            while let Some((key, at)) = traffic.next(&rates) {
                over[key] = at;
            }
            over
        };
        assert_eq!(over(false), [11.0, 7.0, 8.0]);
        assert_eq!(over(true), [11.0, 11.0, 8.0]);
    }
}
