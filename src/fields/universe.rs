//! Universes that are computed: counts of particles in cubes, of four spectral parameters that are to be found out from
//! them. They look like the files of CosmoFlow: `full`, of axes d, h, w and four redshifts, and `unitPar`.
//!
//! A universe is a function of its number and a seed. Its logarithm is a Gaussian random field of a spectrum that rises
//! to a wavelength and falls behind it; the same field, as it has grown by each redshift, gives the mean of the counts,
//! which are Poisson's. Parameters, each from −1 to 1: how strong the field is, the wavelength, how steep the spectrum
//! falls, how fast the field grows.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::random::{Purpose, key, normals, philox, uniform};

/// What the path of a universe begins with, and that of a set of them.
const ONE: &str = "synthetic:universe";
const SET: &str = "synthetic:universes";

/// What stands behind it where the universes are to be tested on.
const TEST: &str = "-test";

/// How many there are, of which edge, and the seed, where a path says less; a quarter as many to test on.
const USUAL: [u64; 3] = [4096, 128, 1];

/// The redshifts of the channels.
const REDSHIFTS: [f32; 4] = [0.0, 0.5, 1.5, 3.0];

/// The most universes of a set.
const MOST: u64 = 1 << 24;

/// Particles of a place, on the average.
const DENSITY: f32 = 4.0;

/// Lines that are transformed at a time, and the smallest edge.
const LANES: usize = 16;

/// Real and imaginary part of one place of several lines.
type Place = [[f32; LANES]; 2];

/// The arrays of a universe.
pub const ARRAYS: [&str; 2] = ["full", "unitPar"];

/// One universe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Universe {
    is_test: bool,
    number: u32,
    edge: usize,
    seed: u64,
}

impl Universe {
    /// The universes that a path names, as paths of one each: `synthetic:universes:N:EDGE:SEED`, of which the last may
    /// lack, and `synthetic:universes-test:…`. `None`: it names none.
    pub fn set(path: &Path) -> Option<Result<Vec<PathBuf>>> {
        let (test, numbers) = words(path, SET)?;
        let numbers = numbers.filter(|&[n, edge, _]| (1..=MOST).contains(&n) && may_be(edge));
        let each = numbers.map(|[n, edge, seed]| {
            (0..n).map(|number| format!("{ONE}{test}:{number}:{edge}:{seed}").into()).collect()
        });
        Some(each.ok_or_else(|| Universe::no_set(path)))
    }

    /// What is said of the name of a set that is computed, and of no universes.
    pub fn no_set(path: &Path) -> Error {
        Error::usage(format!(
            "{}: arrays that are computed are universes, and these are named {SET}:N:EDGE:SEED, for N of them, 1 to \
             {MOST}, the edge a power of two from {LANES} to 1024; {SET}{TEST}:… are others, to test on",
            path.display()
        ))
    }

    /// The path of the universes to test on, where one names some to train on.
    pub fn tests_of(path: &Path) -> Option<PathBuf> {
        let ("", Some([n, edge, seed])) = words(path, SET)? else { return None };
        Some(format!("{SET}{TEST}:{}:{edge}:{seed}", n.div_ceil(4)).into())
    }

    /// The universe of a path that `set` gave.
    pub fn of(path: &Path) -> Option<Universe> {
        let (test, numbers) = words(path, ONE)?;
        let [number, edge, seed] = numbers.filter(|&[number, edge, _]| number < MOST && may_be(edge))?;
        Some(Universe { is_test: test == TEST, number: number as u32, edge: edge as usize, seed })
    }

    /// Places along an axis.
    pub fn edge(&self) -> usize {
        self.edge
    }

    /// One like it of another edge.
    pub fn of_edge(&self, edge: usize) -> Universe {
        Universe { edge, ..self.clone() }
    }

    /// Bytes that computing the counts needs beside them.
    pub fn scratch(&self) -> usize {
        self.edge.pow(3) * size_of::<[f32; 2]>()
    }

    /// The random words of a place, for one of several ends.
    fn words(&self, end: u32) -> impl Fn(u32) -> [u32; 4] {
        let (key, number) = (key(self.seed, Purpose::Synthetic, 4 + u32::from(self.is_test)), self.number);
        move |place| philox(key, [place, end, number, 0])
    }

    /// What is to be found out: `unitPar`.
    pub fn parameters(&self) -> [f32; 4] {
        self.words(0)(0).map(|word| 2.0 * uniform(word) - 1.0)
    }

    /// The counts, redshifts last: `full`.
    pub fn counts(&self) -> Vec<i16> {
        let [strength, _, _, growth] = self.parameters();
        let grown = REDSHIFTS.map(|z| (0.8 + 0.3 * strength) * (1.0 + z).powf(-0.9 - 0.4 * growth));
        let (words, others) = (self.words(1), self.words(2));
        let field = self.field();
        let mut counts = vec![0; 4 * field.len()];
        for (place, (counts, [value, _])) in counts.chunks_exact_mut(4).zip(&field).enumerate() {
            let words = words(place as u32);
            let mut normal = None;
            for (channel, count) in counts.iter_mut().enumerate() {
                // The mean of a log-normal number is that of its logarithm and half its variance.
                let mean = DENSITY * (grown[channel] * (value - 0.5 * grown[channel])).exp();
                *count = match mean <= FEW {
                    true => few(mean, words[channel]),
                    false => many(mean, normal.get_or_insert_with(|| normals(others(place as u32)))[channel]),
                };
            }
        }
        counts
    }

    /// A Gaussian random field of variance 1, the real parts: white noise of waves, each by its share of the spectrum,
    /// which a transform makes one of places.
    fn field(&self) -> Vec<[f32; 2]> {
        let edge = self.edge;
        let wave = |at: usize| at.min(edge - at).pow(2);
        let (shares, mut total) = (self.spectrum(), 0.0);
        let mut field = vec![[0.0; 2]; edge.pow(3)];
        let (words, mut noise) = (self.words(3), [0.0; 4]);
        for (place, value) in field.iter_mut().enumerate() {
            if place % 2 == 0 {
                noise = normals(words((place / 2) as u32));
            }
            let share = shares[wave(place / edge / edge) + wave(place / edge % edge) + wave(place % edge)];
            total += f64::from(share * share);
            *value = [share * noise[place % 2 * 2], share * noise[place % 2 * 2 + 1]];
        }
        transform(&mut field, edge);
        let scale = (1.0 / total.sqrt()) as f32;
        field.iter_mut().for_each(|value| value[0] *= scale);
        field
    }

    /// The root of a wave's share, by the square of its number.
    fn spectrum(&self) -> Vec<f32> {
        let [_, wavelength, steepness, _] = self.parameters();
        let (longest, falls) = (10.0 * 1.6f32.powf(wavelength), 2.0 + steepness);
        let share = |square: usize| {
            let wave = (square as f32).sqrt() * longest / self.edge as f32;
            (wave / (1.0 + wave.powf(1.0 + falls))).sqrt()
        };
        (0..=3 * (self.edge / 2).pow(2)).map(share).collect()
    }
}

/// Whether a universe may have this edge: its lines are transformed by halves, and some at a time.
fn may_be(edge: u64) -> bool {
    (LANES as u64..=1024).contains(&edge) && edge.is_power_of_two()
}

/// Of a path of this kind `TEST`, where it names universes to test on, and its numbers, if it says what it may.
fn words(path: &Path, kind: &str) -> Option<(&'static str, Option<[u64; 3]>)> {
    let rest = path.to_str()?.strip_prefix(kind)?;
    let (test, rest) = rest.strip_prefix(TEST).map_or(("", rest), |rest| (TEST, rest));
    let mut words = rest.split(':');
    words.next().filter(|before| before.is_empty())?;
    let mut numbers = USUAL;
    if test == TEST {
        numbers[0] /= 4;
    }
    for (at, word) in words.enumerate() {
        match (numbers.get_mut(at), word.parse()) {
            (Some(number), Ok(given)) => *number = given,
            _ => return Some((test, None)),
        }
    }
    Some((test, Some(numbers)))
}

/// The largest mean of which a count is found by adding up chances.
const FEW: f32 = 16.0;

/// A number of Poisson's distribution, by where its chances added up come to a random share.
fn few(mean: f32, word: u32) -> i16 {
    let (mean, wanted) = (f64::from(mean), f64::from(word) / f64::from(u32::MAX));
    let mut chance = (-mean).exp();
    let (mut count, mut sum) = (0, chance);
    // More than 80 come once in 10³⁰.
    while wanted > sum && count < 80 {
        count += 1;
        chance *= mean / f64::from(count);
        sum += chance;
    }
    count as i16
}

/// The same of a large mean, by Cornish and Fisher: a normal number with the skewness put right.
fn many(mean: f32, normal: f32) -> i16 {
    let count = mean + normal * mean.sqrt() + (normal * normal - 1.0) / 6.0;
    count.round().clamp(0.0, f32::from(i16::MAX)) as i16
}

/// The discrete Fourier transform of a cube along its three axes.
fn transform(cube: &mut [[f32; 2]], edge: usize) {
    let root = |k: usize| {
        let (sine, cosine) = (std::f64::consts::TAU * k as f64 / edge as f64).sin_cos();
        [cosine as f32, sine as f32]
    };
    let roots: Vec<[f32; 2]> = (0..edge / 2).map(root).collect();
    let mut lines: Vec<Place> = vec![[[0.0; LANES]; 2]; edge];
    let plane = edge * edge;
    // How far apart the places of a line are, the lines of a group, and the groups' first lines.
    for [along, beside, outer] in [[plane, 1, edge], [edge, 1, plane], [1, edge, plane]] {
        for group in 0..plane / LANES {
            let first = group * LANES / edge * outer + group * LANES % edge * beside;
            for (at, place) in lines.iter_mut().enumerate() {
                let from = first + (at.reverse_bits() >> (usize::BITS - edge.trailing_zeros())) * along;
                for lane in 0..LANES {
                    [place[0][lane], place[1][lane]] = cube[from + lane * beside];
                }
            }
            butterflies(&mut lines, &roots);
            for (at, place) in lines.iter().enumerate() {
                for lane in 0..LANES {
                    cube[first + at * along + lane * beside] = [place[0][lane], place[1][lane]];
                }
            }
        }
    }
}

/// Transforms lines whose places are in the order of their bits reversed (Cooley and Tukey, 1965).
fn butterflies(lines: &mut [Place], roots: &[[f32; 2]]) {
    let mut half = 1;
    while half < lines.len() {
        let step = lines.len() / (2 * half);
        for pairs in lines.chunks_exact_mut(2 * half) {
            let (low, high) = pairs.split_at_mut(half);
            for ((low, high), [cosine, sine]) in low.iter_mut().zip(high).zip(roots.iter().step_by(step)) {
                for lane in 0..LANES {
                    let [re, im] = [high[0][lane], high[1][lane]];
                    let turned = [re * cosine - im * sine, re * sine + im * cosine];
                    for (part, turned) in turned.into_iter().enumerate() {
                        let value = low[part][lane];
                        (low[part][lane], high[part][lane]) = (value + turned, value - turned);
                    }
                }
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_of_a_wave_is_one_place() {
        let edge = 16;
        let waves = [3, 15, 6];
        let mut cube: Vec<[f32; 2]> = (0..edge * edge * edge)
            .map(|place| {
                let at = [place / edge / edge, place / edge % edge, place % edge];
                let turns =
                    at.iter().zip(waves).map(|(at, wave)| at * wave).sum::<usize>() as f64 / edge as f64;
                let (sine, cosine) = (std::f64::consts::TAU * turns).sin_cos();
                [cosine as f32, sine as f32]
            })
            .collect();
        transform(&mut cube, edge);
        let at = waves.iter().fold(0, |place, wave| place * edge + (edge - wave) % edge);
        for (place, value) in cube.iter().enumerate() {
            let wanted = if place == at { 4096.0 } else { 0.0 };
            // 12 additions of 4,096 numbers of size 1, each rounded: far less than 12·4096·2⁻²⁴ = 3e-3.
            assert!((value[0] - wanted).abs() < 3e-3 && value[1].abs() < 3e-3, "{place}: {value:?}");
        }
    }

    /// Means and variances within five standard errors.
    #[test]
    fn counts_are_poissons() {
        for mean in [0.3f32, 3.0, 15.0, 17.0, 200.0] {
            let n = 40_000u32;
            let count = |at: u32| {
                let words = philox([1, 2], [at, 0, 0, 0]);
                f64::from(if mean <= FEW { few(mean, words[0]) } else { many(mean, normals(words)[0]) })
            };
            let (wanted, all) = (f64::from(mean), f64::from(n));
            let found = (0..n).map(count).sum::<f64>() / all;
            let variance = (0..n).map(|at| (count(at) - wanted).powi(2)).sum::<f64>() / all;
            assert!((found - wanted).abs() < 5.0 * (wanted / all).sqrt(), "mean {found}, and not {mean}");
            // The fourth moment about the mean is 3λ² + λ. Rounding a normal number adds 1/12.
            let error =
                5.0 * ((2.0 * wanted * wanted + wanted) / all).sqrt() + if mean > FEW { 0.09 } else { 0.0 };
            assert!((variance - wanted).abs() < error, "variance {variance}, and not {mean}");
        }
    }

    #[test]
    fn a_universe_is_a_function_of_its_number_and_has_the_spectrum_of_its_parameters() {
        let of = |path: &str| Universe::of(Path::new(path)).unwrap();
        let universe = of("synthetic:universe:3:32:1");
        assert_eq!(universe.counts(), of("synthetic:universe:3:32:1").counts());
        let others =
            ["synthetic:universe:4:32:1", "synthetic:universe:3:32:2", "synthetic:universe-test:3:32:1"];
        assert!(others.iter().all(|path| of(path).parameters() != universe.parameters()));
        // Of variance 1, and each shell of waves with its share of it.
        let mut field = universe.field();
        let all = field.len() as f32;
        assert!((field.iter().map(|value| value[0] * value[0]).sum::<f32>() / all - 1.0).abs() < 0.15);
        field.iter_mut().for_each(|value| value[1] = 0.0);
        transform(&mut field, 32);
        let shares = universe.spectrum();
        let wave = |at: usize| at.min(32 - at).pow(2);
        let shell = |least: usize, most: usize| {
            let (mut found, mut wanted) = (0.0, 0.0);
            for (place, value) in field.iter().enumerate() {
                let square = wave(place / 1024) + wave(place / 32 % 32) + wave(place % 32);
                if (least * least..most * most).contains(&square) {
                    found += value[0] * value[0] + value[1] * value[1];
                    wanted += shares[square] * shares[square];
                }
            }
            found / wanted
        };
        let relative = [shell(3, 6) / shell(6, 12), shell(6, 12) / shell(12, 20)];
        // Some 400 independent waves in the least shell, of which the square has a relative error of 1/√400.
        assert!(relative.iter().all(|ratio| (ratio - 1.0).abs() < 0.25), "{relative:?}");
        let counts = universe.counts();
        let mean = counts.iter().map(|&count| f32::from(count)).sum::<f32>() / counts.len() as f32;
        assert!((mean - DENSITY).abs() < 0.6, "{mean}");
    }

    #[test]
    fn paths_name_universes_and_those_to_test_on() {
        let set = |path: &str| Universe::set(Path::new(path)).map(|set| set.map(|paths| paths.len()));
        assert_eq!(set("synthetic:universes").unwrap().unwrap(), 4096);
        assert_eq!(set("synthetic:universes-test:6:32").unwrap().unwrap(), 6);
        assert!(
            set("synthetic:shapes").is_none()
                && set("universes").is_none()
                && set("synthetic:universe:1").is_none()
        );
        for wrong in [
            "synthetic:universes:0",
            "synthetic:universes:4:48",
            "synthetic:universes:4:8:1:1",
            "synthetic:universes:x",
        ] {
            let error = set(wrong).unwrap().unwrap_err().message;
            assert!(error.contains("power of two from 16 to 1024"), "{error}");
        }
        let tests = Universe::tests_of(Path::new("synthetic:universes:6:32:9"));
        assert_eq!(tests, Some("synthetic:universes-test:2:32:9".into()));
        assert_eq!(Universe::tests_of(Path::new("synthetic:universes-test:6:32")), None);
    }
}
