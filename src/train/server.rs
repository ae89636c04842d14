//! A server of asynchronous updates (`--sync server-async`): the one place where what is done next depends on what
//! comes. It takes the gradients of one rank after the other, updates its part of each bucket as it comes, and answers
//! that rank with the new parameters.
//!
//! The first server hears of all pushes and says in which order they are taken; the others take them in the same one,
//! so that all parameters have seen the same gradients. Jeffrey Dean et al.: "Large scale distributed deep networks",
//! NeurIPS 2012; staleness is how many updates the parameters have seen since a rank got those that its gradients are
//! of (Qirong Ho et al., NeurIPS 2013; Wei Dai et al., ICLR 2019).

use std::ops::Range;
use std::time::Instant;

use super::asynchronous::Note;
use super::stop::Flags;
use crate::comm::{Awaited, Wait};
use crate::config::AsyncOrder;
use crate::device::{Device, Scalars, Step};
use crate::error::{Error, Result};
use crate::fusion::{Notes, Service};
use crate::optim::RateSchedule;
use crate::plan::Part;
use crate::trace;

/// What is done to parameters when a rank's gradients are there.
pub struct Updates<'a> {
    pub device: &'a dyn Device,
    /// What this server owns of each bucket, how it is updated, and how that joins its moving average.
    pub parts: &'a [Part],
    pub updates: &'a mut [Box<dyn Step>],
    pub averages: &'a mut [Box<dyn Step>],
    /// Rate and number of an update follow the server's count of updates: in a step there is one for every rank.
    pub schedule: &'a RateSchedule,
    pub scalars: Scalars,
}

impl Updates<'_> {
    fn run(&mut self, bucket: usize, version: u64, ranks: usize) -> Result<()> {
        if self.parts[bucket].bytes.is_empty() {
            return Ok(());
        }
        let learning_rate = self.schedule.rate(version as usize / ranks);
        let scalars = Scalars { learning_rate, update: version + 1, ..self.scalars };
        let begun = trace::now();
        self.updates[bucket].run(&scalars)?;
        trace::record(trace::EventKind::Update, begun, bucket, 0, 0);
        self.averages.get_mut(bucket).map_or(Ok(()), |average| average.run(&scalars))
    }
}

/// A server, and what it knows of the ranks that compute.
pub struct Server {
    service: Service,
    notes: Notes,
    order: AsyncOrder,
    /// The server that says whose turn it is, where this one does not.
    first: Option<usize>,
    /// Where this one does: the others.
    others: Range<usize>,
    /// For each rank that computes the step that is next of it, and how many updates its parameters have seen.
    next: Vec<usize>,
    pulled: Vec<u64>,
    /// Of each, what it has not been told of all ranks' losses, metrics and images.
    untold: Vec<[f32; 5]>,
    /// Where the search for the next push begins.
    turn: usize,
    /// Updates since the run began. `None` before the first step.
    version: Option<u64>,
    /// The step that drains, once that is known, and what all are told then.
    drains: Option<usize>,
    flags: Flags,
    diverged: Option<u32>,
    /// How many updates were by gradients so stale.
    staleness: Vec<u64>,
    /// Seconds of this step in which it waited for others.
    pub waited: f64,
}

impl Server {
    /// The servers come behind so many ranks that compute.
    pub fn new(
        service: Service,
        notes: Notes,
        order: AsyncOrder,
        [rank, computing, ranks]: [usize; 3],
    ) -> Server {
        let is_first = rank == computing;
        Server {
            service,
            notes,
            order,
            first: (!is_first).then_some(computing),
            others: if is_first { rank + 1..ranks } else { 0..0 },
            next: vec![0; computing],
            pulled: vec![0; computing],
            untold: vec![[0.0; 5]; computing],
            turn: 0,
            version: None,
            drains: None,
            flags: Flags::default(),
            diverged: None,
            staleness: Vec::new(),
            waited: 0.0,
        }
    }

    /// Bytes that this rank has sent so far.
    pub fn sent(&self) -> u64 {
        self.service.sent() + self.notes.sent()
    }

    /// How many updates were by gradients so stale; all servers count the same, and the first one says it.
    pub fn staleness(&self) -> &[u64] {
        if self.first.is_none() { &self.staleness } else { &[] }
    }

    /// Step `done` of the run: until all ranks were answered for it. `flags` is what this server has noticed itself,
    /// which only the first one tells. Where the step drains, returns what all ranks are told.
    pub fn serve(&mut self, done: usize, flags: Flags, updates: &mut Updates) -> Result<Option<Note>> {
        let (device, ranks) = (updates.device, self.next.len());
        self.waited = 0.0;
        if self.version.is_none() {
            // A run that goes on has done as many.
            let version = (done * ranks) as u64;
            self.version = Some(version);
            self.pulled.fill(version);
            self.next.fill(done);
        }
        if self.first.is_none() {
            self.heed(flags, None);
        }
        loop {
            let through = self.next.iter().all(|&next| next > done);
            if through && self.drains != Some(done) {
                return Ok(None);
            }
            let note = match (self.first, through) {
                (Some(first), _) => self.hear(first, device)?,
                (None, true) => self.closing(done),
                (None, false) => self.knocked(device)?,
            };
            for other in self.others.clone() {
                self.notes.send(other, &note.values())?;
            }
            match note.whose {
                Some(rank) => self.take(rank as usize, &note, updates)?,
                None => return self.close(device, note).map(|()| Some(note)),
            }
        }
    }

    /// Somebody was told to stop, wants a checkpoint or is broken: the first step that nobody was answered for drains.
    fn heed(&mut self, flags: Flags, diverged: Option<u32>) {
        self.flags.stop |= flags.stop;
        self.flags.checkpoint |= flags.checkpoint;
        self.diverged = self.diverged.or(diverged);
        if self.flags != Flags::default() || self.diverged.is_some() {
            let open = self.next.iter().copied().max();
            self.drains = self.drains.or(open);
        }
    }

    /// The next push, in the order asked for. Its rank is told at once what this server has heard, unless the step
    /// drains.
    fn knocked(&mut self, device: &dyn Device) -> Result<Note> {
        let mut found = None;
        let peers = |server: &Server| {
            let due = server.due();
            (0..server.next.len()).filter(|&rank| server.is_open(rank, due)).collect()
        };
        self.wait(
            device,
            |server| Awaited { what: "a rank's gradients".into(), peers: peers(server) },
            |server| {
                found = server.look()?;
                Ok(found.is_some())
            },
        )?;
        let Some((rank, note)) = found else { return Err(Error::internal("a push of nobody")) };
        for untold in &mut self.untold {
            untold.iter_mut().zip(note.sums).for_each(|(sum, own)| *sum += own);
        }
        self.heed(note.flags, note.diverged);
        if note.drains {
            self.drains = Some(note.step as usize);
        }
        let drains = self.drains == Some(note.step as usize);
        if !drains {
            let sums = std::mem::take(&mut self.untold[rank]);
            self.notes.send(rank, &Note { sums, step: note.step, ..Note::default() }.values())?;
        }
        self.turn = rank + 1;
        Ok(Note { whose: Some(rank as u32), drains, ..note })
    }

    /// In turns: the rank that is next.
    fn due(&self) -> Option<usize> {
        let least = || (0..self.next.len()).min_by_key(|&rank| self.next[rank]);
        (self.order == AsyncOrder::RoundRobin).then(least).flatten()
    }

    /// Whether a rank may be next. What has been taken of a step that drains is not yet answered.
    fn is_open(&self, rank: usize, due: Option<usize>) -> bool {
        let open = self.drains.is_none_or(|drains| self.next[rank] <= drains);
        open && due.is_none_or(|due| rank == due)
    }

    /// A rank that has knocked, and what it says. The search begins behind the last one, so that none is left out.
    fn look(&mut self) -> Result<Option<(usize, Note)>> {
        let (ranks, due) = (self.next.len(), self.due());
        let turn = self.turn;
        for rank in (0..ranks).map(|offset| (turn + offset) % ranks) {
            if self.is_open(rank, due)
                && let Some(values) = self.notes.take(rank)?
            {
                return Ok(Some((rank, Note::read(&values))));
            }
        }
        Ok(None)
    }

    /// What the first server says is next.
    fn hear(&mut self, first: usize, device: &dyn Device) -> Result<Note> {
        let mut found = None;
        let awaited = |_: &Server| Awaited { what: "the first server".into(), peers: vec![first] };
        self.wait(device, awaited, |server| {
            found = server.notes.take(first)?;
            Ok(found.is_some())
        })?;
        let note = Note::read(&found.unwrap_or_default());
        if note.drains {
            self.drains = Some(note.step as usize);
        }
        Ok(note)
    }

    /// A rank's gradients come, and update bucket after bucket while the next ones are under way. It is answered with
    /// each, unless the step drains. Broken gradients update nothing.
    fn take(&mut self, rank: usize, note: &Note, updates: &mut Updates) -> Result<()> {
        let (device, ranks) = (updates.device, self.next.len());
        let version = self.version.unwrap_or(0);
        let stale = (version - self.pulled[rank]) as usize;
        self.until_given(None, Some(rank), device)?;
        self.service.take(rank, device)?;
        for bucket in 0..self.service.buckets() {
            self.wait(
                device,
                |server| server.service.awaited(rank, bucket),
                |server| server.service.has(rank, bucket, device),
            )?;
            self.until_given(Some(bucket), None, device)?;
            if note.diverged.is_none() {
                updates.run(bucket, version, ranks)?;
            }
            if !note.drains {
                self.service.give(rank, bucket, device)?;
            }
            self.service.progress(device)?;
        }
        if !device.is_host() {
            // The next gradients come into memory of which these are copied.
            device.synchronize()?;
        }
        self.next[rank] = note.step as usize + 1;
        if note.diverged.is_none() {
            if self.staleness.len() <= stale {
                self.staleness.resize(stale + 1, 0);
            }
            self.staleness[stale] += 1;
            self.version = Some(version + 1);
        }
        self.pulled[rank] = self.version.unwrap_or(0);
        Ok(())
    }

    /// What all are told of a step that drains, now that all gradients are there.
    fn closing(&self, done: usize) -> Note {
        let Server { flags, diverged, .. } = *self;
        Note { flags, diverged, drains: true, step: done as u32, ..Note::default() }
    }

    /// All ranks are told, and get the parameters that all gradients are in.
    fn close(&mut self, device: &dyn Device, note: Note) -> Result<()> {
        if self.first.is_none() {
            for rank in 0..self.next.len() {
                let sums = std::mem::take(&mut self.untold[rank]);
                self.notes.send(rank, &Note { sums, ..note }.values())?;
            }
        }
        self.give_all(device)?;
        self.pulled.fill(self.version.unwrap_or(0));
        (self.drains, self.flags, self.diverged) = (None, Flags::default(), None);
        Ok(())
    }

    /// All parameters go to all ranks, as they are. It ends when all ranks `settle`.
    pub fn give_all(&mut self, device: &dyn Device) -> Result<()> {
        self.settle(device)?;
        for rank in 0..self.next.len() {
            (0..self.service.buckets()).try_for_each(|bucket| self.service.give(rank, bucket, device))?;
        }
        Ok(())
    }

    /// Waits until nothing is on its way.
    pub fn settle(&mut self, device: &dyn Device) -> Result<()> {
        self.until_given(None, None, device)
    }

    /// Waits until a bucket's parameters, or all, have left for a rank, or for all of them.
    fn until_given(&mut self, bucket: Option<usize>, rank: Option<usize>, device: &dyn Device) -> Result<()> {
        self.wait(
            device,
            |server| Awaited {
                what: "new parameters to have left".into(),
                peers: server.service.giving(bucket, rank).into_iter().collect(),
            },
            |server| Ok(server.service.giving(bucket, rank).is_none()),
        )
    }

    /// Moves along what is under way until something has `come`.
    fn wait(
        &mut self,
        device: &dyn Device,
        awaited: impl Fn(&Server) -> Awaited,
        mut come: impl FnMut(&mut Server) -> Result<bool>,
    ) -> Result<()> {
        if come(self)? {
            return Ok(());
        }
        let (begun, mut wait) = (Instant::now(), Wait::new());
        while !come(self)? {
            match self.service.progress(device)? {
                true => wait.moved(),
                false => wait.idle(|| awaited(self))?,
            }
        }
        self.waited += begun.elapsed().as_secs_f64();
        Ok(())
    }
}
