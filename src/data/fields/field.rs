//! An array as a flag names it, and by what its numbers are rescaled.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use super::list::{FieldList, FieldShape};
use super::statistics::FileStatistics;
use super::{FieldScale, FieldSet, SampleField};
use crate::config::FieldOptions;
use crate::error::{Error, Result};
use crate::fields::{Moments, NumberType, View, six_digits};

/// An array as a flag names it: a view, and what rescales its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The flag that names it, and what it says.
    pub flag: &'static str,
    pub text: String,
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
    /// Those of `--input`, `--target` and `--weight`, in this order.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn all(options: &FieldOptions) -> Result<Vec<Field>> {
        let FieldOptions { inputs, targets, weight, .. } = options;
        let flags = [("--input", &inputs[..]), ("--target", &targets[..]), ("--weight", weight.as_slice())];
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
        let is_log = |of: &FieldScale| of.field.parse::<Field>().is_ok_and(|field| field.log1p);
        let factors = targets.iter().flat_map(|of| {
            let log = is_log(of);
            of.scale.iter().zip(&of.shift).map(move |(scale, shift)| (*scale, *shift, log))
        });
        for ((scale, shift, is_log), values) in factors.zip(output.chunks_exact_mut(each.max(1))) {
            for value in values {
                *value = if (scale, shift) == (1.0, 0.0) { *value } else { (*value - shift) / scale };
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
                moments.resize(moments.len() + 5 * shape.channels(), 0.0);
                continue;
            }
            let mut values = vec![0f32; shape.numbers()];
            self.raw(SampleField { place: &place, at, rows: None }, &mut readers, &mut values)?;
            for channel in values.chunks_exact(values.len() / shape.channels()) {
                moments.extend(Moments::of(channel).numbers());
            }
        }
        Ok(moments)
    }

    /// The moments of samples before, and of some more, each of so many numbers, one sample behind the other.
    pub fn together(mut total: Vec<f64>, more: &[f64], width: usize) -> Vec<f64> {
        total.resize(width, 0.0);
        for sample in more.chunks_exact(width.max(1)) {
            for (all, own) in total.chunks_exact_mut(5).zip(sample.chunks_exact(5)) {
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
    pub fn rescaling(&self, moments: &[f64]) -> Result<(Vec<FieldScale>, Vec<Option<String>>)> {
        let FieldList { fields, shapes, .. } = &*self.list;
        let (mut scales, mut by_files) = (self.scales.to_vec(), vec![None; fields.len()]);
        for (at, (field, scale)) in fields.iter().zip(&mut scales).enumerate() {
            let (first, channels) = (
                shapes[..self.like(at)].iter().map(FieldShape::channels).sum::<usize>(),
                shapes[at].channels(),
            );
            let Some((rescaling, file)) = &field.rescaling else { continue };
            let of_file = |path| FileStatistics::of(path, rescaling.starts(), (&field.view.array, channels));
            let said = file.as_deref().map(of_file).transpose();
            let said = said.map_err(|error| error.context(&scale.field))?;
            by_files[at] = said.as_ref().map(|of| of.said.clone());
            for channel in 0..channels {
                let numbers =
                    moments.get(5 * (first + channel)..).and_then(|from| from.get(..5)).unwrap_or_default();
                let own = Moments::read(numbers);
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
                told_apart(&scale.field, self.files[0].arrays[at].0.element, width, ends)?;
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
fn told_apart(field: &str, element: NumberType, width: f64, [low, high]: [f64; 2]) -> Result<()> {
    /// Steps of f32 that a deviation has at least: rounding is then 0.2 % of it at the most.
    const STEPS: f64 = 256.0;
    let greatest = low.abs().max(high.abs()) as f32;
    let step = f64::from(greatest.next_up() - greatest);
    // Whole numbers up to 2^24 are not rounded.
    let is_exact = !element.is_rounded() || element.is_integer() && step <= 1.0 || greatest == 0.0;
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
    use super::*;

    #[test]
    fn numbers_that_f32_does_not_tell_apart_are_refused() {
        let of = |element, width, ends| told_apart("p:standard", element, width, ends);
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
}
