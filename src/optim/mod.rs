//! Learning-rate schedules, loss scaling, and what the optimizers' states are called.
//!
//! The rules are `config::Rule`; their arithmetic stands in `device`, where every device runs it. May use: `device`,
//! `config`. Used by: `train`.

mod scaling;

pub use scaling::LossScaler;

use crate::config::{Rate, Rule, ScheduleKind};

/// The names of a rule's states, in its order: what a checkpoint calls them.
pub fn state_names(rule: &Rule) -> &'static [&'static str] {
    let names: &[&str] = match rule {
        Rule::Sgd { .. } | Rule::Lars { .. } => &["momentum"],
        Rule::RmsProp { .. } => &["mean_square", "momentum"],
        Rule::Adam { .. } | Rule::Lamb { .. } => &["first_moment", "second_moment"],
    };
    &names[..rule.states()]
}

/// The learning rate as a function of the step.
#[derive(Debug, Clone, PartialEq)]
pub struct RateSchedule {
    settings: Rate,
    /// The rate after warm-up: the base, times the ranks where that is asked for (linear scaling: Goyal et al.,
    /// "Accurate, large minibatch SGD", 2017).
    peak: f64,
    steps_per_epoch: usize,
    total_steps: usize,
    /// What a step counts for beyond its number: see `resumed`.
    ahead: isize,
}

impl RateSchedule {
    /// A schedule for `total_steps` steps on `ranks` ranks.
    pub fn new(settings: &Rate, ranks: usize, steps_per_epoch: usize, total_steps: usize) -> RateSchedule {
        let scale = if settings.scale_by_ranks { ranks as f64 } else { 1.0 };
        RateSchedule {
            settings: settings.clone(),
            peak: f64::from(settings.base) * scale,
            steps_per_epoch: steps_per_epoch.max(1),
            total_steps,
            ahead: 0,
        }
    }

    /// The schedule of a run that goes on after `done` steps, at a place which a run of this global batch would have
    /// reached after `place` steps. Both are the same unless the global batch has changed.
    pub fn resumed(self, done: usize, place: usize) -> RateSchedule {
        let ahead = place as isize - done as isize;
        RateSchedule { total_steps: self.total_steps.saturating_add_signed(ahead), ahead, ..self }
    }

    /// The rate after warm-up and that of the last step, where the run ends before the first is reached.
    pub fn cut_short(&self) -> Option<[f32; 2]> {
        let warmup = f64::from(self.settings.warmup_epochs) * self.steps_per_epoch as f64;
        let last = self.total_steps.saturating_sub(1).saturating_add_signed(-self.ahead);
        (self.total_steps > 0 && warmup > self.total_steps as f64)
            .then(|| [self.peak as f32, self.rate(last)])
    }

    /// The rate of a step, counted from 0.
    pub fn rate(&self, step: usize) -> f32 {
        let step = step.saturating_add_signed(self.ahead);
        let warmup = f64::from(self.settings.warmup_epochs) * self.steps_per_epoch as f64;
        let done = step as f64 + 1.0;
        if done < warmup {
            return (self.peak * done / warmup) as f32;
        }
        let left = (self.total_steps as f64 - warmup).max(1.0);
        let progress = ((step as f64 - warmup) / left).clamp(0.0, 1.0);
        let factor = match self.settings.schedule {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Step => {
                let steps = step / (self.steps_per_epoch * self.settings.step_epochs);
                f64::from(self.settings.gamma).powi(steps as i32)
            }
            ScheduleKind::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
            ScheduleKind::Polynomial => (1.0 - progress).powf(f64::from(self.settings.power)),
        };
        (self.peak * factor) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: ScheduleKind, warmup_epochs: f32) -> RateSchedule {
        let settings = Rate {
            base: 0.1,
            scale_by_ranks: true,
            schedule: kind,
            warmup_epochs,
            step_epochs: 3,
            gamma: 0.1,
            power: 2.0,
        };
        RateSchedule::new(&settings, 4, 10, 100)
    }

    fn close(a: f32, b: f32) {
        assert!((a - b).abs() <= 1e-6 * b.abs().max(1e-3), "{a} {b}");
    }

    #[test]
    fn the_rate_scales_with_ranks_and_warms_up_linearly() {
        let rates = schedule(ScheduleKind::Constant, 2.0);
        close(rates.rate(0), 0.4 / 20.0);
        close(rates.rate(9), 0.2);
        close(rates.rate(19), 0.4);
        close(rates.rate(99), 0.4);
    }

    #[test]
    fn a_warm_up_that_is_longer_than_the_run_is_noticed() {
        assert_eq!(schedule(ScheduleKind::Constant, 10.0).cut_short(), None);
        let [peak, last] = schedule(ScheduleKind::Constant, 20.0).cut_short().unwrap();
        close(peak, 0.4);
        close(last, 0.2);
    }

    #[test]
    fn a_resumed_run_goes_on_where_its_images_have_brought_it() {
        let rates = schedule(ScheduleKind::Cosine, 2.0);
        assert_eq!(rates.clone().resumed(50, 50), rates);
        // Half the global batch before: twice the steps for as many images, 150 in all.
        let resumed = RateSchedule { total_steps: 150, ..rates.clone() }.resumed(100, 50);
        for step in 50..100 {
            assert_eq!(resumed.rate(step + 50), rates.rate(step));
        }
    }

    #[test]
    fn steps_come_at_their_epochs() {
        let rates = schedule(ScheduleKind::Step, 0.0);
        close(rates.rate(29), 0.4);
        close(rates.rate(30), 0.04);
        close(rates.rate(60), 0.004);
    }

    #[test]
    fn the_cosine_goes_from_the_peak_to_nothing() {
        let rates = schedule(ScheduleKind::Cosine, 0.0);
        close(rates.rate(0), 0.4);
        close(rates.rate(50), 0.2);
        assert!(rates.rate(99) < 0.0002);
    }
    #[test]
    fn the_polynomial_goes_from_the_peak_to_nothing() {
        let rates = schedule(ScheduleKind::Polynomial, 2.0);
        close(rates.rate(9), 0.2);
        close(rates.rate(20), 0.4);
        close(rates.rate(60), 0.1);
        close(rates.rate(99), 0.4 / 6400.0);
        assert_eq!(rates.rate(100), 0.0);
    }
}
