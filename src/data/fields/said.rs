//! What a run says of its arrays, and what reading them takes.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use super::FieldSet;
use crate::data::Dataset;
use crate::error::Result;
use crate::fields::{Amount, FileArray, ViewSamples};

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
        /// Seconds after which no other is.
        const LONG: f64 = 1.0;
        let (mut readers, mut total) = (Vec::new(), Vec::new());
        let mut sample = [vec![0.0; self.image.iter().product()], vec![0.0; self.target_len()]];
        let most = self.len().min(TRIED);
        let (begun, mut tried) = (Instant::now(), 0);
        while tried < most && (tried == 0 || begun.elapsed().as_secs_f64() < LONG) {
            let [input, target] = &mut sample;
            self.read_sample(tried * self.len() / most, input, target, [None; 2], &mut readers)?;
            for reader in &mut readers {
                total.push(reader.take_amount());
                reader.forget();
            }
            tried += 1;
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
