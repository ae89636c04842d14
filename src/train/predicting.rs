//! `dltrain predict`: the most probable classes of every image, in the order of the data, whatever the number of ranks.

use std::path::Path;

use super::evaluate::Evaluator;
use super::stop::Watch;
use super::testing;
use super::weights::Start;
use crate::comm::World;
use crate::config::Predict;
use crate::data::{PADDING, Samples, Sharding};
use crate::device::Device;
use crate::device::memory::bytes_of_mut;
use crate::error::{Error, ErrorKind, Result};
use crate::record::{self, Predictions};

/// What is asked.
pub struct Question<'a> {
    pub wanted: &'a Predict,
    pub sharding: Sharding,
    pub samples: &'a Samples,
    /// The names of the network's classes.
    pub classes: Vec<String>,
}

impl Question<'_> {
    /// Says or writes what the images are. Collective.
    ///
    /// # Errors
    /// The same on every rank; `Diverged` where probabilities are no numbers.
    pub fn answer(
        self,
        world: &World,
        mut evaluator: Evaluator,
        device: &dyn Device,
        watch: &Watch,
    ) -> Result<()> {
        let (classes, mut rows) = (self.classes.len(), Vec::new());
        let top = self.wanted.top.min(classes);
        let mut probabilities = vec![0f32; self.sharding.batch * classes];
        let stop = || watch.flags(0.0).stop;
        let whole = evaluator.each(world, device, stop, |program, (number, batch), images| {
            if let Some(memory) = program.probabilities.as_ref().filter(|_| images > 0) {
                device.download(memory, bytes_of_mut(&mut probabilities))?;
            }
            let places = self.sharding.test(number, self.samples.len()).len();
            let of_images = probabilities.chunks_exact(classes).zip(&batch.labels).take(places);
            let words = of_images.flat_map(|(probabilities, &label)| match label {
                PADDING => vec![UNREAD; top],
                _ => best(probabilities, top),
            });
            let words: Vec<u64> = words.collect();
            world.to_first(&words, |_, words| rows.extend(words.chunks_exact(top).map(row)))
        })?;
        if !whole {
            return testing::stopped(world, watch);
        }
        let output = self.wanted.output.clone();
        let found = record::once(world, || {
            usable(&rows, self.samples).and_then(|()| finite(&rows)).map(|()| self.predictions(rows))
        });
        let found = world.agree(found)?;
        match output {
            Some(path) => {
                world.agree(record::once(world, || found.write(&path)))?;
                record::say(world, &format!("{} images: {}", found.images.len(), path.display()));
            }
            None => record::say(world, &found.table()),
        }
        world.agree(record::printed())
    }

    fn predictions(self, rows: Vec<Vec<(u32, f32)>>) -> Predictions {
        let (set, samples) = (self.samples.set(), self.samples);
        let names = set.class_names();
        let label = |index: usize| names.get(samples.label(index) as usize).cloned().unwrap_or_default();
        let labels = (!names.is_empty()).then(|| (0..samples.len()).map(label).collect());
        Predictions { images: set.names(), labels, classes: self.classes, rows }
    }
}

/// What the classes are called: as the weights say, or as the data do where they have as many, or by their numbers.
pub fn class_names(start: Option<&Start>, samples: &Samples, classes: usize) -> Vec<String> {
    let of_weights = start.map(Start::said).map_or_else(Vec::new, |said| said.about.class_names);
    let known =
        [&of_weights[..], samples.set().class_names()].into_iter().find(|names| names.len() == classes);
    known.map_or_else(|| (0..classes).map(|class| class.to_string()).collect(), <[String]>::to_vec)
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

/// That one image at least could be read.
fn usable(rows: &[Vec<(u32, f32)>], samples: &Samples) -> Result<()> {
    match rows.iter().all(Vec::is_empty) {
        false => Ok(()),
        true => {
            let first = samples.set().names().into_iter().next().unwrap_or_default();
            let others = match rows.len() {
                0 | 1 => String::new(),
                count => format!("; nor can the others, {} in all", count),
            };
            Err(Error::data(Path::new(&first), format!("cannot be read as an image{others}")))
        }
    }
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
