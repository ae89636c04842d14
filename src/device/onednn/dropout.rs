//! Dropout, forward and backward: one loop, since both multiply by the same mask.

use super::Cpu;
use super::host::{Numbers, copy, host_kernel, in_wide_registers};
use super::layout::plain_f32;
use super::primitive::{inputs, outputs};
use crate::device::{Kernel, KernelRequest, Scalars};
use crate::error::{Error, Result};
use crate::random::{Purpose, key, philox, philox_lanes, uniform};

/// x → x·m/(1−p), on plain layouts of f32: an element's number within its sample decides its fate.
pub fn dropout(cpu: &Cpu, request: &KernelRequest, p: f32, layer: u32, whole: bool) -> Result<Kernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    if x != y || !(0.0..1.0).contains(&p) {
        return Err(Error::internal(format!("dropout with p = {p} of {} to {}", x.shape, y.shape)));
    }
    let (samples, per_sample) = (x.shape.batch(), x.shape.per_sample());
    let (layout, workers) = (plain_f32(&cpu.engine, x)?, cpu.workers.clone());
    let bytes = layout.bytes();
    let kernel =
        host_kernel("dropout", vec![layout.clone()], vec![layout], move |inputs, outputs, scalars| {
            copy(&inputs[0], &outputs[0], bytes);
            let key = key(scalars.seed, Purpose::Dropout, layer);
            let values = Numbers::of(&outputs[0]);
            workers.each(samples, |sample| {
                // SAFETY: samples do not overlap, and nothing else uses the output meanwhile.
                let values = unsafe { values.part_mut(sample * per_sample..(sample + 1) * per_sample) };
                match whole {
                    true => drop_whole(values, key, scalars.first_sample + sample as u64, scalars, p),
                    false => mask(values, key, scalars.first_sample + sample as u64, scalars, p),
                }
            });
            Ok(())
        });
    Ok(kernel.in_place(0))
}

/// All of one sample, or nothing.
fn drop_whole(values: &mut [f32], key: [u32; 2], sample: u64, scalars: &Scalars, p: f32) {
    let counter = [0, sample as u32, scalars.step as u32, (scalars.step >> 32) as u32];
    let kept = 1.0 / (1.0 - p);
    match uniform(philox(key, counter)[0]) < p {
        true => values.fill(0.0),
        false => values.iter_mut().for_each(|value| *value *= kept),
    }
}

in_wide_registers! {
    /// Applies the mask of one sample; `Op::Dropout` defines it.
    fn mask [] (values: &mut [f32], key: [u32; 2], sample: u64, scalars: &Scalars, p: f32) {
        let place = [sample as u32, scalars.step as u32, (scalars.step >> 32) as u32];
        mask_lanes(values, key, place, p);
    }
}

/// Blocks of four random words made at a time: so many that the compiler keeps loops over them, which it can then
/// vectorise (what it unrolls it does not).
const LANES: usize = 64;

#[inline(always)]
fn mask_lanes(values: &mut [f32], key: [u32; 2], [c1, c2, c3]: [u32; 3], p: f32) {
    let kept = 1.0 / (1.0 - p);
    for (index, values) in values.chunks_mut(4 * LANES).enumerate() {
        let mut blocks = [0; LANES];
        blocks.iter_mut().zip(index * LANES..).for_each(|(block, number)| *block = number as u32);
        let words = philox_lanes(key, [blocks, [c1; LANES], [c2; LANES], [c3; LANES]]);
        let mut in_order = [0; 4 * LANES];
        for (lane, block) in in_order.chunks_exact_mut(4).enumerate() {
            for (to, from) in block.iter_mut().zip(&words) {
                *to = from[lane];
            }
        }
        for (value, &word) in values.iter_mut().zip(&in_order) {
            // A product with zero would keep the sign of a dropped number, and a NaN.
            let product = *value * kept;
            *value = if uniform(word) < p { 0.0 } else { product };
        }
    }
}
