//! Numbers as they travel between ranks.

use clap::ValueEnum;
use half::{bf16, f16};
use serde::Serialize;

use super::values::name_of;

/// The type in which gradients travel between ranks. Half the bytes for fewer digits (bf16: the range of f32 with 8
/// bits of precision; f16: 11 bits, up to 65504). Numbers are added as f32 wherever they travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// As they are computed.
    F32,
    /// Half the bytes, with the range of f32 and 8 bits of precision.
    Bf16,
    /// Half the bytes, with 11 bits of precision, up to 65504.
    F16,
}

impl std::fmt::Display for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&name_of(self))
    }
}

impl Wire {
    /// How many `f32` words so many elements take: two halves go into one.
    pub fn words(self, elements: usize) -> usize {
        match self {
            Wire::F32 => elements,
            Wire::Bf16 | Wire::F16 => elements.div_ceil(2),
        }
    }

    /// Rounds numbers to what travels, and puts that into words. What was rounded stays so: all ranks then have the
    /// same.
    pub fn pack(self, values: &mut [f32], words: &mut [f32]) {
        match self {
            Wire::F32 => words.copy_from_slice(values),
            Wire::Bf16 => pack::<bf16>(values, words),
            Wire::F16 => pack::<f16>(values, words),
        }
    }

    /// Takes numbers out of words again: in place of what is there, or added to it. The sum is f32, and rounded to what
    /// travels: either it travels next, or it is the last one, of which other ranks have made the same.
    pub fn unpack(self, words: &[f32], values: &mut [f32], add: bool) {
        match (self, add) {
            (Wire::F32, true) => values.iter_mut().zip(words).for_each(|(v, word)| *v += word),
            (Wire::F32, false) => values.copy_from_slice(words),
            (Wire::Bf16, _) => unpack::<bf16>(words, values, add),
            (Wire::F16, _) => unpack::<f16>(words, values, add),
        }
    }
}

/// A number of 16 bits.
trait Half {
    fn bits(value: f32) -> u16;
    fn value(bits: u16) -> f32;
}

impl Half for bf16 {
    #[inline]
    fn bits(value: f32) -> u16 {
        bf16::from_f32(value).to_bits()
    }

    #[inline]
    fn value(bits: u16) -> f32 {
        bf16::from_bits(bits).to_f32()
    }
}

impl Half for f16 {
    #[inline]
    fn bits(value: f32) -> u16 {
        f16::from_f32(value).to_bits()
    }

    #[inline]
    fn value(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }
}

fn pack<H: Half>(values: &mut [f32], words: &mut [f32]) {
    for (pair, word) in values.chunks_mut(2).zip(words) {
        let mut bits = 0;
        for (place, value) in pair.iter_mut().enumerate() {
            let half = H::bits(*value);
            *value = H::value(half);
            bits |= u32::from(half) << (16 * place);
        }
        *word = f32::from_bits(bits);
    }
}

fn unpack<H: Half>(words: &[f32], values: &mut [f32], add: bool) {
    for (pair, word) in values.chunks_mut(2).zip(words) {
        let bits = word.to_bits();
        for (place, value) in pair.iter_mut().enumerate() {
            let came = H::value((bits >> (16 * place)) as u16);
            *value = if add { H::value(H::bits(*value + came)) } else { came };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_travel_in_words_and_are_rounded_at_home_too() {
        for (wire, rounded) in [(Wire::Bf16, 1.0078125), (Wire::F16, 1.0039063)] {
            for count in 0..6 {
                let mut values: Vec<f32> = (0..count).map(|i| 1.004 + i as f32).collect();
                let mut words = vec![9.0; wire.words(count)];
                wire.pack(&mut values, &mut words);
                assert!(count == 0 || values[0] == rounded, "{values:?}");
                let mut back = vec![0.5; count];
                wire.unpack(&words, &mut back, false);
                assert_eq!(back, values);
                wire.unpack(&words, &mut back, true);
                assert!(back.iter().zip(&values).all(|(b, v)| *b == 2.0 * v));
            }
        }
    }
}
