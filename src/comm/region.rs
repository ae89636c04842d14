//! Host memory that holds gradients, if possible where the other ranks of the node see it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ops::Range;
use std::rc::Rc;

use super::communicator::Reduction;
use super::topology::Topology;
use super::window::{PAGE, SharedWindow};
use super::world::World;
use crate::config::Wire;
use crate::error::{Error, Result};

/// One cache line, one AVX-512 register.
const ALIGNMENT: usize = 64;

/// What a window must leave free of /dev/shm: MPI's own messages go through it too.
const HEADROOM: u64 = 8 << 20;

/// Memory of one rank, read as `f32`, which collectives work on in place.
///
/// The methods that read and write go through raw addresses and hand out no references. A range under
/// reduction belongs to the collective from its start until it is done: nobody else may touch it, on any rank
/// of the node, or numbers come out wrong.
pub struct Region {
    /// This rank's memory.
    address: *mut f32,
    elements: usize,
    bytes: usize,
    /// Where this process sees the memory of each rank of its node, by local rank; without a window only its own.
    peers: Vec<*mut f32>,
    storage: Storage,
}

enum Storage {
    Private {
        start: *mut u8,
        layout: Layout,
    },
    /// Held for its Drop.
    Shared(#[allow(dead_code)] SharedWindow),
    /// Somebody else's, held for as long as this lives.
    Foreign(#[allow(dead_code)] Rc<dyn Any>),
}

impl Region {
    /// Zeroed memory of the same size on every rank. Collective. With `shared` it lies in a window of the node
    /// if every node has room for one; else, with one warning, it is private on all ranks.
    ///
    /// # Errors
    /// `Environment`, agreed by all ranks, when there is not that much memory.
    pub fn allocate(world: &World, bytes: usize, shared: bool) -> Result<Rc<Region>> {
        Region::allocate_apart(world, bytes, 0, shared)
    }

    /// A region of which no other rank reads the first bytes: they are in no other rank's memory.
    ///
    /// # Errors
    /// As for `allocate`.
    pub fn allocate_apart(world: &World, bytes: usize, apart: usize, shared: bool) -> Result<Rc<Region>> {
        if shared && has_room(world, bytes)? {
            let attempt = Region::in_window(world, bytes, apart);
            if let Some(region) = accept(world, "gradients", attempt)? {
                return Ok(Rc::new(region));
            }
        }
        world.agree(Region::private(bytes)).map(Rc::new)
    }

    /// Zeroed memory of this rank alone.
    ///
    /// # Errors
    /// `Environment` when there is not that much memory.
    pub fn private(bytes: usize) -> Result<Region> {
        let too_much =
            || Error::environment(format!("cannot allocate {bytes} bytes of host memory for gradients"));
        // Asked for any address and aligned here: asked for an aligned one the allocator would touch every page at
        // once.
        let room = bytes.checked_add(ALIGNMENT).ok_or_else(too_much)?;
        let layout = Layout::from_size_align(room, 1).map_err(|_| too_much())?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(too_much());
        }
        let address = start.wrapping_add(start.align_offset(ALIGNMENT)).cast::<f32>();
        let storage = Storage::Private { start, layout };
        Ok(Region { address, elements: bytes / 4, bytes, peers: vec![address], storage })
    }

    /// Memory that the host need not reach, a GPU's: for what the MPI library does by itself
    /// (`Channel::start_allreduce`), if it is CUDA-aware.
    ///
    /// # Safety
    /// So many bytes must be there for MPI to read and write as long as `owner` lives, and nothing else be asked of the
    /// region.
    pub unsafe fn foreign(address: *mut u8, bytes: usize, owner: Rc<dyn Any>) -> Rc<Region> {
        let address = address.cast::<f32>();
        let storage = Storage::Foreign(owner);
        Rc::new(Region { address, elements: bytes / 4, bytes, peers: vec![address], storage })
    }

    fn in_window(world: &World, bytes: usize, apart: usize) -> Result<Region> {
        let window = SharedWindow::allocate(world, bytes.max(1), true)?;
        let peers = (0..world.local_size())
            .map(|local_rank| Ok(window.part(local_rank)?.cast::<f32>()))
            .collect::<Result<Vec<_>>>()?;
        let address = peers[world.local_rank()];
        for &part in &peers {
            let read = if part == address { 0..bytes } else { apart.min(bytes)..bytes };
            touch(part.cast(), read);
        }
        Ok(Region { address, elements: bytes / 4, bytes, peers, storage: Storage::Shared(window) })
    }

    /// Whether this rank's node has room for a window to which each of its ranks brings `bytes`.
    pub fn fits_shared(world: &Topology, bytes: usize) -> bool {
        room(bytes.saturating_mul(world.local_size())).is_ok()
    }

    /// Where this rank's part begins, in this process.
    pub fn address(&self) -> *mut u8 {
        self.address.cast()
    }

    /// How many bytes this rank has of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many `f32` it holds.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Whether the other ranks of the node see this memory.
    pub fn is_shared(&self) -> bool {
        matches!(self.storage, Storage::Shared(_))
    }

    /// Where this process sees the region of a rank of its node.
    pub fn peer(&self, local_rank: usize) -> Option<*mut u8> {
        self.is_shared().then(|| self.peers.get(local_rank).map(|part| part.cast()))?
    }

    /// The address of a range, which is checked to lie within.
    pub(super) fn at(&self, range: &Range<usize>) -> *mut f32 {
        self.check(range);
        self.address.wrapping_add(range.start)
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.elements,
            "elements {range:?} of {}",
            self.elements
        );
    }

    /// Copies elements in, from `start` on.
    pub fn write(&self, start: usize, from: &[f32]) {
        let to = self.at(&(start..start + from.len()));
        // SAFETY: the range lies within this region; `from` is a reference, and none is handed out to regions.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }

    /// Copies elements out, from `start` on.
    pub fn read(&self, start: usize, to: &mut [f32]) {
        let from = self.at(&(start..start + to.len()));
        // SAFETY: as in `write`.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) }
    }

    /// Puts a range into words of another region, from `start` on, as it is to travel; what is here is rounded alike.
    pub fn pack(&self, range: Range<usize>, wire: Wire, other: &Region, start: usize) {
        let (values, words) = self.both(&range, wire, other, start);
        wire.pack(values, words);
    }

    /// Takes words of another region, from `start` on, as they travelled: added to this range, or in its place.
    pub fn unpack(&self, range: Range<usize>, wire: Wire, other: &Region, start: usize, add: bool) {
        let (values, words) = self.both(&range, wire, other, start);
        wire.unpack(words, values, add);
    }

    /// A range, and the words of another region that belong to it.
    #[allow(clippy::mut_from_ref)]
    fn both(
        &self,
        range: &Range<usize>,
        wire: Wire,
        other: &Region,
        start: usize,
    ) -> (&mut [f32], &mut [f32]) {
        let words = wire.words(range.len());
        let (here, there) = (self.at(range), other.at(&(start..start + words)));
        assert!(!std::ptr::eq(self, other), "a region packed into itself");
        // SAFETY: both ranges lie within their regions, which are distinct allocations; no reference into a
        // region outlives the block that makes it, and this thread is the only one of the process to touch them.
        unsafe {
            (std::slice::from_raw_parts_mut(here, range.len()), std::slice::from_raw_parts_mut(there, words))
        }
    }

    /// Sums a range over all ranks of the node, in the order of local ranks whoever calls it, and writes the sum
    /// to all of them.
    pub fn sum_over_node(&self, range: Range<usize>) {
        self.each_sum(range, &self.peers);
    }

    /// The sum over the node's ranks, written to one of them alone.
    pub fn sum_to(&self, range: Range<usize>, local_rank: usize) {
        self.each_sum(range, &[self.peers[local_rank]]);
    }

    /// The sum over the node's ranks, written to this rank alone.
    pub fn sum_from_node(&self, range: Range<usize>) {
        self.each_sum(range, &[self.address]);
    }

    /// Writes this rank's values of a range to all other ranks of the node.
    pub fn write_to_node(&self, range: Range<usize>) {
        self.copy_to_node(range, self.address);
    }

    /// Writes one rank's values of a range to all other ranks of the node, whoever calls it.
    pub fn copy_over_node(&self, range: Range<usize>, local_rank: usize) {
        self.copy_to_node(range, self.peers[local_rank]);
    }

    fn copy_to_node(&self, range: Range<usize>, from: *mut f32) {
        self.check(&range);
        for &part in self.peers.iter().filter(|&&part| part != from) {
            // SAFETY: every peer's region has as many elements as this one, and is another; its ranks leave the range
            // alone until all of it is written (the contract of `Region`).
            unsafe { part.add(range.start).copy_from_nonoverlapping(from.add(range.start), range.len()) }
        }
    }

    /// Adds up the regions of the node in the order of ranks, and writes the sum to some of them: by way of a block in
    /// the cache, for parts of a window lie at like places of their pages, and a loop that goes back and forth between
    /// two such lines can take ten times as long.
    fn each_sum(&self, range: Range<usize>, to: &[*mut f32]) {
        /// Stays in the first-level cache while the ranks' blocks stream through.
        const BLOCK: usize = 1024;
        self.check(&range);
        let mut sum = [0f32; BLOCK];
        for start in range.clone().step_by(BLOCK) {
            let count = BLOCK.min(range.end - start);
            let sum = &mut sum[..count];
            for (index, part) in self.peers.iter().enumerate() {
                // SAFETY: every peer's region has as many elements as this one, and its ranks leave the range
                // alone until all of it is summed (the contract of `Region`).
                let part = unsafe { std::slice::from_raw_parts(part.add(start), count) };
                if index == 0 {
                    sum.copy_from_slice(part);
                } else {
                    sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
                }
            }
            for part in to {
                // SAFETY: as above; the slice read from is gone.
                unsafe { part.add(start).copy_from_nonoverlapping(sum.as_ptr(), count) };
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Storage::Private { start, layout } = self.storage {
            // SAFETY: start and layout are those of the allocation made in `private`.
            unsafe { dealloc(start, layout) }
        }
    }
}

/// Whether every node has room for a window to which each of its ranks brings `bytes`. Collective; the lowest
/// rank without room says so.
fn has_room(world: &World, bytes: usize) -> Result<bool> {
    let room = room(bytes.saturating_mul(world.local_size()));
    Ok(accept(world, "gradients", room)?.is_some())
}

/// Fails where the node of this rank has no room for windows of so many bytes in all.
pub(super) fn room(bytes: usize) -> Result<()> {
    let (needed, free) = (with_reserve(bytes as u64), free_shared_memory());
    if free >= needed {
        return Ok(());
    }
    let why = format!("/dev/shm has {} MB free and {} MB are needed", free >> 20, needed >> 20);
    Err(Error::environment(why))
}

/// What must be free for windows of so many bytes in all. Open MPI refuses a window that would leave less than a
/// twentieth of its own size. Only the first rank of a node is told; the others would wait for it for ever.
fn with_reserve(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 20).saturating_add(HEADROOM)
}

/// Reads a byte of every page of a range, so that the pages of other ranks are mapped before the first step and not in
/// the middle of one, and what this process has in memory does not depend on whose turn it was to sum what.
fn touch(part: *const u8, range: Range<usize>) {
    for offset in range.step_by(PAGE) {
        // SAFETY: within the part, which is mapped. Nobody writes to it before all ranks have accepted the region.
        unsafe { part.add(offset).read_volatile() };
    }
}

/// A result that all ranks must have for one of them to use it; the lowest rank without it warns that
/// `what` lies elsewhere. Collective.
pub(super) fn accept<T>(world: &World, what: &str, attempt: Result<T>) -> Result<Option<T>> {
    let mut lowest = [if attempt.is_ok() { u64::MAX } else { world.rank() as u64 }];
    world.control().reduce(&mut lowest, Reduction::Min)?;
    if lowest[0] == u64::MAX {
        return attempt.map(Some);
    }
    if let (Err(error), true) = (&attempt, lowest[0] == world.rank() as u64) {
        log::warn!(
            "{what} are not shared within a node, which is slower: {error} on {}. Enlarge /dev/shm there (for a \
             container: --shm-size)",
            world.host()
        );
    }
    Ok(None)
}

/// Free bytes of /dev/shm, where shared windows live in Open MPI as in MPICH; 0 where there is none.
pub(super) fn free_shared_memory() -> u64 {
    rustix::fs::statvfs("/dev/shm").map_or(0, |found| found.f_bavail * found.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gradients of vgg11 on four ranks and 2 GB of /dev/shm, where Open MPI 4.1.4 said that there is not enough.
    #[test]
    fn windows_leave_what_open_mpi_wants_free() {
        assert!(with_reserve(2_061_340_936) > 2_147_143_680);
        assert_eq!([0, 100, u64::MAX].map(with_reserve), [HEADROOM, HEADROOM + 105, u64::MAX]);
    }

    #[test]
    fn elements_are_added_where_they_belong() {
        let (a, b) = (Region::private(40).unwrap(), Region::private(8).unwrap());
        assert_eq!((a.elements(), a.is_shared(), a.peer(0)), (10, false, None));
        a.write(3, &[1.0, 2.0, 3.0]);
        b.write(0, &[10.0, 20.0]);
        a.unpack(4..6, Wire::F32, &b, 0, true);
        let mut read = [9.0; 10];
        a.read(0, &mut read);
        assert_eq!(read, [0.0, 0.0, 0.0, 1.0, 12.0, 23.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    #[should_panic(expected = "elements 8..11 of 10")]
    fn a_range_beyond_the_end_is_refused() {
        Region::private(40).unwrap().write(8, &[0.0; 3]);
    }

    #[test]
    fn an_impossible_size_is_an_error_not_a_crash() {
        assert!(Region::private(usize::MAX - 4096).is_err());
    }
}
