//! Counter-based random numbers: Philox4x32-10.
//!
//! Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A number is a
//! function of a key and a counter and of nothing else, so that every rank, every device and every
//! repeat computes the same one without having computed those before it. The CPU kernels, the
//! reference device and the CUDA kernels use this one definition.

mod known;

pub use known::KnownNumbers;

const ROUNDS: usize = 10;
const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for one counter under one key.
#[inline]
pub fn philox(key: [u32; 2], [a, b, c, d]: [u32; 4]) -> [u32; 4] {
    let [[a], [b], [c], [d]] = philox_lanes(key, [[a], [b], [c], [d]]);
    [a, b, c, d]
}

/// `philox` for several counters at once, word by word, of which the compiler makes vector instructions where it may.
#[inline(always)]
pub fn philox_lanes<const LANES: usize>(key: [u32; 2], counters: [[u32; LANES]; 4]) -> [[u32; LANES]; 4] {
    let [mut k0, mut k1] = key;
    let [mut c0, mut c1, mut c2, mut c3] = counters;
    for _ in 0..ROUNDS {
        for lane in 0..LANES {
            let p0 = u64::from(MULTIPLIER[0]) * u64::from(c0[lane]);
            let p1 = u64::from(MULTIPLIER[1]) * u64::from(c2[lane]);
            c0[lane] = (p1 >> 32) as u32 ^ c1[lane] ^ k0;
            c1[lane] = p1 as u32;
            c2[lane] = (p0 >> 32) as u32 ^ c3[lane] ^ k1;
            c3[lane] = p0 as u32;
        }
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
}

/// What a stream of numbers is for; part of its key, so that streams never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// The order of an epoch's images.
    Shuffle = 1,
    /// Initial weights.
    Initialise = 2,
    /// Dropout's masks.
    Dropout = 3,
    /// Synthetic images.
    Synthetic = 4,
    /// The first factors of PowerSGD.
    Compress = 5,
    /// Augmentation of an image.
    Augment = 6,
    /// The order in which images are packed.
    Pack = 7,
    /// How images are mixed (mixup, CutMix).
    Mix = 8,
    /// Which ranks a prediction has be slow.
    Jitter = 9,
}

/// The key of the stream that serves one purpose of one run. `which` tells apart several streams of
/// the same purpose (parameters, dropout layers).
pub fn key(seed: u64, purpose: Purpose, which: u32) -> [u32; 2] {
    let mixed = philox([seed as u32, (seed >> 32) as u32], [purpose as u32, which, 0x646c_7472, 0]);
    [mixed[0], mixed[1]]
}

/// A uniform number in [0, 1) with 24 random bits.
#[inline]
pub fn uniform(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Four standard normal numbers of one block (Box and Muller, 1958): each pair of words gives a pair.
#[inline]
pub fn normals([a, b, c, d]: [u32; 4]) -> [f32; 4] {
    let pair = |radius: u32, angle: u32| {
        let radius = (-2.0 * (1.0 - f64::from(uniform(radius))).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * f64::from(uniform(angle))).sin_cos();
        [(radius * cos) as f32, (radius * sin) as f32]
    };
    let ([w, x], [y, z]) = (pair(a, b), pair(c, d));
    [w, x, y, z]
}

/// A sequence of numbers read off a stream, for code that draws one after the other.
#[derive(Debug, Clone)]
pub struct Stream {
    key: [u32; 2],
    /// The upper half of every counter.
    which: [u32; 2],
    block: u64,
    words: [u32; 4],
    used: usize,
}

impl Stream {
    /// The stream of a key, from its first number.
    pub fn new(key: [u32; 2]) -> Stream {
        Stream::at(key, [0; 2])
    }

    /// One of 2^64 streams under one key, for code that needs very many.
    pub fn at(key: [u32; 2], which: [u32; 2]) -> Stream {
        Stream { key, which, block: 0, words: [0; 4], used: 4 }
    }

    /// The next 32 random bits.
    pub fn word(&mut self) -> u32 {
        if self.used == 4 {
            self.words = philox(
                self.key,
                [self.block as u32, (self.block >> 32) as u32, self.which[0], self.which[1]],
            );
            self.block += 1;
            self.used = 0;
        }
        self.used += 1;
        self.words[self.used - 1]
    }

    /// The next uniform number in [0, 1).
    pub fn uniform(&mut self) -> f32 {
        uniform(self.word())
    }

    /// The next integer in 0..bound, without bias (Lemire's method, 2019). `bound` is at least 1.
    pub fn below(&mut self, bound: u32) -> u32 {
        let reject = bound.wrapping_neg() % bound;
        loop {
            let product = u64::from(self.word()) * u64::from(bound);
            if product as u32 >= reject {
                return (product >> 32) as u32;
            }
        }
    }

    /// A random permutation of 0..n (Fisher and Yates).
    pub fn permutation(&mut self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        for last in (1..n).rev() {
            order.swap(last, self.below(last as u32 + 1) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that accompany the paper's own library (Random123, kat_vectors).
    #[test]
    fn philox_gives_the_published_known_answers() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 2], [u32::MAX; 4]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut order = Stream::new(key(1, Purpose::Shuffle, 0)).permutation(1000);
        assert_ne!(order[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        order.sort_unstable();
        assert!(order.iter().enumerate().all(|(i, &v)| i as u32 == v));
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_deviation_one() {
        let key = key(7, Purpose::Initialise, 3);
        let numbers = (0..10_000).flat_map(|block| normals(philox(key, [block, 0, 0, 0])));
        let numbers: Vec<f64> = numbers.map(f64::from).collect();
        let mean = numbers.iter().sum::<f64>() / 40_000.0;
        let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 40_000.0;
        // Five standard errors: 5/√40000 for the mean, 5·√(2/40000) for the variance.
        assert!(mean.abs() < 0.025, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.036, "variance {variance}");
        // Neighbours, which may come from one pair of words, must not depend on each other: 5/√39999.
        let products = numbers.windows(2).map(|pair| pair[0] * pair[1]);
        let correlation = products.sum::<f64>() / 39_999.0;
        assert!(correlation.abs() < 0.025, "correlation {correlation}");
    }

    #[test]
    fn streams_of_unlike_purpose_differ() {
        let words = |purpose, which| Stream::new(key(1, purpose, which)).word();
        assert_ne!(words(Purpose::Shuffle, 0), words(Purpose::Dropout, 0));
        assert_ne!(words(Purpose::Dropout, 0), words(Purpose::Dropout, 1));
        let at = |which| Stream::at(key(1, Purpose::Augment, 0), which).word();
        assert_eq!(at([0, 0]), words(Purpose::Augment, 0));
        assert!(at([0, 0]) != at([1, 0]) && at([0, 1]) != at([1, 0]));
    }
}
