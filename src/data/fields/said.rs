//! What a run says of its arrays, and what reading them takes.

use std::convert::Infallible;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use super::{CodesMut, FieldSet, files};
use crate::data::Dataset;
use crate::error::Result;
use crate::fields::{Amount, ArrayStorage, FileArray, ViewSamples};
use crate::files::ChunkCache;

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
        let (inputs, compared, count) = (self.list.inputs, self.list.compared, self.list.fields.len());
        let said = |what: &str, range: Range<usize>| match range.is_empty() {
            true => String::new(),
            false => format!("{what} {}", list(range)),
        };
        let gives = said(" gives", inputs..compared) + &said(", weighed by", compared..count);
        let mut lines =
            vec![all, format!("a sample: {}{gives}; the first is {}", list(0..inputs), self.name(0))];
        lines.extend(self.files[0].arrays.iter().zip(&self.list.texts).filter_map(|((array, _), text)| {
            let ArrayStorage::Library(why) = &array.storage else { return None };
            Some(format!("{text} is read through the HDF5 library, one thread at a time: {why}"))
        }));
        lines.extend(self.files[0].arrays.iter().zip(&self.list.texts).filter_map(|((array, _), text)| {
            let names = (!array.not_applied.is_empty()).then(|| array.not_applied.join(", "))?;
            Some(format!("{text}: what its file says by {names} is not applied"))
        }));
        lines.extend(self.repeated());
        lines.extend(self.left());
        lines
    }

    /// What reading takes of ranks that go through samples in these orders: bytes of the files, bytes that are decoded,
    /// bytes that are used, and seconds of one thread for each sample. Some samples are read for it, each as if it came
    /// alone; how often chunks are read that several samples have follows from what is kept of them.
    ///
    /// # Errors
    /// `Data`.
    pub fn reading(&self, orders: impl Iterator<Item = Vec<u32>>) -> Result<(Amount, f64)> {
        /// Samples that are read, evenly spread.
        const TRIED: usize = 8;
        /// Seconds after which no other is.
        const LONG: f64 = 1.0;
        if let Some(computed) = self.computing() {
            let count = orders.map(|order| order.len() as u64).sum::<u64>();
            let of = |(bytes, used): (u64, u64)| [bytes, used].map(|each| each * count);
            let arrays = self.files[0].arrays.iter().zip(&self.list.numbers);
            let each = arrays
                .map(|((array, _), &numbers)| (array.bytes(), (numbers * array.element.bytes()) as u64));
            let [decoded, used] = of(each.fold((0, 0), |(a, b), (c, d)| (a + c, b + d)));
            return Ok((Amount { read: 0, decoded, used }, computed));
        }
        let (mut readers, mut alone) = (Vec::new(), vec![Amount::default(); self.list.fields.len()]);
        let mut sample = [vec![0.0; self.image.iter().product()], vec![0.0; self.target_len()]];
        let most = self.len().min(TRIED);
        let (begun, mut tried) = (Instant::now(), 0);
        while tried < most && (tried == 0 || begun.elapsed().as_secs_f64() < LONG) {
            let parts = sample.each_mut().map(|part| CodesMut::Numbers(part));
            self.read_sample(tried * self.len() / most, parts, [None; 2], &mut readers)?;
            for (reader, amount) in readers.iter_mut().zip(&mut alone) {
                *amount = [*amount, reader.take_amount()].into_iter().sum();
                reader.forget();
            }
            tried += 1;
        }
        let seconds = begun.elapsed().as_secs_f64() / tried as f64;
        let decoded = alone.iter().map(|of| of.decoded).sum::<u64>() as f64 / tried as f64;
        let (all, samples) = self.epoch(orders, &alone, tried as u64);
        let share = all.decoded as f64 / (decoded * samples as f64).max(1.0);
        Ok((all, seconds * if decoded > 0.0 { share.min(1.0) } else { 1.0 }))
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

    /// What reading takes of all samples in these orders, where some took `alone`; and how many these are. Of long
    /// orders the beginning stands for the rest.
    fn epoch(&self, orders: impl Iterator<Item = Vec<u32>>, alone: &[Amount], tried: u64) -> (Amount, u64) {
        /// Samples of each rank of which the order is gone through.
        const LOOKED_AT: usize = 1 << 18;
        let (mut count, mut seen, mut chunks) = (0, 0, vec![0; alone.len()]);
        for order in orders {
            let kept: Vec<_> = self.chunks.iter().map(|chunks| ChunkCache::new(chunks.most())).collect();
            count += order.len() as u64;
            seen += order.len().min(LOOKED_AT) as u64;
            for index in order.into_iter().take(LOOKED_AT) {
                let place = self.place(index as usize % self.len());
                for (at, (array, samples)) in place.0.arrays.iter().enumerate() {
                    for chunk in array.chunks_of(&samples.window(Self::index(&place, at))) {
                        let make = |_: &mut Vec<u8>| {
                            chunks[at] += 1;
                            Ok::<bool, Infallible>(false)
                        };
                        let _ = kept[at].with((array.number(), chunk), make, |_, _| ());
                    }
                }
            }
        }
        let of = |(at, alone): (usize, &Amount)| {
            let each = |bytes: u64| bytes * count / tried;
            match (chunks[at] as f64 * count as f64 / f64::max(seen as f64, 1.0)) as u64 {
                0 => Amount { read: each(alone.read), decoded: each(alone.decoded), used: each(alone.used) },
                chunks => Amount {
                    read: (chunks as f64 * self.stored_chunk(at)) as u64,
                    decoded: chunks * self.files[0].arrays[at].0.chunk_bytes() as u64,
                    used: each(alone.used),
                },
            }
        };
        (alone.iter().enumerate().map(of).sum(), count)
    }

    /// Bytes that a chunk of a field has in the files, on the average of some of these.
    fn stored_chunk(&self, at: usize) -> f64 {
        /// Files that are looked at. Most know it by themselves.
        const ASKED: usize = 64;
        let asked = self.files.iter().step_by(self.files.len().div_ceil(ASKED));
        let (bytes, chunks) = asked.fold((0, 0), |(bytes, chunks), file| {
            let (array, _) = &file.arrays[at];
            (bytes + array.stored_chunks(), chunks + array.chunk_count())
        });
        bytes as f64 / chunks.max(1) as f64
    }

    /// Which arrays lack an axis by which others number samples.
    fn repeated(&self) -> Option<String> {
        let file = &self.files[0];
        let of = |((_, samples), text): (&(FileArray, ViewSamples), &String)| {
            let along =
                files::repeated(samples, &file.numbered).iter().map(char::to_string).collect::<Vec<_>>();
            (!along.is_empty()).then(|| format!("{text} along {}", along.join(" and ")))
        };
        let of_all: Vec<String> = file.arrays.iter().zip(&self.list.texts).filter_map(of).collect();
        (!of_all.is_empty()).then(|| format!("the same for all samples: {}", of_all.join(", ")))
    }

    /// What of the files belongs to no sample.
    fn left(&self) -> Option<String> {
        let file = &self.files[0];
        let of = |(at, (array, samples)): (usize, &(FileArray, ViewSamples))| {
            let behind = (samples.rest().iter().enumerate())
                .filter(|(_, rest)| **rest > 0)
                .map(|(axis, rest)| format!("{rest} of {} places of axis {axis}", array.shape[axis]));
            // What another array has nothing for.
            let numbered = samples.numbered().into_iter().filter_map(|(name, _, count)| {
                let &(_, _, used) = file.numbered.iter().find(|(of, ..)| *of == name)?;
                (count > used).then(|| format!("{} of the {count} along {name}", count - used))
            });
            let left: Vec<String> = behind.chain(numbered).collect();
            (!left.is_empty()).then(|| format!("{}: {}", self.list.texts[at], left.join(", ")))
        };
        let left: Vec<String> = file.arrays.iter().enumerate().filter_map(of).collect();
        (!left.is_empty()).then(|| format!("in no sample of a file: {}", left.join("; ")))
    }
}
