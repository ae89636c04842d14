//! Mixup and cutmix: images of a batch mixed in pairs, and their classes with them.
//!
//! Zhang, Cisse, Dauphin, Lopez-Paz: "mixup: Beyond empirical risk minimization", ICLR 2018. Yun et al.: "CutMix:
//! Regularization strategy to train strong classifiers with localizable features", ICCV 2019. An image's share λ is
//! drawn from Beta(α, α) for each image (the papers draw one a batch); its partner is another image of the epoch,
//! prepared as it is when its own turn comes, before it is mixed itself.

use std::ops::Range;

use crate::config::Augment;
use crate::random::{Stream, normals};

/// What becomes of one image.
#[derive(Debug, Clone, PartialEq)]
pub enum Mix {
    /// Share λ of it and 1 − λ of its partner.
    Blend(f32),
    /// These rows and columns are the partner's; a share of λ remains.
    Paste { rows: Range<usize>, columns: Range<usize>, share: f32 },
}

impl Mix {
    /// What the numbers of a stream decide for an image of (height, width). Where both kinds are asked for each image
    /// has one of them, either as likely. `None` where none is.
    pub fn draw(augment: &Augment, stream: &mut Stream, size: [usize; 2]) -> Option<Mix> {
        let paste = match (augment.mixup, augment.cutmix) {
            (None, None) => return None,
            (Some(_), Some(_)) => stream.below(2) == 1,
            (_, cutmix) => cutmix.is_some(),
        };
        match (augment.mixup, augment.cutmix) {
            (_, Some(alpha)) if paste => Some(Self::window(beta(stream, alpha), stream, size)),
            (Some(alpha), _) => Some(Mix::Blend(beta(stream, alpha) as f32)),
            _ => None,
        }
    }

    /// A window of 1 − λ of the area, with the image's ratio of sides, that lies anywhere: the border may cut it, and λ
    /// is what is really left.
    fn window(share: f64, stream: &mut Stream, size: [usize; 2]) -> Mix {
        let ratio = (1.0 - share).sqrt();
        let mut span = |side: usize| {
            let centre = stream.below(side.max(1) as u32) as usize;
            let extent = (side as f64 * ratio) as usize;
            centre.saturating_sub(extent / 2)..(centre + extent / 2).min(side)
        };
        let (rows, columns) = (span(size[0]), span(size[1]));
        let area = (size[0] * size[1]).max(1) as f64;
        let share = (1.0 - (rows.len() * columns.len()) as f64 / area) as f32;
        Mix::Paste { rows, columns, share }
    }

    /// λ
    pub fn share(&self) -> f32 {
        match self {
            Mix::Blend(share) | Mix::Paste { share, .. } => *share,
        }
    }

    /// Mixes an image (C, H, W) of this width with its partner.
    pub fn apply(&self, image: &mut [f32], partner: &[f32], [height, width]: [usize; 2]) {
        match self {
            Mix::Blend(share) => {
                for (value, other) in image.iter_mut().zip(partner) {
                    *value = share * *value + (1.0 - share) * other;
                }
            }
            Mix::Paste { rows, columns, .. } => {
                let planes = image.chunks_exact_mut(height * width).zip(partner.chunks_exact(height * width));
                for (plane, other) in planes {
                    for row in rows.clone() {
                        let span = row * width + columns.start..row * width + columns.end;
                        plane[span.clone()].copy_from_slice(&other[span]);
                    }
                }
            }
        }
    }
}

/// A number of Beta(α, α): x/(x + y) of two of Gamma(α). In logarithms, since for a small α both are often too small
/// for a number.
fn beta(stream: &mut Stream, alpha: f64) -> f64 {
    let (x, y) = (log_gamma_variate(stream, alpha), log_gamma_variate(stream, alpha));
    1.0 / (1.0 + (y - x).exp())
}

/// The logarithm of a number of Gamma(α). Marsaglia and Tsang: "A simple method for generating gamma variables", ACM
/// TOMS 26 (2000), for α + 1, times u^(1/α).
fn log_gamma_variate(stream: &mut Stream, alpha: f64) -> f64 {
    // Never 0.
    let uniform = |stream: &mut Stream| f64::from(stream.uniform()) + 0.5 / 16_777_216.0;
    let boost = uniform(stream).ln() / alpha;
    let d = alpha + 1.0 - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let words = std::array::from_fn(|_| stream.word());
        let normal = f64::from(normals(words)[0]);
        let v = (1.0 + c * normal).powi(3);
        if v > 0.0 && uniform(stream).ln() < 0.5 * normal * normal + d - d * v + d * v.ln() {
            return (d * v).ln() + boost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, key};

    fn stream(which: u32) -> Stream {
        Stream::at(key(1, Purpose::Mix, 0), [which, 0])
    }

    /// Beta(α, α) has the mean 1/2, the variance 1/(4(2α+1)), and a fourth central moment of 3/(16(2α+1)(2α+3)).
    #[test]
    fn shares_have_the_moments_of_their_distribution() {
        for alpha in [0.05, 0.2, 1.0, 4.0] {
            let shares: Vec<f64> = (0..20_000).map(|which| beta(&mut stream(which), alpha)).collect();
            assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
            let moment = |power| shares.iter().map(|share| (share - 0.5).powi(power)).sum::<f64>() / 20_000.0;
            let variance = 0.25 / (2.0 * alpha + 1.0);
            let fourth = 3.0 / (16.0 * (2.0 * alpha + 1.0) * (2.0 * alpha + 3.0));
            // Five standard errors.
            assert!(moment(1).abs() < 5.0 * (variance / 20_000.0).sqrt(), "α {alpha}: mean {}", moment(1));
            let error = 5.0 * ((fourth - variance * variance) / 20_000.0).sqrt();
            assert!((moment(2) - variance).abs() < error, "α {alpha}: {} {variance}", moment(2));
        }
        assert!(beta(&mut stream(0), 1e-9).is_finite());
    }

    #[test]
    fn a_blend_and_a_window_are_what_their_share_says() {
        let (mut image, other) = (vec![1.0; 2 * 6 * 8], vec![0.0; 2 * 6 * 8]);
        Mix::Blend(0.25).apply(&mut image, &other, [6, 8]);
        assert!(image.iter().all(|&value| value == 0.25));
        let both = Augment { mixup: Some(0.2), cutmix: Some(1.0), ..Augment::default() };
        let mut pasted = 0;
        for which in 0..400 {
            let mix = Mix::draw(&both, &mut stream(which), [6, 8]).unwrap();
            let mut image = vec![1.0; 2 * 6 * 8];
            mix.apply(&mut image, &other, [6, 8]);
            let left = image.iter().sum::<f32>() / 96.0;
            assert!((left - mix.share()).abs() < 1e-4, "{mix:?}");
            pasted += usize::from(matches!(mix, Mix::Paste { .. }));
        }
        // Five standard errors of a half.
        assert!((150..250).contains(&pasted), "{pasted}");
        assert_eq!(Mix::draw(&Augment::default(), &mut stream(0), [6, 8]), None);
    }
}
