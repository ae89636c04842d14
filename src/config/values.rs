//! Values of flags: how they are read, and the ranges they must lie in.

use clap::ValueEnum;

use super::{Augment, Compression, DeviceKind, MeshShape, PipelineSchedule, Strategy, SyncBatchNorm};
use crate::error::{Error, Result};

/// Groups of flags where none is given.
pub fn without_flags<T: clap::Args>() -> T {
    let matches = T::augment_args(clap::Command::new("dltrain")).get_matches_from(["dltrain"]);
    T::from_arg_matches(&matches).expect("every flag has a default")
}

/// A value as it is typed.
pub fn name_of<E: ValueEnum>(value: &E) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}

/// All that can be typed.
pub fn names_of<E: ValueEnum>() -> Vec<String> {
    let named = |value: &E| value.to_possible_value().map(|value| value.get_name().to_string());
    E::value_variants().iter().filter_map(named).collect()
}

/// Values that a record has as the text that they print as.
macro_rules! recorded_as_text {
    ($($kind:ty),*) => { $(
        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    )* };
}
recorded_as_text!(Augment, Compression, DeviceKind, PipelineSchedule, Strategy);

/// The first of these that holds: flags that are given, or what is wrong with them.
pub fn first<'a>(of: &[(bool, &'a str)]) -> Option<&'a str> {
    of.iter().find(|(holds, _)| *holds).map(|(_, what)| *what)
}

/// Whether a name is among `names`, which are separated by spaces.
pub fn lists(names: &str, name: &str) -> bool {
    names.split(' ').any(|listed| listed == name)
}

/// A flag that the record has the other way round.
pub fn negated<S: serde::Serializer>(flag: &bool, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_bool(!flag)
}

/// FLOP/s and bytes/s of "790,4300", which is TFLOP/s and GB/s.
pub fn roofline(text: &str) -> std::result::Result<(f64, f64), String> {
    super::rates(text).map(|(tera, giga)| (tera * 1e12, giga * 1e9))
}

/// # Errors
/// `Usage`, naming the flag, where it is 0.
pub fn at_least_one(flag: &str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::usage(format!("--{flag} 0: must be at least 1")));
    }
    Ok(())
}

/// # Errors
/// `Usage`, naming the flag, where it is 0 or more than that.
pub fn within(flag: &str, value: usize, most: usize) -> Result<()> {
    at_least_one(flag, value)?;
    at_most(flag, value, most)
}

/// # Errors
/// `Usage`, naming the flag, where it is more than that.
pub fn at_most(flag: &str, value: usize, most: usize) -> Result<()> {
    if value > most {
        return Err(Error::usage(format!("--{flag} {value}: must be at most {most}")));
    }
    Ok(())
}

/// "all" or a number of ranks.
pub fn sync_batch_norm(text: &str) -> std::result::Result<SyncBatchNorm, String> {
    match text {
        "all" => Ok(SyncBatchNorm::All),
        _ => match text.parse() {
            Ok(ranks) => Ok(SyncBatchNorm::Groups(ranks)),
            Err(_) => Err("a number of ranks, or nothing for all of them".into()),
        },
    }
}

/// "data=2,pipeline=4" or "data=2,tensor=4", in any order; an axis that is not named has one rank.
pub fn mesh(text: &str) -> std::result::Result<MeshShape, String> {
    let mut shape = MeshShape::of_data(1);
    for part in text.split(',') {
        let (axis, ranks) = part.split_once('=').ok_or("it is data=D,pipeline=S or data=D,tensor=T")?;
        let ranks = ranks.parse().ok().filter(|&ranks| ranks > 0);
        let ranks: usize = ranks.ok_or_else(|| format!("{part}: this is no number of ranks"))?;
        match axis {
            "data" => shape.data = ranks,
            "pipeline" => shape.pipeline = ranks,
            "tensor" => shape.tensor = ranks,
            _ => return Err(format!("{axis} is no axis: these are data, pipeline and tensor")),
        }
    }
    Ok(shape)
}

/// 0 to 3.
pub fn zero_stage(text: &str) -> std::result::Result<u8, String> {
    match text.parse() {
        Ok(stage @ 0..=3) => Ok(stage),
        _ => Err(format!("{text} is not in 0..=3: ZeRO has three stages, and 0 is plain data parallelism")),
    }
}

/// "100-119", or "100" for one step.
pub fn steps(text: &str) -> std::result::Result<(u64, u64), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err("two steps, the first not after the last: 100-119".into()),
    }
}

/// Bytes from "16GiB" (powers of 1024), "500MB" (powers of 1000) or "4096".
pub fn size(text: &str) -> std::result::Result<usize, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let factor: f64 = match unit.trim() {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err("a size is a number and a unit: 500MB (powers of 1000), 16GiB (of 1024)".into()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    Ok((number * factor) as usize)
}

/// A number as typed: one beyond 32 bits would be reported as "inf", which nobody typed.
pub fn number(text: &str) -> std::result::Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| "not a number".to_string())?;
    match number.is_infinite() && text.contains(|c: char| c.is_ascii_digit()) {
        true => Err(format!("too large: a number has 32 bits here, up to {:e}", f32::MAX)),
        false => Ok(number),
    }
}

/// # Errors
/// `Usage`, naming the flag, where it is not between the two.
pub fn in_range(flag: &str, value: f32, low: f32, high: f32) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let range = match (low == f32::MIN_POSITIVE, high == f32::MAX) {
        (true, true) => "be above 0, and finite".to_string(),
        (true, false) => format!("be above 0 and at most {high}"),
        (false, true) => format!("be at least {low}, and finite"),
        (false, false) => format!("lie between {low} and {high}"),
    };
    Err(Error::usage(format!("--{flag} {value}: must {range}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_beyond_32_bits_is_not_called_infinite() {
        assert_eq!((number("-1e-3"), number("inf")), (Ok(-1e-3), Ok(f32::INFINITY)));
        assert!(number("1e300").unwrap_err().contains("up to 3.4028235e38") && number("x").is_err());
    }

    #[test]
    fn a_window_of_steps_has_a_first_and_a_last() {
        assert_eq!((steps("100-119"), steps("7")), (Ok((100, 119)), Ok((7, 7))));
        for wrong in ["9-8", "-3", "3-", "a", ""] {
            assert!(steps(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_without_bound_must_be_finite() {
        let said = |value, low| in_range("lr", value, low, f32::MAX).unwrap_err().message;
        assert_eq!(said(f32::INFINITY, f32::MIN_POSITIVE), "--lr inf: must be above 0, and finite");
        assert_eq!(said(f32::NAN, 1.0), "--lr NaN: must be at least 1, and finite");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("16GiB"), Ok(16 << 30));
        assert_eq!(size("1.5 MB"), Ok(1_500_000));
        assert_eq!(size("4096"), Ok(4096));
        for wrong in ["16G", "GiB", "-1GB", "1.2.3kB", ""] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
