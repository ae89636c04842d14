//! What two ranks tell each other beside gradients: a few numbers of a step, as many as the tail of a bucket has.

use std::rc::Rc;

use super::Values;
use crate::comm::{Awaited, Channel, Link, Region, Request, Wait, World};
use crate::error::Result;
use crate::plan::TAIL;
use crate::trace::{self, EventKind};

/// `f32` words of a note.
const WORDS: usize = TAIL / size_of::<f32>();

/// Notes to and from every rank, one at a time each way.
pub struct Notes {
    channel: Channel,
    /// For each rank a place for what comes from it, and behind these one for what goes to it.
    region: Rc<Region>,
    incoming: Vec<Option<Request>>,
    outgoing: Vec<Option<Request>>,
    sent: u64,
    /// Tells its messages from those of others in a timeline.
    traced: usize,
}

impl Notes {
    /// Collective.
    ///
    /// # Errors
    /// The same on every rank: memory lacks.
    pub fn new(world: &World) -> Result<Notes> {
        let ranks = world.size();
        let region = world.agree(Region::private(2 * ranks * TAIL))?;
        let requests = || (0..ranks).map(|_| None).collect();
        Ok(Notes {
            channel: Channel::new(world)?,
            region: Rc::new(region),
            incoming: requests(),
            outgoing: requests(),
            sent: 0,
            traced: trace::channel(),
        })
    }

    /// Sends a note; the one before has been taken by the library, which is waited for.
    pub fn send(&mut self, to: usize, values: &Values) -> Result<()> {
        let mut wait = Wait::new();
        while let Some(before) = &mut self.outgoing[to] {
            match before.test()? {
                true => self.outgoing[to] = None,
                false => wait.idle(|| Awaited { what: "a note".into(), peers: vec![to] })?,
            }
        }
        let place = (self.incoming.len() + to) * WORDS;
        self.region.write(place, values);
        let begun = trace::now();
        self.outgoing[to] = Some(self.channel.send(&self.region, &(place..place + WORDS), to, 0, false)?);
        trace::record(EventKind::Send, begun, self.channel.job_rank(to), self.traced << 16, TAIL);
        self.sent += TAIL as u64;
        Ok(())
    }

    /// The next note of a rank, if it is there. One must come sooner or later.
    pub fn take(&mut self, from: usize) -> Result<Option<Values>> {
        let place = from * WORDS..(from + 1) * WORDS;
        let request = match &mut self.incoming[from] {
            Some(request) => request,
            none => none.insert(self.channel.receive(&self.region, &place, from, 0)?),
        };
        if !request.test()? {
            return Ok(None);
        }
        self.incoming[from] = None;
        let mut values = Values::default();
        self.region.read(place.start, &mut values);
        Ok(Some(values))
    }

    /// Bytes that this rank has sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}
