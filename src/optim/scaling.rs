//! Dynamic loss scaling (Micikevicius et al., "Mixed precision training", 2018, §3.2): f16 has no numbers below 2⁻²⁴,
//! where many gradients lie. The loss gradient is multiplied by a factor, and the parameters' gradients are divided by
//! it in f32. A step whose gradients are not finite is skipped, and the factor is too large when that happens again and
//! again; after many steps without, it may be twice as large.
//!
//! Every rank sees the same averaged gradients, so that all skip the same steps and have the same factor without a
//! message.

use crate::config::LossScale;

/// The factor, and what its next change depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaler {
    settings: LossScale,
    scale: f32,
    /// Steps since the last change, or since the last one that was skipped.
    good: u32,
    /// Skipped steps that are still put up with before the factor is halved.
    patience: u32,
    /// Skipped steps of the whole run.
    skipped: u64,
}

impl LossScaler {
    /// A scaler before its first step.
    pub fn new(settings: LossScale) -> LossScaler {
        LossScaler { settings, scale: settings.start, good: 0, patience: settings.hysteresis, skipped: 0 }
    }

    /// What the loss gradient is multiplied by.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Steps that were skipped.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// A step's gradients were finite, or were not and the step is skipped. Returns whether the run may go on: not
    /// where the factor is at its minimum and a step was skipped all the same.
    pub fn step(&mut self, finite: bool) -> bool {
        if finite {
            self.good += 1;
            if self.good >= self.settings.window {
                // f32's largest power of two bounds it: beyond, the product itself would not be finite.
                self.scale = (self.scale * 2.0).min(f32::MAX / 4.0);
                (self.good, self.patience) = (0, self.settings.hysteresis);
            }
            return true;
        }
        let least = self.scale <= self.settings.minimum;
        self.skipped += 1;
        self.good = 0;
        self.patience = self.patience.saturating_sub(1);
        if self.patience == 0 {
            self.scale = (self.scale / 2.0).max(self.settings.minimum);
        }
        !(least && self.patience == 0)
    }

    /// What a checkpoint keeps, by name.
    pub fn numbers(&self) -> [(&'static str, f64); 4] {
        [
            ("loss_scale", f64::from(self.scale)),
            ("loss_scale_good", f64::from(self.good)),
            ("loss_scale_patience", f64::from(self.patience)),
            ("loss_scale_skipped", self.skipped as f64),
        ]
    }

    /// The scaler of a run that goes on with what a checkpoint kept. Numbers that are missing start anew.
    pub fn resumed(self, number: impl Fn(&str) -> Option<f64>) -> LossScaler {
        let whole = |name: &str, otherwise: u32| number(name).map_or(otherwise, |number| number as u32);
        LossScaler {
            scale: number("loss_scale").map_or(self.scale, |scale| scale as f32),
            good: whole("loss_scale_good", self.good),
            patience: whole("loss_scale_patience", self.patience),
            skipped: number("loss_scale_skipped").map_or(self.skipped, |skipped| skipped as u64),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: LossScale = LossScale { start: 65_536.0, window: 4, hysteresis: 3, minimum: 1.0 };

    #[test]
    fn the_factor_doubles_after_a_window_and_is_halved_when_patience_ends() {
        let mut scaler = LossScaler::new(SETTINGS);
        (0..4).for_each(|_| assert!(scaler.step(true)));
        assert_eq!(scaler.scale(), 131_072.0);
        // Two are put up with; the third halves, and so does every one after it until a window is whole again.
        let scales: Vec<f32> = (0..4)
            .map(|_| {
                scaler.step(false);
                scaler.scale()
            })
            .collect();
        assert_eq!(scales, [131_072.0, 131_072.0, 65_536.0, 32_768.0]);
        assert_eq!(scaler.skipped(), 4);
        // A skipped step begins the window anew.
        (0..3).for_each(|_| assert!(scaler.step(true)));
        scaler.step(false);
        assert_eq!(scaler.scale(), 16_384.0);
        (0..4).for_each(|_| assert!(scaler.step(true)));
        assert_eq!(scaler.scale(), 32_768.0);
        scaler.step(false);
        assert_eq!(scaler.scale(), 32_768.0, "patience is whole again after a window");
    }

    #[test]
    fn at_the_minimum_there_is_nothing_left_to_try() {
        let mut scaler = LossScaler::new(LossScale { start: 4.0, hysteresis: 1, ..SETTINGS });
        assert!(scaler.step(false) && scaler.step(false));
        assert_eq!(scaler.scale(), 1.0);
        assert!(!scaler.step(false));
        assert_eq!(scaler.scale(), 1.0);
    }

    #[test]
    fn it_goes_on_as_it_stood() {
        let mut scaler = LossScaler::new(SETTINGS);
        [true, false, true, true].into_iter().for_each(|finite| {
            scaler.step(finite);
        });
        let kept = scaler.numbers();
        let number = |name: &str| kept.iter().find(|(kept, _)| *kept == name).map(|(_, number)| *number);
        let mut resumed = LossScaler::new(SETTINGS).resumed(number);
        assert_eq!(resumed, scaler);
        for finite in [true, true, false, false, true] {
            assert_eq!(resumed.step(finite), scaler.step(finite));
            assert_eq!(resumed, scaler);
        }
        assert_eq!(LossScaler::new(SETTINGS).resumed(|_| None), LossScaler::new(SETTINGS));
    }
}
