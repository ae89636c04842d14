//! Where batches come from: a data set or synthetic images.

use std::ops::Range;
use std::path::Path;

use super::checkpoint::Position;
use super::doubts::{self, Weights};
use super::fields;
use super::groups::Groups;
use super::network::Network;
use crate::comm::World;
use crate::config::{Config, Input, JpegDecoder};
use crate::data::{
    self, Batch, Jpeg, MissingCount, Reading, Samples, Sets, Sharding, TestLoader, TrainingLoader, Wanted,
};
use crate::error::{Error, Result};
use crate::graph::Rows;
use crate::record;

/// Where batches come from.
pub enum Source {
    /// A data set, shuffled anew each epoch.
    Data(TrainingLoader, Sharding),
    /// One batch, read once: what is measured is training. The flag says that a run goes on, which had read it.
    Synthetic(TrainingLoader, Sharding, bool),
    /// One batch a micro-step, read each time: the same images whoever computes them.
    Shards(TrainingLoader, Sharding),
}

impl Source {
    /// The loader, and which images this rank reads.
    pub fn parts(&self) -> (&TrainingLoader, &Sharding) {
        match self {
            Source::Data(loader, sharding)
            | Source::Synthetic(loader, sharding, _)
            | Source::Shards(loader, sharding) => (loader, sharding),
        }
    }

    /// Steps an epoch has.
    pub fn steps(&self) -> usize {
        self.steps_after(0)
    }

    /// Steps an epoch has left after so many images.
    pub fn steps_after(&self, images: usize) -> usize {
        match self {
            Source::Data(loader, _) => loader.steps_after(images),
            Source::Synthetic(..) | Source::Shards(..) => usize::MAX,
        }
    }

    /// Bytes that reading keeps in memory.
    pub fn kept(&self) -> usize {
        self.parts().0.kept()
    }

    /// Whether images come from a data set, which ends.
    pub fn has_epochs(&self) -> bool {
        matches!(self, Source::Data(..))
    }

    /// Images of all ranks in a step.
    pub fn global_batch(&self) -> usize {
        self.parts().1.global_batch()
    }

    /// Begins an epoch where a run of so many steps stands: step 0 comes after the images that are behind.
    pub fn start_epoch(&mut self, at: &Position, steps: usize) {
        match self {
            Source::Data(loader, _) => {
                match at.images {
                    0 => loader.start_epoch(at.epoch),
                    seen => loader.go_on(at.epoch, seen, at.shuffled_for),
                }
                loader.ends_after(steps.saturating_sub(at.done));
            }
            Source::Synthetic(_, _, resumed) => *resumed = at.images > 0,
            Source::Shards(..) => {}
        }
    }

    /// Fills a batch, or exchanges it for a filled one; false when the one that is there already serves.
    ///
    /// # Errors
    /// `Data`: images cannot be read.
    pub fn fill(&mut self, step: usize, micro: usize, batch: &mut Batch) -> Result<bool> {
        match self {
            Source::Data(loader, _) => loader.fill(step, micro, batch)?,
            Source::Shards(loader, _) => loader.fill(0, micro, batch)?,
            // What every later micro-step of such a run sees is the batch of the first step's last one.
            Source::Synthetic(loader, sharding, true) if step == 0 => {
                loader.fill(0, sharding.accumulation - 1, batch)?;
            }
            Source::Synthetic(loader, ..) if step == 0 => loader.fill(0, micro, batch)?,
            Source::Synthetic(..) => return Ok(false),
        }
        Ok(true)
    }

    /// Whether there is such a batch that `fill` would not wait for.
    pub fn has(&mut self, step: usize, micro: usize) -> bool {
        match self {
            Source::Data(loader, _) => loader.has(step, micro),
            Source::Synthetic(..) | Source::Shards(..) => false,
        }
    }

    /// Images of this epoch that this rank skipped, since they cannot be read.
    pub fn skipped(&self) -> usize {
        self.parts().0.skipped()
    }

    /// How many numbers of arrays this rank has read in this epoch, and how many of them are missing.
    pub fn missing(&self) -> MissingCount {
        self.parts().0.missing()
    }

    /// Position of a micro-step's first image in the global batch.
    pub fn first_sample(&self, micro: usize) -> usize {
        self.parts().1.first_sample(micro)
    }
}

/// The data set, where there is one, prepared as the weights expect it that the run begins with; says what it was taken
/// for. Ranks with unlike data are found here.
pub fn open_sets(
    world: &World,
    config: &Config,
    network: &Network,
    weights: Option<Weights>,
) -> Result<Option<Sets>> {
    let Some(path) = &config.data else { return Ok(None) };
    let sets = match config.fields.are_given() {
        true => fields::open(world, config, network, path, weights.as_ref())?,
        false => pictures(world, config, network, path, weights)?,
    };
    let unit = config.unit();
    world.check_same(&[
        (format!("training {unit}"), sets.training.fingerprint()),
        (format!("test {unit}"), sets.test.as_ref().map_or("none".into(), Samples::fingerprint)),
    ])?;
    for line in &sets.said {
        // What is predicted of pictures may be read by a program; of arrays it is in a file.
        match config.predict.is_some() && !config.fields.are_given() {
            true => record::log(world, log::Level::Info, line),
            false => record::tell(world, line),
        }
    }
    Ok(Some(sets))
}

/// Pictures and their classes. Collective.
fn pictures(
    world: &World,
    config: &Config,
    network: &Network,
    path: &Path,
    weights: Option<Weights>,
) -> Result<Sets> {
    let channels = network.image.rows()[0];
    if !matches!(channels, 1 | 3) {
        let what =
            "images have 1 (grey) or 3 (colours). Of arrays --input VIEW says what is read (docs/fields.md)";
        let what = format!("{} reads {channels} channels, and {what}", network.model.name());
        return world.agree(Err(Error::usage(what)));
    }
    let jpeg_decoder = jpeg_decoder(world, config)?;
    let input = &Input { jpeg_decoder, ..config.input.clone() };
    let wanted = Wanted { sample: network.image.rows(), classes: network.classes, seed: config.seed, input };
    let known = weights.as_ref().map_or(Vec::new(), |weights| weights.about.class_names.clone());
    let opened = match () {
        () if config.predict.is_some() => data::open_to_predict(path, &wanted, &known),
        () if config.evaluate => data::open_to_test(path, &wanted),
        () => data::open(path, &wanted),
    };
    world.agree(opened.and_then(|sets| doubts::fitting(sets, path, config, network, weights)))
}

/// What decodes JPEG files on every rank, or what a rank reads would depend on who reads it. Collective.
fn jpeg_decoder(world: &World, config: &Config) -> Result<JpegDecoder> {
    let own = world.agree(Jpeg::find(config.input.jpeg_decoder))?.name();
    let mut lacking = [if own == JpegDecoder::Rust { 1.0 } else { 0.0 }];
    world.max_f64(&mut lacking)?;
    if lacking == [0.0] {
        return Ok(own);
    }
    if own == JpegDecoder::Turbo {
        log::warn!("not every rank has libjpeg-turbo: all of them use the JPEG decoder in Rust");
    }
    Ok(JpegDecoder::Rust)
}

/// The configuration with what the data decide where no flag did.
pub fn decided(config: &Config, sets: Option<&Sets>, threads: usize) -> Config {
    let mut config = config.clone();
    let Some(sets) = sets else { return config };
    config.input.augment = Some(sets.training.augment().clone());
    if let Some(jpeg) = sets.training.set().jpeg() {
        config.input.jpeg_decoder = jpeg.name();
    }
    config.input.loader_threads.get_or_insert(sets.training.reading_threads(threads));
    config
}

/// Which images this rank reads.
pub fn sharding(world: &World, config: &Config) -> Sharding {
    let ranks = config.strategy.computing(world.size());
    Sharding {
        ranks,
        // Who computes nothing reads nothing either.
        rank: world.rank().min(ranks - 1),
        batch: config.batch,
        accumulation: config.accumulation,
        global: config.global_batch,
    }
}

/// The same of images to train with: ranks that share images read the same ones.
pub fn training_sharding(world: &World, config: &Config) -> Sharding {
    shared_by(config.spatial, sharding(world, config))
}

fn shared_by(parts: usize, whole: Sharding) -> Sharding {
    Sharding { ranks: whole.ranks / parts, rank: whole.rank / parts, ..whole }
}

/// What reads the test set: the rows of arrays that this rank has of each, or whole pictures.
///
/// # Errors
/// As for `Network::target_rows`.
pub fn test_loader(
    world: &World,
    config: &Config,
    network: &Network,
    samples: Samples,
    reading: Reading,
) -> Result<TestLoader> {
    let parts = config.test_parts();
    let samples = match parts {
        1 => samples,
        _ => samples.cut(rows(world, config, network)).cut_targets(network.target_rows()?),
    };
    Ok(TestLoader::new(samples, shared_by(parts, sharding(world, config)), reading))
}

/// The rows of each image that this rank has.
fn rows(world: &World, config: &Config, network: &Network) -> Range<usize> {
    let [parts, place] = [config.spatial, world.rank() % config.spatial];
    Rows { height: network.image[1], parts, place }.own()
}

/// The training source, and the test set where there is one.
pub fn open_data(
    groups: &Groups,
    config: &Config,
    network: &Network,
    sets: Option<Sets>,
) -> Result<(Source, Option<TestLoader>)> {
    let world = &groups.data;
    let sharding = training_sharding(world, config);
    let rows = rows(world, config, network);
    let Some(sets) = sets else {
        let set =
            data::synthetic(network.image.rows(), network.classes, sharding.global_batch(), config.seed);
        let set = set.cut(rows);
        let loader = world.agree(TrainingLoader::new(set, sharding, config.seed, Reading::inline()))?;
        let source = match config.shards {
            Some(_) => Source::Shards(loader, sharding),
            None => Source::Synthetic(loader, sharding, false),
        };
        return Ok((source, None));
    };
    let serves = world.rank() >= config.strategy.computing(world.size()) || !groups.reads();
    let threads = if serves { 0 } else { config.input.loader_threads.unwrap_or(0) };
    let reading = world.agree(Reading::new(threads, config.input.strict))?;
    let training = sets.training.cut(rows).cut_targets(world.agree(network.target_rows())?);
    let loader = TrainingLoader::new(training, sharding, config.seed, reading.clone());
    let loader = world.agree(loader)?;
    let test = sets.test.map(|test| test_loader(world, config, network, test, reading)).transpose();
    Ok((Source::Data(loader, sharding), world.agree(test)?))
}
