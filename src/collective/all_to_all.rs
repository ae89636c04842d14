//! What each rank of a group has for each other one, with that one: a transposition over ranks.
//!
//! Every rank sends a message to each other one, all at a time: P − 1 messages of a P-th of what it has, which no way
//! round can do with fewer bytes.

use std::rc::Rc;

use super::gather::{Group, InGroups};
use crate::comm::{Channel, Link, Region, Request, World};
use crate::error::{Error, Result};

/// All-to-alls within groups of consecutive ranks.
pub struct AllToAll {
    channel: Channel,
    group: Group,
    /// A place for what comes of each rank of the group, and behind them what goes to each.
    region: Rc<Region>,
    /// Elements of all places in the one under way.
    length: usize,
    longest: usize,
    sends: Vec<Request>,
    /// With the rank that sends.
    receives: Vec<(usize, Request)>,
    sent: u64,
}

impl AllToAll {
    /// For groups of `size` consecutive ranks, and at most `longest` numbers of a rank for all of them. Collective.
    ///
    /// # Errors
    /// `Internal` where the size does not divide the ranks: what a user asks for is checked before.
    pub fn new(world: &World, size: usize, longest: usize) -> Result<AllToAll> {
        if size == 0 || !world.size().is_multiple_of(size) {
            return Err(Error::internal(format!("groups of {size} among {} ranks", world.size())));
        }
        Ok(AllToAll {
            channel: Channel::new(world)?,
            group: Group::new(world.rank(), size),
            region: Rc::new(world.agree(Region::private(2 * longest * size_of::<f32>()))?),
            length: 0,
            longest,
            sends: Vec::new(),
            receives: Vec::new(),
            sent: 0,
        })
    }
}

impl InGroups for AllToAll {
    fn start(&mut self, own: &[f32]) -> Result<()> {
        debug_assert!(self.is_done(), "an all-to-all is under way");
        let Group { index, size, first } = self.group;
        let part = own.len() / size;
        self.length = own.len();
        self.region.write(self.longest, own);
        self.region.write(index * part, &own[index * part..(index + 1) * part]);
        for places in 1..size {
            let from = self.group.before(places);
            let place = (from - first) * part;
            let request = self.channel.receive(&self.region, &(place..place + part), from, 0)?;
            self.receives.push((from, request));
        }
        for places in 1..size {
            let to = self.group.after(places);
            let place = self.longest + (to - first) * part;
            self.sends.push(self.channel.send(&self.region, &(place..place + part), to, 0, false)?);
            self.sent += 4 * part as u64;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let before = self.sends.len() + self.receives.len();
        for index in (0..self.sends.len()).rev() {
            if self.sends[index].test()? {
                self.sends.swap_remove(index);
            }
        }
        for index in (0..self.receives.len()).rev() {
            if self.receives[index].1.test()? {
                self.receives.swap_remove(index);
            }
        }
        Ok(self.sends.len() + self.receives.len() < before)
    }

    fn is_done(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }

    fn waiting_for(&self) -> Vec<usize> {
        self.receives.iter().map(|(from, _)| self.channel.job_rank(*from)).collect()
    }

    fn read(&self, all: &mut [f32]) {
        self.region.read(0, &mut all[..self.length]);
    }

    fn sent(&self) -> u64 {
        self.sent
    }
}
