//! The narrow place through which every foreign call goes: codes become errors, requests are polled.

use std::ffi::{c_char, c_int, c_void};

use mpi::ffi;

use super::stall::{Awaited, Wait};
use crate::error::{Error, Result};

unsafe extern "C" {
    /// From constants.c.
    static dltrain_mpi_in_place: *const c_void;
}

/// `MPI_IN_PLACE`.
pub(super) fn in_place() -> *const c_void {
    // SAFETY: a constant of this program, initialised by the C compiler.
    unsafe { dltrain_mpi_in_place }
}

/// Turns an MPI return code into a result.
pub(super) fn check(call: &str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    Err(Error::foreign("MPI", call, i64::from(code), error_text(code)))
}

/// Starts a request by a call of MPI that does not block, given without where it puts the request.
macro_rules! begin {
    ($call:ident($($argument:expr),* $(,)?)) => {{
        let mut raw = ffi::RSMPI_REQUEST_NULL;
        check(stringify!($call), ffi::$call($($argument,)* &mut raw)).map(|()| raw)
    }};
}
pub(super) use begin;

fn error_text(code: c_int) -> String {
    // Larger than MPI_MAX_ERROR_STRING of any library (256 in Open MPI, 512 in MPICH).
    let mut text = [0u8; 4096];
    let mut length: c_int = 0;
    // SAFETY: the buffer holds the longest text; allowed at any time after MPI_Init.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    text_of(&text, length)
}

/// The text that MPI left in a buffer.
pub(super) fn text_of(buffer: &[u8], length: c_int) -> String {
    let length = usize::try_from(length).unwrap_or(0).min(buffer.len());
    String::from_utf8_lossy(&buffer[..length]).trim_end_matches(['\0', '\n']).to_string()
}

/// Whether the operation has ended; a request that has is `MPI_REQUEST_NULL` afterwards.
pub(super) fn test(request: &mut ffi::MPI_Request) -> Result<bool> {
    let mut done: c_int = 0;
    // SAFETY: `request` comes from a non-blocking MPI call or is null, and whoever made it keeps its buffers.
    check("MPI_Test", unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) })?;
    Ok(done != 0)
}

/// Leaves an operation that has not ended to MPI: it ends by itself, and `MPI_Finalize` has nothing to find.
pub(super) fn free(request: &mut ffi::MPI_Request) {
    // SAFETY: `request` comes from a non-blocking MPI call and has not ended; its buffer stays. A failure leaves it as
    // it is.
    unsafe { ffi::MPI_Request_free(request) };
}

/// Polls until the operation has ended, and lets other processes run between two polls.
pub(super) fn complete(mut request: ffi::MPI_Request) -> Result<()> {
    let mut wait = Wait::new();
    while !test(&mut request)? {
        wait.idle(Awaited::default)?;
    }
    Ok(())
}

/// A length as MPI counts.
pub(super) fn count(length: usize) -> Result<c_int> {
    c_int::try_from(length)
        .map_err(|_| Error::internal(format!("a message of {length} elements is more than MPI can count")))
}
