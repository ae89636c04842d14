//! Samples that are made of arrays: which arrays of which files a network reads and is to give, which of their samples
//! belong together, and how their numbers are rescaled (docs/fields.md).

mod codes;
mod coordinates;
mod field;
mod files;
mod list;
mod said;
mod statistics;
#[cfg(test)]
mod tests;

use std::ops::{AddAssign, Range};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ndarray::{ArrayView, ArrayViewMut, ShapeError};

use codes::FieldCodes;
pub use codes::{Codes, CodesMut};
pub use field::Field;
use files::FieldFile;
use list::{FieldList, FieldShape};

use super::picture::Picture;
use super::{
    ChannelScale, Dataset, EvaluationCrop, LearnedArray, NetworkInput, SampleArrays, TargetAxes, TargetShape,
};
use crate::config::{FieldOptions, Missing, most};
use crate::cuts::even_split;
use crate::error::{Error, Result};
use crate::fields::{
    ArrayReader, ArrayStorage, FileArray, FileNumber, Universe, ViewSamples, files_of, place_in,
};
use crate::files::ChunkCache;
use crate::graph::{SampleShape, squeezed};

/// Finds the arrays of one file.
pub type ArraysOf<'a> = &'a dyn Fn(&Path) -> Result<Vec<FileArray>>;

/// Finds the arrays of files, of each by the given function.
pub type FindArrays<'a> =
    &'a dyn Fn(Result<Vec<PathBuf>>, ArraysOf<'_>) -> Result<Vec<(PathBuf, Vec<FileArray>)>>;

/// A file, and the number of one of its samples on each axis that numbers samples.
type SamplePlace<'a> = (&'a FieldFile, Vec<(char, i64)>);

/// A field of the sample at a place, or some of its rows: of the first of so many axes that are its last.
#[derive(Clone, Copy)]
struct SampleField<'a> {
    place: &'a SamplePlace<'a>,
    at: usize,
    rows: Option<(usize, &'a Range<usize>)>,
}

/// A data set of arrays.
#[derive(Clone)]
pub struct FieldSet {
    list: Arc<FieldList>,
    files: Arc<Vec<FieldFile>>,
    /// How many samples come before each file, and all.
    before: Arc<Vec<usize>>,
    scales: Arc<Vec<LearnedArray>>,
    /// For each field the chunks that were decoded last.
    chunks: Arc<Vec<Arc<ChunkCache>>>,
    /// What becomes of the numbers of inputs and of targets, where a device is to say it and they have few bits.
    codes: Arc<[OnceLock<Option<FieldCodes>>; 2]>,
}

impl FieldSet {
    /// Opens the arrays of `--input`, `--target` and `--weight`, and reads none of their numbers. `of_network`: the
    /// inputs of a network by their names; where there are several each is given an array, and else all arrays are one
    /// behind the other. `find` finds the arrays of all files where ranks share that, which is then collective.
    ///
    /// # Errors
    /// `Usage` for a view that the arrays do not have; `Data` for files that cannot be read, or that differ.
    pub fn open(
        find: Option<FindArrays<'_>>,
        path: &Path,
        options: &FieldOptions,
        of_network: &[NetworkInput],
    ) -> Result<FieldSet> {
        let fields = Field::all(options)?;
        let look = |path: &Path| files::arrays_of(path, &fields);
        let found = match find {
            Some(find) => find(files_of(path), &look)?,
            None => files_of(path)?
                .into_iter()
                .map(|path| Ok((path.clone(), look(&path)?)))
                .collect::<Result<_>>()?,
        };
        let arranged = |(path, arrays): (PathBuf, _)| files::arranged(&path, arrays, &fields);
        let files = found.into_iter().map(arranged).collect::<Result<Vec<FieldFile>>>()?;
        files[1..].iter().try_for_each(|file| files::alike(&files[0], file))?;
        let is_of_sequences = matches!(of_network, [NetworkInput { axes, .. }] if axes.len() == 2);
        let shape = |(at, (_, samples)): (usize, &(FileArray, ViewSamples))| {
            FieldShape::of(samples, is_of_sequences && at < options.inputs.len())
        };
        let shapes = files[0].arrays.iter().enumerate().map(shape).collect();
        let list = FieldList::new(options, fields, shapes, of_network)?;
        let mut before = vec![0];
        for file in &files {
            before.push(before[before.len() - 1] + file.len());
        }
        if before[files.len()] > most::IMAGES {
            let what = format!("{} samples; there can be {}", before[files.len()], most::IMAGES);
            return Err(Error::data(path, what));
        }
        let unscaled = |at: usize| LearnedArray {
            field: list.fields[at].text.clone(),
            scale: vec![1.0; list.shapes[at].channels()],
            shift: vec![0.0; list.shapes[at].channels()],
            unit: files[0].arrays[at].0.unit.clone(),
            axes: Vec::new(),
        };
        let scales = (0..list.compared).map(unscaled).collect();
        let chunks = (0..list.fields.len()).map(|_| Arc::new(ChunkCache::default())).collect();
        Ok(FieldSet {
            list: Arc::new(list),
            files: Arc::new(files),
            before: Arc::new(before),
            scales: Arc::new(scales),
            chunks: Arc::new(chunks),
            codes: Arc::default(),
        })
    }

    /// The set, whose arrays have the shapes, types and units of another's, and which keeps chunks where that does.
    ///
    /// # Errors
    /// `Data`, with what differs.
    pub fn beside(self, other: &FieldSet) -> Result<FieldSet> {
        files::alike(&other.files[0], &self.files[0])?;
        Ok(FieldSet { chunks: other.chunks.clone(), ..self })
    }

    /// What the network is given, and with what its output is compared.
    pub fn arrays(&self) -> SampleArrays {
        let FieldList { fields, shapes, inputs, network, axes, target, classes, .. } = &*self.list;
        let lies_last = |at: usize| fields[at].view.channels_last();
        let of_one = |&(_, at): &(String, usize)| (shapes[at].lengths().collect(), lies_last(at));
        let inputs_of = match network.is_empty() {
            true => vec![(axes.clone(), lies_last(0))],
            false => network.iter().map(of_one).collect(),
        };
        let shape = match classes {
            Some(_) => TargetShape::Classes(target.clone()),
            None => TargetShape::Values(target.clone()),
        };
        let target =
            self.target().map(|_| TargetAxes { shape, is_last: lies_last(*inputs).unwrap_or(false) });
        SampleArrays { inputs: inputs_of, target }
    }

    /// What a network reads of a sample: vectors have (F, 1, 1), and sequences (C, 1, L).
    pub fn image(&self) -> SampleShape {
        self.list.image
    }

    /// The axes of a target, without that of samples; `None` where there is none.
    pub fn target(&self) -> Option<&[usize]> {
        Some(&self.list.target[..]).filter(|_| self.list.compared > self.list.inputs)
    }

    /// The first target where outputs of this shape are as it is; else the first input.
    pub fn first_of(&self, output: &[usize]) -> usize {
        match self.target() {
            // Of classes there are no channels.
            Some(target)
                if [output, &output[1.min(output.len())..]]
                    .iter()
                    .any(|of| squeezed(of) == squeezed(target)) =>
            {
                self.list.inputs
            }
            _ => 0,
        }
    }

    /// How long a target is along the first axis of space of what a network reads, where it has as many as that.
    pub fn target_rows(&self) -> Option<usize> {
        let (target, places) = (&self.list.target, self.list.image.len() - 1);
        target.len().checked_sub(places).map(|axis| target[axis])
    }

    /// Numbers of a target, with the weights behind it.
    pub fn target_len(&self) -> usize {
        let own = self.target().map_or(usize::from(self.list.in_network), |target| target.iter().product());
        own + self.weights()
    }

    /// How many weights a target's points have.
    pub fn weights(&self) -> usize {
        match self.list.fields.len() > self.list.compared {
            true => self.list.weights.iter().map(|(along, _)| along).product(),
            false => 0,
        }
    }

    /// The unit of what the target's numbers were before they were rescaled, where its file or the weights say it.
    pub fn target_unit(&self) -> Option<String> {
        let target = self.scales.get(self.list.inputs).filter(|_| self.list.classes.is_none());
        target.and_then(|of| of.unit.clone())
    }

    /// The set, whose targets are numbers of so many classes where they are classes.
    pub fn telling_apart(self, classes: usize) -> FieldSet {
        let list = FieldList { classes: self.list.classes.map(|_| classes), ..FieldList::clone(&self.list) };
        FieldSet { list: Arc::new(list), codes: Arc::default(), ..self }
    }

    /// The first of them, where samples are computed.
    pub fn universe(&self) -> Option<Universe> {
        Universe::of(&self.files[0].path)
    }

    /// The files in their order, which the order of samples follows.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }

    /// How many files there are.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// How many samples of a file follow each other in one chunk of the first field, where these are several.
    fn along(&self, file: usize) -> Option<usize> {
        let file = &self.files[file];
        let (array, samples) = &file.arrays[0];
        let ArrayStorage::Chunked(chunk, _) = &array.storage else { return None };
        let inner: usize = file.numbered.iter().skip(1).map(|&(_, _, count)| count).product();
        Some(samples.in_a_chunk(chunk)).filter(|&along| along > 1).map(|along| along * inner)
    }

    /// By what the numbers of each field are rescaled.
    pub fn scales(&self) -> &[LearnedArray] {
        &self.scales
    }

    /// The set rescaled so. An array may be called otherwise than the one that it stands for.
    ///
    /// # Errors
    /// `Usage`: they are of other numbers of channels, or of the same arrays in another order.
    pub fn scaled(self, scales: &[LearnedArray]) -> Result<FieldSet> {
        let lengths = self.list.shapes.iter().map(FieldShape::channels);
        let fits = |(scale, channels): (&LearnedArray, usize)| {
            scale.scale.len() == channels && scale.shift.len() == channels
        };
        let (all, inputs) = (self.list.compared, self.list.inputs);
        let are_as_many = scales.len() == all || (all == inputs && scales.len() > all);
        if !are_as_many || !scales.iter().zip(lengths).all(fits) {
            let names: Vec<&str> = scales.iter().map(|of| &*of.field).collect();
            let (names, texts) = (names.join(", "), self.list.texts().join(", "));
            let what = format!("the weights learned from {names}; --input and --target say {texts}");
            return Err(Error::usage(what));
        }
        let mut list = FieldList::clone(&self.list);
        let (known_inputs, known_targets) = scales.split_at(inputs);
        for (at, (scale, field)) in scales.iter().zip(&mut list.fields).enumerate() {
            let beside = if at < inputs { known_inputs } else { known_targets };
            let known: Field = scale.field.parse().map_err(Error::usage)?;
            let is_other = |other: &LearnedArray| {
                other.field.parse().is_ok_and(|other: Field| other.view.array == field.view.array)
            };
            if known.view.array != field.view.array && beside.iter().any(is_other) {
                return Err(Error::usage(format!(
                    "the weights learned from {}, where {} is given, which they learned from too: arrays \
                     have to come in the same order",
                    scale.field, field.view
                )));
            }
            // What the weights expect, as the factors are.
            field.log1p = known.log1p;
        }
        let (mut scales, codes) = (scales.to_vec(), Arc::default());
        for (scale, own) in scales.iter_mut().zip(&*self.scales) {
            scale.unit = scale.unit.take().or_else(|| own.unit.clone());
            // What is learned from here lies here.
            if own.axes.iter().any(|axis| !axis.places.is_empty()) {
                scale.axes.clone_from(&own.axes);
            }
        }
        let scales = Arc::new(scales);
        Ok(FieldSet { scales, list: Arc::new(list), codes, ..self })
    }

    /// The number of the file that a sample is in.
    fn file_of(&self, index: usize) -> usize {
        self.before.partition_point(|&before| before <= index) - 1
    }

    /// Where a sample is.
    fn place(&self, index: usize) -> SamplePlace<'_> {
        let at = self.file_of(index);
        let file = &self.files[at];
        let grid: Vec<usize> = file.numbered.iter().map(|&(_, _, count)| count).collect();
        let places = place_in(&grid, index - self.before[at]);
        let number = |(&(name, first, _), place): (&(char, i64, usize), usize)| (name, first + place as i64);
        (file, file.numbered.iter().zip(places).map(number).collect())
    }

    /// The number of a sample among those of one of its arrays.
    fn index((file, numbers): &SamplePlace, at: usize) -> usize {
        let of = |name: char| numbers.iter().find(|(of, _)| *of == name).map_or(0, |(_, number)| *number);
        file.arrays[at].1.index(of)
    }

    /// The numbers of a field as the file has them, or their logarithms.
    fn raw(&self, of: SampleField, readers: &mut Vec<ArrayReader>, to: &mut [f32]) -> Result<()> {
        self.stored(of, readers, to)?.meanings(to);
        self.logarithms(of.at, to).map_err(|wrong| self.wrong(of, &wrong))
    }

    /// Reads the numbers of a field as its array has them.
    fn stored<'a, T: FileNumber>(
        &self,
        SampleField { place, at, rows }: SampleField<'a>,
        readers: &mut Vec<ArrayReader>,
        to: &mut [T],
    ) -> Result<&'a FileArray> {
        if readers.len() <= at {
            readers.resize_with(at + 1, ArrayReader::default);
        }
        let (array, samples) = &place.0.arrays[at];
        readers[at].share(&self.chunks[at]);
        readers[at].read_codes(array, &samples.part(Self::index(place, at), rows), to)?;
        Ok(array)
    }

    /// The same as the network reads or is to give them; returns how many are missing.
    fn numbers(&self, of: SampleField, readers: &mut Vec<ArrayReader>, to: &mut [f32]) -> Result<usize> {
        self.raw(of, readers, to)?;
        let channels = self.list.shapes[of.at].channels();
        let each = to.len() / channels;
        (0..channels).for_each(|channel| self.rescale(of.at, channel, &mut to[channel * each..][..each]));
        self.settle(of.at, to).map_err(|wrong| self.wrong(of, &wrong))
    }

    /// Takes logarithms, where they are wanted.
    fn logarithms(&self, at: usize, to: &mut [f32]) -> std::result::Result<(), BadNumber> {
        if self.list.fields[at].log1p {
            if let Some(value) = to.iter().find(|value| value.is_finite() && **value <= -1.0) {
                return Err(BadNumber(
                    format!("{value} has no ln(1 + x)"),
                    "leave :log1p out for such an array",
                ));
            }
            to.iter_mut().for_each(|value| *value = value.ln_1p());
        }
        Ok(())
    }

    /// Reads one sample: what the network reads (C, H, W), and its target, as numbers or as codes (`tables`); of each
    /// the given rows alone, one channel behind the other. Returns how many are missing.
    ///
    /// # Errors
    /// `Data`, with file and sample: it cannot be read, or has numbers that it must not have.
    pub fn read_sample(
        &self,
        index: usize,
        parts: &mut [CodesMut<'_>; 2],
        rows: [Option<&Range<usize>>; 2],
        readers: &mut Vec<ArrayReader>,
    ) -> Result<MissingCount> {
        let mut count = MissingCount::default();
        if let CodesMut::Numbers(target) = &mut parts[1]
            && self.list.in_network
        {
            target.fill(0.0);
        }
        let (FieldList { inputs, shapes, places, .. }, place) = (&*self.list, self.place(index));
        for (at, (shape, &from)) in shapes.iter().zip(places).enumerate() {
            let is_target = at >= *inputs;
            let rows = rows[usize::from(is_target)];
            let some = |whole: usize| self.in_rows(is_target, rows, whole);
            let own = some(from)..some(from) + some(shape.numbers());
            let of =
                SampleField { place: &place, at, rows: rows.map(|rows| (self.list.image.len() - 1, rows)) };
            count.all[usize::from(is_target)] += own.len() as u64;
            let missing = match &mut parts[usize::from(is_target)] {
                CodesMut::Numbers(part) => self.numbers(of, readers, &mut part[own])?,
                CodesMut::Bytes(part) => self.coded(of, readers, &mut part[own])?,
                CodesMut::Words(part) => self.coded(of, readers, &mut part[own])?,
            };
            count.missing[usize::from(is_target)] += missing as u64;
        }
        if let CodesMut::Numbers(target) = &mut parts[1]
            && self.weights() > 0
        {
            self.weigh(&place, rows[1], readers, target)?;
        }
        Ok(count)
    }

    /// How many of so many numbers of a sample's input, or of its target, lie in some of its rows: all of a sample's
    /// fields have as many rows.
    fn in_rows(&self, is_target: bool, rows: Option<&Range<usize>>, whole: usize) -> usize {
        let height = if is_target { self.target_rows() } else { Some(self.list.image[1]) };
        match (rows, height) {
            (Some(rows), Some(height)) => whole / height * rows.len(),
            _ => whole,
        }
    }

    /// The rows that the first of so many ranks has of a sample's input and target, where samples are cut into so many
    /// parts; `None` where it has all.
    fn first_rows(&self, parts: usize) -> [Option<Range<usize>>; 2] {
        let height = self.list.image[1];
        let own = |height: usize| (parts > 1).then(|| even_split(height, parts, 0));
        [own(height), own(height).filter(|_| self.target_rows() == Some(height))]
    }

    /// Writes the weights of a sample's points behind its target, or those of some of its rows.
    fn weigh(
        &self,
        place: &SamplePlace,
        rows: Option<&Range<usize>>,
        readers: &mut Vec<ArrayReader>,
        target: &mut [f32],
    ) -> Result<()> {
        let (at, mut axes) = (self.list.compared, self.list.weights.clone());
        let mut own = None;
        if let Some((rows, axis)) = rows.zip(axes.len().checked_sub(self.list.image.len() - 1)) {
            axes[axis].0 = rows.len();
            let behind = axes[axis..].iter().filter(|(_, has)| *has).count();
            own = Some((behind, rows)).filter(|_| axes[axis].1);
        }
        let shape = axes.iter().map(|&(along, has)| if has { along } else { 1 }).collect::<Vec<_>>();
        let mut weights = vec![0.0; shape.iter().product()];
        let of = SampleField { place, at, rows: own };
        self.stored(of, readers, &mut weights)?.meanings(&mut weights);
        if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
            let what = if weight.is_nan() {
                "a weight is missing or none (NaN)".into()
            } else {
                format!("{weight} is no weight")
            };
            return Err(self.wrong(of, &BadNumber(what, "weights are 0 or more")));
        }
        let grid: Vec<usize> = axes.iter().map(|&(along, _)| along).collect();
        let to = target.len() - grid.iter().product::<usize>();
        let wrong = |error: ShapeError| Error::internal(format!("weights of points: {error}"));
        let weights = ArrayView::from_shape(shape, &weights).map_err(wrong)?;
        // Along axes that they lack weights are the same.
        ArrayViewMut::from_shape(grid, &mut target[to..]).map_err(wrong)?.assign(&weights);
        Ok(())
    }

    /// Rescales numbers of a channel.
    fn rescale(&self, at: usize, channel: usize, values: &mut [f32]) {
        let LearnedArray { scale, shift, .. } = &self.scales[at];
        let (scale, shift) = (scale[channel], shift[channel]);
        if (scale, shift) != (1.0, 0.0) {
            let channel = ChannelScale::new(scale, shift);
            values.iter_mut().for_each(|value| *value = channel.apply(*value));
        }
    }

    /// Deals with numbers that are missing, and checks what targets must be; returns how many are missing.
    fn settle(&self, at: usize, own: &mut [f32]) -> std::result::Result<usize, BadNumber> {
        let is_target = at >= self.list.inputs;
        if let Some(classes) = self.list.classes.filter(|_| is_target) {
            return self.classes(classes, own);
        }
        let is_no_share = |value: &&f32| value.is_finite() && !(0.0..=1.0).contains(*value);
        if let Some(value) = own.iter().find(is_no_share).filter(|_| is_target && self.list.shares) {
            let what = format!("{value} is no share from 0 to 1, which --loss bce wants");
            return Err(BadNumber(what, "rescale it by :minmax, or take --loss mse"));
        }
        if own.iter().all(|value| value.is_finite()) {
            return Ok(0);
        }
        let instead = self.instead(is_target)?;
        let missing = own.iter_mut().filter(|value| !value.is_finite());
        Ok(missing.map(|value| *value = instead).count())
    }

    /// What takes the place of a number that is missing.
    fn instead(&self, is_target: bool) -> std::result::Result<f32, BadNumber> {
        match self.list.missing {
            Missing::Refuse => Err(BadNumber("a number is missing, NaN or infinite".into(), OF_MISSING)),
            Missing::Mask if is_target => Ok(f32::NAN),
            Missing::Mask | Missing::Zero => Ok(0.0),
        }
    }

    /// Checks numbers of classes; those that do not count become NaN. Returns how many are missing.
    fn classes(&self, classes: usize, values: &mut [f32]) -> std::result::Result<usize, BadNumber> {
        let mut missing = 0;
        let ignored = self.list.ignored.map(|label| label as f32);
        for value in values {
            if Some(*value) == ignored {
                *value = f32::NAN;
            } else if value.is_nan() {
                *value = self.instead(true)?;
                missing += 1;
            } else if value.fract() != 0.0 || *value < 0.0 || *value >= classes as f32 {
                let what = format!("{value} is none of the {classes} classes that the network tells apart");
                let advice = "where such points are not to count, say --ignore-label";
                return Err(BadNumber(what, advice));
            }
        }
        Ok(missing)
    }

    fn wrong(&self, of: SampleField, BadNumber(what, advice): &BadNumber) -> Error {
        let (array, samples) = &of.place.0.arrays[of.at];
        let is_lacking = || array.is_lacking(&samples.window(Self::index(of.place, of.at)));
        let what = match *advice == OF_MISSING && is_lacking().unwrap_or(false) {
            true => "numbers were never written",
            false => what,
        };
        let text = format!("{}, sample {}: {what}; {advice}", self.list.fields[of.at].text, name(of.place));
        Error::data(&of.place.0.path, text)
    }
}

/// What settles a number that is missing.
const OF_MISSING: &str = "--missing mask leaves such points out, --missing zero takes 0 for them";

/// How many numbers of samples there are and how many of them are missing: of inputs, and of targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MissingCount {
    /// All of them.
    pub all: [u64; 2],
    /// Those that are missing.
    pub missing: [u64; 2],
}

impl AddAssign for MissingCount {
    fn add_assign(&mut self, more: MissingCount) {
        for at in [0, 1] {
            self.all[at] += more.all[at];
            self.missing[at] += more.missing[at];
        }
    }
}

/// What is wrong with a number, and what settles it.
struct BadNumber(String, &'static str);

/// What to call a sample: "a.h5 n 3".
fn name((file, numbers): &SamplePlace) -> String {
    let name = file.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let numbers: Vec<String> = numbers.iter().map(|(axis, number)| format!("{axis} {number}")).collect();
    if numbers.is_empty() { name } else { format!("{name} {}", numbers.join(" ")) }
}

impl Dataset for FieldSet {
    fn len(&self) -> usize {
        self.before[self.files.len()]
    }

    fn read(&self, index: usize, _: &mut Picture) -> Result<()> {
        Err(Error::internal(format!("{} is no picture", self.name(index))))
    }

    fn name(&self, index: usize) -> String {
        name(&self.place(index))
    }

    fn fingerprint(&self) -> String {
        let mut sum = crate::files::Crc::new();
        for file in self.files.iter() {
            sum.update(format!("{:?}", file.numbered).as_bytes());
            for (array, _) in &file.arrays {
                sum.update(format!("{} {:?} {}", array.name, array.shape, array.file_bytes()).as_bytes());
            }
        }
        let files = self.files.len();
        format!(
            "{} samples of {} in {files} files, CRC-32 {:08x}",
            self.len(),
            self.list.texts().join(" "),
            sum.sum()
        )
    }

    fn frame(&self) -> EvaluationCrop {
        EvaluationCrop::Whole
    }

    fn fields(&self) -> Option<&FieldSet> {
        Some(self)
    }

    /// Samples of one chunk are read together. Those of a file that has one in each chunk, or no chunks, are blocks of
    /// one beside those of other files.
    fn blocks(&self) -> Vec<u32> {
        let along: Vec<_> = (0..self.files.len()).map(|file| self.along(file)).collect();
        if along.iter().all(Option::is_none) {
            return Vec::new();
        }
        let files = along.iter().zip(&self.before[..]).zip(self.files.iter());
        let starts = files.flat_map(|((along, before), file)| {
            (0..file.len()).step_by(along.unwrap_or(1)).map(move |start| (before + start) as u32)
        });
        starts.collect()
    }

    /// As many chunks as so many samples lie in, whose order does not lead far, and at least one for each thread.
    fn keep(&self, samples: usize, threads: usize) -> usize {
        /// Bytes of chunks that are kept of an array, where threads do not need more.
        const MOST: usize = 128 << 20;
        let threads = threads.max(1);
        let along: Vec<_> = (0..self.files.len()).map(|file| self.along(file)).collect();
        let keep = |(at, chunks): (usize, &Arc<ChunkCache>)| {
            // Files may be chunked unlike each other: the chunks of any of them have room.
            let of_file = |(file, along): (&FieldFile, &Option<usize>)| {
                let (array, of) = &file.arrays[at];
                let of_all =
                    |along: usize| (samples.div_ceil(along) + 2) * array.chunks_of(&of.window(0)).len();
                [array.chunk_bytes(), array.buffer(), along.map_or(0, of_all)]
            };
            let largest = |a: [usize; 3], b: [usize; 3]| [0, 1, 2].map(|at| a[at].max(b[at]));
            let [bytes, buffer, near] = self.files.iter().zip(&along).map(of_file).fold([0; 3], largest);
            let most = threads + near;
            chunks.keep(most.min(MOST / bytes.max(1)).max(threads).max(chunks.most()));
            // One that goes stays as long as a thread reads it.
            buffer * threads + bytes * (chunks.most() + threads - 1)
        };
        self.chunks.iter().enumerate().map(keep).sum()
    }
}
