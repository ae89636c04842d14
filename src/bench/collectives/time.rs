//! How long something takes that all ranks do together.

use std::time::Instant;

use crate::bench::median;
use crate::comm::World;
use crate::error::Result;

/// Seconds: of samples, each of which is the mean of some repeats on the slowest rank.
#[derive(Debug, Clone, Copy)]
pub struct TimeSamples {
    pub min: f64,
    pub median: f64,
    /// All but 5 % of the samples took at most that long.
    pub p95: f64,
    pub samples: usize,
}

impl TimeSamples {
    /// Of what was not timed.
    pub const NONE: TimeSamples = TimeSamples { min: f64::NAN, median: f64::NAN, p95: f64::NAN, samples: 0 };
}

/// Times `run`, over as many samples, or as many as take about half a second, and as many repeats in each as make it
/// well measurable. Collective.
pub fn time(
    world: &World,
    samples: Option<usize>,
    mut run: impl FnMut() -> Result<()>,
) -> Result<TimeSamples> {
    let mut sample = |repeats| sample(world, repeats, &mut run);
    sample(2)?;
    let rough = sample(3)?.max(1e-9);
    // Ranks agree on `rough`, so they agree on these.
    let repeats = (200e-6 / rough).clamp(1.0, 100.0) as usize;
    let samples = samples.unwrap_or((0.5 / (rough * repeats as f64)).clamp(5.0, 500.0) as usize).max(1);
    let mut times = (0..samples).map(|_| sample(repeats)).collect::<Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(summary(&times))
}

/// `sorted` is not empty.
fn summary(sorted: &[f64]) -> TimeSamples {
    let count = sorted.len();
    let median = median(sorted).unwrap_or(f64::NAN);
    TimeSamples { min: sorted[0], median, p95: sorted[(count * 95).div_ceil(100) - 1], samples: count }
}

/// Seconds that one run takes, as the mean of `repeats` on the slowest rank. Collective.
pub fn sample(world: &World, repeats: usize, run: &mut impl FnMut() -> Result<()>) -> Result<f64> {
    world.barrier()?;
    let begin = Instant::now();
    for _ in 0..repeats {
        run()?;
    }
    let mut slowest = [begin.elapsed().as_secs_f64() / repeats as f64];
    world.max_f64(&mut slowest)?;
    Ok(slowest[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_of_the_samples_that_there_are() {
        let of = |count: u32| {
            let TimeSamples { min, median, p95, samples } =
                summary(&(1..=count).map(f64::from).collect::<Vec<_>>());
            (min, median, p95, samples)
        };
        assert_eq!(of(1), (1.0, 1.0, 1.0, 1));
        assert_eq!(of(2), (1.0, 1.5, 2.0, 2));
        assert_eq!(of(20), (1.0, 10.5, 19.0, 20));
        assert_eq!(of(101), (1.0, 51.0, 96.0, 101));
    }
}
