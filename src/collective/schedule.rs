//! What one rank sends and receives in a collective, in which order, and what each message waits for.
//!
//! An algorithm is a list of phases (`ring`, `halving_doubling`, `recursive_doubling`, `torus`, …), of which
//! `rounds_of` reads the rounds of a rank. Here rounds become messages of bounded length, each with the messages that
//! must have ended before it: rounds overlap as far as the data allows, so that one chunk is added while others are on
//! the wire.

use std::ops::Range;

use crate::cuts::segment;

/// What becomes of what comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Apply {
    /// It is added to what is there.
    Add,
    /// It takes the place of what is there.
    Replace,
}

/// Elements that go to, or come from, another rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRange {
    /// Which.
    pub peer: usize,
    /// Elements of the region.
    pub range: Range<usize>,
}

/// What a rank does at one time. Rounds count alike on all ranks: what one sends in its round k another receives in its
/// own round k. What is sent is as it was before the round.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Round {
    /// What it sends, and to whom.
    pub send: Option<PeerRange>,
    /// What it receives, of whom, and what becomes of that.
    pub receive: Option<(PeerRange, Apply)>,
}

/// Of a place, another one.
pub type OfPlace = Box<dyn Fn(usize) -> Option<usize>>;

/// Rounds of all places in which each sends to the same other one: what a collective is, to a rank (`rounds_of`) and to
/// a network.
pub struct Phase {
    /// Of how many places.
    pub places: usize,
    /// How many rounds.
    pub rounds: usize,
    /// Elements of a message, at most. Places that have less to send than others, or nothing, are counted as those.
    pub elements: usize,
    /// To which place one sends, if it sends.
    pub to: OfPlace,
    /// From which place one receives, if it receives.
    pub from: OfPlace,
    /// What a place sends in a round.
    pub part: Box<dyn Fn(usize, usize) -> Range<usize>>,
    /// Where what comes is put; none: where its like stands.
    pub lands: Option<Range<usize>>,
    /// Whether what comes is added.
    pub adds: bool,
    /// Of a star's turn the places that send, and to which: few of all.
    turn: Option<Vec<(usize, usize)>>,
}

impl Phase {
    /// Rounds of which each place knows to whom it sends and from whom it receives.
    pub fn new(
        [places, rounds, elements]: [usize; 3],
        adds: bool,
        [to, from]: [OfPlace; 2],
        part: impl Fn(usize, usize) -> Range<usize> + 'static,
    ) -> Phase {
        Phase { places, rounds, elements, to, from, part: Box::new(part), lands: None, adds, turn: None }
    }

    /// A turn of a star, whose messages have unlike parts: what a network sees of it. What a rank does in it `star`
    /// says.
    pub fn turn([places, rounds, elements]: [usize; 3], adds: bool, pairs: Vec<(usize, usize)>) -> Phase {
        let none = || -> OfPlace { Box::new(|_| None) };
        let phase = Phase::new([places, rounds, elements], adds, [none(), none()], |_, _| 0..0);
        Phase { turn: Some(pairs), ..phase }
    }

    /// Rounds in which each of so many places sends to the one so many places on: `[places, rounds, distance]`.
    pub fn round_trip(
        [places, rounds, distance]: [usize; 3],
        elements: usize,
        adds: bool,
        part: impl Fn(usize, usize) -> Range<usize> + 'static,
    ) -> Phase {
        let to = move |place: usize| Some((place + distance) % places);
        let from = move |place: usize| Some((place + places - distance % places) % places);
        Phase::new([places, rounds, elements], adds, [Box::new(to), Box::new(from)], part)
    }

    /// What comes is put elsewhere than where its like stands.
    pub fn landing(self, lands: Range<usize>) -> Phase {
        Phase { lands: Some(lands), ..self }
    }

    /// The places that send, and to which.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        if let Some(pairs) = &self.turn {
            return pairs.clone();
        }
        (0..self.places).filter_map(|place| Some((place, (self.to)(place)?))).collect()
    }
}

/// What the place of a group does in phases.
pub fn rounds_of(phases: &[Phase], group: &Group) -> Vec<Round> {
    let place = group.place;
    let of = |phase: &Phase, round: usize| {
        let apply = if phase.adds { Apply::Add } else { Apply::Replace };
        let leaves = |peer: usize| PeerRange { peer: group.ranks[peer], range: (phase.part)(place, round) };
        let comes = |peer: usize| {
            let range = phase.lands.clone().unwrap_or_else(|| (phase.part)(peer, round));
            (PeerRange { peer: group.ranks[peer], range }, apply)
        };
        Round { send: (phase.to)(place).map(leaves), receive: (phase.from)(place).map(comes) }
    };
    phases.iter().flat_map(|phase| (0..phase.rounds).map(move |round| of(phase, round))).collect()
}

/// Some ranks of a job in an order of their own, and the place of this one among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// By place.
    pub ranks: Vec<usize>,
    /// This one's.
    pub place: usize,
}

impl Group {
    /// All ranks.
    pub fn all(rank: usize, size: usize) -> Group {
        Group { ranks: (0..size).collect(), place: rank }
    }

    /// How many they are.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub peer: usize,
    pub range: Range<usize>,
    /// For what is received.
    pub apply: Apply,
    /// How many receives must have ended before this starts, and how many sends before it writes to its range.
    pub receives: usize,
    pub sends: usize,
}

/// The messages of one rank. Each list starts and ends in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Schedule {
    pub sends: Vec<Message>,
    pub receives: Vec<Message>,
    /// Which is the last message to each rank.
    pub last_to: Vec<(usize, usize)>,
}

impl Schedule {
    /// Cuts rounds into messages of at most `chunk` elements.
    pub fn new(rounds: &[Round], chunk: usize) -> Schedule {
        let mut schedule = Schedule::default();
        for round in rounds {
            let received = schedule.receives.len();
            if let Some(part) = &round.send {
                for range in chunks(&part.range, chunk) {
                    let receives = last_on(&schedule.receives[..received], &range);
                    let (peer, apply) = (part.peer, Apply::Replace);
                    schedule.sends.push(Message { peer, range, apply, receives, sends: 0 });
                }
            }
            if let Some((part, apply)) = &round.receive {
                for range in chunks(&part.range, chunk) {
                    let receives = match apply {
                        // It comes in elsewhere, and receives end in order.
                        Apply::Add => 0,
                        Apply::Replace => last_on(&schedule.receives[..received], &range),
                    };
                    let sends = last_on(&schedule.sends, &range);
                    let (peer, apply) = (part.peer, *apply);
                    schedule.receives.push(Message { peer, range, apply, receives, sends });
                }
            }
        }
        for (index, Message { peer, .. }) in schedule.sends.iter().enumerate() {
            match schedule.last_to.iter_mut().find(|(to, _)| to == peer) {
                Some((_, last)) => *last = index,
                None => schedule.last_to.push((*peer, index)),
            }
        }
        schedule
    }
}

/// Elements of the longest message into which rounds are cut.
pub(super) fn longest(rounds: &[Round], chunk: usize) -> usize {
    let of_round = |round: &Round| {
        let parts = [round.send.as_ref(), round.receive.as_ref().map(|(part, _)| part)];
        parts
            .into_iter()
            .flatten()
            .filter_map(|part| chunks(&part.range, chunk).next())
            .map(|c| c.len())
            .max()
    };
    rounds.iter().filter_map(of_round).max().unwrap_or(0)
}

/// A range in pieces of at most `chunk` elements that differ by one at most: both ends of a message cut alike.
fn chunks(range: &Range<usize>, chunk: usize) -> impl Iterator<Item = Range<usize>> {
    let pieces = range.len().div_ceil(chunk.max(1));
    (0..pieces).map(move |index| segment(range, pieces, index))
}

/// How many messages there are up to the last one that shares an element with `range`.
fn last_on(messages: &[Message], range: &Range<usize>) -> usize {
    let shares = |message: &Message| message.range.start < range.end && range.start < message.range.end;
    messages.iter().rposition(shares).map_or(0, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_for_what_they_carry_and_for_what_stood_in_their_place() {
        let part = |peer, range| PeerRange { peer, range };
        let rounds = [
            Round { send: Some(part(1, 0..4)), receive: Some((part(2, 4..8), Apply::Add)) },
            Round { send: Some(part(1, 4..8)), receive: Some((part(2, 0..4), Apply::Replace)) },
        ];
        let schedule = Schedule::new(&rounds, 2);
        let waits = |messages: &[Message]| -> Vec<(Range<usize>, usize, usize)> {
            messages.iter().map(|m| (m.range.clone(), m.receives, m.sends)).collect()
        };
        // The second half leaves chunk by chunk as its sums are made.
        assert_eq!(waits(&schedule.sends)[2..], [(4..6, 1, 0), (6..8, 2, 0)]);
        // The first half is overwritten once it has left.
        assert_eq!(waits(&schedule.receives), [(4..6, 0, 0), (6..8, 0, 0), (0..2, 0, 1), (2..4, 0, 2)]);
        assert_eq!((longest(&rounds, 2), longest(&rounds, 3), longest(&rounds, 9)), (2, 2, 4));
    }
}
