//! The numbers of an array: their types in a file, and how they become `f32`.

use std::fmt;

use half::f16;

/// The type of an array's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    pub(super) kind: Kind,
    /// Whether the most significant byte comes first.
    pub(super) big_endian: bool,
}

/// What a number is, whatever the order of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            Kind::F16 => "f16",
            Kind::F32 => "f32",
            Kind::F64 => "f64",
            Kind::I8 => "i8",
            Kind::I16 => "i16",
            Kind::I32 => "i32",
            Kind::I64 => "i64",
            Kind::U8 => "u8",
            Kind::U16 => "u16",
            Kind::U32 => "u32",
            Kind::U64 => "u64",
        };
        f.write_str(name)?;
        if self.big_endian && self.bytes() > 1 { f.write_str(" big-endian") } else { Ok(()) }
    }
}

/// The numbers of a row, each read by `$read` from so many bytes, at places `$stride` apart.
macro_rules! spread {
    ($from:expr, $to:expr, $stride:expr, $bytes:literal, $read:expr) => {{
        let (numbers, _) = $from.as_chunks::<$bytes>();
        if $stride == 1 {
            $to.iter_mut().zip(numbers).for_each(|(to, &number)| *to = $read(number));
        } else {
            $to.iter_mut().step_by($stride).zip(numbers).for_each(|(to, &number)| *to = $read(number));
        }
    }};
}

impl Element {
    /// What the library converts numbers to.
    pub(super) const F32: Element = Element { kind: Kind::F32, big_endian: false };

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self.kind {
            Kind::I8 | Kind::U8 => 1,
            Kind::F16 | Kind::I16 | Kind::U16 => 2,
            Kind::F32 | Kind::I32 | Kind::U32 => 4,
            Kind::F64 | Kind::I64 | Kind::U64 => 8,
        }
    }

    /// Whether it counts, as labels do.
    pub fn is_integer(self) -> bool {
        !matches!(self.kind, Kind::F16 | Kind::F32 | Kind::F64)
    }

    /// A row of numbers as they lie in the file, rounded to `f32`: the first goes to `to[0]`, the next to `to[stride]`.
    /// `to` is as long as the shorter of both takes.
    pub fn spread(self, from: &[u8], to: &mut [f32], stride: usize) {
        match (self.kind, self.big_endian) {
            (Kind::U8, _) => spread!(from, to, stride, 1, |[byte]: [u8; 1]| f32::from(byte)),
            (Kind::I8, _) => spread!(from, to, stride, 1, |[byte]: [u8; 1]| f32::from(byte as i8)),
            (Kind::F16, false) => spread!(from, to, stride, 2, |number| f16::from_le_bytes(number).to_f32()),
            (Kind::F16, true) => spread!(from, to, stride, 2, |number| f16::from_be_bytes(number).to_f32()),
            (Kind::I16, false) => {
                spread!(from, to, stride, 2, |number| f32::from(i16::from_le_bytes(number)))
            }
            (Kind::I16, true) => spread!(from, to, stride, 2, |number| f32::from(i16::from_be_bytes(number))),
            (Kind::U16, false) => {
                spread!(from, to, stride, 2, |number| f32::from(u16::from_le_bytes(number)))
            }
            (Kind::U16, true) => spread!(from, to, stride, 2, |number| f32::from(u16::from_be_bytes(number))),
            (Kind::F32, false) => spread!(from, to, stride, 4, f32::from_le_bytes),
            (Kind::F32, true) => spread!(from, to, stride, 4, f32::from_be_bytes),
            (Kind::I32, false) => spread!(from, to, stride, 4, |number| i32::from_le_bytes(number) as f32),
            (Kind::I32, true) => spread!(from, to, stride, 4, |number| i32::from_be_bytes(number) as f32),
            (Kind::U32, false) => spread!(from, to, stride, 4, |number| u32::from_le_bytes(number) as f32),
            (Kind::U32, true) => spread!(from, to, stride, 4, |number| u32::from_be_bytes(number) as f32),
            (Kind::F64, false) => spread!(from, to, stride, 8, |number| f64::from_le_bytes(number) as f32),
            (Kind::F64, true) => spread!(from, to, stride, 8, |number| f64::from_be_bytes(number) as f32),
            (Kind::I64, false) => spread!(from, to, stride, 8, |number| i64::from_le_bytes(number) as f32),
            (Kind::I64, true) => spread!(from, to, stride, 8, |number| i64::from_be_bytes(number) as f32),
            (Kind::U64, false) => spread!(from, to, stride, 8, |number| u64::from_le_bytes(number) as f32),
            (Kind::U64, true) => spread!(from, to, stride, 8, |number| u64::from_be_bytes(number) as f32),
        }
    }
}
