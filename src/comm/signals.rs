//! Which thread signals are handled on: not one that computes.
//!
//! Some of oneDNN's kernels for matrix products keep their buffer's address in the stack pointer. A handler that comes
//! then has its frame written below it, over whatever the heap holds there.

use crate::error::{Error, Result};

/// From here on signals that have a handler or end the process go to a thread of their own, or to one of the MPI
/// library's: they are blocked on this thread and on those that it starts. To be called before anything computes.
///
/// # Errors
/// `Environment` when there can be no further thread.
pub(super) fn keep_off_this_thread() -> Result<()> {
    let failed = |what: &str, error: std::io::Error| Error::environment(format!("cannot {what}: {error}"));
    let wait = || {
        loop {
            std::thread::park();
        }
    };
    // Signals are not blocked yet, and so never are on it.
    std::thread::Builder::new()
        .name("signals".into())
        .stack_size(64 << 10)
        .spawn(wait)
        .map_err(|error| failed("start a thread for signals", error))?;
    let numbers = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
    // SAFETY: a set to write to, whose zeros are a value of it, and numbers of signals.
    let code = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        numbers.iter().for_each(|&number| {
            libc::sigaddset(&mut set, number);
        });
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())
    };
    if code != 0 {
        return Err(failed("block signals", std::io::Error::from_raw_os_error(code)));
    }
    Ok(())
}
