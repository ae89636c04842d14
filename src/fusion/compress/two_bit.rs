//! Two bits: plus a threshold, minus it, or nothing.
//!
//! The scheme of MXNet's `kvstore` ("Gradient compression" in its documentation), after Nikko Ström: "Scalable
//! distributed DNN training using commodity GPU cloud computing", Interspeech 2015. Of a number that has reached the
//! threshold one threshold is sent, and the rest stays: a gradient that is larger than that in every step is sent ever
//! later.
//!
//! Message: four numbers a byte. 0 nothing, 1 plus, 2 minus, 3 not a finite number.

use super::codec::Codec;

pub struct TwoBit {
    /// Of a rank's part of the sum.
    pub threshold: f32,
}

impl Codec for TwoBit {
    fn bytes(&self, elements: usize) -> usize {
        elements.div_ceil(4)
    }

    fn encode(&mut self, values: &mut [f32], message: &mut [u8]) {
        let (groups, rest) = values.as_chunks_mut::<4>();
        let (bytes, last) = message.split_at_mut(groups.len());
        groups.iter_mut().zip(bytes).for_each(|(group, byte)| *byte = take(group, self.threshold));
        last.iter_mut().for_each(|byte| *byte = take(rest, self.threshold));
    }

    fn add(&self, message: &[u8], sum: &mut [f32]) {
        let meanings = [0.0, self.threshold, -self.threshold, f32::NAN];
        for (group, byte) in sum.chunks_mut(4).zip(message) {
            for (place, sum) in group.iter_mut().enumerate() {
                *sum += meanings[usize::from(byte >> (2 * place) & 3)];
            }
        }
    }
}

/// Takes from each of up to four numbers what is sent of it; returns the codes. Without branches, which would be taken
/// at random.
#[inline]
fn take(group: &mut [f32], threshold: f32) -> u8 {
    let mut byte = 0;
    for (place, value) in group.iter_mut().enumerate() {
        let broken = u32::from(!value.is_finite());
        let reached = u32::from(value.abs() >= threshold);
        let minus = value.to_bits() >> 31;
        // Plus 1, minus 2, both 3.
        let code = reached << minus | broken | broken << 1;
        byte |= (code as u8) << (2 * place);
        let sent = (threshold.to_bits() | minus << 31) & 0u32.wrapping_sub(reached);
        *value -= f32::from_bits(sent);
    }
    byte
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_threshold_goes_at_a_time() {
        let mut codec = TwoBit { threshold: 0.5 };
        let mut values = [0.75, -1.25, 0.25, -0.5, 0.5];
        let mut message = [0; 2];
        codec.encode(&mut values, &mut message);
        assert_eq!(values, [0.25, -0.75, 0.25, 0.0, 0.0]);
        let mut sum = [1.0; 5];
        codec.add(&message, &mut sum);
        assert_eq!(sum, [1.5, 0.5, 1.0, 0.5, 1.5]);
    }
}
