//! `dltrain predict` of arrays: what the network gives of each sample, in the order of the data, as HDF5.

use super::evaluate::Evaluator;
use super::stop::Watch;
use super::testing;
use crate::comm::World;
use crate::config::{Loss, Predict};
use crate::data::{Dataset, FieldSet, Sharding};
use crate::device::Device;
use crate::device::memory::bytes_of_mut;
use crate::error::{Error, ErrorKind, Result};
use crate::record::{self, FieldOrigin, FieldPredictions};

/// What is asked.
pub struct FieldQuestion<'a> {
    pub wanted: &'a Predict,
    pub sharding: Sharding,
    pub set: &'a FieldSet,
    /// The axes of what the network gives of a sample.
    pub shape: Vec<usize>,
    /// By what it was trained, where that is said.
    pub loss: Option<Loss>,
}

impl FieldQuestion<'_> {
    /// Writes what the network gives, as the target's numbers were before they were rescaled. Collective.
    ///
    /// # Errors
    /// The same on every rank; `Diverged` where it is no numbers.
    pub fn answer(
        self,
        world: &World,
        mut evaluator: Evaluator,
        device: &dyn Device,
        watch: &Watch,
    ) -> Result<()> {
        let samples = self.set.len();
        let path = self.wanted.output.as_deref();
        let path = path.ok_or_else(|| Error::internal("no file for what is predicted of arrays"));
        let path = world.agree(path)?;
        let create = || -> Result<Option<FieldPredictions>> {
            let origin = self.origin()?;
            let of_classes = self.loss.is_some_and(Loss::is_of_classes);
            FieldPredictions::create(path, &origin, &self.shape, of_classes).map(Some)
        };
        let mut file = world.agree(if world.is_first() { create() } else { Ok(None) })?;
        let each = self.shape.iter().product::<usize>().max(1);
        let mut outputs = vec![0f32; self.sharding.batch * each];
        let goal = self.set.target().map_or(0, |target| target.iter().product());
        let stop = || watch.flags(0.0).stop;
        let whole = evaluator.each(world, device, stop, |program, (number, batch), images| {
            if let Some(memory) = program.probabilities.as_ref().filter(|_| images > 0) {
                device.download(memory, bytes_of_mut(&mut outputs))?;
            }
            let places = self.sharding.test(number, samples).len();
            let targets = &batch.targets[..places * goal];
            let both = self.with_targets(&mut outputs[..places * each], targets, places);
            let words: Vec<u64> = both.iter().map(|value| u64::from(value.to_bits())).collect();
            let mut all: Vec<f32> = Vec::new();
            world.to_first(&words, |_, words| {
                all.extend(words.iter().map(|&word| f32::from_bits(word as u32)));
            })?;
            let written = file.as_mut().map_or(Ok(()), |file| {
                all.chunks_exact(each + goal).try_for_each(|both| {
                    let (output, target) = both.split_at(each);
                    match output.iter().all(|value| value.is_finite()) {
                        true => file.push(output, target),
                        false => Err(diverged()),
                    }
                })
            });
            world.agree(written)
        })?;
        if !whole {
            return testing::stopped(world, watch);
        }
        world.agree(file.map_or(Ok(()), FieldPredictions::finish))?;
        record::say(world, &format!("{samples} samples: {}", path.display()));
        world.agree(record::printed())
    }

    /// Each sample's output with its target behind it, both in the target's own numbers.
    fn with_targets(&self, outputs: &mut [f32], targets: &[f32], samples: usize) -> Vec<f32> {
        let [each, goal] = [outputs.len(), targets.len()].map(|numbers| numbers / samples.max(1));
        // The shares that the loss compares with the target's.
        if self.loss == Some(Loss::Bce) {
            outputs.iter_mut().for_each(|logit| *logit = 1.0 / (1.0 + (-*logit).exp()));
        }
        let mut both = Vec::with_capacity(samples * (each + goal));
        for sample in 0..samples {
            for (numbers, length) in [(&*outputs, each), (targets, goal)] {
                let from = both.len();
                both.extend_from_slice(&numbers[sample * length..(sample + 1) * length]);
                self.set.unscale(&mut both[from..]);
            }
        }
        both
    }

    fn origin(&self) -> Result<FieldOrigin> {
        let mut unlike = Vec::new();
        // Places of the output are those of the target, or of the input where there are as many.
        let at = self.set.first_of(&self.shape);
        let (names, coordinates) = self.set.coordinates(at, &mut unlike)?;
        let inner = self.shape.get(1..).unwrap_or(&[]);
        let known = names.iter().rev().zip(inner.iter().rev());
        let mut axes: Vec<String> = known
            .map(|((name, along), own)| if along == own { name.clone() } else { "place".into() })
            .collect();
        axes.resize(inner.len(), "place".into());
        let channels = names.first().filter(|_| at > 0 && names.len() == self.shape.len());
        let channels = channels.map(|(name, _)| name.clone());
        axes.extend((!self.shape.is_empty()).then(|| channels.unwrap_or("channel".into())));
        axes.reverse();
        let of_samples = self.set.sample_coordinates(&mut unlike)?;
        if !unlike.is_empty() {
            record::print(&format!(
                "coordinates that are left out, since a file has others than the first, or none: {}",
                unlike.join(", ")
            ));
        }
        Ok(FieldOrigin {
            samples: self.set.names(),
            axes,
            coordinates,
            of_samples,
            unit: self.set.target_unit(),
            target: self.set.target().map(<[usize]>::to_vec),
        })
    }
}

fn diverged() -> Error {
    let text = "what the network gives is no numbers: its weights overflow, or its input is not rescaled as it expects";
    Error::new(ErrorKind::Diverged, text)
}
