//! What numbers an array holds: their range, mean and deviation, what of them stands for none, and of few integers how
//! often each is there.

use std::collections::BTreeMap;
use std::fmt;

use rayon::ThreadPool;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use crate::error::Result;
use crate::fields::{ArrayBox, ArrayReader, ArrayStorage, FileArray, Moments, halved, place_in, six_digits};
use crate::plan::group;

/// Numbers that are looked at unless all are, about: 16 MB as f32.
const PART: usize = 4 << 20;

/// Numbers of a piece of an array that lies in one piece.
const PIECE: usize = 1 << 18;

/// Pieces of an array that are looked at unless all are: to find a chunk takes some versions of HDF5 a while.
const MOST_PIECES: usize = 1024;

/// Different integers that are listed, as labels are.
const MOST_LABELS: usize = 16;

/// How often such integers are there on the average, at least, or they only count places.
const OFTEN: usize = 4;

/// What some numbers are like.
#[derive(Debug, Clone, PartialEq)]
struct NumberSummary {
    /// Of those that are finite.
    moments: Moments,
    /// NaN in the file, or what stands for none.
    none: usize,
    infinite: usize,
    /// How often each integer is there; `None` once there are too many.
    labels: Option<BTreeMap<i64, u64>>,
}

impl NumberSummary {
    fn of(numbers: &[f32], integers: bool) -> NumberSummary {
        let mut labels = integers.then(BTreeMap::new);
        if let Some(labels) = &mut labels {
            for &number in numbers.iter().filter(|number| number.is_finite()) {
                *labels.entry(number as i64).or_default() += 1;
                if labels.len() > MOST_LABELS {
                    break;
                }
            }
        }
        let count = |what: fn(f32) -> bool| numbers.iter().filter(|&&number| what(number)).count();
        let [none, infinite] = [f32::is_nan, f32::is_infinite].map(count);
        NumberSummary { moments: Moments::of(numbers), none, infinite, labels }.few()
    }

    fn few(mut self) -> NumberSummary {
        self.labels = self.labels.filter(|labels| labels.len() <= MOST_LABELS);
        self
    }

    /// Both together.
    fn and(self, other: NumberSummary) -> NumberSummary {
        let labels = self.labels.zip(other.labels).map(|(mut labels, more)| {
            more.into_iter().for_each(|(label, count)| *labels.entry(label).or_default() += count);
            labels
        });
        let [none, infinite] = [self.none + other.none, self.infinite + other.infinite];
        NumberSummary { moments: self.moments.and(other.moments), none, infinite, labels }.few()
    }

    fn describe(&self, looked_at: usize, of: usize) -> String {
        let mut text = if looked_at < of {
            format!("of {} of {} numbers: ", group(looked_at), group(of))
        } else {
            String::new()
        };
        let Moments { count, mean, least, most, .. } = self.moments;
        text += &match &self.labels {
            _ if count == 0.0 => "no number".into(),
            Some(labels) if labels.len() == 1 => format!("all {}", labels.keys().next().unwrap_or(&0)),
            None if least == most => format!("all {}", six_digits(least)),
            Some(labels) if count >= (OFTEN * labels.len()) as f64 => {
                let share =
                    |(label, &times): (&i64, &u64)| format!("{label} {:.4} %", 100.0 * times as f64 / count);
                labels.iter().map(share).collect::<Vec<_>>().join(", ")
            }
            _ => {
                let [low, high, mean, deviation] =
                    [least, most, mean, self.moments.deviation()].map(six_digits);
                format!("{low} … {high}, mean {mean}, deviation {deviation}")
            }
        };
        for (count, what) in [(self.none, "missing or NaN"), (self.infinite, "infinite")] {
            if count > 0 {
                text += &format!("; {} {what}", group(count));
            }
        }
        text
    }
}

/// What numbers an array holds, of which some were looked at.
pub struct ArrayNumbers {
    found: NumberSummary,
    looked_at: usize,
    whole: usize,
}

impl ArrayNumbers {
    /// How many classes there are, where these may be numbers of classes.
    pub fn classes(&self) -> Option<usize> {
        /// More are hardly told apart.
        const MOST: f64 = 1000.0;
        let Moments { count, least, most, .. } = self.found.moments;
        (count > 0.0 && least >= 0.0 && most < MOST).then_some(most as usize + 1)
    }

    /// Whether all that were looked at are the same.
    pub fn are_alike(&self) -> bool {
        self.found.moments.least == self.found.moments.most
    }

    /// Whether a run needs to be told what becomes of some.
    pub fn are_missing(&self) -> bool {
        self.found.none + self.found.infinite > 0
    }
}

impl fmt::Display for ArrayNumbers {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.found.describe(self.looked_at, self.whole))
    }
}

/// The numbers of an array: of all, or of pieces that lie evenly in it.
///
/// # Errors
/// As for `ArrayReader::read`.
pub fn of(array: &FileArray, all: bool, pool: &ThreadPool) -> Result<ArrayNumbers> {
    let whole: usize = array.shape.iter().product();
    let piece = piece(array);
    let grid: Vec<usize> =
        array.shape.iter().zip(&piece).map(|(extent, piece)| extent.div_ceil(*piece)).collect();
    let pieces: usize = grid.iter().product();
    let most = (PART / piece.iter().product::<usize>().max(1)).clamp(1, MOST_PIECES);
    let wanted = if all { pieces } else { most.min(pieces) };
    let read = |reader: &mut (ArrayReader, Vec<f32>), number: usize| -> Result<(usize, NumberSummary)> {
        let place = place_in(&grid, number * pieces / wanted);
        let first: Vec<usize> = place.iter().zip(&piece).map(|(place, along)| place * along).collect();
        let len = (0..grid.len()).map(|axis| piece[axis].min(array.shape[axis] - first[axis])).collect();
        let window = ArrayBox { first, len };
        reader.1.resize(window.len.iter().product(), 0.0);
        reader.0.read_box(array, &window, &mut reader.1)?;
        Ok((reader.1.len(), NumberSummary::of(&reader.1, super::guess::may_be_classes(array))))
    };
    let readers = super::readers(piece.iter().product::<usize>(), array, pool).max(1);
    let start = || (ArrayReader::default(), Vec::new());
    let parts: Result<Vec<(usize, NumberSummary)>> = pool.install(|| {
        (0..wanted).into_par_iter().with_min_len(wanted.div_ceil(readers)).map_init(start, read).collect()
    });
    let parts = parts?;
    let looked_at = parts.iter().map(|(count, _)| count).sum();
    let numbers = parts.into_iter().map(|(_, numbers)| numbers).reduce(NumberSummary::and);
    Ok(ArrayNumbers { found: numbers.unwrap_or_else(|| NumberSummary::of(&[], false)), looked_at, whole })
}

/// The shape of what is read at once: a chunk, or as much of the last axes as a piece has.
fn piece(array: &FileArray) -> Vec<usize> {
    match &array.storage {
        ArrayStorage::Chunked(chunk, _) => chunk.clone(),
        _ => halved(array.shape.clone(), PIECE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_together_are_the_whole() {
        let numbers: Vec<f32> = (0..100).map(|at| (at * at % 17) as f32 - 3.0).collect();
        let whole = NumberSummary::of(&numbers, false);
        let parts =
            numbers.chunks(7).map(|part| NumberSummary::of(part, false)).reduce(NumberSummary::and).unwrap();
        let (whole, parts) = (whole.moments, parts.moments);
        assert!((whole.mean - parts.mean).abs() < 1e-12);
        assert!((whole.deviation() - parts.deviation()).abs() < 1e-12);
        assert_eq!((whole.least, whole.most, whole.count), (parts.least, parts.most, parts.count));
    }

    #[test]
    fn few_integers_are_listed_and_what_stands_for_none_is_counted() {
        let labels = [[0.0, 1.0, 1.0, 2.0]; 3].concat();
        assert_eq!(
            NumberSummary::of(&labels, true).describe(12, 12),
            "0 25.0000 %, 1 50.0000 %, 2 25.0000 %"
        );
        let places = NumberSummary::of(&[0.0, 1.0, 2.0], true).describe(3, 3);
        assert_eq!(places, "0 … 2, mean 1, deviation 0.816497");
        assert_eq!(NumberSummary::of(&[7.0; 5], true).describe(5, 5), "all 7");
        let text = NumberSummary::of(&[1.0, f32::NAN, f32::INFINITY, 3.0], false).describe(4, 8);
        assert_eq!(text, "of 4 of 8 numbers: 1 … 3, mean 2, deviation 1; 1 missing or NaN; 1 infinite");
        assert_eq!(NumberSummary::of(&[f32::NAN], false).describe(1, 1), "no number; 1 missing or NaN");
    }
}
