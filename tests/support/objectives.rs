//! Losses and metrics of fields: all that go together, and operands for them.

use clap::ValueEnum;
use dltrain::config::{Loss, Metric, Objective};
use dltrain::random::{Purpose, Stream, key};

/// Every loss with every metric that fits, with classes smoothed and not.
pub fn objectives() -> Vec<Objective> {
    let metrics = |&loss: &Loss| Metric::value_variants().iter().filter(move |metric| metric.fits(loss));
    let smoothings = |loss: Loss| if loss.is_of_classes() { &[0.0, 0.1][..] } else { &[0.0] };
    let losses = Loss::value_variants().iter();
    let pairs = losses.flat_map(|loss| metrics(loss).map(|&metric| (*loss, metric)));
    // A network's own loss is compared with nothing, and has no name by itself.
    pairs
        .chain([(Loss::Output, Metric::Loss)])
        .flat_map(|(loss, metric)| {
            smoothings(loss).iter().map(move |&smoothing| Objective { loss, metric, smoothing })
        })
        .collect()
}

/// What is weighed besides classes: nothing, the places of a sample, each number of its target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weighed {
    Nothing,
    Places,
    Numbers,
}

impl Weighed {
    pub const ALL: [Weighed; 3] = [Weighed::Nothing, Weighed::Places, Weighed::Numbers];
}

/// Operands of an output with these extents: it, its target and, of classes, weights of those; each with its extents.
/// Numbers are up to 4 in size, errors no closer than 1/16 to where a loss has a kink. Every fifth point has no target,
/// nor has the last sample any. Points weigh up to 1.75, some of them 0; a sample that only fills a batch has weights
/// that are no numbers.
pub fn operands(
    objective: Objective,
    extents: &[usize],
    weighted: bool,
    weighed: Weighed,
) -> Vec<(Vec<usize>, Vec<f32>)> {
    let mut stream = Stream::new(key(9, Purpose::Synthetic, extents.len() as u32));
    let channels = extents.get(1).copied().unwrap_or(1);
    let count: usize = extents.iter().product();
    let output: Vec<f32> = (0..count).map(|_| 8.0 * stream.uniform() - 4.0).collect();
    let places = [&extents[..1], extents.get(2..).unwrap_or_default()].concat();
    let target = if objective.loss.is_of_classes() { places } else { extents.to_vec() };
    let of: usize = target.iter().product();
    let mut values: Vec<f32> = (0..of)
        .map(|at| match objective.loss {
            Loss::CrossEntropy => stream.below(channels as u32) as f32,
            Loss::Bce => stream.uniform(),
            _ => {
                let error = 0.0625 + 0.875 * stream.uniform() + stream.below(2) as f32;
                output[at] + if stream.below(2) == 0 { error } else { -error }
            }
        })
        .collect();
    let without = of / extents[0] * (extents[0] - 1);
    let is_none = |at: usize| at % 5 == 4 || extents[0] > 1 && at >= without;
    values.iter_mut().enumerate().filter(|(at, _)| is_none(*at)).for_each(|(_, value)| *value = f32::NAN);
    let own = of / extents[0];
    let more = match weighed {
        Weighed::Nothing => 0,
        Weighed::Places => extents.iter().skip(2).product(),
        Weighed::Numbers => own,
    };
    let target = match more {
        0 => target,
        _ => {
            let places = extents.get(2..).unwrap_or_default();
            [&[extents[0], (own + more) / places.iter().product::<usize>()], places].concat()
        }
    };
    let samples = values.chunks(own).enumerate().flat_map(|(sample, values)| {
        let is_padding = extents[0] > 1 && sample + 1 == extents[0];
        let weight = |at: usize| if is_padding { f32::NAN } else { ((3 * at + sample) % 8) as f32 / 4.0 };
        values.iter().copied().chain((0..more).map(weight)).collect::<Vec<_>>()
    });
    let mut all = vec![(extents.to_vec(), output), (target, samples.collect())];
    if weighted && objective.loss.is_of_classes() {
        all.push((vec![channels], (0..channels).map(|class| 0.5 + class as f32 / channels as f32).collect()));
    }
    all
}
