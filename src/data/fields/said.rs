//! What a run says of its arrays, and what reading them takes.

use std::convert::Infallible;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use super::files::FieldFile;
use super::list::FieldList;
use super::{CodesMut, FieldSet, FieldShape, SampleField, files};
use crate::config::Missing;
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::fields::{Amount, ArrayReader, ArrayStorage, FileArray, ViewSamples, better_chunk, extents};
use crate::files::ChunkCache;

/// Seconds after which no other sample is tried before a run.
const LONG: f64 = 1.0;

impl FieldSet {
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
        let (all, len, path) = (files(self), self.len(), path.display());
        let all = format!("data: {path}, {all}: {len} samples to {purpose} on{of_test}");
        let of = |at: usize| {
            let (array, samples) = &self.files[0].arrays[at];
            let shape = samples.shape();
            let shape = if shape.is_empty() { "1".into() } else { extents(&shape) };
            let unit = array.unit.as_ref().map_or(String::new(), |unit| format!(" {unit}"));
            format!("{} ({shape}{unit})", self.list.fields[at].text)
        };
        let list = |range: Range<usize>| range.map(of).collect::<Vec<_>>().join(", ");
        let (inputs, compared, count) = (self.list.inputs, self.list.compared, self.list.fields.len());
        let said = |what: &str, range: Range<usize>| match range.is_empty() {
            true => String::new(),
            false => format!("{what} {}", list(range)),
        };
        let gives = said(" gives", inputs..compared) + &said(", weighted by", compared..count);
        let mut lines =
            vec![all, format!("a sample: {}{gives}; the first is {}", list(0..inputs), self.name(0))];
        let fields = &self.list.fields;
        let given = self.list.network.iter().map(|(name, at)| format!("{name} is {}", fields[*at].text));
        let given: Vec<String> = given.collect();
        lines.extend((!given.is_empty()).then(|| format!("the network's inputs: {}", given.join(", "))));
        lines.extend(self.of_some(|array| match &array.storage {
            ArrayStorage::Library(why) => {
                Some(format!("is read through the HDF5 library, one thread at a time: {why}"))
            }
            _ => None,
        }));
        lines.extend(self.of_some(|array| {
            let names = (!array.not_applied.is_empty()).then(|| array.not_applied.join(", "))?;
            Some(format!("has attributes that are not applied: {names}"))
        }));
        lines.extend(self.repeated());
        lines.extend(self.left());
        lines
    }

    /// What is said of an array, for each field: as of the first file of which there is something, and of how many.
    fn of_some(&self, what: impl Fn(&FileArray) -> Option<String>) -> Vec<String> {
        let of = |(at, text): (usize, &str)| {
            let mut of_files = self.files.iter().filter_map(|file| what(&file.arrays[at].0));
            let first = of_files.next()?;
            let files = match (1 + of_files.count(), self.files.len()) {
                (some, all) if some == all => String::new(),
                (some, all) => format!(" of {some} of the {all} files"),
            };
            Some(format!("{text}{files} {first}"))
        };
        self.list.texts().into_iter().enumerate().filter_map(of).collect()
    }

    /// What reading takes of ranks that go through samples in these orders: for each field bytes of the files, bytes
    /// that are decoded and bytes that are used, and seconds of one thread for each sample. Some samples are read for
    /// the seconds, each as if it came alone; how often chunks are read that several samples have follows from what is
    /// kept of them. Of samples that are cut into parts the first is read.
    ///
    /// # Errors
    /// `Data`.
    pub fn reading(
        &self,
        orders: impl Iterator<Item = Vec<u32>>,
        parts: usize,
    ) -> Result<(Vec<Amount>, f64)> {
        /// Samples that are read, evenly spread.
        const TRIED: usize = 8;
        if let Some(computed) = self.computing() {
            let count = orders.map(|order| order.len() as u64).sum::<u64>();
            let amount = |((array, _), shape): (&(FileArray, ViewSamples), &FieldShape)| Amount {
                read: 0,
                decoded: array.bytes() * count,
                used: (shape.numbers() * array.element.bytes()) as u64 * count,
            };
            let amounts = self.files[0].arrays.iter().zip(&self.list.shapes).map(amount);
            return Ok((amounts.collect(), computed));
        }
        let (mut readers, mut alone) = (Vec::new(), 0);
        let rows = self.first_rows(parts);
        let own = |is_target: bool, whole: usize| {
            vec![0.0; self.in_rows(is_target, rows[usize::from(is_target)].as_ref(), whole)]
        };
        let mut sample = [own(false, self.list.image.iter().product()), own(true, self.target_len())];
        let rows = [rows[0].as_ref(), rows[1].as_ref()];
        let most = self.len().min(TRIED);
        let (begun, mut tried) = (Instant::now(), 0);
        while tried < most && (tried == 0 || begun.elapsed().as_secs_f64() < LONG) {
            let mut both = sample.each_mut().map(|part| CodesMut::Numbers(part));
            self.read_sample(tried * self.len() / most, &mut both, rows, &mut readers)?;
            for reader in &mut readers {
                alone += reader.take_amount().decoded;
                reader.forget();
            }
            tried += 1;
        }
        let seconds = begun.elapsed().as_secs_f64() / tried as f64;
        let (all, samples) = self.epoch(orders);
        let (together, alone) =
            (all.iter().map(|of| of.decoded).sum::<u64>() as f64, alone as f64 / tried as f64);
        let share = together / (alone * samples as f64).max(1.0);
        Ok((all, seconds * if alone > 0.0 { share.min(1.0) } else { 1.0 }))
    }

    /// Whether `dltrain inspect` names better chunks for one of the fields, which took so much.
    pub fn has_better_chunks(&self, amounts: &[Amount]) -> bool {
        let has = |file: &FieldFile| {
            let mut fields = file.arrays.iter().zip(amounts);
            fields.any(|((array, samples), amount)| better_chunk(array, samples, *amount).is_some())
        };
        self.files.iter().any(has)
    }

    /// Whether the HDF5 library reads some of the arrays: nobody counts what it reads of a file.
    pub fn is_by_library(&self) -> bool {
        let mut arrays = self.files.iter().flat_map(|file| &file.arrays);
        arrays.any(|(array, _)| matches!(array.storage, ArrayStorage::Library(_)))
    }

    /// How many of the arrays' numbers are missing in some samples, where a run goes on without them (`--missing`), and
    /// how many points are ignored (`--ignore-label`), a line each; of samples that are cut into parts in the first.
    /// `compares`: targets are compared with what the network gives.
    ///
    /// # Errors
    /// `Data`: a sample cannot be read, or none that is looked at has a point of a target that counts.
    pub fn uncounted(&self, parts: usize, compares: bool) -> Result<Vec<String>> {
        /// Samples that are looked at, and those of which one has to have a point of each target: evenly spread.
        const LOOKED_AT: [usize; 2] = [16, 1024];
        let FieldList { inputs, compared, fields, shapes, ignored, missing, .. } = &*self.list;
        let are_all_there = *missing == Missing::Refuse && ignored.is_none() && self.weights() == 0;
        if are_all_there || self.universe().is_some() {
            return Ok(Vec::new());
        }
        let (mut readers, rows) = (Vec::new(), self.first_rows(parts));
        // Weights may lack the axis that is cut.
        let rows = |at: usize| rows[usize::from(at >= *inputs)].as_ref().filter(|_| at < *compared);
        let numbers = |at: usize| self.in_rows(at >= *inputs, rows(at), shapes[at].numbers());
        let mut count = |at: usize, index: usize| {
            let place = self.place(index);
            let rows = rows(at).map(|rows| (self.list.image.len() - 1, rows));
            self.count(SampleField { place: &place, at, rows }, &mut readers, numbers(at))
        };
        let [few, many] = LOOKED_AT.map(|most| self.len().min(most));
        let (begun, mut looked_at, mut counts) = (Instant::now(), 0, vec![[0; 2]; fields.len()]);
        while looked_at < few && (looked_at == 0 || begun.elapsed().as_secs_f64() < LONG) {
            for (at, [missing, without]) in counts.iter_mut().enumerate() {
                let more = count(at, looked_at * self.len() / few)?;
                (*missing, *without) = (*missing + more[0], *without + more[1]);
            }
            looked_at += 1;
        }
        let mut said = [Vec::new(), Vec::new()];
        for (at, both) in counts.into_iter().enumerate() {
            let (field, numbers) = (&fields[at], numbers(at));
            let mut is_empty = compares && at >= *inputs && both[0] + both[1] == looked_at * numbers;
            for sample in 0..many {
                is_empty =
                    is_empty && count(at, sample * self.len() / many)?.iter().sum::<usize>() == numbers;
            }
            if is_empty {
                let none = match both {
                    _ if at >= *compared => "every weight is 0",
                    [_, 0] => "every number is missing",
                    _ => "every point is missing or ignored",
                };
                let what =
                    format!("{} {}: in {many} of {} samples {none}", field.flag, field.text, self.len());
                return Err(Error::data(&self.files[0].path, what));
            }
            for (count, said) in
                both.into_iter().zip(&mut said).filter(|(count, _)| *count > 0 && at < *compared)
            {
                let share = 100.0 * count as f64 / (looked_at * numbers) as f64;
                said.push(format!("{share:.2} % of {}", field.text));
            }
        }
        let part = if parts > 1 { format!("the first of {parts} parts of ") } else { String::new() };
        let line = |(what, said): (&str, Vec<String>)| {
            let of = format!("{what}, in {part}{looked_at} of {} samples: ", self.len());
            (!said.is_empty()).then(|| of + &said.join(", "))
        };
        Ok(["missing", "ignored"].into_iter().zip(said).filter_map(line).collect())
    }

    /// Of so many numbers of a field those that are missing, and those that do not count though they are there.
    fn count(&self, of: SampleField, readers: &mut Vec<ArrayReader>, numbers: usize) -> Result<[usize; 2]> {
        let FieldList { inputs, compared, ignored, .. } = &*self.list;
        let mut values = vec![0.0; numbers];
        self.raw(of, readers, &mut values)?;
        let without = match ignored.filter(|_| (*inputs..*compared).contains(&of.at)) {
            Some(label) => Some(label as f32),
            None => (of.at >= *compared).then_some(0.0),
        };
        let count = |is: &dyn Fn(f32) -> bool| values.iter().filter(|value| is(**value)).count();
        Ok([count(&|value| !value.is_finite()), count(&|value| Some(value) == without)])
    }

    /// Seconds in which a sample is computed that is too large to be tried, by those of a smaller one: Fourier's
    /// transform of n numbers takes n·ln n.
    fn computing(&self) -> Option<f64> {
        const TRIED: usize = 32;
        let universe = self.universe().filter(|universe| universe.edge() > TRIED)?;
        let begun = Instant::now();
        universe.of_edge(TRIED).counts();
        let [edge, tried] = [universe.edge(), TRIED].map(|edge| edge as f64);
        Some(begun.elapsed().as_secs_f64() * (edge / tried).powi(3) * edge.ln() / tried.ln())
    }

    /// What reading each field takes of all samples in these orders; and how many these are. Of long orders the
    /// beginning stands for the rest.
    fn epoch(&self, orders: impl Iterator<Item = Vec<u32>>) -> (Vec<Amount>, u64) {
        /// Samples of each rank of which the order is gone through.
        const LOOKED_AT: usize = 1 << 18;
        let stored: Vec<_> = (0..self.list.fields.len()).map(|at| self.stored_shares(at)).collect();
        // Bytes that are read, decoded and used.
        let (mut count, mut seen, mut taken) = (0, 0, vec![[0.0; 3]; stored.len()]);
        for order in orders {
            let kept: Vec<_> = self.chunks.iter().map(|chunks| ChunkCache::new(chunks.most())).collect();
            count += order.len() as u64;
            seen += order.len().min(LOOKED_AT) as u64;
            for index in order.into_iter().take(LOOKED_AT) {
                let index = index as usize % self.len();
                let (file, place) = (self.file_of(index), self.place(index));
                for (at, (array, samples)) in place.0.arrays.iter().enumerate() {
                    let window = samples.window(Self::index(&place, at));
                    let Amount { read, decoded, used } = ArrayReader::amount_without_chunks(array, &window);
                    let mut more = [read, decoded, used].map(|bytes| bytes as f64);
                    for chunk in array.chunks_of(&window) {
                        let make = |_: &mut Vec<u8>| {
                            let bytes = array.chunk_bytes() as f64;
                            more[0] += bytes * stored[at][file];
                            more[1] += bytes;
                            Ok::<bool, Infallible>(false)
                        };
                        let _ = kept[at].with((array.number(), chunk), make, |_, _| ());
                    }
                    taken[at].iter_mut().zip(more).for_each(|(all, more)| *all += more);
                }
            }
        }
        let of_all = |bytes: f64| (bytes * count as f64 / f64::max(seen as f64, 1.0)).round() as u64;
        let amount = |of: [f64; 3]| of.map(of_all);
        let amounts =
            taken.into_iter().map(amount).map(|[read, decoded, used]| Amount { read, decoded, used });
        (amounts.collect(), count)
    }

    /// For each file bytes that the chunks of a field have in it for each byte that they are when decoded: of some
    /// files, which stand for those behind them.
    fn stored_shares(&self, at: usize) -> Vec<f64> {
        /// Files that are looked at. Most know it by themselves.
        const ASKED: usize = 64;
        let apart = self.files.len().div_ceil(ASKED);
        let mut last = None;
        let share = |(number, file): (usize, &FieldFile)| {
            let (array, _) = &file.arrays[at];
            let bytes = array.chunk_count() * array.chunk_bytes();
            if bytes > 0 && (last.is_none() || number.is_multiple_of(apart)) {
                last = Some(array.stored_chunks() as f64 / bytes as f64);
            }
            last.unwrap_or(1.0)
        };
        self.files.iter().enumerate().map(share).collect()
    }

    /// Which arrays lack an axis by which others number samples.
    fn repeated(&self) -> Option<String> {
        let file = &self.files[0];
        let of = |((_, samples), text): (&(FileArray, ViewSamples), &str)| {
            let along =
                files::repeated(samples, &file.numbered).iter().map(char::to_string).collect::<Vec<_>>();
            (!along.is_empty()).then(|| format!("{text} along {}", along.join(" and ")))
        };
        let of_all: Vec<String> = file.arrays.iter().zip(self.list.texts()).filter_map(of).collect();
        (!of_all.is_empty()).then(|| format!("the same for all samples: {}", of_all.join(", ")))
    }

    /// What of the files belongs to no sample.
    fn left(&self) -> Option<String> {
        let of = |(at, text): (usize, &str)| {
            let (first, samples) = &self.files[0].arrays[at];
            let behind = (0..first.shape.len()).filter_map(|axis| {
                let left = |file: &FieldFile| {
                    let (array, samples) = &file.arrays[at];
                    [samples.rest()[axis], array.shape[axis]]
                };
                let ([left, all], files) = self.over_files(left)?;
                Some(format!("{left} of {all} places of axis {axis}{files}"))
            });
            // What another array has nothing for.
            let numbered = samples.numbered().into_iter().filter_map(|(name, ..)| {
                let left = |file: &FieldFile| {
                    let counted = file.arrays[at].1.numbered();
                    let count = counted.iter().find(|(of, ..)| *of == name).map_or(0, |of| of.2);
                    let used = file.numbered.iter().find(|(of, ..)| *of == name).map_or(count, |of| of.2);
                    [count.saturating_sub(used), count]
                };
                let ([left, count], files) = self.over_files(left)?;
                Some(format!("{left} of the {count} along {name}{files}"))
            });
            let left: Vec<String> = behind.chain(numbered).collect();
            (!left.is_empty()).then(|| format!("{text}: {}", left.join(", ")))
        };
        let left: Vec<String> = self.list.texts().into_iter().enumerate().filter_map(of).collect();
        (!left.is_empty()).then(|| format!("in no sample: {}", left.join("; ")))
    }

    /// What is left of how many, as each file has it, and which files these are; where they differ, of all together
    /// that have something left. `None` where none has.
    fn over_files(&self, of: impl Fn(&FieldFile) -> [usize; 2]) -> Option<([usize; 2], String)> {
        let all: Vec<[usize; 2]> = self.files.iter().map(of).collect();
        let some: Vec<[usize; 2]> = all.iter().copied().filter(|[left, _]| *left > 0).collect();
        let first = *some.first()?;
        if all.iter().all(|each| *each == first) {
            return Some((first, if all.len() > 1 { " of each file".into() } else { String::new() }));
        }
        let sum = some.iter().fold([0; 2], |[a, b], [left, count]| [a + left, b + count]);
        Some((sum, format!(" of {} of the {} files", some.len(), all.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, options};
    use super::*;
    use crate::config::FieldOptions;

    /// Also where the first file has nothing of it.
    #[test]
    fn attributes_that_are_not_applied_are_said_of_all_files() {
        let directory = tempfile::tempdir().unwrap();
        let [_, second] = ["a.h5", "b.h5"].map(|name| file(&directory, name));
        let second = hdf5::File::append(second).unwrap();
        let s = second.dataset("s").unwrap();
        s.new_attr::<f32>().shape(2).create("valid_range").unwrap().write(&[0f32, 1.0]).unwrap();
        drop(s);
        second.close().unwrap();
        let set = FieldSet::open(None, directory.path(), &options(&["t"], &["s"]), &[]).unwrap();
        let lines = set.lines(directory.path(), "train", None);
        let expected = "s of 1 of the 2 files has attributes that are not applied: valid_range";
        assert!(lines.iter().any(|line| line == expected), "{lines:?}");
    }

    /// Of a loss that nothing counts in a run learns nothing.
    #[test]
    fn points_that_are_ignored_or_weigh_nothing_are_counted_before_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.h5");
        let file = hdf5::File::create(&path).unwrap();
        let add = |name: &str, value: &dyn Fn(usize, usize) -> f32| {
            let values = ndarray::Array2::from_shape_fn((32, 4), |(n, w)| value(n, w));
            file.new_dataset_builder().with_data(&values).create(name).unwrap();
        };
        add("x", &|n, w| (n + w) as f32);
        add("quarter", &|_, w| if w == 0 { 7.0 } else { 1.0 });
        add("mixed", &|_, w| if w == 0 { f32::NAN } else { 7.0 });
        add("sevens", &|_, _| 7.0);
        add("zeros", &|_, _| 0.0);
        add("last", &|n, w| if [n, w] == [31, 3] { 1.0 } else { 0.0 });
        file.close().unwrap();
        let said = |missing, target: &str, weight: Option<&str>| {
            let of_points = |name: &str| format!("{name}[n,w]");
            let fields = FieldOptions {
                missing,
                loss: Some("cross-entropy".parse().unwrap()),
                ignore_label: Some(7),
                weights: weight.map(of_points).into_iter().collect(),
                ..options(&["x[n,w]"], &[&of_points(target)])
            };
            FieldSet::open(None, &path, &fields, &[])
                .unwrap()
                .uncounted(1, true)
                .map_err(|error| error.message)
        };
        let quarter = "ignored, in 16 of 32 samples: 25.00 % of quarter[n,w]";
        assert_eq!(said(Missing::Refuse, "quarter", None).unwrap(), [quarter]);
        assert_eq!(said(Missing::Refuse, "quarter", Some("last")).unwrap(), [quarter]);
        for (target, weight, expected) in [
            ("sevens", None, "--target sevens[n,w]: in 32 of 32 samples every point is missing or ignored"),
            ("mixed", None, "--target mixed[n,w]: in 32 of 32 samples every point is missing or ignored"),
            ("quarter", Some("zeros"), "--weight zeros[n,w]: in 32 of 32 samples every weight is 0"),
        ] {
            let error = said(Missing::Mask, target, weight).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// Where a run goes on without them: of inputs and targets; and none of a target cannot be trained from.
    #[test]
    fn how_much_is_missing_is_said_and_a_target_of_nothing_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.h5");
        let file = hdf5::File::create(&path).unwrap();
        let add = |name: &str, is_missing: &dyn Fn(usize) -> bool| {
            let of = |(n, c)| if is_missing(4 * n + c) { f32::NAN } else { 1.0 };
            let values = ndarray::Array2::from_shape_fn((100, 4), of);
            file.new_dataset_builder().with_data(&values).create(name).unwrap();
        };
        add("whole", &|_| false);
        add("half", &|place| place % 2 == 0);
        add("one", &|place| place != 4 * 77);
        add("none", &|_| true);
        file.close().unwrap();
        let open = |missing, input: &str, target: &str| {
            let fields = FieldOptions { missing, ..options(&[input], &[target]) };
            FieldSet::open(None, &path, &fields, &[]).unwrap()
        };
        let said = |missing, input: &str, target: &str| open(missing, input, target).uncounted(1, true);
        let nothing: [String; 0] = [];
        assert_eq!(said(Missing::Mask, "whole", "whole").unwrap(), nothing);
        assert_eq!(said(Missing::Refuse, "half", "none").unwrap(), nothing);
        let expected = ["missing, in 16 of 100 samples: 50.00 % of half, 100.00 % of one"];
        assert_eq!(said(Missing::Zero, "half", "one").unwrap(), expected);
        let error = said(Missing::Mask, "none", "none").unwrap_err().message;
        assert!(error.contains("--target none: in 100 of 100 samples every number is missing"), "{error}");
        // What a network gives is there without.
        let predicted = open(Missing::Mask, "whole", "none").uncounted(1, false).unwrap();
        assert_eq!(predicted, ["missing, in 16 of 100 samples: 100.00 % of none"]);
    }
}
