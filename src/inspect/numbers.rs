//! What numbers an array holds: their range, mean and deviation, what of them stands for none, and of few integers how
//! often each is there.

use std::collections::BTreeMap;
use std::fmt;

use rayon::ThreadPool;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use crate::error::Result;
use crate::fields::{ArrayBox, ArrayReader, ArrayStorage, FileArray, place_in, six_digits};
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
#[derive(Debug, Default, Clone, PartialEq)]
struct NumberSummary {
    count: u64,
    /// NaN in the file, or what stands for none.
    none: u64,
    infinite: u64,
    low: f32,
    high: f32,
    mean: f64,
    /// The sum of squares of what is between a number and the mean.
    squares: f64,
    /// How often each integer is there; `None` once there are too many.
    labels: Option<BTreeMap<i64, u64>>,
}

impl NumberSummary {
    fn of(numbers: &[f32], integers: bool) -> NumberSummary {
        let mut all = NumberSummary {
            low: f32::INFINITY,
            high: f32::NEG_INFINITY,
            labels: integers.then(BTreeMap::new),
            ..NumberSummary::default()
        };
        let mut sum = 0.0;
        for &number in numbers {
            if number.is_finite() {
                all.count += 1;
                (all.low, all.high) = (all.low.min(number), all.high.max(number));
                sum += f64::from(number);
            } else if number.is_nan() {
                all.none += 1;
            } else {
                all.infinite += 1;
            }
        }
        all.mean = sum / all.count.max(1) as f64;
        let finite = numbers.iter().filter(|number| number.is_finite());
        all.squares = finite.map(|&number| (f64::from(number) - all.mean).powi(2)).sum();
        if let Some(labels) = &mut all.labels {
            for &number in numbers.iter().filter(|number| number.is_finite()) {
                *labels.entry(number as i64).or_default() += 1;
                if labels.len() > MOST_LABELS {
                    break;
                }
            }
        }
        all.few()
    }

    fn few(mut self) -> NumberSummary {
        self.labels = self.labels.filter(|labels| labels.len() <= MOST_LABELS);
        self
    }

    /// Both together (Chan, Golub, LeVeque: updating formulae for variances, 1979).
    fn and(self, other: &NumberSummary) -> NumberSummary {
        let count = self.count + other.count;
        let (a, b) = (self.count as f64, other.count as f64);
        let between = other.mean - self.mean;
        let labels = self.labels.zip(other.labels.clone()).map(|(mut labels, more)| {
            more.into_iter().for_each(|(label, count)| *labels.entry(label).or_default() += count);
            labels
        });
        let together = NumberSummary {
            count,
            none: self.none + other.none,
            infinite: self.infinite + other.infinite,
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            mean: self.mean + between * b / (a + b).max(1.0),
            squares: self.squares + other.squares + between * between * a * b / (a + b).max(1.0),
            labels,
        };
        together.few()
    }

    fn describe(&self, looked_at: u64, of: u64) -> String {
        let mut text = if looked_at < of {
            format!("of {} of {} numbers: ", group(looked_at as usize), group(of as usize))
        } else {
            String::new()
        };
        text += &match (&self.labels, self.count) {
            (_, 0) => "no number".into(),
            (Some(labels), _) if labels.len() == 1 => format!("all {}", labels.keys().next().unwrap_or(&0)),
            (None, _) if self.low == self.high => format!("all {}", six_digits(self.low.into())),
            (Some(labels), count) if count >= (OFTEN * labels.len()) as u64 => {
                let share = |(label, times): (&i64, &u64)| {
                    format!("{label} {:.4} %", 100.0 * *times as f64 / count as f64)
                };
                labels.iter().map(share).collect::<Vec<_>>().join(", ")
            }
            (_, count) => {
                let deviation = (self.squares / count as f64).sqrt();
                let [low, high, mean, deviation] =
                    [self.low.into(), self.high.into(), self.mean, deviation].map(six_digits);
                format!("{low} … {high}, mean {mean}, deviation {deviation}")
            }
        };
        for (count, what) in [(self.none, "missing or NaN"), (self.infinite, "infinite")] {
            if count > 0 {
                text += &format!("; {} {what}", group(count as usize));
            }
        }
        text
    }
}

/// What numbers an array holds, of which some were looked at.
pub struct ArrayNumbers {
    found: NumberSummary,
    looked_at: u64,
    whole: usize,
}

impl ArrayNumbers {
    /// How many classes there are, where these may be numbers of classes.
    pub fn classes(&self) -> Option<usize> {
        /// More are hardly told apart.
        const MOST: f32 = 1000.0;
        let is_of_classes = self.found.count > 0 && self.found.low >= 0.0 && self.found.high < MOST;
        is_of_classes.then_some(self.found.high as usize + 1)
    }

    /// Whether all that were looked at are the same.
    pub fn are_alike(&self) -> bool {
        self.found.low == self.found.high
    }

    /// Whether a run needs to be told what becomes of some.
    pub fn are_missing(&self) -> bool {
        self.found.none + self.found.infinite > 0
    }
}

impl fmt::Display for ArrayNumbers {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.found.describe(self.looked_at, self.whole as u64))
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
    let read = |reader: &mut (ArrayReader, Vec<f32>), number: usize| -> Result<(u64, NumberSummary)> {
        let place = place_in(&grid, number * pieces / wanted);
        let first: Vec<usize> = place.iter().zip(&piece).map(|(place, along)| place * along).collect();
        let len = (0..grid.len()).map(|axis| piece[axis].min(array.shape[axis] - first[axis])).collect();
        let window = ArrayBox { first, len };
        reader.1.resize(window.len.iter().product(), 0.0);
        reader.0.read_box(array, &window, &mut reader.1)?;
        Ok((
            reader.1.len() as u64,
            NumberSummary::of(&reader.1, array.element.is_integer() && array.packing.is_none()),
        ))
    };
    let readers = super::readers(piece.iter().product::<usize>(), array, pool).max(1);
    let start = || (ArrayReader::default(), Vec::new());
    let parts: Result<Vec<(u64, NumberSummary)>> = pool.install(|| {
        (0..wanted).into_par_iter().with_min_len(wanted.div_ceil(readers)).map_init(start, read).collect()
    });
    let parts = parts?;
    let looked_at = parts.iter().map(|(count, _)| count).sum();
    let numbers = parts.into_iter().map(|(_, numbers)| numbers).reduce(|all, part| all.and(&part));
    Ok(ArrayNumbers { found: numbers.unwrap_or_default(), looked_at, whole })
}

/// The shape of what is read at once: a chunk, or as much of the last axes as a piece has.
fn piece(array: &FileArray) -> Vec<usize> {
    if let ArrayStorage::Chunked(chunk, _) = &array.storage {
        return chunk.clone();
    }
    let mut piece = array.shape.clone();
    while piece.iter().product::<usize>() > PIECE {
        let Some(axis) = piece.iter().position(|&places| places > 1) else { break };
        piece[axis] = piece[axis].div_ceil(2);
    }
    piece
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_together_are_the_whole() {
        let numbers: Vec<f32> = (0..100).map(|at| (at * at % 17) as f32 - 3.0).collect();
        let whole = NumberSummary::of(&numbers, false);
        let parts = numbers
            .chunks(7)
            .map(|part| NumberSummary::of(part, false))
            .reduce(|all, part| all.and(&part))
            .unwrap();
        assert!((whole.mean - parts.mean).abs() < 1e-12 && (whole.squares - parts.squares).abs() < 1e-9);
        assert_eq!((whole.low, whole.high, whole.count), (parts.low, parts.high, parts.count));
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
