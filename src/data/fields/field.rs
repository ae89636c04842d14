//! An array as a flag names it, and by what its numbers are rescaled.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use super::list::{FieldList, FieldShape};
use super::statistics::FileStatistics;
use super::{ChannelScale, FieldSet, LearnedArray, SampleField, TargetAxes, TargetShape};
use crate::config::FieldOptions;
use crate::error::{Error, Result};
use crate::fields::{ArrayReader, ArrayStorage, Moments, NumberType, RoundedOff, View, six_digits};

/// An array as a flag names it: a view, and what rescales its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The flag that names it.
    pub flag: &'static str,
    /// What the flag says.
    pub text: String,
    /// The array, and which axes of it are what.
    pub view: View,
    /// Whether ln(1 + x) takes the place of x, before anything else.
    pub log1p: bool,
    /// By what a file says, or by the training samples.
    pub rescaling: Option<(Rescaling, Option<PathBuf>)>,
}

/// To what the numbers of a channel are rescaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rescaling {
    /// To mean 0 and deviation 1.
    Standard,
    /// To 0…1.
    MinMax,
}

impl Rescaling {
    /// What the names of two arrays begin with that say it.
    fn starts(self) -> [&'static str; 2] {
        match self {
            Rescaling::Standard => ["mean", "std"],
            Rescaling::MinMax => ["min", "max"],
        }
    }
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Field, String> {
        let end = text.rfind(']').map_or(0, |at| at + 1);
        let mut words = text[end..].split(':');
        let view = &text[..end + words.next().map_or(0, str::len)];
        let (mut log1p, mut rescaling) = (false, None);
        for word in words {
            let with_file = word.strip_suffix(')').and_then(|word| word.split_once('('));
            let (name, file) = with_file.map_or((word, None), |(name, file)| (name, Some(file.into())));
            match name {
                "log1p" if rescaling.is_none() && file.is_none() => log1p = true,
                "standard" => rescaling = Some((Rescaling::Standard, file)),
                "minmax" => rescaling = Some((Rescaling::MinMax, file)),
                _ => {
                    return Err(format!(
                        "{text:?}: behind the view stands log1p, standard, minmax, standard(FILE) or minmax(FILE), and \
                         not {word:?}; a name with a colon needs brackets behind it, as a:b[n]"
                    ));
                }
            }
        }
        Ok(Field { flag: "", text: text.into(), view: view.parse()?, log1p, rescaling })
    }
}

impl Field {
    /// The axes of targets that weights learned from; `None` where there are none.
    pub fn target_axes(targets: &[LearnedArray]) -> Option<TargetAxes> {
        let first = targets.first()?.field.parse::<Field>().ok();
        let is_last = first.and_then(|of| of.view.channels_last()).unwrap_or(false);
        let channels = targets.iter().map(|of| of.scale.len()).sum();
        Some(TargetAxes { shape: TargetShape::Channels(channels), is_last })
    }

    /// Those of `--input`, `--target` and `--weight`, in this order.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn all(options: &FieldOptions) -> Result<Vec<Field>> {
        let FieldOptions { inputs, targets, weights, .. } = options;
        let flags = [("--input", inputs), ("--target", targets), ("--weight", weights)];
        let each = flags.into_iter().flat_map(|(flag, texts)| texts.iter().map(move |text| (flag, text)));
        let field = |(flag, text): (&'static str, &String)| {
            let field: Field = text.parse().map_err(|what| Error::usage(format!("{flag}: {what}")))?;
            Ok(Field { flag, ..field })
        };
        each.map(field).collect()
    }

    /// Whether its numbers are rescaled or their logarithms taken.
    pub fn is_rescaled(&self) -> bool {
        self.log1p || self.rescaling.is_some()
    }

    /// An error of the flag.
    pub fn wrong(&self, what: impl Display) -> Error {
        Error::usage(format!("{} {}: {what}", self.flag, self.text))
    }
}

impl FieldSet {
    /// Makes of what a network gives of a sample what its target's numbers were before they were rescaled.
    pub fn unscale(&self, output: &mut [f32]) {
        let targets = self.scales.get(self.list.inputs..).unwrap_or_default();
        if self.list.classes.is_some() || targets.is_empty() {
            return;
        }
        let channels: usize = targets.iter().map(|of| of.scale.len()).sum();
        let each = output.len() / channels.max(1);
        let is_log = |of: &LearnedArray| of.field.parse::<Field>().is_ok_and(|field| field.log1p);
        let factors = targets.iter().flat_map(|of| {
            let log = is_log(of);
            of.scale.iter().zip(&of.shift).map(move |(scale, shift)| (*scale, *shift, log))
        });
        for ((scale, shift, is_log), values) in factors.zip(output.chunks_exact_mut(each.max(1))) {
            let channel = ChannelScale::new(scale, shift);
            for value in values {
                *value = if (scale, shift) == (1.0, 0.0) { *value } else { channel.undo(*value) };
                *value = if is_log { value.exp_m1() } else { *value };
            }
        }
    }

    /// Whether a rescaling has to be found out from the samples.
    pub fn is_to_be_measured(&self) -> bool {
        (0..self.list.fields.len()).any(|at| self.is_measured(at))
    }

    /// Whether the rescaling of a field is found out from its own numbers.
    fn is_measured(&self, at: usize) -> bool {
        matches!(self.list.fields[at].rescaling, Some((_, None))) && self.like(at) == at
    }

    /// By which field one is rescaled: by the first that has the same numbers, as input and target of one array have.
    fn like(&self, at: usize) -> usize {
        let field = &self.list.fields[at];
        let alike = |other: &Field| {
            other.view.has_numbers_of(&field.view)
                && (other.log1p, &other.rescaling) == (field.log1p, &field.rescaling)
        };
        self.list.fields[..at].iter().position(alike).unwrap_or(at)
    }

    /// How many numbers `moments` gives of a sample.
    pub fn moment_count(&self) -> usize {
        let compared = &self.list.shapes[..self.list.compared];
        Moments::NUMBERS * compared.iter().map(FieldShape::channels).sum::<usize>()
    }

    /// Of one sample, for each channel of each field the `Moments` as numbers; zeros of those that nothing is rescaled
    /// by.
    ///
    /// # Errors
    /// `Data`.
    pub fn moments(&self, index: usize) -> Result<Vec<f64>> {
        let mut readers = Vec::new();
        let mut moments = Vec::new();
        let place = self.place(index);
        for at in 0..self.list.compared {
            let shape = &self.list.shapes[at];
            if !self.is_measured(at) {
                moments.resize(moments.len() + Moments::NUMBERS * shape.channels(), 0.0);
                continue;
            }
            let mut values = vec![0f32; shape.numbers()];
            let field = SampleField { place: &place, at, rows: None };
            self.raw(field, &mut readers, &mut values)?;
            let rest = self.rounded_off(field, &mut readers, &values)?;
            let each = values.len() / shape.channels();
            for (channel, rest) in values.chunks_exact(each).zip(rest.chunks_exact(each)) {
                moments.extend(Moments::of(channel).rounded(channel, rest).numbers());
            }
        }
        Ok(moments)
    }

    /// What f32 rounds off a field. It is read where channels are one number without: of others it says nothing.
    fn rounded_off(
        &self,
        field: SampleField,
        readers: &mut Vec<ArrayReader>,
        values: &[f32],
    ) -> Result<Vec<RoundedOff>> {
        let array = &field.place.0.arrays[field.at].0;
        let mut rest = vec![RoundedOff(0.0); values.len()];
        let is_one = |channel: &[f32]| {
            let mut numbers = channel.iter().filter(|value| value.is_finite());
            numbers.next().is_some_and(|first| numbers.all(|number| number == first))
        };
        let mut channels = values.chunks_exact(values.len() / self.list.shapes[field.at].channels());
        if array.element.is_rounded() && channels.any(is_one) {
            match &array.storage {
                // The library hands over f32.
                ArrayStorage::Library(_) => rest.fill(RoundedOff(f64::NAN)),
                _ => {
                    self.stored(field, readers, &mut rest)?;
                }
            }
        }
        Ok(rest)
    }

    /// The moments of samples before, and of some more, each of so many numbers, one sample behind the other.
    pub fn together(mut total: Vec<f64>, more: &[f64], width: usize) -> Vec<f64> {
        total.resize(width, 0.0);
        for sample in more.chunks_exact(width.max(1)) {
            let channels = total.chunks_exact_mut(Moments::NUMBERS);
            for (all, own) in channels.zip(sample.chunks_exact(Moments::NUMBERS)) {
                all.copy_from_slice(&Moments::read(all).and(Moments::read(own)).numbers());
            }
        }
        total
    }

    /// The rescaling that follows from the moments of some samples together, and from files that flags name; and of
    /// each field which arrays of such a file say it.
    ///
    /// # Errors
    /// `Data` for such a file; `Usage` for numbers that nothing rescales.
    pub fn rescaling(&self, moments: &[f64]) -> Result<(Vec<LearnedArray>, Vec<Option<String>>)> {
        let FieldList { fields, shapes, .. } = &*self.list;
        let (mut scales, mut by_files) = (self.scales.to_vec(), vec![None; fields.len()]);
        for (at, (field, scale)) in fields.iter().zip(&mut scales).enumerate() {
            let (first, channels) = (
                shapes[..self.like(at)].iter().map(FieldShape::channels).sum::<usize>(),
                shapes[at].channels(),
            );
            let Some((rescaling, file)) = &field.rescaling else { continue };
            // Those of logarithms have none.
            let unit = scale.unit.as_deref().filter(|_| !field.log1p);
            let of_file =
                |path| FileStatistics::of(path, rescaling.starts(), (&field.view.array, channels), unit);
            let said = file.as_deref().map(of_file).transpose();
            let said = said.map_err(|error| error.context(&scale.field))?;
            by_files[at] = said.as_ref().map(|of| of.said.clone());
            for channel in 0..channels {
                let numbers = moments.chunks_exact(Moments::NUMBERS).nth(first + channel);
                let own = Moments::read(numbers.unwrap_or_default());
                let [low, high] = said.as_ref().map_or([own.least, own.most], |of| of.channels[channel]);
                let (offset, width) = match (rescaling, &said) {
                    (Rescaling::Standard, None) => (own.mean, own.deviation()),
                    (Rescaling::Standard, Some(_)) => (low, high),
                    (Rescaling::MinMax, _) => (low, high - low),
                };
                if !offset.is_finite() || !width.is_finite() {
                    let what = format!("{}: no number to rescale channel {channel} by", scale.field);
                    return Err(Error::usage(what));
                }
                let ends = match (rescaling, &said) {
                    (Rescaling::Standard, Some(_)) => [offset - width, offset + width],
                    _ => [low, high],
                };
                if said.is_some() || !own.are_alike() {
                    let element = self.files[0].arrays[at].0.element;
                    told_apart(&scale.field, (element, field.log1p), width, ends)?;
                }
                // Numbers that are all alike become 0.
                let width = if width > 0.0 { width } else { 1.0 };
                scale.scale[channel] = (1.0 / width) as f32;
                scale.shift[channel] = (-offset / width) as f32;
            }
        }
        Ok((scales, by_files))
    }
}

/// Fails where the numbers of an array differ by little more than what f32 rounds them by.
fn told_apart(
    field: &str,
    (element, log1p): (NumberType, bool),
    width: f64,
    [low, high]: [f64; 2],
) -> Result<()> {
    /// Steps of f32 that a deviation has at least: rounding is then 0.2 % of it at the most.
    const STEPS: f64 = 256.0;
    let greatest = low.abs().max(high.abs());
    let step_at = |number: f64| f64::from((number as f32).next_up() - number as f32);
    let step = step_at(greatest);
    // Whole numbers up to 2^24 are not rounded, before their logarithm is taken.
    let is_whole = element.is_integer() && step_at(if log1p { greatest.exp_m1() } else { greatest }) <= 1.0;
    let is_exact = !element.is_rounded() || is_whole || greatest == 0.0;
    // Where none was measured the least is behind the greatest.
    if is_exact || width >= STEPS * step || low > high {
        return Ok(());
    }
    let (low, high, step) = (six_digits(low), six_digits(high), six_digits(step));
    Err(Error::usage(format!(
        "{field}: its numbers are {element} from {low} to {high}, where f32, in which networks compute, has steps of \
         {step}, and they differ by little more: subtract in the file what they have in common. If they are all the \
         same, leave its rescaling out"
    )))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{options, read};
    use super::*;
    use crate::config::{FieldOptions, Missing};

    #[test]
    fn numbers_that_f32_does_not_tell_apart_are_refused() {
        let of = |element, width, ends| told_apart("p:standard", (element, false), width, ends);
        let [real, whole] = [NumberType::F64, NumberType::I64];
        for (element, width, ends) in [
            (real, 1e-3, [1e6, 1e6]),
            (real, 0.0, [1e9, 1e9]),
            (whole, 0.0, [9e15, 9e15]),
            (real, 3e-3, [300.0, 300.01]),
        ] {
            let error = of(element, width, ends).unwrap_err();
            assert!(error.message.contains("subtract in the file"), "{error}");
        }
        for (element, width, ends) in [
            (real, 10.0, [250.0, 310.0]),
            (real, 0.0, [0.0, 0.0]),
            (whole, 0.0, [7.0, 7.0]),
            (NumberType::F32, 0.0, [1e9, 1e9]),
        ] {
            of(element, width, ends).unwrap();
        }
    }

    /// Channels whose numbers f32 does not tell apart: those that are one number become 0, and others are refused.
    #[test]
    fn channels_of_one_number_become_0_whatever_their_type() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wide.h5");
        let file = hdf5::File::create(&path).unwrap();
        fn add<T: hdf5::H5Type>(file: &hdf5::File, name: &str, of: impl Fn(usize) -> T, chunk: bool) {
            let values = ndarray::Array2::from_shape_fn((10, 4), |(n, c)| of(4 * n + c));
            let builder = file.new_dataset_builder();
            let builder = if chunk { builder.chunk((3, 2)).shuffle() } else { builder };
            builder.with_data(&values).create(name).unwrap();
        }
        // A step of f32 is 64 at 10⁹, and 2³⁵ at 3·10¹⁷.
        add(&file, "real", |_| 1e9 + 0.25, false);
        add(&file, "holes", |at| if at % 3 == 0 { f64::NAN } else { 1e9 + 0.25 }, true);
        add(&file, "whole", |_| 300_000_000_000_000_001i64, true);
        add(&file, "natural", |_| u64::MAX, false);
        add(&file, "small", |_| 20_000_001u32, false);
        add(&file, "negative", |_| -20_000_001i32, false);
        add(&file, "real_not", |at| 1e9 + f64::from(u8::from(at == 22)), true);
        add(&file, "whole_not", |at| 300_000_000_000_000_000 + i64::from(at == 22), false);
        add(&file, "natural_not", |at| u64::MAX - u64::from(at == 22), true);
        add(&file, "small_not", |at| 20_000_000 + u32::from(at == 22), false);
        // Of two samples each is one number.
        add(&file, "rows_not", |at| 1e9 + f64::from(u8::from(at / 4 == 7)), false);
        let compact = hdf5::plist::dataset_create::Layout::Compact;
        let slow = ndarray::Array2::from_elem((10, 4), 1e9 + 0.25);
        file.new_dataset_builder().layout(compact).with_data(&slow).create("slow").unwrap();
        file.close().unwrap();
        let given = |name: &str, how: &str| -> Result<Vec<f32>> {
            let fields =
                FieldOptions { missing: Missing::Zero, ..options(&[&format!("{name}[n,w]:{how}")], &[]) };
            let set = FieldSet::open(None, &path, &fields, &[])?;
            let moments = (0..10).fold(Vec::new(), |all, index| {
                FieldSet::together(all, &set.moments(index).unwrap(), set.moment_count())
            });
            let (scales, _) = set.rescaling(&moments)?;
            Ok(read(&set.scaled(&scales)?, 5)[0].clone())
        };
        for how in ["standard", "minmax", "log1p:standard"] {
            for name in ["real", "holes", "whole", "natural", "small", "negative"] {
                if (name, how) != ("negative", "log1p:standard") {
                    assert_eq!(given(name, how).unwrap(), [0.0; 4], "{name}:{how}");
                }
            }
            // The library hands over f32.
            for name in ["real_not", "whole_not", "natural_not", "small_not", "rows_not", "slow"] {
                let error = given(name, how).unwrap_err().message;
                assert!(error.contains("they differ by little more"), "{name}:{how}: {error}");
            }
        }
    }
}
