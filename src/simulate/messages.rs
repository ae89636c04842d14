//! What all ranks do, each at its own pace, message by message. Where some are through with a round earlier than
//! others, their next messages pass links before those of the others come to them: where ranks that are no power of two
//! add up in pairs first, or where several servers deal with many ranks. To count all messages of a round at one time
//! says too much of such links, and nothing of messages of unlike rounds that meet there.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::course::Deed;
use super::network::{Contention, Routes};

/// A message between two ranks, or a piece of one.
struct PacedMessage {
    ends: [usize; 2],
    /// Of its sender.
    piece: usize,
    /// Seconds until it is on its links, or comes within a node.
    before: f64,
    /// What it passes; none if it stays in a node.
    routes: Option<Routes>,
    bytes: f64,
    /// Bytes that have not come.
    left: f64,
}

/// How far one piece of everything is on a rank.
#[derive(Clone, Copy)]
struct PacedPiece {
    /// Which deed is next, or under way.
    deed: usize,
    /// How many messages of that are to come or to leave, once it has begun.
    open: Option<usize>,
    /// When it came to that, or was through with it.
    at: f64,
}

/// A rank, its pieces, and its messages in the order in which they start and end: deed by deed, and of each its pieces.
struct PacedRank {
    deeds: Vec<Deed>,
    pieces: Vec<PacedPiece>,
    sends: VecDeque<[usize; 2]>,
    receives: VecDeque<[usize; 2]>,
    /// When the last message started.
    sent_at: f64,
}

impl PacedRank {
    fn new(deeds: Vec<Deed>, pieces: usize) -> PacedRank {
        let ordered = |is_one: &dyn Fn(&Deed) -> bool| {
            let of = |(index, deed): (usize, &Deed)| is_one(deed).then_some(index);
            let indices = deeds.iter().enumerate().filter_map(of);
            indices.flat_map(|deed| (0..pieces).map(move |piece| [deed, piece])).collect()
        };
        PacedRank {
            sends: ordered(&|deed| matches!(deed, Deed::Exchange { send: Some(_), .. })),
            receives: ordered(&|deed| matches!(deed, Deed::Exchange { receive: Some(_), .. })),
            pieces: vec![PacedPiece { deed: 0, open: None, at: 0.0 }; pieces],
            deeds,
            sent_at: 0.0,
        }
    }

    /// A message of a piece has come or left.
    fn ended(&mut self, piece: usize, now: f64) {
        let piece = &mut self.pieces[piece];
        piece.at = piece.at.max(now);
        piece.open = piece.open.map(|open| open - 1);
    }
}

/// Messages from one rank to another, which pass one after the other.
#[derive(Default)]
struct Lane {
    /// Those that are sent and not yet on their way, and when: the other end has not come to them.
    sent: VecDeque<(usize, f64)>,
    /// When the other end came to messages that are not sent.
    wanted: VecDeque<f64>,
    /// Those on their links, or next.
    passing: VecDeque<usize>,
    /// How many have come and are not taken.
    arrived: usize,
    /// Bytes that are sent and not taken.
    ahead: f64,
}

/// A part of a message that is none: what rates that are rounded leave.
const NOTHING: f64 = 1e-9;

struct MessageSimulation<'a> {
    node_of: &'a [usize],
    within: [f64; 2],
    contention: &'a mut Contention,
    ahead: Option<f64>,
    ranks: Vec<PacedRank>,
    messages: Vec<PacedMessage>,
    lanes: HashMap<[usize; 2], Lane>,
    /// Messages that start, by when they are on their links, or within a node over: by the bits of these seconds, which
    /// have the order of the numbers, as none is below 0.
    starting: BinaryHeap<Reverse<(u64, usize)>>,
    /// Ranks that may go on.
    awake: Vec<usize>,
}

/// Seconds until the last of some ranks is through, which work and exchange messages. Links are divided fairly among
/// all messages on them (`Contention::rates`). `node_of` says where ranks are; a message within a node takes `within`:
/// seconds, and seconds a byte.
///
/// A rank does its `deeds` once for each of so many pieces, as the executor does for each chunk: one piece passes a
/// link while another one of an earlier round passes another link. All pieces of a message start before those of the
/// rank's next one, and are taken before those.
///
/// A message starts when both of its ends have come to it; or, if a rank may be so many bytes `ahead` of another, when
/// its sender has.
pub fn seconds(
    deeds: Vec<Vec<Deed>>,
    pieces: usize,
    ahead: Option<f64>,
    node_of: &[usize],
    within: [f64; 2],
    contention: &mut Contention,
) -> f64 {
    let simulation = MessageSimulation {
        node_of,
        within,
        contention,
        ahead,
        awake: (0..deeds.len()).rev().collect(),
        ranks: deeds.into_iter().map(|deeds| PacedRank::new(deeds, pieces)).collect(),
        messages: Vec::new(),
        lanes: HashMap::new(),
        starting: BinaryHeap::new(),
    };
    simulation.run()
}

impl MessageSimulation<'_> {
    /// Ranks that may go on do, up to their next messages.
    fn wake(&mut self, now: f64) {
        while let Some(rank) = self.awake.pop() {
            for piece in 0..self.ranks[rank].pieces.len() {
                self.go_on(rank, piece);
            }
            if self.send(rank, now) | self.take(rank, now) {
                self.awake.push(rank);
            }
        }
    }

    /// A piece of what a rank does comes to its next messages, if it is through with those before.
    fn go_on(&mut self, rank: usize, piece: usize) {
        let PacedRank { deeds, pieces, .. } = &mut self.ranks[rank];
        let state = &mut pieces[piece];
        if state.open == Some(0) {
            (state.open, state.deed) = (None, state.deed + 1);
        }
        while state.open.is_none() {
            match deeds.get(state.deed) {
                None => return,
                Some(Deed::Work(seconds)) => (state.at, state.deed) = (state.at + seconds, state.deed + 1),
                Some(Deed::Meet | Deed::Together { .. }) => {
                    debug_assert!(false, "not by messages in rounds");
                    return;
                }
                Some(Deed::Exchange { send: None, receive: None }) => state.deed += 1,
                Some(Deed::Exchange { send, receive }) => {
                    state.open = Some(usize::from(send.is_some()) + usize::from(receive.is_some()));
                    let at = state.at;
                    if let (Some((from, _)), None) = (receive, self.ahead) {
                        let ends = [*from, rank];
                        self.lanes.entry(ends).or_default().wanted.push_back(at);
                        self.start(ends);
                    }
                    return;
                }
            }
        }
    }

    /// A rank sends what it has come to, in order. Whether it did.
    fn send(&mut self, rank: usize, now: f64) -> bool {
        let mut sent = false;
        while let Some(&[deed, piece]) = self.ranks[rank].sends.front() {
            let PacedRank { deeds, pieces, sends, sent_at, .. } = &mut self.ranks[rank];
            let Deed::Exchange { send: Some((to, bytes)), .. } = deeds[deed] else { break };
            let (PacedPiece { deed: next, open, at }, bytes, ends) =
                (pieces[piece], bytes as f64, [rank, to]);
            let lane = self.lanes.entry(ends).or_default();
            let room = self.ahead.is_none_or(|most| lane.ahead == 0.0 || lane.ahead + bytes <= most);
            if next != deed || open.is_none() || !room {
                break;
            }
            sends.pop_front();
            *sent_at = sent_at.max(at).max(now);
            lane.ahead += bytes;
            lane.sent.push_back((self.messages.len(), *sent_at));
            let sent_at = *sent_at;
            if self.ahead.is_some() {
                // The MPI library has it.
                self.ranks[rank].ended(piece, sent_at);
            }
            sent = true;
            let nodes = ends.map(|rank| self.node_of[rank]);
            let (before, routes) = match nodes[0] == nodes[1] {
                true => (self.within[0] + bytes * self.within[1], None),
                false => {
                    let (routes, latency) = self.contention.routes(std::iter::once((nodes, bytes)));
                    (latency, Some(routes))
                }
            };
            self.messages.push(PacedMessage { ends, piece, before, routes, bytes, left: bytes });
            self.start(ends);
        }
        sent
    }

    /// The next message from one rank to another starts, if those who must have come to it.
    fn start(&mut self, ends: [usize; 2]) {
        let Some(lane) = self.lanes.get_mut(&ends) else { return };
        let Some(&(index, sent)) = lane.sent.front() else { return };
        let wanted = if self.ahead.is_some() { Some(sent) } else { lane.wanted.pop_front() };
        let Some(wanted) = wanted else { return };
        lane.sent.pop_front();
        let begins = sent.max(wanted) + self.messages[index].before;
        self.starting.push(Reverse((begins.to_bits(), index)));
    }

    /// A rank takes what has come, in order. Whether it did.
    fn take(&mut self, rank: usize, now: f64) -> bool {
        let mut taken = false;
        while let Some(&[deed, piece]) = self.ranks[rank].receives.front() {
            let PacedRank { deeds, pieces, receives, .. } = &mut self.ranks[rank];
            let Deed::Exchange { receive: Some((from, bytes)), .. } = deeds[deed] else { break };
            let Some(lane) = self.lanes.get_mut(&[from, rank]).filter(|lane| lane.arrived > 0) else { break };
            if pieces[piece].deed != deed || pieces[piece].open.is_none() {
                break;
            }
            receives.pop_front();
            lane.arrived -= 1;
            lane.ahead -= bytes as f64;
            self.ranks[rank].ended(piece, now);
            self.awake.push(from);
            taken = true;
        }
        taken
    }

    /// A message has come.
    fn end(&mut self, index: usize, now: f64) {
        let PacedMessage { ends, piece, .. } = self.messages[index];
        self.lanes.entry(ends).or_default().arrived += 1;
        if self.ahead.is_none() {
            self.ranks[ends[0]].ended(piece, now);
        }
        self.awake.extend(ends);
    }

    /// A message may pass its links now. Whether it does: none is before it.
    fn is_next(&mut self, index: usize) -> bool {
        let passing = &mut self.lanes.entry(self.messages[index].ends).or_default().passing;
        passing.push_back(index);
        passing.len() == 1
    }

    /// A message has left its links to the next between the same ranks.
    fn next_after(&mut self, index: usize) -> Option<usize> {
        let passing = &mut self.lanes.get_mut(&self.messages[index].ends)?.passing;
        passing.pop_front();
        passing.front().copied()
    }

    fn run(mut self) -> f64 {
        let (mut now, mut on_links, mut rates): (f64, Vec<usize>, Vec<f64>) = (0.0, Vec::new(), Vec::new());
        loop {
            self.wake(now);
            let over = |(&index, rate): (&usize, &f64)| now + self.messages[index].left / rate;
            let next_end = on_links.iter().zip(&rates).map(over).fold(f64::INFINITY, f64::min);
            let next_start =
                self.starting.peek().map_or(f64::INFINITY, |Reverse((time, _))| f64::from_bits(*time));
            let next = next_end.min(next_start);
            if next.is_infinite() {
                let is_through = |rank: &PacedRank| rank.sends.is_empty() && rank.receives.is_empty();
                debug_assert!(self.ranks.iter().all(is_through), "ranks wait for each other");
                let pieces = self.ranks.iter().flat_map(|rank| &rank.pieces);
                return pieces.map(|piece| piece.at).fold(0.0, f64::max);
            }
            for (&index, rate) in on_links.iter().zip(&rates) {
                self.messages[index].left -= (next - now) * rate;
            }
            now = next;
            let is_over = |index: &usize| {
                let PacedMessage { left, bytes, .. } = self.messages[*index];
                left <= NOTHING * bytes
            };
            let (over, still): (Vec<usize>, Vec<usize>) = on_links.into_iter().partition(is_over);
            on_links = still;
            for index in over {
                on_links.extend(self.next_after(index));
                self.end(index, now);
            }
            while self.starting.peek().is_some_and(|Reverse((time, _))| f64::from_bits(*time) <= now) {
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
    use super::super::network::{Interconnect, Topology};
    use super::*;

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
            seconds(deeds, 1, None, node_of, [0.5, 0.1], &mut Contention::new(&tree, 4))
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
            seconds(deeds, pieces, None, &[0, 1, 2], [0.0; 2], &mut Contention::new(&flat, 3))
        };
        let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one}, not {other}");
        close(of(1), 2.0 * 13.0);
        // Both pieces leave one after the other; the second one is on its second link when it has come.
        close(of(2), 13.0 + 7.0);
        close(of(4), 13.0 + 4.0);
    }

    /// Rank 1 gets twelve bytes from rank 0, which works before, and then twelve from rank 2. That is through with what
    /// it may be ahead by when rank 0 begins.
    #[test]
    fn what_is_taken_in_order_is_sent_ahead() {
        let flat = Interconnect::flat(1.0, 1.0);
        let of = |ahead: Option<f64>| {
            let to = Deed::Exchange { send: Some((1, 3)), receive: None };
            let from = |rank| Deed::Exchange { send: None, receive: Some((rank, 3)) };
            let deeds = vec![vec![Deed::Work(20.0), to.clone()], vec![from(0), from(2)], vec![to]];
            seconds(deeds, 4, ahead, &[0, 1, 2], [0.0; 2], &mut Contention::new(&flat, 3))
        };
        let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one}, not {other}");
        // Both begin when rank 1 has come to them, and share its link.
        close(of(None), 20.0 + 1.0 + 24.0);
        close(of(Some(12.0)), 20.0 + 1.0 + 12.0);
        // Six are there before; the others start when all of rank 0 were taken.
        close(of(Some(6.0)), 20.0 + 1.0 + 12.0 + 1.0 + 6.0);
    }
}
