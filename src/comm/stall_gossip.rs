//! What ranks of other nodes are doing: boards sent as small messages while somebody waits.
//!
//! Of the ranks of a node that wait the lowest sends, each time to another rank of every other node: a rank that is
//! stopped takes nothing, and those beside it do. Nobody waits for such a message, so one that is not taken costs no
//! more than the little memory it lies in.

use std::ffi::c_int;

use mpi::ffi;

use super::board::{Activity, ProcessState, RankStatus, RunPhase, StatusLine};
use super::communicator::Communicator;
use super::request::{self, begin, check};
use super::stall::looked;
use super::topology::Topology;
use crate::error::Result;

/// Words that a rank's status takes in a message.
const WORDS: usize = 6;

pub(super) struct StallGossip {
    communicator: Communicator,
    /// When it was last looked here: what came in long before is old.
    looked: u64,
    sent: u64,
    round: usize,
    /// Messages that have not left. What they read must stay until they have.
    leaving: Vec<(ffi::MPI_Request, Box<[u64]>)>,
}

impl StallGossip {
    /// The communicator carries nothing else.
    pub fn new(communicator: Communicator) -> StallGossip {
        StallGossip { communicator, looked: 0, sent: 0, round: 0, leaving: Vec::new() }
    }

    /// Takes what has come to the board, and every `beat` nanoseconds sends on what `own` ranks do.
    pub fn exchange(
        &mut self,
        lines: &[StatusLine],
        topology: &Topology,
        own: Vec<usize>,
        now: u64,
        beat: u64,
    ) -> Result<()> {
        // A message says how old it was when it left. One that came while nobody looked is older than that.
        let current = now.saturating_sub(self.looked) < beat.max(1_000_000_000);
        self.looked = now;
        while let Some(words) = self.receive()? {
            for (rank, status) in words.chunks_exact(WORDS).filter_map(|words| decode(words, now)) {
                if current && rank < lines.len() && !own.contains(&rank) {
                    lines[rank].write(&status);
                }
            }
        }
        if now.saturating_sub(self.sent) < beat || !is_first(lines, &own, topology.rank(), now, beat) {
            return Ok(());
        }
        self.sent = now;
        self.round += 1;
        self.send(lines, topology, &own, now)
    }

    fn send(&mut self, lines: &[StatusLine], topology: &Topology, own: &[usize], now: u64) -> Result<()> {
        let words: Vec<u64> = own.iter().flat_map(|&rank| encode(rank, &looked(&lines[rank]), now)).collect();
        let mut leaving = Vec::new();
        for (mut request, words) in std::mem::take(&mut self.leaving) {
            if !request::test(&mut request)? {
                leaving.push((request, words));
            }
        }
        self.leaving = leaving;
        // Who takes nothing for so long will not miss one more.
        if self.leaving.len() > 4 * topology.size() {
            return Ok(());
        }
        for node in 0..topology.nodes() {
            let mut ranks = topology.ranks_of(node);
            ranks.retain(|rank| !own.contains(rank));
            if ranks.is_empty() {
                continue;
            }
            let to = ranks[self.round % ranks.len()];
            let copy: Box<[u64]> = words.clone().into();
            let count = request::count(copy.len())?;
            // SAFETY: the words are kept until the request has ended, and for ever where that is not known.
            let raw = unsafe {
                let (word, communicator) = (ffi::RSMPI_UINT64_T, self.communicator.raw());
                begin!(MPI_Isend(copy.as_ptr().cast(), count, word, to as c_int, 0, communicator))
            };
            self.leaving.push((raw?, copy));
        }
        Ok(())
    }

    /// A message, if one has come.
    fn receive(&self) -> Result<Option<Vec<u64>>> {
        let (mut found, mut count): (c_int, c_int) = (0, 0);
        // SAFETY: a status is plain numbers, written by MPI; places to write to.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let (any, communicator) = (ffi::RSMPI_ANY_SOURCE, self.communicator.raw());
            check("MPI_Iprobe", ffi::MPI_Iprobe(any, 0, communicator, &mut found, &mut status))?;
            if found == 0 {
                return Ok(None);
            }
            let word = ffi::RSMPI_UINT64_T;
            check("MPI_Get_count", ffi::MPI_Get_count(&status, word, &mut count))?;
            let mut words = vec![0u64; usize::try_from(count).unwrap_or(0)];
            let (at, from) = (words.as_mut_ptr().cast(), status.MPI_SOURCE);
            let ignore = ffi::RSMPI_STATUS_IGNORE;
            check("MPI_Recv", ffi::MPI_Recv(at, count, word, from, 0, communicator, ignore))?;
            Ok(Some(words))
        }
    }
}

impl Drop for StallGossip {
    fn drop(&mut self) {
        // MPI may still read them.
        std::mem::forget(std::mem::take(&mut self.leaving));
    }
}

/// Whether a rank is the lowest of its group that waits.
fn is_first(lines: &[StatusLine], own: &[usize], rank: usize, now: u64, beat: u64) -> bool {
    let waits = |status: RankStatus| {
        status.waiting.is_some() && now.saturating_sub(status.said) <= beat.max(1_000_000_000)
    };
    own.iter().find(|&&other| other == rank || waits(lines[other].read())) == Some(&rank)
}

fn encode(rank: usize, status: &RankStatus, now: u64) -> [u64; WORDS] {
    [
        rank as u64,
        status.place.phase as u64,
        status.place.number,
        status.process as u64,
        // One more than the age, so that 0 is nobody's.
        status.waiting.map_or(0, |since| now.saturating_sub(since) + 1),
        now.saturating_sub(status.said),
    ]
}

/// Clocks of nodes differ: ages travel.
fn decode(words: &[u64], now: u64) -> Option<(usize, RankStatus)> {
    let &[rank, phase, number, process, waited, silent] = words else { return None };
    let status = RankStatus {
        place: Activity { phase: RunPhase::from_code(phase as u8), number },
        process: ProcessState::from_code(process as u8),
        waiting: (waited > 0).then(|| now.saturating_sub(waited - 1)),
        said: now.saturating_sub(silent).max(1),
    };
    Some((rank as usize, status))
}
