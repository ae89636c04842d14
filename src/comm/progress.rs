//! Lets MPI work while a rank waits for something that MPI knows nothing of.
//!
//! A library may leave the last part of a message to be done when its receiver, or its sender, calls it next: a message
//! that this rank has received may be one that its sender still waits to get rid of (MPICH on UCX). A rank that then
//! looks at memory alone, for whom the sender in turn is missing, waits for ever. So whoever waits calls MPI now and
//! then, whatever it waits for.

use std::ffi::c_int;
use std::ptr;

use mpi::ffi;

use super::request::{self, check};
use crate::error::Result;

/// A receive from this rank itself, to which nothing is ever sent. To test it is what makes libraries work: one that is
/// asked for an unknown message (`MPI_Iprobe`) need not, and does not in MPICH on UCX.
pub(super) struct SelfReceive {
    request: ffi::MPI_Request,
}

impl SelfReceive {
    pub fn new() -> Result<SelfReceive> {
        // SAFETY: handles to write to; a receive of no bytes writes nowhere. The communicator is this rank's alone.
        let request = unsafe {
            let (mut own, mut request) = (ffi::RSMPI_COMM_NULL, ffi::RSMPI_REQUEST_NULL);
            check("MPI_Comm_dup", ffi::MPI_Comm_dup(ffi::RSMPI_COMM_SELF, &mut own))?;
            let byte = ffi::RSMPI_UINT8_T;
            check("MPI_Irecv", ffi::MPI_Irecv(ptr::null_mut(), 0, byte, 0, 0, own, &mut request))?;
            request
        };
        Ok(SelfReceive { request })
    }

    /// Lets MPI work.
    pub fn make(&mut self) -> Result<()> {
        request::test(&mut self.request).map(|_| ())
    }

    /// Before MPI ends.
    pub fn stop(&mut self) {
        let mut done: c_int = 0;
        // SAFETY: the request is pending, and a cancelled one ends by itself. Failures change nothing on the way out.
        unsafe {
            ffi::MPI_Cancel(&mut self.request);
            ffi::MPI_Test(&mut self.request, &mut done, ffi::RSMPI_STATUS_IGNORE);
        }
    }
}
