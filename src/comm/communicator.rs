//! A group of ranks and the small collectives of the control path, each polled to its end.

use std::ffi::{c_int, c_void};
use std::ptr;

use mpi::ffi;

use super::request::{self, begin, check};
use crate::error::{Error, Result};

/// A communicator. It is never freed: freeing is collective, errors unwind ranks one by one, and MPI_Finalize
/// takes the handful that a run makes.
#[derive(Clone, Copy)]
pub(super) struct Communicator {
    raw: ffi::MPI_Comm,
    rank: usize,
    size: usize,
}

/// What a reduction does to two numbers.
#[derive(Clone, Copy)]
pub(super) enum Reduction {
    Sum,
    Min,
    Max,
}

/// Plain numbers that messages carry.
pub trait Scalar: Copy {
    fn datatype() -> ffi::MPI_Datatype;
}

macro_rules! scalars {
    ($($number:ty => $datatype:ident),*) => {$(
        impl Scalar for $number {
            fn datatype() -> ffi::MPI_Datatype {
                // SAFETY: a constant of the MPI library.
                unsafe { ffi::$datatype }
            }
        }
    )*};
}

scalars!(f32 => RSMPI_FLOAT, f64 => RSMPI_DOUBLE, u64 => RSMPI_UINT64_T, u8 => RSMPI_UINT8_T);

/// Bytes in a message, at most.
const PIECE: usize = 4 << 20;

impl Reduction {
    fn operation(self) -> ffi::MPI_Op {
        // SAFETY: constants of the MPI library.
        unsafe {
            match self {
                Reduction::Sum => ffi::RSMPI_SUM,
                Reduction::Min => ffi::RSMPI_MIN,
                Reduction::Max => ffi::RSMPI_MAX,
            }
        }
    }
}

impl Communicator {
    /// All ranks of the job, with failures returned as codes.
    pub fn world() -> Result<Communicator> {
        // SAFETY: a constant of the MPI library, which is initialised (only `World::start` calls this).
        Communicator::from_raw(unsafe { ffi::RSMPI_COMM_WORLD })
    }

    fn from_raw(raw: ffi::MPI_Comm) -> Result<Communicator> {
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: a valid communicator, a constant, and two integers to write to. In some libraries only duplicates
        // inherit an error handler.
        unsafe {
            check("MPI_Comm_set_errhandler", ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN))?;
            check("MPI_Comm_rank", ffi::MPI_Comm_rank(raw, &mut rank))?;
            check("MPI_Comm_size", ffi::MPI_Comm_size(raw, &mut size))?;
        }
        Ok(Communicator { raw, rank: rank as usize, size: size as usize })
    }

    pub fn raw(&self) -> ffi::MPI_Comm {
        self.raw
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// What a call of this name makes. Collective.
    fn made(
        &self,
        call: &'static str,
        make: impl FnOnce(&mut ffi::MPI_Comm) -> c_int,
    ) -> Result<Communicator> {
        // MPI_Comm_dup spins until all are there; let them come first.
        self.barrier()?;
        // SAFETY: a constant of the MPI library.
        let mut raw = unsafe { ffi::RSMPI_COMM_NULL };
        check(call, make(&mut raw))?;
        Communicator::from_raw(raw)
    }

    /// A communicator of the same ranks with message matching of their own. Collective.
    pub fn duplicate(&self) -> Result<Communicator> {
        // SAFETY: a handle to write to.
        self.made("MPI_Comm_dup", |raw| unsafe { ffi::MPI_Comm_dup(self.raw, raw) })
    }

    /// The ranks that can share memory with this one, in the order of their ranks here. Collective.
    pub fn on_this_node(&self) -> Result<Communicator> {
        let key = self.rank as c_int;
        // SAFETY: a handle to write to; the other arguments are constants.
        self.made("MPI_Comm_split_type", |raw| unsafe {
            let (kind, info) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
            ffi::MPI_Comm_split_type(self.raw, kind, key, info, raw)
        })
    }

    /// The ranks here that gave the same colour, in the order of their keys, and where these are equal of their ranks.
    /// Collective.
    pub fn split(&self, color: usize, key: usize) -> Result<Communicator> {
        let (color, key) = (request::count(color)?, request::count(key)?);
        // SAFETY: a handle to write to.
        self.made("MPI_Comm_split", |raw| unsafe { ffi::MPI_Comm_split(self.raw, color, key, raw) })
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: a request to write to, polled to its end before anything else happens.
        request::complete(unsafe { begin!(MPI_Ibarrier(self.raw)) }?)
    }

    /// Replaces each number by its reduction over all ranks.
    pub fn reduce<T: Scalar>(&self, numbers: &mut [T], reduction: Reduction) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let count = request::count(numbers.len())?;
        // SAFETY: `numbers` has `count` elements of the type and is borrowed until the request has ended.
        let request = unsafe {
            let (into, datatype) = (numbers.as_mut_ptr().cast::<c_void>(), T::datatype());
            let (in_place, operation) = (request::in_place(), reduction.operation());
            begin!(MPI_Iallreduce(in_place, into, count, datatype, operation, self.raw))
        };
        request::complete(request?)
    }

    /// Sends numbers to one rank; returns when their memory is free again.
    pub fn send<T: Scalar>(&self, numbers: &[T], to: usize) -> Result<()> {
        for piece in numbers.chunks(PIECE / size_of::<T>()) {
            let count = request::count(piece.len())?;
            // SAFETY: `piece` has `count` elements of the type and is borrowed until the request has ended.
            let request = unsafe {
                let from = piece.as_ptr().cast::<c_void>();
                begin!(MPI_Isend(from, count, T::datatype(), to as c_int, 0, self.raw))
            };
            request::complete(request?)?;
        }
        Ok(())
    }

    /// Receives as many numbers from one rank.
    pub fn receive<T: Scalar>(&self, numbers: &mut [T], from: usize) -> Result<()> {
        for piece in numbers.chunks_mut(PIECE / size_of::<T>()) {
            let count = request::count(piece.len())?;
            // SAFETY: as in `send`.
            let request = unsafe {
                let into = piece.as_mut_ptr().cast::<c_void>();
                begin!(MPI_Irecv(into, count, T::datatype(), from as c_int, 0, self.raw))
            };
            request::complete(request?)?;
        }
        Ok(())
    }

    /// Rank 0's numbers on every rank; equally many everywhere.
    pub fn broadcast<T: Scalar>(&self, numbers: &mut [T]) -> Result<()> {
        for piece in numbers.chunks_mut(PIECE / size_of::<T>()) {
            let count = request::count(piece.len())?;
            // SAFETY: as in `send`.
            let request = unsafe {
                let into = piece.as_mut_ptr().cast::<c_void>();
                begin!(MPI_Ibcast(into, count, T::datatype(), 0, self.raw))
            };
            request::complete(request?)?;
        }
        Ok(())
    }

    /// Every rank's text, by rank, on every rank.
    pub fn gather_text(&self, text: &str) -> Result<Vec<String>> {
        let mut lengths = vec![0u64; self.size];
        lengths[self.rank] = text.len() as u64;
        self.reduce(&mut lengths, Reduction::Sum)?;
        let counts = lengths.iter().map(|&n| request::count(n as usize)).collect::<Result<Vec<_>>>()?;
        let mut starts = Vec::with_capacity(self.size);
        let mut total = 0usize;
        for &length in &lengths {
            starts.push(request::count(total)?);
            total += length as usize;
        }
        if total == 0 {
            return Ok(vec![String::new(); self.size]);
        }
        // In place, because the address of an empty text may be the number that is MPI_IN_PLACE in Open MPI.
        let mut bytes = vec![0u8; total];
        bytes[starts[self.rank] as usize..][..text.len()].copy_from_slice(text.as_bytes());
        // SAFETY: counts and starts lie within `bytes`; all buffers live until the request has ended.
        let request = unsafe {
            let (byte, into) = (ffi::RSMPI_UINT8_T, bytes.as_mut_ptr().cast());
            let (counts, starts) = (counts.as_ptr(), starts.as_ptr());
            begin!(MPI_Iallgatherv(request::in_place(), 0, byte, into, counts, starts, byte, self.raw))
        };
        request::complete(request?)?;
        let part = |(&start, &length): (&c_int, &u64)| &bytes[start as usize..][..length as usize];
        starts.iter().zip(&lengths).map(part).map(text_from).collect()
    }

    /// Rank 0's text on every rank; what the others pass is ignored.
    pub fn broadcast_text(&self, text: &str) -> Result<String> {
        let mut length = [if self.rank == 0 { text.len() as u64 } else { 0 }];
        self.reduce(&mut length, Reduction::Max)?;
        if length[0] == 0 {
            return Ok(String::new());
        }
        let mut bytes = if self.rank == 0 { text.as_bytes().to_vec() } else { vec![0; length[0] as usize] };
        self.broadcast(&mut bytes)?;
        text_from(&bytes)
    }
}

fn text_from(bytes: &[u8]) -> Result<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Error::internal("a text came damaged from another rank"))
}

/// The name that MPI gives this machine.
pub(super) fn host_name() -> Result<String> {
    let mut name = [0u8; 4096];
    let mut length: c_int = 0;
    // SAFETY: the buffer is larger than MPI_MAX_PROCESSOR_NAME of any library (256).
    let code = unsafe { ffi::MPI_Get_processor_name(name.as_mut_ptr().cast(), ptr::from_mut(&mut length)) };
    check("MPI_Get_processor_name", code)?;
    Ok(request::text_of(&name, length))
}
