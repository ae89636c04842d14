//! Memory that all ranks of a node map: MPI shared-memory windows.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicU64;

use mpi::ffi;

use super::communicator::Communicator;
use super::request::check;
use super::world::World;
use crate::error::Result;

pub(super) const PAGE: usize = 4096;

/// A shared window over the ranks of a node. Each rank owns a part and sees all parts.
pub(super) struct SharedWindow {
    world: World,
    number: u64,
    raw: ffi::MPI_Win,
}

impl SharedWindow {
    /// A window to which this rank brings `bytes`. Collective. Each part starts at a page. With `zeroed` its pages lie
    /// near the rank that brought them, which is the first to touch them; without, nobody has touched it.
    pub fn allocate(world: &World, bytes: usize, zeroed: bool) -> Result<SharedWindow> {
        let number = world.next_window();
        let raw = allocate(world.node_communicator(), bytes, zeroed)?;
        Ok(SharedWindow { world: world.clone(), number, raw })
    }

    /// Where this process sees the part of a rank of this node.
    pub fn part(&self, local_rank: usize) -> Result<*mut u8> {
        part(self.raw, local_rank)
    }
}

impl Drop for SharedWindow {
    fn drop(&mut self) {
        self.world.retire(self.number, self.raw);
    }
}

/// A window over the ranks of a node, as it is made: it must be freed. Collective over them. See
/// `SharedWindow::allocate`.
pub(super) fn allocate(node: &Communicator, bytes: usize, zeroed: bool) -> Result<ffi::MPI_Win> {
    // The call spins until all are there; let them come first.
    node.barrier()?;
    // Open MPI 4 starts a part 264 bytes into a page; one page more leaves room to begin at the next.
    let room = if bytes > 0 { bytes.next_multiple_of(PAGE) + PAGE } else { 0 };
    let mut base: *mut c_void = ptr::null_mut();
    // SAFETY: `base` and the window handle are written to; `base` then points at `room` bytes of this rank. Loads and
    // stores need an open epoch; this one lasts as long as the window.
    let raw = unsafe {
        let mut raw = ffi::RSMPI_WIN_NULL;
        let at = ptr::from_mut(&mut base).cast::<c_void>();
        let info = ffi::RSMPI_INFO_NULL;
        let code = ffi::MPI_Win_allocate_shared(room as ffi::MPI_Aint, 1, info, node.raw(), at, &mut raw);
        check("MPI_Win_allocate_shared", code)?;
        check("MPI_Win_set_errhandler", ffi::MPI_Win_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN))?;
        check("MPI_Win_lock_all", ffi::MPI_Win_lock_all(0, raw))?;
        if room > 0 && zeroed {
            ptr::write_bytes(base.cast::<u8>(), 0, room);
        }
        raw
    };
    // Nobody writes to a part that its owner has yet to clear.
    node.barrier()?;
    Ok(raw)
}

/// Where this process sees the part of a rank of this node: a page's start. Every process maps whole pages, so all
/// skip the same bytes of a part that starts within one.
pub(super) fn part(window: ffi::MPI_Win, local_rank: usize) -> Result<*mut u8> {
    let (mut bytes, mut unit): (ffi::MPI_Aint, c_int) = (0, 0);
    let mut base: *mut c_void = ptr::null_mut();
    // SAFETY: three places to write to.
    let code = unsafe {
        let at = ptr::from_mut(&mut base).cast::<c_void>();
        ffi::MPI_Win_shared_query(window, local_rank as c_int, &mut bytes, &mut unit, at)
    };
    check("MPI_Win_shared_query", code)?;
    Ok(base.cast::<u8>().wrapping_add(base.align_offset(PAGE)))
}

/// A counter with a cache line of its own, so that ranks that poll one do not slow writers of another.
#[repr(C, align(64))]
struct PaddedCounter(AtomicU64);

/// Counters that the ranks of a node share; all start at zero.
pub struct Counters {
    lines: *const PaddedCounter,
    count: usize,
    _window: SharedWindow,
}

impl Counters {
    /// Collective over the node.
    ///
    /// # Errors
    /// `Foreign` when the window cannot be made.
    pub fn allocate(world: &World, count: usize) -> Result<Counters> {
        let bytes = if world.is_leader() { count * size_of::<PaddedCounter>() } else { 0 };
        let window = SharedWindow::allocate(world, bytes, true)?;
        let lines = window.part(0)?.cast_const().cast::<PaddedCounter>();
        Ok(Counters { lines, count, _window: window })
    }

    /// # Panics
    /// When there is no such counter.
    pub fn get(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "counter {index} of {}", self.count);
        // SAFETY: `lines` points at `count` zeroed lines at the start of a page, mapped while the window lives;
        // they are never accessed but as atomics.
        unsafe { &(*self.lines.add(index)).0 }
    }
}
