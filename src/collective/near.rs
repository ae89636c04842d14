//! Messages between ranks of one node whose regions are shared: nothing is sent. The receiver takes the numbers from where
//! they lie with their sender, which is the same place of the range, and adds them there to its own.
//!
//! All that travels is two counters of each rank and slot, which only ever grow: how many messages it has posted, and how many
//! it has taken, both in the order of its schedule. Both ends know each other's schedules, so that each knows
//! which message of the other's is its own next one.

use std::sync::atomic::{AtomicU64, Ordering};

use super::boards::Boards;
use super::schedule::{Group, Message, Schedule};
use crate::comm::World;
use crate::error::Result;

/// The other end of a message on the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub local_rank: usize,
    /// Which of its messages in that direction this one is, of how many in a round.
    index: usize,
    count: usize,
}

/// The other ends of the messages of a schedule; `None` for those on other nodes.
#[derive(Debug)]
pub struct Ends {
    pub sends: Vec<Option<End>>,
    pub receives: Vec<Option<End>>,
}

impl Ends {
    /// All on other nodes.
    pub fn far(schedule: &Schedule) -> Ends {
        Ends { sends: vec![None; schedule.sends.len()], receives: vec![None; schedule.receives.len()] }
    }
}

/// The counters of a node's ranks.
pub struct Near {
    world: World,
    counters: Boards,
}

impl Near {
    pub fn new(world: &World) -> Near {
        Near { world: world.clone(), counters: Boards::new(world, 2 * world.local_size()) }
    }

    /// Makes room for the counters of a slot. Collective over the node.
    pub fn prepare(&mut self, slot: usize) -> Result<()> {
        self.counters.prepare(slot)
    }

    /// Finds the other ends of a schedule's messages. `of(place)` is the schedule of another rank of the group.
    pub fn ends(&self, schedule: &Schedule, group: &Group, of: impl Fn(usize) -> Schedule) -> Ends {
        let local = self.world.ranks_of(self.world.node());
        let mut ends = Ends::far(schedule);
        for (place, peer) in group.ranks.iter().enumerate() {
            let meets = |messages: &[Message]| messages.iter().any(|message| message.peer == *peer);
            let Some(local_rank) = local.iter().position(|rank| rank == peer) else { continue };
            if place == group.place || !(meets(&schedule.sends) || meets(&schedule.receives)) {
                continue;
            }
            let theirs = of(place);
            let own = group.ranks[group.place];
            pair(&schedule.sends, *peer, &theirs.receives, own, local_rank, &mut ends.sends);
            pair(&schedule.receives, *peer, &theirs.sends, own, local_rank, &mut ends.receives);
        }
        ends
    }

    fn counter(&self, slot: usize, local_rank: usize, which: usize) -> &AtomicU64 {
        self.counters.get(slot, 2 * local_rank + which)
    }

    /// This rank has posted so many messages of a slot since the beginning.
    pub fn post(&self, slot: usize, posted: u64) {
        // Release: what they carry is seen by those who see them posted.
        self.counter(slot, self.world.local_rank(), 0).store(posted, Ordering::Release);
    }

    /// This rank has taken so many, and reads them no more.
    pub fn take(&self, slot: usize, taken: u64) {
        // Release: they have been read before their sender writes there again.
        self.counter(slot, self.world.local_rank(), 1).store(taken, Ordering::Release);
    }

    /// Whether the sender has posted this message in the round, counted from 1.
    pub fn is_posted(&self, slot: usize, from: End, round: u64) -> bool {
        // Acquire: what it carries is seen.
        self.counter(slot, from.local_rank, 0).load(Ordering::Acquire) > from.before(round)
    }

    /// Whether the receiver has taken it.
    pub fn is_taken(&self, slot: usize, by: End, round: u64) -> bool {
        self.counter(slot, by.local_rank, 1).load(Ordering::Acquire) > by.before(round)
    }
}

impl End {
    /// How many messages there are before this one since the beginning.
    fn before(self, round: u64) -> u64 {
        (round - 1) * self.count as u64 + self.index as u64
    }
}

/// Messages to (or from) one rank meet theirs from (or to) this one in order.
fn pair(
    messages: &[Message],
    peer: usize,
    theirs: &[Message],
    own: usize,
    local_rank: usize,
    ends: &mut [Option<End>],
) {
    let of = |messages: &[Message], peer: usize| -> Vec<usize> {
        (0..messages.len()).filter(|&index| messages[index].peer == peer).collect()
    };
    for (mine, index) in of(messages, peer).into_iter().zip(of(theirs, own)) {
        ends[mine] = Some(End { local_rank, index, count: theirs.len() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::scheduled::Algorithm;
    use super::super::{broadcast, halving, ring, torus, tree};
    use super::*;

    /// What a receiver takes is what it would have been sent: from the same place, which is its own place of the range too.
    #[test]
    fn both_ends_of_a_message_know_each_other() {
        let algorithms: [(&str, Algorithm); 6] = [
            ("ring", ring::allreduce),
            ("halving", halving::allreduce),
            ("tree", tree::allreduce),
            ("torus", torus::allreduce),
            ("chain", broadcast::chain),
            ("broadcast tree", broadcast::tree),
        ];
        for (name, algorithm) in algorithms {
            for ranks in 2..=9 {
                let schedule = |rank| Schedule::new(&algorithm(&Group::all(rank, ranks), &(3..1010)), 100);
                for rank in 0..ranks {
                    let mine = schedule(rank);
                    let mut ends = Ends::far(&mine);
                    for peer in (0..ranks).filter(|&peer| peer != rank) {
                        let theirs = schedule(peer);
                        pair(&mine.sends, peer, &theirs.receives, rank, peer, &mut ends.sends);
                        pair(&mine.receives, peer, &theirs.sends, rank, peer, &mut ends.receives);
                    }
                    let both = [(&mine.sends, &ends.sends), (&mine.receives, &ends.receives)];
                    for (direction, (messages, ends)) in both.into_iter().enumerate() {
                        for (message, end) in messages.iter().zip(ends) {
                            let end =
                                end.unwrap_or_else(|| panic!("{name} of {ranks}: {message:?} has no end"));
                            let theirs = schedule(end.local_rank);
                            let theirs = if direction == 0 { theirs.receives } else { theirs.sends };
                            assert_eq!((message.peer, theirs.len()), (end.local_rank, end.count));
                            let other = &theirs[end.index];
                            assert_eq!(
                                (other.peer, &other.range),
                                (rank, &message.range),
                                "{name} of {ranks}"
                            );
                        }
                    }
                }
            }
        }
    }
}
