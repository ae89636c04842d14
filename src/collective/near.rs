//! Messages between ranks of one node whose regions are shared: nothing is sent. The receiver takes the numbers from where
//! they lie with their sender, which is the same place of the range, and adds them there to its own.
//!
//! The last sum of an allreduce goes to the rank that is next to have it as it is made, and is not read again for that
//! ([`End::put`]).
//!
//! All that travels is two counters of each rank and slot, which only ever grow: how many messages it has posted, and how many
//! it has taken, both in the order of its schedule. Both ends know each other's schedules, so that each knows
//! which message of the other's is its own next one.

use std::sync::atomic::{AtomicU64, Ordering};

use super::boards::Boards;
use super::schedule::{Apply, Group, Message, Schedule, overlap};
use crate::comm::World;
use crate::error::Result;

/// The other end of a message on the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub local_rank: usize,
    /// Which of its messages in that direction this one is, of how many in a round.
    index: usize,
    count: usize,
    /// Whether its sender puts it where it belongs, together with the sum that it is.
    ///
    /// Nobody asks the receiver whether the place is free. It is: what is put there is a sum over all ranks, the receiver's
    /// own values in it, so they have been taken from there.
    pub put: bool,
}

/// The other ends of the messages of a schedule; `None` for those on other nodes.
#[derive(Debug)]
pub struct Ends {
    pub sends: Vec<Option<End>>,
    pub receives: Vec<Option<End>>,
    /// By receives: to which local rank what comes of it is put as well.
    pub puts: Vec<Option<usize>>,
}

impl Ends {
    /// All on other nodes.
    pub fn far(schedule: &Schedule) -> Ends {
        let (sends, receives) = (schedule.sends.len(), schedule.receives.len());
        Ends { sends: vec![None; sends], receives: vec![None; receives], puts: vec![None; receives] }
    }

    /// Adds the messages between a rank, `own`, and a peer of its node, whose ranks are `local`.
    fn meet(&mut self, mine: &Schedule, own: usize, theirs: &Schedule, peer: usize, local: &[usize]) {
        let Some(local_rank) = local.iter().position(|rank| *rank == peer) else { return };
        let end = |index, count, put| End { local_rank, index, count, put };
        for (send, receive) in pairs(&mine.sends, peer, &theirs.receives, own) {
            let put = puts((mine, send), (theirs, receive), local);
            self.sends[send] = Some(end(receive, theirs.receives.len(), put));
            if put {
                self.puts[mine.sends[send].receives - 1] = Some(local_rank);
            }
        }
        for (receive, send) in pairs(&mine.receives, peer, &theirs.sends, own) {
            let put = puts((theirs, send), (mine, receive), local);
            self.receives[receive] = Some(end(send, theirs.sends.len(), put));
        }
    }
}

/// Messages to (or from) one rank meet theirs from (or to) this one in order.
fn pairs(
    messages: &[Message],
    peer: usize,
    theirs: &[Message],
    own: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let of = |messages: &[Message], peer: usize| -> Vec<usize> {
        (0..messages.len()).filter(|&index| messages[index].peer == peer).collect()
    };
    of(messages, peer).into_iter().zip(of(theirs, own))
}

/// Whether a rank puts what it sends where it belongs as it makes it: when it is the sum that the receive before makes,
/// and the first to leave of it. And if the receiver's own values have left to ranks of the node alone: what MPI sends must stay as it
/// is until it says so, and it says so to the receiver.
fn puts(
    (sender, send): (&Schedule, usize),
    (receiver, receive): (&Schedule, usize),
    local: &[usize],
) -> bool {
    let (message, arrives) = (&sender.sends[send], &receiver.receives[receive]);
    let alike = |other: &Message| other.receives == message.receives && other.range == message.range;
    let mut left = receiver.sends[..arrives.sends].iter().filter(|sent| overlap(&sent.range, &arrives.range));
    arrives.apply == Apply::Replace
        && message.receives.checked_sub(1).is_some_and(|sum| {
            sender.receives[sum].apply == Apply::Add && sender.receives[sum].range == message.range
        })
        && !sender.sends[..send].iter().any(alike)
        && left.all(|sent| local.contains(&sent.peer))
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
            let near = place != group.place && local.contains(peer);
            if near && (meets(&schedule.sends) || meets(&schedule.receives)) {
                ends.meet(schedule, group.ranks[group.place], &of(place), *peer, &local);
            }
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

#[cfg(test)]
mod tests {
    use super::super::scheduled::Algorithm;
    use super::super::{broadcast, halving, ring, torus, tree};
    use super::*;

    const ALGORITHMS: [(&str, Algorithm); 6] = [
        ("ring", ring::allreduce),
        ("halving", halving::allreduce),
        ("tree", tree::allreduce),
        ("torus", torus::allreduce),
        ("chain", broadcast::chain),
        ("broadcast tree", broadcast::tree),
    ];

    /// The schedules of all ranks of the first node, and the ends of their messages.
    fn first_node(algorithm: Algorithm, ranks: usize, local: usize) -> Vec<(Schedule, Ends)> {
        let schedule = |rank| Schedule::new(&algorithm(&Group::all(rank, ranks), &(3..1010)), 100);
        let local: Vec<usize> = (0..local).collect();
        let of = |&rank: &usize| {
            let mine = schedule(rank);
            let mut ends = Ends::far(&mine);
            for &peer in local.iter().filter(|peer| **peer != rank) {
                ends.meet(&mine, rank, &schedule(peer), peer, &local);
            }
            (mine, ends)
        };
        local.iter().map(of).collect()
    }

    /// Of a node alone.
    fn node(algorithm: Algorithm, ranks: usize) -> Vec<(Schedule, Ends)> {
        first_node(algorithm, ranks, ranks)
    }

    /// In a ring of two nodes the second to last rank of each gets the next segment into a place from which nothing went to the
    /// other node, the last one does not.
    #[test]
    fn nothing_is_put_where_a_message_to_another_node_was_sent_from() {
        let node = first_node(ring::allreduce, 6, 3);
        let put = |rank: usize| node[rank].1.receives.iter().flatten().any(|from| from.put);
        assert_eq!([0, 1, 2].map(put), [false, true, false]);
        // Their senders know.
        let puts = |rank: usize| node[rank].1.puts.iter().flatten().next().copied();
        assert_eq!([0, 1, 2].map(puts), [Some(1), None, None]);
    }

    /// What a receiver takes is what it would have been sent: from the same place, which is its own place of the range too.
    #[test]
    fn both_ends_of_a_message_know_each_other() {
        for (name, algorithm) in ALGORITHMS {
            for ranks in 2..=9 {
                let node = node(algorithm, ranks);
                for (rank, (mine, ends)) in node.iter().enumerate() {
                    let both = [(&mine.sends, &ends.sends), (&mine.receives, &ends.receives)];
                    for (direction, (messages, ends)) in both.into_iter().enumerate() {
                        for (message, end) in messages.iter().zip(ends) {
                            let end =
                                end.unwrap_or_else(|| panic!("{name} of {ranks}: {message:?} has no end"));
                            let (theirs, back) = &node[end.local_rank];
                            let (theirs, back) = match direction {
                                0 => (&theirs.receives, &back.receives),
                                _ => (&theirs.sends, &back.sends),
                            };
                            assert_eq!((message.peer, theirs.len()), (end.local_rank, end.count));
                            let other = &theirs[end.index];
                            assert_eq!(
                                (other.peer, &other.range),
                                (rank, &message.range),
                                "{name} of {ranks}"
                            );
                            assert_eq!(back[end.index].map(|back| back.put), Some(end.put));
                        }
                    }
                }
            }
        }
    }

    /// All that has happened for sure when a receive has ended: receives, as numbers of rank and index.
    fn before(node: &[(Schedule, Ends)], rank: usize, count: usize, seen: &mut [usize]) {
        if seen[rank] >= count {
            return;
        }
        before(node, rank, count - 1, seen);
        let (schedule, ends) = &node[rank];
        let (message, from) = (&schedule.receives[count - 1], ends.receives[count - 1].unwrap());
        seen[rank] = count;
        before(node, from.local_rank, node[from.local_rank].0.sends[from.index].receives, seen);
        if !from.put {
            for to in ends.sends[..message.sends].iter().flatten() {
                before(node, to.local_rank, to.index + 1, seen);
            }
        }
    }

    /// What is put is written to a place whose values have been taken, and which nobody writes to any more.
    #[test]
    fn a_sum_is_put_where_nothing_is_waited_for() {
        let mut put = 0;
        for (name, algorithm) in ALGORITHMS {
            for ranks in 2..=17 {
                let node = node(algorithm, ranks);
                for (rank, (schedule, ends)) in node.iter().enumerate() {
                    let puts =
                        schedule.receives.iter().zip(&ends.receives).filter(|(_, from)| from.unwrap().put);
                    for (message, from) in puts {
                        put += 1;
                        let from = from.unwrap();
                        let sum = node[from.local_rank].0.sends[from.index].receives;
                        // All that must have happened when the sum begins to be made: the receive before it, and that what it
                        // is made of is there.
                        let mut seen = vec![0; ranks];
                        before(&node, from.local_rank, sum - 1, &mut seen);
                        let last = node[from.local_rank].1.receives[sum - 1].unwrap();
                        before(
                            &node,
                            last.local_rank,
                            node[last.local_rank].0.sends[last.index].receives,
                            &mut seen,
                        );
                        let shares = |other: &Message| overlap(&other.range, &message.range);
                        for receive in (0..message.receives).filter(|&at| shares(&schedule.receives[at])) {
                            assert!(seen[rank] > receive, "{name} of {ranks}: {message:?}");
                        }
                        for send in (0..message.sends).filter(|&at| shares(&schedule.sends[at])) {
                            let to = ends.sends[send].unwrap();
                            // Or it is this very sum that takes it.
                            let by_it = (to.local_rank, to.index + 1) == (from.local_rank, sum);
                            assert!(
                                by_it || seen[to.local_rank] > to.index,
                                "{name} of {ranks}: {message:?}"
                            );
                        }
                    }
                }
            }
        }
        assert!(put > 1000, "{put}");
    }
}
