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
        let threshold = self.threshold;
        for (group, byte) in values.chunks_mut(4).zip(message) {
            *byte = 0;
            for (place, value) in group.iter_mut().enumerate() {
                let (plus, minus) = (*value >= threshold, *value <= -threshold);
                let broken = !value.is_finite();
                let code = (u8::from(plus) | u8::from(broken)) | (u8::from(minus) | u8::from(broken)) << 1;
                *byte |= code << (2 * place);
                *value -= if plus { threshold } else { 0.0 };
                *value += if minus { threshold } else { 0.0 };
            }
        }
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
