//! The clock that all processes of a machine share.

/// Nanoseconds of CLOCK_MONOTONIC: the same number in every process of a node at the same time, unrelated ones on two
/// nodes.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place to write to; the clock is there on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
