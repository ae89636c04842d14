//! The numbers of an array: their types in a file, and how they become `f32`.

use std::fmt;

use half::f16;
use serde::{Deserialize, Serialize};

/// The type of an array's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberType {
    pub(super) kind: NumberKind,
    /// Whether the most significant byte comes first.
    pub(super) big_endian: bool,
}

impl fmt::Display for NumberType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{:?}", self.kind).to_lowercase())?;
        if self.big_endian && self.bytes() > 1 { f.write_str(" big-endian") } else { Ok(()) }
    }
}

/// Numbers, each read by `$read` from as many bytes as it takes.
macro_rules! numbers {
    ($from:expr, $to:expr, $read:expr) => {
        $to.iter_mut().zip($from.as_chunks().0).for_each(|(to, &number)| *to = $read(number))
    };
}

/// One channel of groups of four numbers of 16 bits, whose lower and upper bytes lie apart: a group's bytes are one word
/// of either, so that processors take several groups at once.
macro_rules! one_of_four {
    ($low:expr, $high:expr, $channel:expr, $to:expr, $number:expr) => {{
        let byte = |word: &[u8; 4]| u32::from_le_bytes(*word) >> (8 * $channel) & 0xff;
        let words = $low.iter().zip($high);
        let number = |(low, high)| $number((byte(low) | byte(high) << 8) as u16);
        $to.iter_mut().zip(words.map(number)).for_each(|(to, number)| *to = number);
    }};
}

/// The kinds of numbers, a row each: its type in Rust, the kind of as many bits without a sign (of real numbers
/// itself), how a number becomes `f32`, and what netCDF's library writes where nothing else was written (NC_FILL_… of
/// netcdf.h).
macro_rules! kinds {
    ($($kind:ident $number:ident $unsigned:ident $to_f32:expr, $fill:expr;)*) => {
        /// What a number is, whatever the order of its bytes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub(super) enum NumberKind {
            $($kind,)*
        }

        impl NumberType {
            /// Bytes of one number.
            pub fn bytes(self) -> usize {
                match self.kind {
                    $(NumberKind::$kind => size_of::<$number>(),)*
                }
            }

            /// The type of as many bits without a sign; real numbers have one always.
            pub(super) fn unsigned(self) -> NumberType {
                let kind = match self.kind {
                    $(NumberKind::$kind => NumberKind::$unsigned,)*
                };
                NumberType { kind, ..self }
            }

            /// What netCDF's library writes where nothing else was written: for bytes nothing.
            pub(super) fn netcdf_fill(self) -> Option<f64> {
                match self.kind {
                    $(NumberKind::$kind => $fill,)*
                }
            }

            /// Numbers as they lie in the file, rounded to `f32`.
            pub fn numbers(self, from: &[u8], to: &mut [f32]) {
                match (self.kind, self.big_endian) {
                    $((NumberKind::$kind, false) => {
                        numbers!(from, to, |bytes| $to_f32($number::from_le_bytes(bytes)));
                    }
                    (NumberKind::$kind, true) => {
                        numbers!(from, to, |bytes| $to_f32($number::from_be_bytes(bytes)));
                    })*
                }
            }
        }
    };
}

kinds! {
    F16 f16 F16 f16::to_f32, None;
    F32 f32 F32 f32::from, Some(9.969_209_968_386_869e36);
    F64 f64 F64 |number| number as f32, Some(9.969_209_968_386_869e36);
    I8 i8 U8 f32::from, None;
    I16 i16 U16 f32::from, Some(-32_767.0);
    I32 i32 U32 |number| number as f32, Some(-2_147_483_647.0);
    I64 i64 U64 |number| number as f32, Some(-9_223_372_036_854_775_806.0);
    U8 u8 U8 f32::from, None;
    U16 u16 U16 f32::from, Some(65_535.0);
    U32 u32 U32 |number| number as f32, Some(4_294_967_295.0);
    U64 u64 U64 |number| number as f32, Some(18_446_744_073_709_551_614.0);
}

/// How a number of a file is handed on: as `f32`, or where it has 8 or 16 bits as these, its code. What a code stands
/// for is `NumberType::of_codes`.
pub trait FileNumber: Copy + Default {
    /// The widest number of a file that it may stand for, in bytes.
    const WIDEST: usize;

    /// What stands for no number in every array, if anything does.
    const NONE: Option<Self>;

    /// Numbers as they lie in the file.
    fn read(element: NumberType, from: &[u8], to: &mut [Self]);

    /// One channel of groups of four numbers of 16 bits, whose lower and upper bytes lie apart.
    fn one_of_four(element: NumberType, bytes: [&[[u8; 4]]; 2], channel: usize, to: &mut [Self]);
}

impl FileNumber for f32 {
    const WIDEST: usize = 8;
    const NONE: Option<f32> = Some(f32::NAN);

    fn read(element: NumberType, from: &[u8], to: &mut [f32]) {
        element.numbers(from, to);
    }

    fn one_of_four(element: NumberType, [low, high]: [&[[u8; 4]]; 2], channel: usize, to: &mut [f32]) {
        match element.kind {
            NumberKind::I16 => one_of_four!(low, high, channel, to, |code| f32::from(code as i16)),
            NumberKind::F16 => one_of_four!(low, high, channel, to, |code| f16::from_bits(code).to_f32()),
            _ => one_of_four!(low, high, channel, to, f32::from),
        }
    }
}

impl FileNumber for u8 {
    const WIDEST: usize = 1;
    const NONE: Option<u8> = None;

    fn read(_: NumberType, from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
    }

    fn one_of_four(_: NumberType, [low, _]: [&[[u8; 4]]; 2], channel: usize, to: &mut [u8]) {
        to.iter_mut().zip(low).for_each(|(to, group)| *to = group[channel]);
    }
}

impl FileNumber for u16 {
    const WIDEST: usize = 2;
    const NONE: Option<u16> = None;

    fn read(element: NumberType, from: &[u8], to: &mut [u16]) {
        match (element.bytes(), element.big_endian) {
            (1, _) => numbers!(from, to, |[byte]: [u8; 1]| u16::from(byte)),
            (_, false) => numbers!(from, to, u16::from_le_bytes),
            (_, true) => numbers!(from, to, u16::from_be_bytes),
        }
    }

    fn one_of_four(_: NumberType, [low, high]: [&[[u8; 4]]; 2], channel: usize, to: &mut [u16]) {
        one_of_four!(low, high, channel, to, |code| code);
    }
}

/// By how much a number of a file is more than it is as `f32`; NaN where only that is known.
#[derive(Clone, Copy, Default)]
pub struct RoundedOff(pub f64);

impl FileNumber for RoundedOff {
    const WIDEST: usize = 8;
    const NONE: Option<RoundedOff> = Some(RoundedOff(f64::NAN));

    fn read(element: NumberType, from: &[u8], to: &mut [RoundedOff]) {
        let size = element.bytes();
        let whole = |number: i128| (number - (number as f32) as i128) as f64;
        let real = |number: f64| number - f64::from(number as f32);
        for (to, number) in to.iter_mut().zip(from.chunks_exact(size)) {
            let mut bytes = [0; 8];
            bytes[..size].copy_from_slice(number);
            if element.big_endian {
                bytes[..size].reverse();
            }
            let bits = u64::from_le_bytes(bytes);
            *to = RoundedOff(match element.kind {
                NumberKind::I32 => whole((bits as i32).into()),
                NumberKind::U32 | NumberKind::U64 => whole(bits.into()),
                NumberKind::I64 => whole((bits as i64).into()),
                NumberKind::F64 => real(f64::from_bits(bits)),
                _ => 0.0,
            });
        }
    }

    fn one_of_four(_: NumberType, _: [&[[u8; 4]]; 2], _: usize, to: &mut [RoundedOff]) {
        to.fill(RoundedOff(0.0));
    }
}

impl NumberType {
    /// What the library converts numbers to.
    pub(crate) const F32: NumberType = NumberType { kind: NumberKind::F32, big_endian: false };
    #[cfg(test)]
    pub(crate) const F64: NumberType = NumberType { kind: NumberKind::F64, big_endian: false };
    #[cfg(test)]
    pub(crate) const I64: NumberType = NumberType { kind: NumberKind::I64, big_endian: false };

    /// The numbers of all codes of 8 or 16 bits, in the order of the codes (`FileNumber`); none of wider types.
    pub fn of_codes(self) -> Vec<f32> {
        let (native, bytes) = (NumberType { big_endian: false, ..self }, self.bytes());
        let codes = if bytes > 2 { 0 } else { 1 << (8 * bytes) };
        let codes: Vec<u8> =
            (0..codes as u32).flat_map(|code| code.to_le_bytes()[..bytes].to_vec()).collect();
        let mut numbers = vec![0.0; codes.len() / bytes];
        native.numbers(&codes, &mut numbers);
        numbers
    }

    /// Whether some of its numbers are rounded when they become f32.
    pub fn is_rounded(self) -> bool {
        self.bytes() > 2 && self.kind != NumberKind::F32
    }

    /// Whether it counts, as labels do.
    pub fn is_integer(self) -> bool {
        !matches!(self.kind, NumberKind::F16 | NumberKind::F32 | NumberKind::F64)
    }
}

/// Writes a number with six significant digits, in scientific notation where it is very large or small.
pub fn six_digits(number: f64) -> String {
    let power = if number == 0.0 { 0 } else { number.abs().log10().floor() as i32 };
    let text = match power {
        -4..=5 => format!("{number:.*}", (5 - power) as usize),
        _ => return format!("{number:.5e}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_six_digits() {
        let numbers = [0.0, 12.5, -0.000123456, 2.4e-5, 1e25, 123456.0, 0.1 + 0.2].map(six_digits);
        assert_eq!(numbers, ["0", "12.5", "-0.000123456", "2.40000e-5", "1.00000e25", "123456", "0.3"]);
    }
}
