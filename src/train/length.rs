//! How long a run is, also one that goes on somewhere, with another global batch than before.

use super::checkpoint::Position;
use crate::config::Config;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Length {
    /// Epochs, the last one perhaps not whole.
    pub epochs: usize,
    /// Steps of the whole run, warm-up included.
    pub steps: usize,
    /// The steps that a run of this global batch would have needed to come to where the run goes on.
    pub place: usize,
}

impl Length {
    /// Warm-up and timed steps, or whole epochs. An epoch has `an_epoch` steps, the present one `left` more.
    pub fn new(config: &Config, an_epoch: usize, left: usize, global_batch: usize, at: Position) -> Length {
        Length::between(
            config.length.epochs.unwrap_or(1),
            config.length.steps.map(|n| n.saturating_add(config.length.warmup())),
            an_epoch,
            left,
            global_batch,
            at,
        )
    }

    fn between(
        epochs: usize,
        limit: Option<usize>,
        an_epoch: usize,
        left: usize,
        global_batch: usize,
        at: Position,
    ) -> Length {
        let behind = at.images / global_batch;
        let later = epochs.saturating_sub(at.epoch + 1).saturating_mul(an_epoch);
        let left = if at.epoch < epochs { left.saturating_add(later) } else { 0 };
        let all = at.done.saturating_add(left);
        let steps = limit.map_or(all, |limit| all.min(limit));
        let ahead = behind.saturating_add(steps.saturating_sub(at.done));
        Length {
            epochs: at.epoch + ahead.div_ceil(an_epoch),
            steps,
            place: at.epoch.saturating_mul(an_epoch).saturating_add(behind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_as_long_wherever_it_is_taken_up() {
        // 1000 images, global batch 100: 10 steps an epoch.
        let at =
            |done: usize| Position { done, epoch: done / 10, images: done % 10 * 100, shuffled_for: 100 };
        for done in 0..=30 {
            let length = Length::between(3, None, 10, 10 - done % 10, 100, at(done));
            assert_eq!(length, Length { epochs: 3, steps: 30, place: done });
            let cut = Length::between(3, Some(25), 10, 10 - done % 10, 100, at(done.min(25)));
            assert_eq!((cut.epochs, cut.steps), (3, 25), "{done}");
        }
        // From a global batch of 200 in the middle of the second epoch: 5 + 2 steps done, 400 images of the epoch.
        let length = Length::between(
            3,
            None,
            10,
            6,
            100,
            Position { done: 7, epoch: 1, images: 400, shuffled_for: 200 },
        );
        assert_eq!(length, Length { epochs: 3, steps: 7 + 6 + 10, place: 14 });
        // Without epochs: a benchmark.
        let length = Length::between(1, Some(110), usize::MAX, usize::MAX, 100, at(0));
        assert_eq!(length, Length { epochs: 1, steps: 110, place: 0 });
    }
}
