//! Memory of a device: an address range, and the owner that keeps it alive.
//!
//! A `Memory` is cheap to clone and to slice; steps hold slices of the arena. It is neither `Send` nor `Sync`:
//! the one thread of a rank that runs steps is the only one to touch it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::rc::Rc;

use crate::error::{Error, Result};

/// Every allocation and every offset in an arena is a multiple of this: one cache line, one AVX-512 register.
pub const ALIGNMENT: usize = 64;

/// A range of device memory.
#[derive(Clone)]
pub struct Memory {
    address: *mut u8,
    bytes: usize,
    owner: Rc<dyn Any>,
}

/// A host allocation, freed when the last slice of it goes.
struct HostAllocation {
    start: *mut u8,
    layout: Layout,
}

impl Drop for HostAllocation {
    fn drop(&mut self) {
        // SAFETY: start and layout are those of the allocation made in `Memory::host`.
        unsafe { dealloc(self.start, self.layout) }
    }
}

impl Memory {
    /// Zeroed host memory, aligned to a cache line.
    ///
    /// # Errors
    /// `Environment` when the machine has not that much memory.
    pub fn host(bytes: usize) -> Result<Memory> {
        let too_much = || {
            Error::environment(format!("cannot allocate {bytes} bytes of host memory; use a smaller --batch"))
        };
        // Asked for any address and aligned here: asked for an aligned one the allocator would write every zero itself,
        // where else the system gives zeroed pages as they are touched.
        let room = bytes.checked_add(ALIGNMENT).ok_or_else(too_much)?;
        let layout = Layout::from_size_align(room, 1).map_err(|_| too_much())?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(too_much());
        }
        let address = start.wrapping_add(start.align_offset(ALIGNMENT));
        Ok(Memory { address, bytes, owner: Rc::new(HostAllocation { start, layout }) })
    }

    /// Memory that something else allocated (a shared window, a device) and that lives as long as `owner`.
    ///
    /// # Safety
    /// `address` must be valid for reads and writes of `bytes` bytes while `owner` lives, and nothing else in
    /// this process may touch it while a slice made of this memory is in use.
    pub unsafe fn from_raw(address: *mut u8, bytes: usize, owner: Rc<dyn Any>) -> Memory {
        Memory { address, bytes, owner }
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it begins, in the host's or the device's address space.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// What keeps it alive.
    pub fn owner(&self) -> &Rc<dyn Any> {
        &self.owner
    }

    /// A part of this memory.
    ///
    /// # Panics
    /// When the part does not lie within it: offsets come from a plan, never from a user.
    pub fn slice(&self, offset: usize, bytes: usize) -> Memory {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "slice {offset}+{bytes} of {} bytes",
            self.bytes
        );
        Memory { address: self.address.wrapping_add(offset), bytes, owner: self.owner.clone() }
    }

    /// Whether two ranges share a byte.
    pub fn overlaps(&self, other: &Memory) -> bool {
        let (a, b) = (self.address as usize, other.address as usize);
        a < b + other.bytes && b < a + self.bytes
    }

    /// The memory read as numbers.
    ///
    /// # Safety
    /// Host memory only, and no `slice_mut` of an overlapping range may be in use.
    pub unsafe fn as_slice<T: Number>(&self) -> &[T] {
        // SAFETY: the range is valid while `self` lives (`host`, `from_raw`), aligned (checked by `count`), and
        // every bit pattern is a `Number`; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.count::<T>()) }
    }

    /// The memory to write numbers to.
    ///
    /// # Safety
    /// Host memory only, and no other slice of an overlapping range may be in use.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn as_slice_mut<T: Number>(&self) -> &mut [T] {
        // SAFETY: as in `as_slice`; the caller rules out every other slice.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.count::<T>()) }
    }

    fn count<T>(&self) -> usize {
        assert!((self.address as usize).is_multiple_of(align_of::<T>()), "unaligned memory");
        self.bytes / size_of::<T>()
    }

    /// Copies host bytes in; lengths must be equal. Host memory only.
    pub fn write(&self, from: &[u8]) {
        assert_eq!(from.len(), self.bytes);
        // SAFETY: host memory, touched by this thread only; no slice outlives the call.
        unsafe { self.as_slice_mut::<u8>() }.copy_from_slice(from);
    }

    /// Copies other memory in, which may be the same; lengths must be equal. Host memory only.
    pub fn copy_from(&self, from: &Memory) {
        assert_eq!(from.bytes, self.bytes);
        // SAFETY: host memory, touched by this thread only; both ranges are that long, and may overlap.
        unsafe { std::ptr::copy(from.address, self.address, self.bytes) }
    }

    /// Fills with zeros. Host memory only.
    pub fn zero(&self) {
        // SAFETY: host memory, touched by this thread only; no slice outlives the call.
        unsafe { self.as_slice_mut::<u8>() }.fill(0);
    }

    /// Copies host bytes out; lengths must be equal. Host memory only.
    pub fn read(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.bytes);
        // SAFETY: host memory, touched by this thread only; no slice outlives the call.
        to.copy_from_slice(unsafe { self.as_slice::<u8>() });
    }
}

/// Types of which every bit pattern is a value, so that raw memory may be read as them.
pub trait Number: Copy + sealed::Sealed + 'static {}
mod sealed {
    pub trait Sealed {}
}
macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl sealed::Sealed for $t {}
        impl Number for $t {}
    )*};
}
numbers!(u8, u16, i32, u32, f32, f64, u64, half::bf16, half::f16);

/// The bytes of a slice of numbers, for uploading.
pub fn bytes_of<T: Number>(numbers: &[T]) -> &[u8] {
    // SAFETY: a `Number` has no padding and u8 no alignment.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// The bytes of a slice of numbers, for downloading into.
pub fn bytes_of_mut<T: Number>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; every bit pattern is a `Number`.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}+{}", self.address, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_zeroed_aligned_and_outlives_its_slices_parent() {
        let part = {
            let whole = Memory::host(256).unwrap();
            assert!((whole.address() as usize).is_multiple_of(ALIGNMENT));
            whole.slice(64, 8)
        };
        let mut read = [1u8; 8];
        part.read(&mut read);
        assert_eq!(read, [0; 8]);
        part.write(bytes_of(&[1.5f32, -2.0]));
        part.read(&mut read);
        assert_eq!(&read, bytes_of(&[1.5f32, -2.0]));
        let copy = Memory::host(8).unwrap();
        copy.copy_from(&part);
        copy.read(&mut read);
        assert_eq!(&read, bytes_of(&[1.5f32, -2.0]));
    }

    #[test]
    fn overlap_is_seen() {
        let whole = Memory::host(256).unwrap();
        assert!(whole.slice(0, 65).overlaps(&whole.slice(64, 64)));
        assert!(!whole.slice(0, 64).overlaps(&whole.slice(64, 64)));
    }

    #[test]
    #[should_panic(expected = "slice 200+100")]
    fn a_slice_beyond_the_end_is_refused() {
        Memory::host(256).unwrap().slice(200, 100);
    }

    #[test]
    fn an_impossible_size_is_an_error_not_a_crash() {
        assert!(Memory::host(usize::MAX - 4096).is_err());
    }
}
