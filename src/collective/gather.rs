//! What every rank of a group has, on every rank of it: for the few numbers that ranks tell each other between two
//! compute steps.
//!
//! Jehoshua Bruck et al.: "Efficient algorithms for all-to-all communications in multiport message-passing systems",
//! IEEE Trans. Parallel Distrib. Syst. 8 (1997). Place i of a rank's memory is for the numbers of the rank i further
//! on in the group. In each step a rank sends the h places that it has (or as many as are still missing) to the rank
//! h before it, and gets as many from the rank h after it: ⌈log₂ P⌉ steps for P ranks.

use std::ops::Range;
use std::rc::Rc;

use super::schedule::Phase;
use crate::comm::{Channel, Link, Region, Request, World};
use crate::cuts::Cuts;
use crate::error::{Error, Result};

/// Its rounds, in a range of which each place brings as much as the first: what one gets lies behind its own.
pub fn phases(cuts: &Cuts) -> Vec<Phase> {
    let (size, own) = (cuts.ranks(), cuts.part(0).len());
    let phase = |held: usize| {
        let [sent, received] = step(held, size).map(|places| own * places.start..own * places.end);
        Phase::round_trip([size, 1, size - held], sent.len(), false, move |_, _| sent.clone())
            .landing(received)
    };
    held(size).map(phase).collect()
}

/// How many places are filled before each step.
fn held(size: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |held| Some(2 * held)).take_while(move |&held| held < size)
}

/// Which of so many places are sent, and where what comes goes, when so many are filled.
fn step(held: usize, size: usize) -> [Range<usize>; 2] {
    let count = held.min(size - held);
    [0..count, held..held + count]
}

/// What ranks of a group tell each other between two compute steps: one thing at a time, and all ranks of a group start
/// the same ones in the same order.
pub trait InGroups {
    /// Starts with this rank's numbers.
    fn start(&mut self, own: &[f32]) -> Result<()>;

    /// Moves on what is under way; returns whether it did.
    fn poll(&mut self) -> Result<bool>;

    /// Whether everything has come.
    fn is_done(&self) -> bool;

    /// The ranks whose numbers are missing, by their numbers in the job.
    fn waiting_for(&self) -> Vec<usize>;

    /// What has come, in the order of ranks.
    fn read(&self, all: &mut [f32]);

    /// Bytes that this rank has sent so far.
    fn sent(&self) -> u64;
}

/// Gathers within groups of consecutive ranks. One is under way at a time; all ranks of a group start the same ones in
/// the same order.
pub struct Gather {
    channel: Channel,
    group: Group,
    /// One place a rank of the group.
    region: Rc<Region>,
    /// Numbers of one rank in the gather under way.
    length: usize,
    /// Places filled so far; all of them when nothing is under way.
    held: usize,
    send: Option<Request>,
    receive: Option<Request>,
    sent: u64,
}

/// A group of ranks, and this rank's place in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub first: usize,
    pub size: usize,
    pub index: usize,
}

impl Group {
    /// The groups are runs of `size` ranks.
    pub fn new(rank: usize, size: usize) -> Group {
        Group { first: rank / size * size, size, index: rank % size }
    }

    /// The rank so many places further on, as the world counts.
    pub fn after(&self, places: usize) -> usize {
        self.first + (self.index + places) % self.size
    }

    pub fn before(&self, places: usize) -> usize {
        self.after(self.size - places)
    }

    /// What is sent, and where what comes goes, when so many places are filled.
    fn step(&self, held: usize) -> [Range<usize>; 2] {
        step(held, self.size)
    }
}

impl Gather {
    /// For groups of `size` consecutive ranks, and at most `longest` numbers a rank. Collective.
    ///
    /// # Errors
    /// `Internal` where the size does not divide the ranks: what a user asks for is checked before.
    pub fn new(world: &World, size: usize, longest: usize) -> Result<Gather> {
        if size == 0 || !world.size().is_multiple_of(size) {
            return Err(Error::internal(format!("groups of {size} among {} ranks", world.size())));
        }
        let bytes = size * longest * size_of::<f32>();
        Ok(Gather {
            channel: Channel::new(world)?,
            group: Group::new(world.rank(), size),
            region: Rc::new(world.agree(Region::private(bytes))?),
            length: 0,
            held: size,
            send: None,
            receive: None,
            sent: 0,
        })
    }

    /// Starts the messages of the next step. Messages between two ranks are matched in the order of steps and gathers.
    fn launch(&mut self) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        let elements = |places: Range<usize>| places.start * self.length..places.end * self.length;
        let [sent, received] = self.group.step(self.held).map(elements);
        let (from, to) = (self.group.after(self.held), self.group.before(self.held));
        self.receive = Some(self.channel.receive(&self.region, &received, from, 0)?);
        self.sent += 4 * sent.len() as u64;
        self.send = Some(self.channel.send(&self.region, &sent, to, 0, false)?);
        Ok(())
    }
}

impl InGroups for Gather {
    fn start(&mut self, own: &[f32]) -> Result<()> {
        debug_assert!(self.is_done(), "a gather is under way");
        self.region.write(0, own);
        (self.length, self.held) = (own.len(), 1);
        self.launch()
    }

    fn poll(&mut self) -> Result<bool> {
        let mut moved = false;
        for request in [&mut self.send, &mut self.receive] {
            if let Some(flying) = request
                && flying.test()?
            {
                *request = None;
                moved = true;
            }
        }
        if moved && self.send.is_none() && self.receive.is_none() {
            let [_, received] = self.group.step(self.held);
            self.held = received.end;
            self.launch()?;
        }
        Ok(moved)
    }

    fn is_done(&self) -> bool {
        self.held == self.group.size
    }

    fn waiting_for(&self) -> Vec<usize> {
        self.receive.iter().map(|_| self.channel.job_rank(self.group.after(self.held))).collect()
    }

    fn read(&self, all: &mut [f32]) {
        let Group { index, size, .. } = self.group;
        for place in 0..size {
            let row = (index + place) % size * self.length;
            self.region.read(place * self.length, &mut all[row..row + self.length]);
        }
    }

    fn sent(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows the names of ranks: in the end each rank has those of its group, in ⌈log₂ P⌉ steps.
    #[test]
    fn every_rank_gets_the_numbers_of_its_group() {
        for size in 1..=9 {
            let groups: Vec<Group> = (0..3 * size).map(|rank| Group::new(rank, size)).collect();
            let mut held: Vec<Vec<usize>> = (0..3 * size).map(|rank| vec![rank]).collect();
            let mut steps = 0;
            while held[0].len() < size {
                let before = held.clone();
                for (rank, group) in groups.iter().enumerate() {
                    let [_, received] = group.step(before[rank].len());
                    let from = group.after(before[rank].len());
                    let [sent, _] = groups[from].step(before[from].len());
                    assert_eq!(groups[from].before(before[from].len()), rank, "both ends name each other");
                    assert_eq!((received.start, received.len()), (before[rank].len(), sent.len()));
                    held[rank].extend(&before[from][sent]);
                }
                steps += 1;
            }
            assert_eq!(steps, size.next_power_of_two().ilog2());
            for (rank, held) in held.iter().enumerate() {
                let expected: Vec<usize> = (0..size).map(|place| groups[rank].after(place)).collect();
                assert_eq!(*held, expected);
                assert!(held.iter().all(|other| other / size == rank / size));
            }
        }
    }
}
