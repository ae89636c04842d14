//! One bit: of each number the sign; what stands for it is the mean of all numbers of that sign in the piece.
//!
//! Frank Seide, Hao Fu, Jasha Droppo, Gang Li and Dong Yu: "1-bit stochastic gradient descent and its application to
//! data-parallel distributed training of speech DNNs", Interspeech 2014: threshold zero, two values that leave no mean
//! error, for pieces of a tensor in place of columns of a matrix. It takes off at least as much of the squared norm as
//! the scaled sign ‖p‖₁/n·sign(p) of Karimireddy et al. (ICML 2019), whose convergence proof so holds.
//!
//! Message: the mean of the numbers ≥ 0 and that of the others, f32; then a bit a number, set where it is ≥ 0.

use super::codec::Codec;

pub struct OneBit;

/// Bytes of the two means.
const MEANS: usize = 8;

impl Codec for OneBit {
    fn bytes(&self, elements: usize) -> usize {
        if elements == 0 { 0 } else { MEANS + elements.div_ceil(8) }
    }

    fn encode(&mut self, values: &mut [f32], message: &mut [u8]) {
        if values.is_empty() {
            return;
        }
        let means = means(values);
        let (head, bits) = message.split_at_mut(MEANS);
        head[..4].copy_from_slice(&means[1].to_le_bytes());
        head[4..].copy_from_slice(&means[0].to_le_bytes());
        let (groups, rest) = values.as_chunks_mut::<8>();
        let (bits, last) = bits.split_at_mut(groups.len());
        groups.iter_mut().zip(bits).for_each(|(group, bits)| *bits = take(group, means));
        last.iter_mut().for_each(|bits| *bits = take(rest, means));
    }

    fn add(&self, message: &[u8], sum: &mut [f32]) {
        let Some((head, bits)) = message.split_at_checked(MEANS) else { return };
        let number = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let means = [number(&head[4..]), number(&head[..4])];
        let (groups, rest) = sum.as_chunks_mut::<8>();
        let (bits, last) = bits.split_at(groups.len());
        groups.iter_mut().zip(bits).for_each(|(group, &bits)| put(group, means, bits));
        last.iter().for_each(|&bits| put(rest, means, bits));
    }
}

/// Takes from each of up to eight numbers the mean of its sign; returns the signs.
#[inline]
fn take(group: &mut [f32], means: [f32; 2]) -> u8 {
    let mut bits = 0;
    for (place, value) in group.iter_mut().enumerate() {
        let sign = *value >= 0.0;
        bits |= u8::from(sign) << place;
        *value -= choose(means, sign);
    }
    bits
}

/// Adds them.
#[inline]
fn put(group: &mut [f32], means: [f32; 2], bits: u8) {
    for (place, sum) in group.iter_mut().enumerate() {
        *sum += choose(means, bits >> place & 1 == 1);
    }
}

/// The second of two numbers where it holds, without a branch: signs are as random as can be, and a processor that
/// guesses them is wrong every other time.
#[inline]
fn choose([below, above]: [f32; 2], holds: bool) -> f32 {
    let mask = 0u32.wrapping_sub(u32::from(holds));
    f32::from_bits((above.to_bits() & mask) | (below.to_bits() & !mask))
}

/// The mean of the numbers below zero, and that of the others; zero where there are none. What is not a number counts
/// as below zero.
fn means(values: &[f32]) -> [f32; 2] {
    const LANES: usize = 8;
    let (mut sums, mut counts) = ([[0f64; LANES]; 2], [0u32; LANES]);
    let mut count = |group: &[f32]| {
        for (lane, &value) in group.iter().enumerate() {
            let sign = value >= 0.0;
            sums[0][lane] += f64::from(choose([value, 0.0], sign));
            sums[1][lane] += f64::from(choose([0.0, value], sign));
            counts[lane] += u32::from(sign);
        }
    };
    let (groups, rest) = values.as_chunks::<LANES>();
    groups.iter().for_each(|group| count(group));
    count(rest);
    let above = counts.iter().sum::<u32>() as usize;
    let mean = |sums: &[f64], count: usize| (sums.iter().sum::<f64>() / count.max(1) as f64) as f32;
    [mean(&sums[0], values.len() - above), mean(&sums[1], above)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Karimireddy et al. ask that a step takes off some of the squared norm: here no less than the scaled sign does.
    #[test]
    fn what_stays_is_no_more_than_with_the_scaled_sign() {
        let squares = |values: &[f32]| values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
        for step in 1..50 {
            let values: Vec<f32> = (0..97).map(|i| ((i * step * 7919) % 101) as f32 / 50.0 - 0.7).collect();
            let sum: f64 = values.iter().map(|&v| f64::from(v.abs())).sum();
            let mut residual = values.clone();
            OneBit.encode(&mut residual, &mut vec![0; OneBit.bytes(values.len())]);
            let with_sign = squares(&values) - sum * sum / values.len() as f64;
            assert!(squares(&residual) <= with_sign + 1e-4, "{} above {with_sign}", squares(&residual));
            assert!(residual.iter().sum::<f32>().abs() < 1e-4, "the mean is off");
        }
    }
}
