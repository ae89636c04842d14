//! `dltrain predict`: the most probable classes of every image, in the order of the data, whatever the number of ranks.

use super::evaluate::Evaluator;
use super::source::sharding;
use super::stop::Watch;
use super::testing;
use crate::comm::World;
use crate::config::{Config, Prediction};
use crate::data::{PADDING, Samples};
use crate::device::Device;
use crate::device::memory::bytes_of_mut;
use crate::error::{Error, ErrorKind, Result};
use crate::record::{self, Predictions};

/// Says or writes what the images are. Collective.
///
/// # Errors
/// The same on every rank; `Diverged` where probabilities are no numbers.
pub fn run(
    world: &World,
    config: &Config,
    wanted: &Prediction,
    mut evaluator: Evaluator,
    samples: &Samples,
    classes: usize,
    device: &dyn Device,
    watch: &Watch,
) -> Result<()> {
    let top = wanted.top.min(classes);
    let sharding = sharding(world, config);
    let mut rows = Vec::new();
    let mut probabilities = vec![0f32; config.batch * classes];
    let stop = || watch.flags(0.0).stop;
    let whole = evaluator.each(world, device, stop, |program, (number, batch), images| {
        if let Some(memory) = program.probabilities.as_ref().filter(|_| images > 0) {
            device.download(memory, bytes_of_mut(&mut probabilities))?;
        }
        let places = sharding.test(number, samples.len()).len();
        let of_images = probabilities.chunks_exact(classes).zip(&batch.labels).take(places);
        let words: Vec<u64> = of_images
            .flat_map(|(probabilities, &label)| match label {
                PADDING => vec![UNREAD; top],
                _ => best(probabilities, top),
            })
            .collect();
        world.to_first(&words, |_, words| rows.extend(words.chunks_exact(top).map(row)))
    })?;
    if !whole {
        return testing::stopped(world, watch);
    }
    let found = record::once(world, || finite(&rows).map(|()| predictions(samples, classes, rows)));
    let found = world.agree(found)?;
    match &wanted.output {
        Some(path) => {
            let images = found.images.len();
            world.agree(record::once(world, || found.write(path)))?;
            record::say(world, &format!("{images} images: {}", path.display()));
        }
        None => record::say(world, &found.table()),
    }
    world.agree(record::printed())
}

/// In place of an image's classes where it could not be read.
const UNREAD: u64 = u64::MAX;

/// The most probable classes, of equal ones the first: each with its probability in one word.
fn best(probabilities: &[f32], top: usize) -> Vec<u64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]).then(a.cmp(&b)));
    let word = |&class: &usize| (class as u64) << 32 | u64::from(probabilities[class].to_bits());
    order[..top].iter().map(word).collect()
}

/// Classes and probabilities of an image; none where it could not be read.
fn row(words: &[u64]) -> Vec<(u32, f32)> {
    let read = words.iter().filter(|&&word| word != UNREAD);
    read.map(|word| ((word >> 32) as u32, f32::from_bits(*word as u32))).collect()
}

fn finite(rows: &[Vec<(u32, f32)>]) -> Result<()> {
    match rows.iter().flatten().all(|(_, probability)| probability.is_finite()) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Diverged,
            "the probabilities are no numbers: the weights of --init-from overflow in this network",
        )),
    }
}

/// With names: of classes those of the data, where it has as many as the network tells apart, else numbers.
fn predictions(samples: &Samples, classes: usize, rows: Vec<Vec<(u32, f32)>>) -> Predictions {
    let names = samples.set().class_names();
    let is_known = names.len() == classes;
    let label = |index: usize| samples.label(index) as u32;
    Predictions {
        images: samples.set().names(),
        labels: is_known.then(|| (0..samples.len()).map(label).collect()),
        classes: if is_known {
            names.to_vec()
        } else {
            (0..classes).map(|class| class.to_string()).collect()
        },
        rows,
    }
}
