//! Asynchronous updates (`--sync server-async`) as a rank that computes sees them, and what ranks tell each other.
//!
//! With its gradients a rank tells the first server what it knows of the step, and is told what the server has heard
//! of all ranks since it last answered this one: so the sum of what a rank is told is that of all images. A step that
//! `drains` ends on no rank before the gradients of all ranks' same step are in the parameters, and then all have
//! these: epochs end so, and whatever all ranks do together comes behind such a step. Where somebody was told to stop,
//! the first server says which step that is.

use super::server::Server;
use super::stop::Flags;
use crate::comm::Awaited;
use crate::device::Device;
use crate::error::Result;
use crate::fusion::{Fusion, Notes, Values};

/// What a rank does with pushes.
pub enum Side {
    /// It makes them.
    Worker(Worker),
    /// It takes them.
    Server(Box<Server>),
}

impl Side {
    /// Bytes that this rank has sent so far beside what `Fusion` counts.
    pub fn sent(&self) -> u64 {
        match self {
            Side::Worker(worker) => worker.notes.sent(),
            Side::Server(server) => server.sent(),
        }
    }
}

/// What goes with a push, and what comes back.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Note {
    /// Sums of losses, and of the metric's numbers, and how many images they are of.
    pub sums: [f32; 5],
    /// The first step in which a loss was not finite.
    pub diverged: Option<u32>,
    pub flags: Flags,
    /// The step that it is about.
    pub step: u32,
    /// Whether this step drains.
    pub drains: bool,
    /// Between servers: whose gradients are next; none where the step is over.
    pub whose: Option<u32>,
}

impl Note {
    /// Counts travel as bits of the same width: none is rounded.
    pub fn values(&self) -> Values {
        let flag = |set: bool| if set { 1.0 } else { 0.0 };
        let count = |number: Option<u32>| number.map_or([0.0; 2], |number| [1.0, f32::from_bits(number)]);
        let mut values = Values::default();
        values[..5].copy_from_slice(&self.sums);
        values[5..7].copy_from_slice(&count(self.diverged));
        values[7..9].copy_from_slice(&[flag(self.flags.stop), flag(self.flags.checkpoint)]);
        values[9..11].copy_from_slice(&[flag(self.drains), f32::from_bits(self.step)]);
        values[11..13].copy_from_slice(&count(self.whose));
        values
    }

    pub fn read(values: &Values) -> Note {
        let count = |at: usize| (values[at] != 0.0).then(|| values[at + 1].to_bits());
        Note {
            sums: [0, 1, 2, 3, 4].map(|at| values[at]),
            diverged: count(5),
            flags: Flags { stop: values[7] != 0.0, checkpoint: values[8] != 0.0 },
            drains: values[9] != 0.0,
            step: values[10].to_bits(),
            whose: count(11),
        }
    }
}

/// A rank that computes.
pub struct Worker {
    notes: Notes,
    /// The first server.
    server: usize,
    /// Where a number that is not finite was first met here, until the job ends for it.
    pub where_diverged: Option<String>,
}

impl Worker {
    pub fn new(notes: Notes, server: usize) -> Worker {
        Worker { notes, server, where_diverged: None }
    }

    /// Before this rank's gradients leave.
    pub fn knock(&mut self, note: &Note) -> Result<()> {
        self.notes.send(self.server, &note.values())
    }

    /// The answer. What is under way goes on meanwhile.
    pub fn hear(&mut self, fusion: &mut Fusion, device: &dyn Device) -> Result<Note> {
        let Worker { notes, server, .. } = self;
        let mut answer = None;
        let awaited = || Awaited { what: "the server's answer".into(), peers: vec![*server] };
        fusion.wait_until(device, awaited, || {
            answer = notes.take(*server)?;
            Ok(answer.is_some())
        })?;
        Ok(Note::read(&answer.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_arrive_as_they_were_sent() {
        for note in [
            Note::default(),
            Note { sums: [0.5, 3.0, 2.0, 1.0, 64.0], step: u32::MAX, whose: Some(0), ..Note::default() },
            Note {
                diverged: Some(16_777_217),
                flags: Flags { stop: true, checkpoint: false },
                drains: true,
                ..Note::default()
            },
        ] {
            assert_eq!(Note::read(&note.values()), note);
        }
    }
}
