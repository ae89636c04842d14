//! Samples that are made of arrays: which arrays of which files a network reads and is to give, which of their samples
//! belong together, and how their numbers are rescaled (docs/fields.md).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::picture::Picture;
use super::{Colours, Dataset, EvaluationCrop, FieldScale};
use crate::config::{FieldOptions, Missing, most};
use crate::error::{Error, Result};
use crate::fields::{
    Amount, ArrayBox, ArrayReader, ArrayStorage, Arrays, FileArray, View, ViewSamples, place_in,
};

/// An array as a flag names it: a view, and what rescales its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    view: View,
    /// Whether ln(1 + x) takes the place of x, before anything else.
    log1p: bool,
    rescaling: Rescaling,
}

/// What the numbers of a channel are rescaled by.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rescaling {
    Nothing,
    /// To mean 0 and deviation 1, as they are in the training samples.
    Standard,
    /// To 0…1, by the least and the greatest in the training samples.
    MinMax,
    /// To 0…1, by what two arrays of a file say: one whose name begins with min and one with max.
    MinMaxOf(PathBuf),
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Field, String> {
        let end = text.rfind(']').map_or(0, |at| at + 1);
        let mut words = text[end..].split(':');
        let view = &text[..end + words.next().map_or(0, str::len)];
        let (mut log1p, mut rescaling) = (false, Rescaling::Nothing);
        for word in words {
            let file = word.strip_prefix("minmax(").and_then(|rest| rest.strip_suffix(')'));
            match (word, file) {
                ("log1p", _) if rescaling == Rescaling::Nothing => log1p = true,
                ("standard", _) => rescaling = Rescaling::Standard,
                ("minmax", _) => rescaling = Rescaling::MinMax,
                (_, Some(file)) => rescaling = Rescaling::MinMaxOf(file.into()),
                _ => {
                    return Err(format!(
                        "{text:?}: behind the view stands log1p, standard, minmax or minmax(FILE), and not {word:?}"
                    ));
                }
            }
        }
        Ok(Field { view: view.parse()?, log1p, rescaling })
    }
}

/// The arrays of a run: those that the network reads, and those that it is to give.
#[derive(Clone)]
struct FieldList {
    fields: Vec<Field>,
    /// How many of them are inputs; they come first.
    inputs: usize,
    /// As flags have them.
    texts: Vec<String>,
    /// Numbers of one sample of each, how many channels these are, and where they begin in the input or target.
    numbers: Vec<usize>,
    places: Vec<usize>,
    channels: Vec<usize>,
    /// Targets are numbers of so many classes.
    classes: Option<usize>,
    ignored: Option<i64>,
    missing: Missing,
}

impl FieldList {
    /// Where each field begins in the input or the target: in the order of flags, but inputs that a network has by
    /// names are in its order.
    fn in_order(&self, of_network: &[(&str, usize)]) -> Result<Vec<usize>> {
        let starts = |order: &[usize]| {
            let mut places = vec![0; order.len()];
            let mut from = 0;
            for &at in order {
                places[at] = from;
                from += self.numbers[at];
            }
            places
        };
        let (inputs, all) = (self.inputs, self.fields.len());
        let mut order: Vec<usize> = (0..inputs).collect();
        if of_network.len() > 1 {
            let names: Vec<&str> = of_network.iter().map(|(name, _)| *name).collect();
            if inputs != names.len() {
                return Err(Error::usage(format!(
                    "--input: {inputs} arrays for a network with {} inputs: {}",
                    names.len(),
                    names.join(", ")
                )));
            }
            let called = |at: usize| self.fields[at].view.array.rsplit('/').next().unwrap_or_default();
            let by_name = |name: &&str| (0..inputs).find(|&at| called(at) == *name);
            // By names where all are known; else in the order of the flags.
            order = names.iter().map(by_name).collect::<Option<Vec<usize>>>().unwrap_or(order);
            for (&at, (name, numbers)) in order.iter().zip(of_network) {
                if self.numbers[at] != *numbers {
                    return Err(Error::usage(format!(
                        "--input {}: {} numbers a sample, and the network's input {name} has {numbers}",
                        self.texts[at], self.numbers[at]
                    )));
                }
            }
        }
        let mut places = starts(&order);
        let first: usize = self.numbers[..inputs].iter().sum();
        let targets: Vec<usize> = starts(&(0..all).collect::<Vec<_>>());
        places.extend(targets[inputs..].iter().map(|from| from - first));
        Ok(places)
    }
}

/// One file, or none where all arrays are elsewhere.
struct FieldFile {
    path: PathBuf,
    /// One array for each field.
    arrays: Vec<(FileArray, ViewSamples)>,
    /// The axes that number samples, of all fields: what they are called, the first number that all fields have, and
    /// how many.
    numbered: Vec<(char, i64, usize)>,
}

impl FieldFile {
    fn len(&self) -> usize {
        self.numbered.iter().map(|&(_, _, count)| count).product()
    }
}

/// A data set of arrays.
#[derive(Clone)]
pub struct FieldSet {
    list: Arc<FieldList>,
    files: Arc<Vec<FieldFile>>,
    /// How many samples come before each file, and all.
    before: Arc<Vec<usize>>,
    /// (C, H, W) of what a network reads.
    image: [usize; 3],
    /// The axes of a target, without that of samples.
    target: Vec<usize>,
    scales: Arc<Vec<FieldScale>>,
}

/// Files of a directory that are taken.
const ENDINGS: [&str; 6] = ["h5", "hdf5", "hdf", "he5", "nc", "nc4"];

/// Of some numbers: how many there are, their sum, that of their squares, the least and the greatest.
struct Moments {
    count: f64,
    sum: f64,
    square: f64,
    least: f64,
    most: f64,
}

impl Moments {
    const NONE: Moments =
        Moments { count: 0.0, sum: 0.0, square: 0.0, least: f64::INFINITY, most: f64::NEG_INFINITY };

    /// Of those that are not missing.
    fn of(values: &[f32]) -> Moments {
        let numbers = values.iter().filter(|value| !value.is_nan()).map(|&value| f64::from(value));
        numbers.fold(Moments::NONE, |all, value| Moments {
            count: all.count + 1.0,
            sum: all.sum + value,
            square: all.square + value * value,
            least: all.least.min(value),
            most: all.most.max(value),
        })
    }

    /// Zeros where there are none, so that they can be added over ranks.
    fn numbers(&self) -> [f64; 5] {
        let Moments { count, sum, square, least, most } = *self;
        if count > 0.0 { [count, sum, square, least, most] } else { [0.0; 5] }
    }

    /// Of all samples, of the channel with this number among those of all fields.
    fn over(samples: &[Vec<f64>], channel: usize) -> Moments {
        samples.iter().map(|sample| &sample[5 * channel..][..5]).filter(|own| own[0] > 0.0).fold(
            Moments::NONE,
            |all, own| Moments {
                count: all.count + own[0],
                sum: all.sum + own[1],
                square: all.square + own[2],
                least: all.least.min(own[3]),
                most: all.most.max(own[4]),
            },
        )
    }
}

/// The axes that number samples, in the order in which they count.
const COUNTED: &str = "ntdhw";

/// The files that a path means: itself, those of a directory, or those whose names fit where it has * or ?.
///
/// # Errors
/// `Data`: there is none.
fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    let wrong = |error: &dyn std::fmt::Display| Error::data(path, error.to_string());
    let mut files = Vec::new();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).map_err(|error| wrong(&error))? {
            let file = entry.map_err(|error| wrong(&error))?.path();
            let ending = file.extension().map(|ending| ending.to_ascii_lowercase());
            if ending.is_some_and(|ending| ENDINGS.iter().any(|&known| ending == known)) && file.is_file() {
                files.push(file);
            }
        }
    } else if !path.exists() && path.to_string_lossy().contains(['*', '?']) {
        let pattern = path.to_string_lossy();
        let found = glob::glob(&pattern).map_err(|error| wrong(&error))?;
        for file in found {
            files.push(file.map_err(|error| wrong(&error))?);
        }
    } else {
        files.push(path.to_path_buf());
    }
    files.sort();
    match files.is_empty() {
        true => Err(wrong(&format!("no file whose name ends in .{}", ENDINGS.join(", .")))),
        false => Ok(files),
    }
}

impl FieldSet {
    /// Opens the arrays of `--input` and `--target`, and reads none of their numbers. `of_network`: the inputs of a
    /// network by their names, each with how many numbers it has of a sample; where there are several each is given an
    /// array, and else all arrays are one behind the other.
    ///
    /// # Errors
    /// `Usage` for a view that the arrays do not have; `Data` for files that cannot be read, or that differ.
    pub fn open(path: &Path, options: &FieldOptions, of_network: &[(&str, usize)]) -> Result<FieldSet> {
        let texts: Vec<String> = options.inputs.iter().chain(&options.targets).cloned().collect();
        let flag = |at: usize| if at < options.inputs.len() { "--input" } else { "--target" };
        let fields = texts.iter().enumerate().map(|(at, text)| {
            text.parse::<Field>().map_err(|what| Error::usage(format!("{}: {what}", flag(at))))
        });
        let fields = fields.collect::<Result<Vec<Field>>>()?;
        let files = files_of(path)?;
        let files = files.iter().map(|file| opened(file, &fields, &flag)).collect::<Result<Vec<_>>>()?;
        let first = &files[0];
        for file in &files[1..] {
            alike(first, file)?;
        }
        let shapes: Vec<Shape> = first.arrays.iter().map(|(_, samples)| Shape::of(samples)).collect();
        let mut list = FieldList {
            numbers: shapes.iter().map(|shape| shape.numbers()).collect(),
            channels: shapes.iter().map(|shape| shape.channels).collect(),
            places: Vec::new(),
            fields,
            inputs: options.inputs.len(),
            texts,
            classes: None,
            ignored: options.ignore_label,
            missing: options.missing,
        };
        list.places = list.in_order(of_network)?;
        let (inputs, targets) = shapes.split_at(list.inputs);
        let image = match of_network {
            [] | [_] => stacked(inputs, &list.texts, "--input")?,
            _ => Shape {
                channels: inputs.iter().map(Shape::numbers).sum(),
                has_channels: true,
                places: Vec::new(),
            },
        };
        // A network is asked what it gives of samples that have no target.
        let target = match targets {
            [] => Shape { channels: 1, has_channels: false, places: Vec::new() },
            _ => stacked(targets, &list.texts[list.inputs..], "--target")?,
        };
        let is_bare = targets.iter().all(|shape| !shape.has_channels);
        if options.loss.is_some_and(crate::config::Loss::is_of_classes) {
            if targets.len() > 1 || target.channels > 1 {
                return Err(Error::usage(format!(
                    "--target {}: with --loss cross-entropy a target is one number of a class for each place, and this \
                     has {} channels",
                    list.texts[list.inputs], target.channels
                )));
            }
            list.classes = Some(usize::MAX);
        }
        let channels = (!is_bare || targets.len() > 1).then_some(target.channels);
        let target = channels.into_iter().chain(target.places.iter().copied()).collect();
        let image = match image.places[..] {
            [] => [image.channels, 1, 1],
            [width] => [image.channels, 1, width],
            [height, width] => [image.channels, height, width],
            _ => {
                return Err(Error::usage(format!(
                    "--input {}: samples with {} axes beside channels; two are trained on so far",
                    list.texts[0],
                    image.places.len()
                )));
            }
        };
        let mut before = vec![0];
        for file in &files {
            before.push(before[before.len() - 1] + file.len());
        }
        if before[files.len()] > most::IMAGES {
            let what = format!("{} samples; there can be {}", before[files.len()], most::IMAGES);
            return Err(Error::data(path, what));
        }
        let unscaled = |at: usize| FieldScale {
            field: list.texts[at].clone(),
            scale: vec![1.0; list.channels[at]],
            shift: vec![0.0; list.channels[at]],
        };
        let scales = (0..list.fields.len()).map(unscaled).collect();
        let (list, files) = (Arc::new(list), Arc::new(files));
        Ok(FieldSet { list, files, before: Arc::new(before), image, target, scales: Arc::new(scales) })
    }

    /// (C, H, W) of what a network reads: vectors have (F, 1, 1), and sequences (C, 1, L).
    pub fn image(&self) -> [usize; 3] {
        self.image
    }

    /// The axes of a target, without that of samples; `None` where there is none.
    pub fn target(&self) -> Option<&[usize]> {
        Some(&self.target[..]).filter(|_| self.list.fields.len() > self.list.inputs)
    }

    /// Numbers of a target.
    pub fn target_len(&self) -> usize {
        self.target().map_or(0, |target| target.iter().product())
    }

    /// The unit of what the target's numbers were before they were rescaled, where its file says it.
    pub fn target_unit(&self) -> Option<String> {
        self.files[0].arrays.get(self.list.inputs).and_then(|(array, _)| array.unit.clone())
    }

    /// What the first input's file says of the axes of a sample beside channels: what each is called with how many
    /// places it has, and where these are, where an array says it.
    ///
    /// # Errors
    /// `Data`.
    #[allow(clippy::type_complexity, reason = "two lists that belong to one question")]
    pub fn coordinates(&self) -> Result<(Vec<(String, usize)>, Vec<(String, Vec<f32>)>)> {
        let file = &self.files[0];
        let (array, samples) = &file.arrays[0];
        let window = samples.window(0);
        let (mut names, mut places) = (Vec::new(), Vec::new());
        for (&axis, letter) in samples.order().iter().zip(samples.letters()) {
            if letter == Some('c') {
                continue;
            }
            let name = &array.axes[axis];
            let name = if name.is_empty() { letter.unwrap_or('x').to_string() } else { name.clone() };
            names.push((name.clone(), window.len[axis]));
            let Ok(of_axis) = FileArray::open(&file.path, &name) else { continue };
            let is_tiled = samples.numbered().iter().any(|&(of, ..)| Some(of) == letter);
            if of_axis.shape == [array.shape[axis]] && !is_tiled {
                let part = ArrayBox { first: vec![window.first[axis]], len: vec![window.len[axis]] };
                let mut values = vec![0.0; window.len[axis]];
                ArrayReader::default().read_box(&of_axis, &part, &mut values)?;
                places.push((name, values));
            }
        }
        Ok((names, places))
    }

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

    /// The set, whose targets are numbers of so many classes where they are classes.
    pub fn telling_apart(self, classes: usize) -> FieldSet {
        let list = FieldList { classes: self.list.classes.map(|_| classes), ..FieldList::clone(&self.list) };
        FieldSet { list: Arc::new(list), ..self }
    }

    /// By what the numbers of each field are rescaled.
    pub fn scales(&self) -> &[FieldScale] {
        &self.scales
    }

    /// The set rescaled so.
    ///
    /// # Errors
    /// `Usage`: they are of other fields.
    pub fn scaled(self, scales: &[FieldScale]) -> Result<FieldSet> {
        let lengths = self.list.channels.iter().copied();
        let fits = |(scale, channels): (&FieldScale, usize)| {
            scale.scale.len() == channels && scale.shift.len() == channels
        };
        let (all, inputs) = (self.list.fields.len(), self.list.inputs);
        let are_as_many = scales.len() == all || (all == inputs && scales.len() > all);
        if !are_as_many || !scales.iter().zip(lengths).all(fits) {
            let names =
                |of: &[FieldScale]| of.iter().map(|of| of.field.clone()).collect::<Vec<_>>().join(", ");
            return Err(Error::usage(format!(
                "the weights have learned from {}; --input and --target say {}",
                names(scales),
                self.list.texts.join(", ")
            )));
        }
        Ok(FieldSet { scales: Arc::new(scales.to_vec()), ..self })
    }

    /// Whether a rescaling has to be found out from the samples.
    pub fn is_to_be_measured(&self) -> bool {
        self.list
            .fields
            .iter()
            .any(|field| matches!(field.rescaling, Rescaling::Standard | Rescaling::MinMax))
    }

    /// Of one sample, for each channel of each field: how many numbers there are, their sum, that of their squares, the
    /// least and the greatest.
    ///
    /// # Errors
    /// `Data`.
    pub fn moments(&self, index: usize) -> Result<Vec<f64>> {
        let mut readers = Vec::new();
        let mut moments = Vec::new();
        for at in 0..self.list.fields.len() {
            let mut values = vec![0f32; self.list.numbers[at]];
            self.raw(index, at, &mut readers, &mut values)?;
            for channel in values.chunks_exact(values.len() / self.list.channels[at]) {
                moments.extend(Moments::of(channel).numbers());
            }
        }
        Ok(moments)
    }

    /// The rescaling that follows from the moments of some samples, and from files that flags name.
    ///
    /// # Errors
    /// `Data` for such a file; `Usage` for numbers that nothing rescales.
    pub fn rescaling(&self, moments: &[Vec<f64>]) -> Result<Vec<FieldScale>> {
        let FieldList { fields, channels, .. } = &*self.list;
        let mut scales = self.scales.to_vec();
        for (at, (field, scale)) in fields.iter().zip(&mut scales).enumerate() {
            // Input and target of one array are rescaled alike: by the first.
            let alike = |other: &Field| {
                other.view.has_numbers_of(&field.view)
                    && (other.log1p, &other.rescaling) == (field.log1p, &field.rescaling)
            };
            let like = fields[..at].iter().position(alike).unwrap_or(at);
            let first: usize = channels[..like].iter().sum();
            let said = match &field.rescaling {
                Rescaling::MinMaxOf(path) => Some(least_and_greatest(path, channels[at])?),
                _ => None,
            };
            for channel in 0..channels[at] {
                let Moments { count, sum, square, least, most } = Moments::over(moments, first + channel);
                let (mean, [low, high]) =
                    (sum / count, said.as_ref().map_or([least, most], |of| of[channel]));
                let (offset, width) = match &field.rescaling {
                    Rescaling::Nothing => (0.0, 1.0),
                    Rescaling::Standard => (mean, (square / count - mean * mean).max(0.0).sqrt()),
                    Rescaling::MinMax | Rescaling::MinMaxOf(_) => (low, high - low),
                };
                if !offset.is_finite() || !width.is_finite() {
                    let what = format!("{}: no number to rescale channel {channel} by", scale.field);
                    return Err(Error::usage(what));
                }
                // Numbers that are all alike become 0.
                let width = if width > 0.0 { width } else { 1.0 };
                scale.scale[channel] = (1.0 / width) as f32;
                scale.shift[channel] = (-offset / width) as f32;
            }
        }
        Ok(scales)
    }

    /// What a run says of the set, which it trains on unless `purpose` says otherwise, and of one that it tests on.
    pub fn lines(&self, path: &Path, purpose: &str, test: Option<(&Path, &FieldSet)>) -> Vec<String> {
        let files = |set: &FieldSet| match set.files.len() {
            1 => "1 file".into(),
            count => format!("{count} files"),
        };
        let of_test = match (test, purpose) {
            (Some((path, test)), _) => {
                format!(", {} to test on ({}, {})", test.len(), path.display(), files(test))
            }
            (None, "train") => ", none to test on (--test-data)".into(),
            (None, _) => String::new(),
        };
        let all = format!(
            "data: {}, {}: {} samples to {purpose} on{of_test}",
            path.display(),
            files(self),
            self.len()
        );
        let of = |at: usize| {
            let shape: Vec<String> =
                self.files[0].arrays[at].1.shape().iter().map(ToString::to_string).collect();
            let shape = if shape.is_empty() { "1".into() } else { shape.join("×") };
            let unit = self.files[0].arrays[at].0.unit.as_ref();
            format!(
                "{} ({shape}{})",
                self.list.texts[at],
                unit.map_or(String::new(), |unit| format!(" {unit}"))
            )
        };
        let list = |range: Range<usize>| range.map(of).collect::<Vec<_>>().join(", ");
        let (inputs, count) = (self.list.inputs, self.list.fields.len());
        let gives = if count > inputs { format!(" gives {}", list(inputs..count)) } else { String::new() };
        let mut lines =
            vec![all, format!("a sample: {}{gives}; the first is {}", list(0..inputs), self.name(0))];
        lines.extend(self.left());
        lines
    }

    /// What reading samples takes, found out by reading some, each as if it came alone: bytes of the files, bytes that
    /// are decoded, bytes that are used, and seconds of one thread.
    ///
    /// # Errors
    /// `Data`.
    pub fn reading(&self) -> Result<(Amount, f64)> {
        /// Samples that are read, evenly spread.
        const TRIED: usize = 8;
        let (mut readers, mut total) = (Vec::new(), Vec::new());
        let mut sample = [vec![0.0; self.image.iter().product()], vec![0.0; self.target_len()]];
        let tried = self.len().min(TRIED);
        let begun = std::time::Instant::now();
        for number in 0..tried {
            let [input, target] = &mut sample;
            self.read_sample(number * self.len() / tried, input, target, &mut readers)?;
            for reader in &mut readers {
                total.push(reader.take_amount());
                reader.forget();
            }
        }
        let each = |bytes: u64| bytes / tried as u64;
        let Amount { read, decoded, used } = total.into_iter().sum();
        let amount = Amount { read: each(read), decoded: each(decoded), used: each(used) };
        Ok((amount, begun.elapsed().as_secs_f64() / tried as f64))
    }

    /// What of the files belongs to no sample.
    fn left(&self) -> Option<String> {
        let file = &self.files[0];
        let of = |(at, (array, samples)): (usize, &(FileArray, ViewSamples))| {
            let left: Vec<String> = (samples.rest().iter().enumerate())
                .filter(|(_, rest)| **rest > 0)
                .map(|(axis, rest)| format!("{rest} of {} places of axis {axis}", array.shape[axis]))
                .collect();
            (!left.is_empty()).then(|| format!("{}: {}", self.list.texts[at], left.join(", ")))
        };
        let left: Vec<String> = file.arrays.iter().enumerate().filter_map(of).collect();
        (!left.is_empty()).then(|| format!("in no sample of a file: {}", left.join("; ")))
    }

    /// Which file, and the number of its sample on each axis that numbers samples.
    fn place(&self, index: usize) -> (&FieldFile, Vec<(char, i64)>) {
        let at = self.before.partition_point(|&before| before <= index) - 1;
        let file = &self.files[at];
        let grid: Vec<usize> = file.numbered.iter().map(|&(_, _, count)| count).collect();
        let places = place_in(&grid, index - self.before[at]);
        let number = |(&(name, first, _), place): (&(char, i64, usize), usize)| (name, first + place as i64);
        (file, file.numbered.iter().zip(places).map(number).collect())
    }

    /// The numbers of one field of a sample as the file has them, or their logarithms.
    fn raw(&self, index: usize, at: usize, readers: &mut Vec<ArrayReader>, to: &mut [f32]) -> Result<()> {
        let (file, numbers) = self.place(index);
        let (array, samples) = &file.arrays[at];
        let of = |name: char| numbers.iter().find(|(of, _)| *of == name).map_or(0, |(_, number)| *number);
        if readers.len() <= at {
            readers.resize_with(at + 1, ArrayReader::default);
        }
        readers[at].read(array, samples, samples.index(of), to)?;
        if self.list.fields[at].log1p {
            to.iter_mut().for_each(|value| *value = value.ln_1p());
        }
        Ok(())
    }

    /// Reads one sample: what the network reads (C, H, W), and its target.
    ///
    /// # Errors
    /// `Data`, with file and sample: it cannot be read, or has numbers that it must not have.
    pub fn read_sample(
        &self,
        index: usize,
        input: &mut [f32],
        target: &mut [f32],
        readers: &mut Vec<ArrayReader>,
    ) -> Result<()> {
        let FieldList { inputs, numbers, places, classes, missing, .. } = &*self.list;
        for (at, (&count, &from)) in numbers.iter().zip(places).enumerate() {
            let is_target = at >= *inputs;
            let part = if is_target { &mut *target } else { &mut *input };
            let own = &mut part[from..from + count];
            self.raw(index, at, readers, own)?;
            if let (true, Some(classes)) = (is_target, classes) {
                self.classes(index, at, *classes, own)?;
                continue;
            }
            let FieldScale { scale, shift, .. } = &self.scales[at];
            let mut is_whole = true;
            for (channel, values) in own.chunks_exact_mut(count / scale.len()).enumerate() {
                let (scale, shift) = (scale[channel], shift[channel]);
                if (scale, shift) != (1.0, 0.0) {
                    values.iter_mut().for_each(|value| *value = *value * scale + shift);
                }
                is_whole &= values.iter().all(|value| value.is_finite());
            }
            match missing {
                _ if is_whole => {}
                Missing::Refuse => {
                    return Err(self.wrong(index, at, "a number is missing or none (NaN)", MISSING));
                }
                Missing::Mask if is_target => {
                    own.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = f32::NAN);
                }
                _ => own.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0),
            }
        }
        Ok(())
    }

    /// Checks numbers of classes; those that do not count become NaN.
    fn classes(&self, index: usize, at: usize, classes: usize, values: &mut [f32]) -> Result<()> {
        let ignored = self.list.ignored.map(|label| label as f32);
        for value in values {
            if Some(*value) == ignored || (value.is_nan() && self.list.missing == Missing::Mask) {
                *value = f32::NAN;
            } else if value.is_nan() && self.list.missing == Missing::Zero {
                *value = 0.0;
            } else if value.is_nan() {
                return Err(self.wrong(index, at, "a number is missing or none (NaN)", MISSING));
            } else if value.fract() != 0.0 || *value < 0.0 || *value >= classes as f32 {
                let what = format!("{value} is none of the {classes} classes that the network tells apart");
                let advice = "where such points are not to count, say --ignore-label";
                return Err(self.wrong(index, at, &what, advice));
            }
        }
        Ok(())
    }

    fn wrong(&self, index: usize, at: usize, what: &str, advice: &str) -> Error {
        let (file, _) = self.place(index);
        let text = format!("{}, sample {}: {what}; {advice}", self.list.texts[at], self.name(index));
        Error::data(&file.path, text)
    }
}

const MISSING: &str = "--missing mask leaves such points out, --missing zero takes 0 for them";

/// The shape of one sample of a field.
struct Shape {
    channels: usize,
    /// Whether an axis of the array is the channels.
    has_channels: bool,
    places: Vec<usize>,
}

impl Shape {
    /// An axis without a name is one of space, but the only one, which is of channels, as the first of three is.
    fn of(samples: &ViewSamples) -> Shape {
        let (shape, letters) = (samples.shape(), samples.letters());
        let is_bare = letters.iter().all(|letter| matches!(letter, None | Some('s')));
        let has_channels = letters.first() == Some(&Some('c')) || (is_bare && [1, 3].contains(&shape.len()));
        match has_channels {
            true => Shape { channels: shape[0], has_channels, places: shape[1..].to_vec() },
            false => Shape { channels: 1, has_channels, places: shape },
        }
    }

    fn numbers(&self) -> usize {
        self.channels * self.places.iter().product::<usize>()
    }
}

/// The shape of fields one behind the other as channels.
fn stacked(shapes: &[Shape], texts: &[String], flag: &str) -> Result<Shape> {
    if let Some(other) = (1..shapes.len()).find(|&other| shapes[other].places != shapes[0].places) {
        return Err(Error::usage(format!(
            "{flag} {} and {}: they have {:?} and {:?} places; only arrays of the same places are put one behind the \
             other as channels",
            texts[0], texts[other], shapes[0].places, shapes[other].places
        )));
    }
    let channels = shapes.iter().map(|shape| shape.channels).sum();
    Ok(Shape { channels, has_channels: true, places: shapes[0].places.clone() })
}

/// The arrays of one file, and which samples all fields have.
fn opened(path: &Path, fields: &[Field], flag: &impl Fn(usize) -> &'static str) -> Result<FieldFile> {
    let mut arrays = Vec::new();
    let mut numbered: Vec<(char, i64, usize)> = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        let array = FileArray::open(path, &field.view.array).map_err(|error| error.context(flag(at)))?;
        let samples = field.view.samples(&array.shape);
        let samples =
            samples.map_err(|what| Error::usage(format!("{} {what} ({})", flag(at), path.display())))?;
        for (name, first, count) in samples.numbered() {
            match numbered.iter_mut().find(|(of, ..)| *of == name) {
                Some((_, known, all)) => {
                    let end = (*known + *all as i64).min(first + count as i64);
                    *known = (*known).max(first);
                    *all = (end - *known).max(0) as usize;
                }
                None => numbered.push((name, first, count)),
            }
        }
        arrays.push((array, samples));
    }
    numbered.sort_by_key(|(name, ..)| COUNTED.find(*name));
    let file = FieldFile { path: path.into(), arrays, numbered };
    match file.len() {
        0 => Err(Error::data(path, "no sample has both its input and its target in this file")),
        _ => Ok(file),
    }
}

/// That files have the same arrays, but for how many samples.
fn alike(first: &FieldFile, file: &FieldFile) -> Result<()> {
    for ((a, of_a), (b, of_b)) in first.arrays.iter().zip(&file.arrays) {
        let shapes = [of_a.shape(), of_b.shape()];
        let differs = match () {
            () if shapes[0] != shapes[1] => format!("samples of {:?}, and not {:?}", shapes[1], shapes[0]),
            () if a.element != b.element => format!("numbers of {}, and not {}", b.element, a.element),
            () if a.unit != b.unit => {
                let unit = |array: &FileArray| array.unit.clone().unwrap_or("none".into());
                format!("unit {}, and not {}", unit(b), unit(a))
            }
            () => continue,
        };
        let what = format!("{} has {differs} as in {}", b.name, first.path.display());
        return Err(Error::data(&file.path, what));
    }
    Ok(())
}

/// What a file says of the least and greatest numbers of channels.
fn least_and_greatest(path: &Path, channels: usize) -> Result<Vec<[f64; 2]>> {
    let arrays = Arrays::of(path)?.arrays;
    let of = |start: &str| -> Result<Vec<f32>> {
        let named = |array: &&FileArray| {
            let last = array.name.rsplit('/').next().unwrap_or_default();
            last.to_ascii_lowercase().starts_with(start) && array.shape == [channels]
        };
        let Some(array) = arrays.iter().find(named) else {
            let what = format!("it has no array of {channels} numbers whose name begins with {start}");
            return Err(Error::data(path, what));
        };
        let mut values = vec![0.0; channels];
        let all = ArrayBox { first: vec![0], len: vec![channels] };
        ArrayReader::default().read_box(array, &all, &mut values)?;
        Ok(values)
    };
    let (least, greatest) = (of("min")?, of("max")?);
    Ok(least.iter().zip(greatest).map(|(&least, most)| [f64::from(least), f64::from(most)]).collect())
}

impl Dataset for FieldSet {
    fn len(&self) -> usize {
        self.before[self.files.len()]
    }

    fn class_names(&self) -> &[String] {
        &[]
    }

    fn label(&self, _: usize) -> i32 {
        0
    }

    fn read(&self, index: usize, _: &mut Picture) -> Result<()> {
        Err(Error::internal(format!("{} is no picture", self.name(index))))
    }

    fn name(&self, index: usize) -> String {
        let (file, numbers) = self.place(index);
        let name = file.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let numbers: Vec<String> = numbers.iter().map(|(axis, number)| format!("{axis} {number}")).collect();
        if numbers.is_empty() { name } else { format!("{name} {}", numbers.join(" ")) }
    }

    fn fingerprint(&self) -> String {
        let mut sum = crate::files::Crc::new();
        for file in self.files.iter() {
            sum.update(format!("{:?}", file.numbered).as_bytes());
            for (array, _) in &file.arrays {
                sum.update(
                    format!("{} {:?} {}", array.name, array.shape, array.stored().unwrap_or(0)).as_bytes(),
                );
            }
        }
        let files = self.files.len();
        format!(
            "{} samples of {} in {files} files, CRC-32 {:08x}",
            self.len(),
            self.list.texts.join(" "),
            sum.sum()
        )
    }

    fn colours(&self) -> Colours {
        Colours::imagenet()
    }

    fn frame(&self) -> EvaluationCrop {
        EvaluationCrop::Whole
    }

    fn in_memory(&self) -> bool {
        false
    }

    fn fields(&self) -> Option<&FieldSet> {
        Some(self)
    }

    /// Samples of one chunk are read together.
    fn blocks(&self) -> Vec<u32> {
        let mut blocks = Vec::new();
        for (file, &before) in self.files.iter().zip(self.before.iter()) {
            let (array, samples) = &file.arrays[0];
            let ArrayStorage::Chunked(chunk, _) = &array.storage else { return Vec::new() };
            let along = samples.in_a_chunk(chunk);
            let inner: usize = file.numbered.iter().skip(1).map(|&(_, _, count)| count).product();
            if along < 2 {
                return Vec::new();
            }
            blocks.extend((0..file.len()).step_by(along * inner).map(|start| (before + start) as u32));
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with `t` (10 samples, 4×6), `s` (10, 3 channels), `mask` (4×6) and `labels` (10, 4×6).
    fn file(directory: &tempfile::TempDir, name: &str) -> PathBuf {
        let path = directory.path().join(name);
        let file = hdf5::File::create(&path).unwrap();
        let add = |name: &str, shape: &[usize], of: &dyn Fn(usize) -> f32| {
            let values: Vec<f32> = (0..shape.iter().product()).map(of).collect();
            let values = ndarray::ArrayView::from_shape(ndarray::IxDyn(shape), &values[..]).unwrap();
            file.new_dataset_builder().with_data(values).create(name).unwrap();
        };
        add("t", &[10, 4, 6], &|place| place as f32);
        add("s", &[10, 3], &|place| 1000.0 + place as f32);
        add("mask", &[4, 6], &|place| -(place as f32));
        add("labels", &[10, 4, 6], &|place| (place % 3) as f32);
        path
    }

    fn options(inputs: &[&str], targets: &[&str]) -> FieldOptions {
        let list = |of: &[&str]| of.iter().map(ToString::to_string).collect();
        FieldOptions { inputs: list(inputs), targets: list(targets), ..FieldOptions::default() }
    }

    fn read(set: &FieldSet, index: usize) -> [Vec<f32>; 2] {
        let mut sample = [vec![0.0; set.image().iter().product()], vec![0.0; set.target_len()]];
        let [input, target] = &mut sample;
        set.read_sample(index, input, target, &mut Vec::new()).unwrap();
        sample
    }

    #[test]
    fn samples_of_fields_belong_together_by_their_numbers_and_arrays_without_are_in_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory, "a.h5");
        let fields = options(&["t[n-1,h,w]", "t[n,h,w]", "mask[h,w]"], &["t[n+2,h,w]"]);
        let set = FieldSet::open(&path, &fields, &[]).unwrap();
        assert_eq!((set.len(), set.image(), set.target()), (7, [3, 4, 6], Some(&[4, 6][..])));
        // The first number that all have is 1.
        let [input, target] = read(&set, 0);
        let places = |from: usize| (0..24).map(move |place| (24 * from + place) as f32);
        let mask = (0..24).map(|place| -(place as f32));
        assert_eq!(input, places(0).chain(places(1)).chain(mask).collect::<Vec<_>>());
        assert_eq!(target, places(3).collect::<Vec<_>>());
        assert_eq!(set.name(6), "a.h5 n 7");
        let tiles = FieldSet::open(&path, &options(&["t[n,h/2,w/3]"], &["s"]), &[]).unwrap();
        assert_eq!((tiles.len(), tiles.image(), tiles.target()), (40, [1, 2, 3], Some(&[3][..])));
        let [input, target] = read(&tiles, 5);
        assert_eq!(input, [27.0, 28.0, 29.0, 33.0, 34.0, 35.0]);
        assert_eq!(target, [1003.0, 1004.0, 1005.0]);
    }

    #[test]
    fn inputs_that_a_network_has_by_names_are_in_its_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory, "a.h5");
        let fields = options(&["t[n,h,w]", "s"], &["s"]);
        let set = FieldSet::open(&path, &fields, &[("s", 3), ("t", 24)]).unwrap();
        let [input, target] = read(&set, 1);
        let t = (24..48).map(|place| place as f32);
        assert_eq!(
            (set.image(), input),
            ([27, 1, 1], [1003.0, 1004.0, 1005.0].into_iter().chain(t).collect())
        );
        assert_eq!(target, [1003.0, 1004.0, 1005.0]);
        // Other names: in the order of the flags.
        let set = FieldSet::open(&path, &fields, &[("a", 24), ("b", 3)]).unwrap();
        assert_eq!(read(&set, 0)[0][..3], [0.0, 1.0, 2.0]);
        let error = FieldSet::open(&path, &fields, &[("a", 3), ("b", 24)]).err().unwrap().message;
        assert!(error.contains("24 numbers a sample, and the network's input a has 3"), "{error}");
        let error = FieldSet::open(&path, &fields, &[("a", 3), ("b", 24), ("c", 1)]).err().unwrap().message;
        assert!(error.contains("2 arrays for a network with 3 inputs: a, b, c"), "{error}");
    }

    #[test]
    fn a_directory_or_a_pattern_is_its_files_in_order_and_one_that_differs_is_named() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.h5", "a.h5"] {
            file(&directory, name);
        }
        let fields = options(&["t"], &["s"]);
        for path in [directory.path().to_path_buf(), directory.path().join("*.h5")] {
            let set = FieldSet::open(&path, &fields, &[]).unwrap();
            assert_eq!((set.len(), set.name(0), set.name(19)), (20, "a.h5 n 0".into(), "b.h5 n 9".into()));
        }
        let other = hdf5::File::create(directory.path().join("c.nc")).unwrap();
        other
            .new_dataset_builder()
            .with_data(&ndarray::Array3::<f32>::zeros((10, 4, 5)))
            .create("t")
            .unwrap();
        other.new_dataset_builder().with_data(&ndarray::Array2::<f32>::zeros((10, 3))).create("s").unwrap();
        drop(other);
        let error = FieldSet::open(directory.path(), &fields, &[]).err().unwrap().message;
        assert!(error.contains("c.nc") && error.contains("samples of [4, 5], and not [4, 6]"), "{error}");
    }

    #[test]
    fn numbers_are_rescaled_by_what_all_samples_have_and_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory, "a.h5");
        let set = FieldSet::open(&path, &options(&["s:standard"], &["s:log1p", "s:minmax"]), &[]).unwrap();
        assert!(set.is_to_be_measured());
        let moments: Vec<_> = (0..10).map(|index| set.moments(index).unwrap()).collect();
        let scales = set.rescaling(&moments).unwrap();
        let set = set.scaled(&scales).unwrap();
        let all: Vec<_> = (0..10).map(|index| read(&set, index)).collect();
        for channel in 0..3 {
            let values: Vec<f32> = all.iter().map(|[input, _]| input[channel]).collect();
            let mean = values.iter().sum::<f32>() / 10.0;
            let deviation = (values.iter().map(|value| value * value).sum::<f32>() / 10.0).sqrt();
            assert!(mean.abs() < 1e-3 && (deviation - 1.0).abs() < 1e-3, "{mean} {deviation}");
            let minmax = [0, 9].map(|index| all[index][1][3 + channel]);
            assert!(minmax[0].abs() < 1e-3 && (minmax[1] - 1.0).abs() < 1e-3, "{minmax:?}");
        }
        let mut back = all[4][1].clone();
        set.unscale(&mut back);
        let first = [1012.0, 1013.0, 1014.0];
        assert!(back.iter().zip(first.iter().cycle()).all(|(a, b)| (a - b).abs() < 0.01), "{back:?}");
    }

    #[test]
    fn what_a_target_must_not_have_is_named_or_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory, "a.h5");
        let of_classes = |ignored, classes| {
            let fields = FieldOptions {
                loss: Some(crate::config::Loss::CrossEntropy),
                ignore_label: ignored,
                ..options(&["t[n,h,w]"], &["labels[n,h,w]"])
            };
            let set = FieldSet::open(&path, &fields, &[]).unwrap().telling_apart(classes);
            let mut sample = [vec![0.0; 24], vec![0.0; 24]];
            let [input, target] = &mut sample;
            set.read_sample(0, input, target, &mut Vec::new()).map(|()| sample[1].clone())
        };
        assert_eq!(of_classes(None, 3).unwrap()[..4], [0.0, 1.0, 2.0, 0.0]);
        let error = of_classes(None, 2).unwrap_err().message;
        assert!(error.contains("2 is none of the 2 classes") && error.contains("a.h5"), "{error}");
        let left = of_classes(Some(2), 2).unwrap();
        assert!(left[2].is_nan() && left[..2] == [0.0, 1.0], "{left:?}");
    }

    #[test]
    fn a_view_with_a_rescaling_is_read_and_others_are_named() {
        let field: Field = "a/b[n,c]:log1p:standard".parse().unwrap();
        assert_eq!(
            (field.view.to_string(), field.log1p, field.rescaling),
            ("a/b[n,c]".into(), true, Rescaling::Standard)
        );
        let field: Field = "a:minmax(b/stats.h5)".parse().unwrap();
        assert_eq!(field.rescaling, Rescaling::MinMaxOf("b/stats.h5".into()));
        for wrong in ["a:std", "a:standard:log1p", "a[n]:"] {
            let error = wrong.parse::<Field>();
            assert!(error.unwrap_err().contains("log1p, standard, minmax"), "{wrong}");
        }
    }
}
