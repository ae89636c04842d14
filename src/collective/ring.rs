//! Ring allreduce: reduce-scatter, then allgather, in chunks that follow each other around the ring.
//!
//! Pitch Patarasu and Xin Yuan: "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! J. Parallel Distrib. Comput. 69 (2009). The range is divided into P segments, a segment into C chunks. In
//! step k of 2(P−1), rank r sends segment r−k to its right and receives segment r−k−1 (mod P) from its left.
//! In the first P−1 steps what comes is added to what is here, so that rank r ends with the whole sum of
//! segment r+1; in the others it replaces what is here.
//!
//! Chunks make a pipeline: message m = k·C + c carries chunk c of step k, and may leave as soon as message
//! m − C has come in. A sum is made once and then copied, in the order in which its segment went round: all
//! ranks get the same bits, and a repeat gives them again.

use std::ops::Range;
use std::rc::Rc;

use super::{Allreduce, Slot, part};
use crate::comm::{Channel, Region, Request, World};
use crate::error::{Error, Result};

/// Elements in one message, at most: 256 KB. 64 KB to 1 MB measured the same within noise.
const CHUNK: usize = 64 * 1024;

/// Messages under way in each direction: one that is worked on, and more to keep the wire busy meanwhile.
const WINDOW: usize = 4;

pub struct Ring {
    channel: Channel,
    region: Rc<Region>,
    place: Place,
    slots: Vec<Round>,
    /// Slots in flight, the oldest first.
    flying: Vec<Slot>,
}

/// Where this rank stands in the ring.
#[derive(Debug, Clone, Copy)]
struct Place {
    rank: usize,
    size: usize,
}

/// Which elements each message carries.
#[derive(Debug, Clone)]
struct Route {
    place: Place,
    range: Range<usize>,
    /// Chunks in a segment, the same in all of them.
    chunks: usize,
}

/// A prepared range and the messages of its current round. Messages end in the order in which they start.
struct Round {
    route: Route,
    /// `WINDOW` chunks in which what is to be added comes in.
    scratch: Rc<Region>,
    chunk: usize,
    receives: [Option<Request>; WINDOW],
    sends: [Option<Request>; WINDOW],
    /// Messages started and ended in this round.
    receiving: usize,
    received: usize,
    sending: usize,
    sent: usize,
}

impl Route {
    fn new(place: Place, range: Range<usize>) -> Route {
        let longest = range.len().div_ceil(place.size);
        Route { place, range, chunks: longest.div_ceil(CHUNK).max(1) }
    }

    /// Messages that each rank sends, and receives, in a round.
    fn messages(&self) -> usize {
        if self.range.is_empty() { 0 } else { 2 * (self.place.size - 1) * self.chunks }
    }

    /// Elements of the longest message.
    fn longest_chunk(&self) -> usize {
        self.range.len().div_ceil(self.place.size).div_ceil(self.chunks)
    }

    /// Bytes in which what is to be added comes in.
    fn scratch(&self) -> usize {
        if self.messages() > 0 { WINDOW * self.longest_chunk() * size_of::<f32>() } else { 0 }
    }

    /// Those whose content is added; the rest replaces.
    fn added(&self) -> usize {
        self.messages() / 2
    }

    fn sent(&self, message: usize) -> Range<usize> {
        self.chunk_of(message, 0)
    }

    fn received(&self, message: usize) -> Range<usize> {
        self.chunk_of(message, 1)
    }

    /// The chunk that `message` carries on the link `upstream` places to the left of this rank's right one.
    fn chunk_of(&self, message: usize, upstream: usize) -> Range<usize> {
        let Place { rank, size } = self.place;
        let step = message / self.chunks;
        let segment = part(self.range.len(), size, (rank + 2 * size - step - upstream) % size);
        let chunk = part(segment.len(), self.chunks, message % self.chunks);
        let start = self.range.start + segment.start;
        start + chunk.start..start + chunk.end
    }
}

impl Ring {
    /// Bytes of scratch memory for a range of so many elements on so many ranks.
    pub fn scratch(elements: usize, ranks: usize) -> usize {
        Route::new(Place { rank: 0, size: ranks }, 0..elements).scratch()
    }

    /// Collective.
    pub fn new(world: &World, region: &Rc<Region>) -> Result<Ring> {
        Ok(Ring {
            channel: Channel::new(world)?,
            region: region.clone(),
            place: Place { rank: world.rank(), size: world.size() },
            slots: Vec::new(),
            flying: Vec::new(),
        })
    }

    /// Starts every message of a slot that may start now.
    fn launch(&mut self, slot: Slot) -> Result<()> {
        let Place { rank, size } = self.place;
        let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
        // Messages of one slot meet in order; those of other slots are told apart by the tag.
        let tag = slot as u16;
        let round = &mut self.slots[slot];
        let (messages, added) = (round.route.messages(), round.route.added());
        while round.receiving < messages.min(round.received + WINDOW) {
            let message = round.receiving;
            let request = if message < added {
                let start = message % WINDOW * round.chunk;
                let length = round.route.received(message).len();
                self.channel.receive(&round.scratch, &(start..start + length), left, tag)?
            } else if message - added < round.sent {
                self.channel.receive(&self.region, &round.route.received(message), left, tag)?
            } else {
                // The partial sum that stood there is still being sent.
                break;
            };
            round.receives[message % WINDOW] = Some(request);
            round.receiving += 1;
        }
        // What is sent in one step came in, and was added to, in the step before.
        let ready = messages.min(round.received + round.route.chunks);
        while round.sending < ready.min(round.sent + WINDOW) {
            let range = round.route.sent(round.sending);
            round.sends[round.sending % WINDOW] =
                Some(self.channel.send(&self.region, &range, right, tag)?);
            round.sending += 1;
        }
        Ok(())
    }

    /// Ends what has come in (one message at most) and what has left; returns whether there was any.
    fn land(&mut self, slot: Slot) -> Result<bool> {
        let round = &mut self.slots[slot];
        let mut moved = false;
        if ended(&mut round.receives[round.received % WINDOW])? {
            if round.received < round.route.added() {
                let start = round.received % WINDOW * round.chunk;
                self.region.add(round.route.received(round.received), &round.scratch, start);
            }
            round.received += 1;
            moved = true;
        }
        while ended(&mut round.sends[round.sent % WINDOW])? {
            round.sent += 1;
            moved = true;
        }
        Ok(moved)
    }
}

/// Whether there is a request that has ended; if so it is taken away.
fn ended(request: &mut Option<Request>) -> Result<bool> {
    let done = match request {
        Some(request) => request.test()?,
        None => false,
    };
    if done {
        *request = None;
    }
    Ok(done)
}

impl Allreduce for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        let slot = self.slots.len();
        // MPI promises tags up to this.
        if slot > 32_767 {
            return Err(Error::usage("more than 32768 fusion buckets; use a larger --fusion-threshold-mb"));
        }
        let route = Route::new(self.place, range);
        let (chunk, scratch) = (route.longest_chunk(), route.scratch());
        self.slots.push(Round {
            route,
            scratch: Rc::new(Region::private(scratch)?),
            chunk,
            receives: Default::default(),
            sends: Default::default(),
            receiving: 0,
            received: 0,
            sending: 0,
            sent: 0,
        });
        self.flying.reserve(self.slots.len());
        Ok(slot)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        debug_assert!(self.is_done(slot), "slot {slot} is in flight");
        let round = &mut self.slots[slot];
        (round.receiving, round.received, round.sending, round.sent) = (0, 0, 0, 0);
        if round.route.messages() > 0 {
            self.flying.push(slot);
            self.launch(slot)?;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let mut moved = false;
        let mut index = 0;
        while let Some(&slot) = self.flying.get(index) {
            if self.land(slot)? {
                moved = true;
                self.launch(slot)?;
            }
            let round = &self.slots[slot];
            if round.received.min(round.sent) == round.route.messages() {
                self.flying.remove(index);
            } else {
                index += 1;
            }
        }
        Ok(moved)
    }

    fn is_done(&self, slot: Slot) -> bool {
        !self.flying.contains(&slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn routes(size: usize, range: &Range<usize>) -> Vec<Route> {
        (0..size).map(|rank| Route::new(Place { rank, size }, range.clone())).collect()
    }

    #[test]
    fn a_rank_alone_and_an_empty_range_send_nothing() {
        assert_eq!(routes(1, &(0..100))[0].messages(), 0);
        assert_eq!(routes(5, &(7..7))[3].messages(), 0);
    }

    #[test]
    fn each_rank_sends_two_n_minus_ones_of_the_range() {
        // 2(P−1)/P of 12 elements, for P = 4.
        let route = &routes(4, &(0..12))[2];
        assert_eq!((0..route.messages()).map(|message| route.sent(message).len()).sum::<usize>(), 18);
    }

    proptest! {
        /// Follows sets of ranks round the ring in place of sums: in the end each element holds every rank once.
        #[test]
        fn every_element_meets_every_rank_once(size in 2usize..9, length in 1usize..2000, chunks in 1usize..4) {
            let range = 3..3 + length;
            let mut routes = routes(size, &range);
            routes.iter_mut().for_each(|route| route.chunks = chunks);
            let mut held: Vec<Vec<u32>> = (0..size).map(|rank| vec![1 << rank; range.end]).collect();
            for message in 0..routes[0].messages() {
                let sent: Vec<Vec<u32>> = (0..size).map(|r| held[r][routes[r].sent(message)].to_vec()).collect();
                for rank in 0..size {
                    let left = (rank + size - 1) % size;
                    let at = routes[rank].received(message);
                    prop_assert_eq!(&at, &routes[left].sent(message), "both ends of a link name the same elements");
                    for (to, from) in held[rank][at].iter_mut().zip(&sent[left]) {
                        if message < routes[rank].added() {
                            prop_assert_eq!(*to & from, 0, "nobody is added twice");
                            *to |= from;
                        } else {
                            *to = *from;
                        }
                    }
                }
            }
            for rank in &held {
                prop_assert!(rank[range.clone()].iter().all(|set| *set == (1 << size) - 1));
            }
        }
    }
}
