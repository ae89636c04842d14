//! Kernels that are loops of our own, for ops that oneDNN lacks, and the threads that share them out.

use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

use rayon::prelude::*;

use crate::device::memory::Number;
use crate::device::{Kernel, Layout, Memory, Scalars};
use crate::error::{Error, Result};

/// Elements that one thread takes at a time: enough to be worth waking a thread for, few enough to stay in its
/// second-level cache with the three or four arrays that a loop walks through.
const PIECE: usize = 1 << 15;

/// The threads for our own loops. oneDNN's own are OpenMP's.
pub struct Workers {
    pool: Option<rayon::ThreadPool>,
}

impl Workers {
    pub fn new(threads: usize) -> Result<Workers> {
        let pool = (threads > 1).then(|| rayon::ThreadPoolBuilder::new().num_threads(threads).build());
        let pool = pool.transpose().map_err(|e| {
            Error::environment(format!("cannot start {threads} threads ({e}); use a smaller --threads"))
        })?;
        Ok(Workers { pool })
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.pool.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Calls `work` for 0..count, on all threads if there are several and more than one call. What each call does
    /// must not depend on the others: the result is then the same for any number of threads.
    pub fn each(&self, count: usize, work: impl Fn(usize) + Sync + Send) {
        match self.pool.as_ref().filter(|_| count > 1) {
            Some(pool) => pool.install(|| (0..count).into_par_iter().for_each(work)),
            None => (0..count).for_each(work),
        }
    }

    /// Calls `work` for every piece of 0..length.
    pub fn each_piece(&self, length: usize, work: impl Fn(Range<usize>) + Sync + Send) {
        self.each(length.div_ceil(PIECE), |index| work(piece(index, length)));
    }
}

/// A function whose loops are compiled for wider registers, too, and run so where the processor has these, with the
/// same bits. What it calls must always be inlined. Generics stand in brackets.
macro_rules! in_wide_registers {
    ($(#[$about:meta])* $vis:vis fn $name:ident [$($generics:tt)*] ($($argument:ident: $of:ty),* $(,)?) $body:block) => {
        $(#[$about])*
        $vis fn $name<$($generics)*>($($argument: $of),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2<$($generics)*>($($argument: $of),*) $body
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has it.
                return unsafe { avx2($($argument),*) };
            }
            $body
        }
    };
}

pub(super) use in_wide_registers;

/// Cuts 0..length into pieces of at most `PIECE` elements.
pub fn pieces(length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length.div_ceil(PIECE)).map(move |index| piece(index, length))
}

fn piece(index: usize, length: usize) -> Range<usize> {
    index * PIECE..length.min((index + 1) * PIECE)
}

/// The numbers in a memory, for several threads to work on different parts of.
#[derive(Clone, Copy)]
pub struct Numbers<'a, T = f32> {
    address: *mut T,
    length: usize,
    _memory: PhantomData<&'a Memory>,
}

// SAFETY: every access goes through `part` and `part_mut`, whose callers rule out overlapping writers.
unsafe impl<T: Number> Send for Numbers<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Number> Sync for Numbers<'_, T> {}

impl<'a> Numbers<'a> {
    pub fn of(memory: &'a Memory) -> Numbers<'a> {
        Numbers::stored(memory)
    }
}

impl<'a, T: Number> Numbers<'a, T> {
    /// Those of a memory that holds this type.
    pub fn stored(memory: &'a Memory) -> Numbers<'a, T> {
        // Every tensor in an arena starts on a cache line (`memory::ALIGNMENT`).
        debug_assert!(memory.address().cast::<T>().is_aligned());
        Numbers {
            address: memory.address().cast(),
            length: memory.bytes() / size_of::<T>(),
            _memory: PhantomData,
        }
    }

    /// # Safety
    /// No `part_mut` of an overlapping range may be in use.
    pub unsafe fn part(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: the range lies within the memory, which outlives 'a; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.address.add(range.start), range.len()) }
    }

    /// # Safety
    /// No other part of an overlapping range may be in use.
    pub unsafe fn part_mut(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: the range lies within the memory, which outlives 'a; the caller rules out other users.
        unsafe { std::slice::from_raw_parts_mut(self.address.add(range.start), range.len()) }
    }
}

/// A kernel made of a loop over the memories of its inputs and outputs; scratch memory that it asks for is one more
/// output.
pub fn host_kernel(
    name: &'static str,
    inputs: Vec<Layout>,
    outputs: Vec<Layout>,
    work: impl Fn(&[Memory], &[Memory], &Scalars) -> Result<()> + 'static,
) -> Kernel {
    let work = Rc::new(work);
    Kernel::new(format!("host:{name}"), inputs, outputs, move |kernel, inputs, outputs, workspace| {
        let mut outputs = outputs.to_vec();
        outputs.extend((kernel.workspace > 0).then(|| workspace.slice(0, kernel.workspace)));
        let (inputs, work) = (inputs.to_vec(), work.clone());
        Ok(Box::new(move |scalars: &Scalars| work(&inputs, &outputs, scalars)))
    })
}

/// Makes `to` hold what `from` holds, unless they are the same memory.
pub fn copy(from: &Memory, to: &Memory, bytes: usize) {
    if from.address() != to.address() {
        // SAFETY: both are at least `bytes` long (checked when they were bound); `ptr::copy` allows overlap.
        unsafe { std::ptr::copy(from.address(), to.address(), bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_length_once() {
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 3] {
            let mut end = 0;
            for piece in pieces(length) {
                assert_eq!(piece.start, end);
                assert!(!piece.is_empty() && piece.len() <= PIECE);
                end = piece.end;
            }
            assert_eq!(end, length);
        }
    }
}
