//! Many numbers between rank 0 and the others, in pieces: checkpoints. Slow paths, used between steps only.

use super::communicator::Scalar;
use super::world::World;
use crate::error::Result;

impl World {
    /// Rank 0's numbers on every rank. Collective; equally many everywhere.
    pub fn broadcast<T: Scalar>(&self, numbers: &mut [T]) -> Result<()> {
        self.control().broadcast(numbers)
    }

    /// Every rank's numbers to rank 0, which gives room for them: equally many of each rank, in the order of ranks. The
    /// others give none. Collective.
    pub fn gather<T: Scalar>(&self, own: &[T], all: Option<&mut [T]>) -> Result<()> {
        let Some(all) = all else { return self.control().send(own, 0) };
        for (rank, row) in all.chunks_mut(own.len().max(1)).enumerate() {
            if rank == 0 {
                row.copy_from_slice(own);
            } else {
                self.control().receive(row, rank)?;
            }
        }
        Ok(())
    }

    /// One rank's numbers to rank 0, both of which call it; where that is rank 0 they are there.
    pub fn one_to_first<T: Scalar>(&self, from: usize, numbers: &mut [T]) -> Result<()> {
        match self.rank() {
            _ if from == 0 => Ok(()),
            0 => self.control().receive(numbers, from),
            _ => self.control().send(numbers, 0),
        }
    }

    /// The reverse of `gather`: to every rank its row of what rank 0 has.
    pub fn scatter<T: Scalar>(&self, all: Option<&[T]>, own: &mut [T]) -> Result<()> {
        let Some(all) = all else { return self.control().receive(own, 0) };
        for (rank, row) in all.chunks(own.len().max(1)).enumerate() {
            if rank == 0 {
                own.copy_from_slice(row);
            } else {
                self.control().send(row, rank)?;
            }
        }
        Ok(())
    }
}
