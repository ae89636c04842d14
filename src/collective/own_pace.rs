//! What all ranks do, each at its own pace, message by message. Where some are through with a round earlier than
//! others, their next messages pass links before those of the others come to them: where ranks that are no power of two
//! add up in pairs first, or where several servers deal with many ranks. To count all messages of a round at one time
//! says too much of such links, and nothing of messages of unlike rounds that meet there.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::course::Deed;
use crate::interconnect::{Contention, Routes};

/// A message between two ranks, or a piece of one.
struct Message {
    ends: [usize; 2],
    piece: usize,
    /// What it passes; none if it stays in a node.
    routes: Option<Routes>,
    bytes: f64,
    /// Bytes that have not come.
    left: f64,
}

/// What a rank has before it, of one piece of everything.
struct Rank {
    /// The next deed last.
    deeds: Vec<Deed>,
    /// How many messages of what it does now have not come.
    open: usize,
    /// When it came to what it does now, or was through with it.
    at: f64,
}

/// A time in an order, which floating point has none of.
#[derive(PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Time) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Time) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A part of a message that is none: what rates that are rounded leave.
const NOTHING: f64 = 1e-9;

struct Simulation<'a> {
    node_of: &'a [usize],
    within: [f64; 2],
    contention: &'a mut Contention,
    /// The pieces of a rank are neighbours.
    ranks: Vec<Rank>,
    pieces: usize,
    messages: Vec<Message>,
    /// Messages, by their ends and piece, that one end has come to, and when.
    awaited: HashMap<([usize; 2], usize), f64>,
    /// Between two ranks one piece is on its way at a time: those that wait for their turn, by the ends.
    queues: HashMap<[usize; 2], VecDeque<usize>>,
    /// Messages that both have come to, by when they are on their links, or within a node over.
    starting: BinaryHeap<Reverse<(Time, usize)>>,
}

/// Seconds until the last of some ranks is through, which work and exchange messages. A message starts when both of its
/// ends have come to it, and links are divided fairly among all messages on them (`Contention::rates`). `node_of` says
/// where ranks are; a message within a node takes `within`: seconds, and seconds a byte.
///
/// A rank does its `deeds` once for each of so many pieces, as the executor does for each chunk: one piece passes a
/// link while another one of an earlier round passes another link.
pub fn seconds(
    deeds: Vec<Vec<Deed>>,
    pieces: usize,
    node_of: &[usize],
    within: [f64; 2],
    contention: &mut Contention,
) -> f64 {
    let of_rank = |mut deeds: Vec<Deed>| {
        deeds.reverse();
        (0..pieces).map(move |_| Rank { deeds: deeds.clone(), open: 0, at: 0.0 })
    };
    let mut simulation = Simulation {
        node_of,
        within,
        contention,
        ranks: deeds.into_iter().flat_map(of_rank).collect(),
        pieces,
        messages: Vec::new(),
        awaited: HashMap::new(),
        queues: HashMap::new(),
        starting: BinaryHeap::new(),
    };
    for piece in 0..pieces {
        (0..node_of.len()).for_each(|rank| simulation.go_on(rank, piece));
    }
    simulation.run()
}

impl Simulation<'_> {
    /// A rank does what is next, up to its next messages.
    fn go_on(&mut self, rank: usize, piece: usize) {
        let state = &mut self.ranks[rank * self.pieces + piece];
        while state.open == 0 {
            match state.deeds.pop() {
                None => return,
                Some(Deed::Work(seconds)) => state.at += seconds,
                Some(Deed::Meet | Deed::Together { .. }) => debug_assert!(false, "not by messages in rounds"),
                Some(Deed::Exchange { send, receive }) => {
                    state.open = usize::from(send.is_some()) + usize::from(receive.is_some());
                    let now = state.at;
                    let sent = send.map(|(to, bytes)| ([rank, to], bytes));
                    let received = receive.map(|(from, bytes)| ([from, rank], bytes));
                    for (ends, bytes) in sent.into_iter().chain(received) {
                        self.come_to((ends, piece), bytes as f64, now);
                    }
                    return;
                }
            }
        }
    }

    /// One end of a message has come to it.
    fn come_to(&mut self, (ends, piece): ([usize; 2], usize), bytes: f64, now: f64) {
        let Some(earlier) = self.awaited.remove(&(ends, piece)) else {
            self.awaited.insert((ends, piece), now);
            return;
        };
        let nodes = ends.map(|rank| self.node_of[rank]);
        let is_near = nodes[0] == nodes[1];
        let (routes, latency) = self.contention.routes(std::iter::once((nodes, bytes)));
        let before = if is_near { self.within[0] + bytes * self.within[1] } else { latency };
        self.starting.push(Reverse((Time(earlier.max(now) + before), self.messages.len())));
        let routes = (!is_near).then_some(routes);
        self.messages.push(Message { ends, piece, routes, bytes, left: bytes });
    }

    /// A message has come.
    fn end(&mut self, index: usize, now: f64) {
        let Message { ends, piece, .. } = self.messages[index];
        for rank in ends {
            let state = &mut self.ranks[rank * self.pieces + piece];
            state.open -= 1;
            state.at = now;
            self.go_on(rank, piece);
        }
    }

    /// A message may pass its links now. Whether it does: none is before it.
    fn is_next(&mut self, index: usize) -> bool {
        let queue = self.queues.entry(self.messages[index].ends).or_default();
        queue.push_back(index);
        queue.len() == 1
    }

    /// A message has left its links to the next between the same ranks.
    fn next_after(&mut self, index: usize) -> Option<usize> {
        let queue = self.queues.get_mut(&self.messages[index].ends)?;
        queue.pop_front();
        queue.front().copied()
    }

    fn run(mut self) -> f64 {
        let (mut now, mut on_links, mut rates): (f64, Vec<usize>, Vec<f64>) = (0.0, Vec::new(), Vec::new());
        loop {
            let over = |(&index, rate): (&usize, &f64)| now + self.messages[index].left / rate;
            let next_end = on_links.iter().zip(&rates).map(over).fold(f64::INFINITY, f64::min);
            let next_start = self.starting.peek().map_or(f64::INFINITY, |Reverse((time, _))| time.0);
            let next = next_end.min(next_start);
            if next.is_infinite() {
                return self.ranks.iter().map(|rank| rank.at).fold(0.0, f64::max);
            }
            for (&index, rate) in on_links.iter().zip(&rates) {
                self.messages[index].left -= (next - now) * rate;
            }
            now = next;
            let is_over = |index: &usize| {
                let Message { left, bytes, .. } = self.messages[*index];
                left <= NOTHING * bytes
            };
            let (over, still): (Vec<usize>, Vec<usize>) = on_links.into_iter().partition(is_over);
            on_links = still;
            for index in over {
                on_links.extend(self.next_after(index));
                self.end(index, now);
            }
            while self.starting.peek().is_some_and(|Reverse((time, _))| time.0 <= now) {
                let Some(Reverse((_, index))) = self.starting.pop() else { break };
                if self.messages[index].routes.is_none() {
                    self.end(index, now);
                } else if self.is_next(index) {
                    on_links.push(index);
                }
            }
            let routes: Vec<&Routes> =
                on_links.iter().filter_map(|&index| self.messages[index].routes.as_ref()).collect();
            rates = self.contention.rates(&routes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interconnect::{Interconnect, Topology};

    /// Two leaves of two nodes with a link up each: a second a message and a second a byte, a tenth a further link.
    #[test]
    fn messages_of_unlike_rounds_meet_on_links() {
        let topology = Topology::FatTree { down: vec![2, 2], up: vec![1, 1] };
        let tree = Interconnect { hop: 0.1, topology, ..Interconnect::flat(1.0, 1.0) };
        let of = |node_of: &[usize], messages: &[(usize, usize, usize)]| {
            let mut deeds = vec![Vec::new(); 4];
            for &(from, to, bytes) in messages {
                deeds[from].push(Deed::Exchange { send: Some((to, bytes)), receive: None });
                deeds[to].push(Deed::Exchange { send: None, receive: Some((from, bytes)) });
                // Who got something deals with it.
                deeds[to].push(Deed::Work(3.0));
            }
            seconds(deeds, 1, node_of, [0.5, 0.1], &mut Contention::new(&tree, 4))
        };
        let apart = |messages: &[(usize, usize, usize)]| of(&[0, 1, 2, 3], messages);
        let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one}, not {other}");
        close(apart(&[]), 0.0);
        close(apart(&[(0, 2, 10)]), 11.2 + 3.0);
        // Two on one link, and one each way.
        close(apart(&[(0, 2, 10), (1, 3, 10)]), 21.2 + 3.0);
        close(apart(&[(0, 2, 10), (3, 1, 10)]), 11.2 + 3.0);
        // The one has half of the link until the other is through, 4 bytes each, and then all of it for 4 more.
        close(apart(&[(0, 2, 8), (1, 3, 4)]), 1.2 + 8.0 + 4.0 + 3.0);
        // A rank deals with what it got before it sends.
        close(apart(&[(0, 1, 10), (1, 0, 10)]), 11.0 + 3.0 + 11.0 + 3.0);
        // Two ranks of one node: half a second and a tenth a byte.
        close(of(&[0, 0, 1, 1], &[(0, 1, 10)]), 1.5 + 3.0);
    }

    /// From node 0 to 1 and on to 2, a second a message and a second a byte: in two pieces the second is on the first
    /// link while the first one is on the second.
    #[test]
    fn pieces_follow_each_other() {
        let flat = Interconnect::flat(1.0, 1.0);
        let of = |pieces: usize| {
            let [to, from] = [1, 2].map(|rank| Some((rank, 12 / pieces)));
            let deeds = vec![
                vec![Deed::Exchange { send: to, receive: None }],
                vec![
                    Deed::Exchange { send: None, receive: Some((0, 12 / pieces)) },
                    Deed::Exchange { send: from, receive: None },
                ],
                vec![Deed::Exchange { send: None, receive: to }],
            ];
            seconds(deeds, pieces, &[0, 1, 2], [0.0; 2], &mut Contention::new(&flat, 3))
        };
        let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one}, not {other}");
        close(of(1), 2.0 * 13.0);
        // Both pieces leave one after the other; the second one is on its second link when it has come.
        close(of(2), 13.0 + 7.0);
        close(of(4), 13.0 + 4.0);
    }
}
