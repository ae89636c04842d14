//! The yardstick of the arithmetic: the library's own product of large matrices.

use std::ffi::c_char;
use std::time::Instant;

use super::Cpu;
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
        self.multiply([&a, &b, &c])?;
        let mut least = f64::INFINITY;
        for _ in 0..repeats {
            let begun = Instant::now();
            self.multiply([&a, &b, &c])?;
            least = least.min(begun.elapsed().as_secs_f64());
        }
        Ok(2.0 * (SIDE as f64).powi(3) / least)
    }

    /// c = a·b
    fn multiply(&self, [a, b, c]: [&Memory; 3]) -> Result<()> {
        self.engine.enter();
        let (side, plain) = (SIDE as i64, b'N' as c_char);
        let [a, b, c] = [a, b, c].map(|memory| memory.address().cast::<f32>());
        let library = self.engine.library;
        // SAFETY: each memory holds SIDE·SIDE numbers, and nothing else uses them meanwhile.
        let status = unsafe {
            (library.functions.dnnl_sgemm)(
                plain, plain, side, side, side, 1.0, a, side, b, side, 0.0, c, side,
            )
        };
        super::library::check(status, "dnnl_sgemm")
    }
}
