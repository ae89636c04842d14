//! The library's own product of matrices: the yardstick of the arithmetic, and what its kernels take.

use std::ffi::c_char;
use std::sync::OnceLock;
use std::time::Instant;

use super::Cpu;
use super::handle::Engine;
use crate::device::Memory;
use crate::device::memory::bytes_of;
use crate::error::Result;

/// Rows and columns of the matrices: 16 MB each, beyond any second-level cache.
const SIDE: usize = 2048;

impl Cpu {
    /// The most operations a second (a multiplication and an addition are two) that a product of f32 matrices of
    /// 2048 × 2048 reaches in `repeats` runs.
    ///
    /// # Errors
    /// `Environment` when there is no memory for the matrices, `Foreign` when the library fails.
    pub fn sgemm_rate(&self, repeats: usize) -> Result<f64> {
        let [a, b, c] =
            [Memory::host(4 * SIDE * SIDE)?, Memory::host(4 * SIDE * SIDE)?, Memory::host(4 * SIDE * SIDE)?];
        let numbers: Vec<f32> = (0..SIDE * SIDE).map(|i| (i % 7) as f32 - 3.0).collect();
        [&a, &b].into_iter().for_each(|memory| memory.write(bytes_of(&numbers)));
        multiply(&self.engine, SIDE, [&a, &b, &c])?;
        let mut least = f64::INFINITY;
        for _ in 0..repeats {
            let begun = Instant::now();
            multiply(&self.engine, SIDE, [&a, &b, &c])?;
            least = least.min(begun.elapsed().as_secs_f64());
        }
        Ok(2.0 * (SIDE as f64).powi(3) / least)
    }
}

/// Has the library make its kernels for products of matrices, as it does with the first product: what it takes for
/// them, some 5 MB with the pages of its generator, is there when a plan says what the process has.
pub fn make_kernels(engine: &Engine) -> Result<()> {
    static MADE: OnceLock<()> = OnceLock::new();
    if MADE.set(()).is_ok() {
        const SIDE: usize = 64;
        let matrix = Memory::host(4 * SIDE * SIDE)?;
        matrix.write(bytes_of(&[0.0f32; SIDE * SIDE]));
        multiply(engine, SIDE, [&matrix, &matrix, &Memory::host(4 * SIDE * SIDE)?])?;
    }
    Ok(())
}

/// c = a·b, each of `side` rows and columns.
fn multiply(engine: &Engine, side: usize, matrices: [&Memory; 3]) -> Result<()> {
    engine.enter();
    for matrix in matrices {
        debug_assert!(matrix.bytes() >= 4 * side * side);
    }
    let (side, plain) = (side as i64, b'N' as c_char);
    let [a, b, c] = matrices.map(|memory| memory.address().cast::<f32>());
    let library = engine.library;
    // SAFETY: each memory holds side·side numbers, and nothing else uses them meanwhile.
    let status = unsafe {
        (library.functions.dnnl_sgemm)(plain, plain, side, side, side, 1.0, a, side, b, side, 0.0, c, side)
    };
    super::library::check(status, "dnnl_sgemm")
}
