//! Many numbers between rank 0 and the others, in pieces: checkpoints. Slow paths, used between steps only.

use std::ffi::c_int;

use mpi::ffi;

use super::call::{self, check};
use super::world::World;
use crate::error::Result;

/// Numbers in a message, at most: 4 MB.
const PIECE: usize = 1 << 20;
const TAG: c_int = 1;

impl World {
    /// Rank 0's numbers on every rank. Collective; equally many everywhere.
    pub fn broadcast_f32(&self, numbers: &mut [f32]) -> Result<()> {
        for piece in numbers.chunks_mut(PIECE) {
            let count = call::count(piece.len())?;
            // SAFETY: `piece` has `count` numbers and is borrowed until the request has ended.
            let request = unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let (into, raw) = (piece.as_mut_ptr().cast(), self.control().raw());
                check("MPI_Ibcast", ffi::MPI_Ibcast(into, count, ffi::RSMPI_FLOAT, 0, raw, &mut request))?;
                request
            };
            call::complete(request)?;
        }
        Ok(())
    }

    /// Every rank's numbers to rank 0, which gives room for them: equally many of each rank, in the order of ranks. The
    /// others give none. Collective.
    pub fn gather_f32(&self, own: &[f32], all: Option<&mut [f32]>) -> Result<()> {
        let Some(all) = all else { return self.send(own, 0) };
        for (rank, row) in all.chunks_mut(own.len().max(1)).enumerate() {
            if rank == 0 {
                row.copy_from_slice(own);
            } else {
                self.receive(row, rank)?;
            }
        }
        Ok(())
    }

    /// The reverse of `gather_f32`: to every rank its row of what rank 0 has.
    pub fn scatter_f32(&self, all: Option<&[f32]>, own: &mut [f32]) -> Result<()> {
        let Some(all) = all else { return self.receive(own, 0) };
        for (rank, row) in all.chunks(own.len().max(1)).enumerate() {
            if rank == 0 {
                own.copy_from_slice(row);
            } else {
                self.send(row, rank)?;
            }
        }
        Ok(())
    }

    fn send(&self, numbers: &[f32], to: usize) -> Result<()> {
        for piece in numbers.chunks(PIECE) {
            let count = call::count(piece.len())?;
            // SAFETY: `piece` has `count` numbers and is borrowed until the request has ended.
            let request = unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let (from, float, raw) = (piece.as_ptr().cast(), ffi::RSMPI_FLOAT, self.control().raw());
                let code = ffi::MPI_Isend(from, count, float, to as c_int, TAG, raw, &mut request);
                check("MPI_Isend", code)?;
                request
            };
            call::complete(request)?;
        }
        Ok(())
    }

    fn receive(&self, numbers: &mut [f32], from: usize) -> Result<()> {
        for piece in numbers.chunks_mut(PIECE) {
            let count = call::count(piece.len())?;
            // SAFETY: as in `send`.
            let request = unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let (into, float, raw) = (piece.as_mut_ptr().cast(), ffi::RSMPI_FLOAT, self.control().raw());
                let code = ffi::MPI_Irecv(into, count, float, from as c_int, TAG, raw, &mut request);
                check("MPI_Irecv", code)?;
                request
            };
            call::complete(request)?;
        }
        Ok(())
    }
}
