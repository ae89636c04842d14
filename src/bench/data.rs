//! How fast a data set is read, decoded and prepared.

use std::path::PathBuf;
use std::time::Instant;

use crate::comm::World;
use crate::config::{Augment, DataFormat, Input, JpegDecoder};
use crate::data::{self, Batch, DecodeBuffers, Reading, Samples, Sharding, TrainingLoader, Wanted};
use crate::error::{Error, Result};
use crate::record;

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What --data of a training run takes.
    path: PathBuf,
    /// How they lie there [default: found out from the files].
    #[arg(long, value_enum)]
    data_format: Option<DataFormat>,
    /// What is done to the images, as in training.
    #[arg(long, value_name = "LIST")]
    augment: Option<Augment>,
    /// Height and width of the prepared images.
    #[arg(long, default_value_t = 224, value_name = "N")]
    image_size: usize,
    #[arg(long, default_value_t = 32, value_name = "N")]
    batch: usize,
    /// Batches that are timed, after two that are not.
    #[arg(long, default_value_t = 16, value_name = "N")]
    batches: usize,
    /// Threads a rank that read.
    #[arg(long, default_value_t = 1, value_name = "N")]
    loader_threads: usize,
    /// What decodes JPEG files.
    #[arg(long, value_enum, default_value = "auto", value_name = "NAME")]
    jpeg_decoder: JpegDecoder,
}

/// Images that are prepared as for evaluation, so that another program can be compared.
const CHECKED: usize = 16;

/// Reads batches as training does, with nothing else to do. Collective; rank 0 prints what all ranks reached together.
///
/// # Errors
/// `Data`, also when any image cannot be read: it would count as fast.
pub fn run(args: &Args, world: &World) -> Result<()> {
    let augment = args.augment.clone();
    let (format, jpeg_decoder) = (args.data_format, args.jpeg_decoder);
    let input = Input { format, augment, jpeg_decoder, ..Input::default() };
    let sample = [3, args.image_size, args.image_size];
    let wanted = Wanted { sample, classes: 1_000_000, seed: 1, input: &input };
    let sets = world.agree(data::open(&args.path, &wanted))?;
    let check = world.agree(check(sets.test.as_ref().unwrap_or(&sets.training)))?;
    let decoder =
        sets.training.set().jpeg().map_or(String::new(), |jpeg| format!("; JPEG by {}", jpeg.name()));
    let sharding = Sharding {
        ranks: world.size(),
        rank: world.rank(),
        batch: args.batch,
        accumulation: 1,
        global: None,
    };
    let reading = world.agree(Reading::new(args.loader_threads, true))?;
    let loader = TrainingLoader::new(sets.training, sharding, 1, reading);
    let mut loader = world.agree(loader)?;
    let mut batch = Batch::new(args.batch, sample.iter().product());
    let mut begun = Instant::now();
    let mut outcome = Ok(());
    for number in 0..args.batches + 2 {
        if number == 2 {
            world.barrier()?;
            begun = Instant::now();
        }
        loader.start_epoch(number / loader.steps());
        outcome = outcome.and_then(|()| loader.fill(number % loader.steps(), 0, &mut batch));
    }
    let mut seconds = [begun.elapsed().as_secs_f64()];
    world.agree(outcome)?;
    world.max_f64(&mut seconds)?;
    let rate = (world.size() * args.batch * args.batches) as f64 / seconds[0];
    let threads = world.size() * args.loader_threads.max(1);
    let text = format!("{rate:.1} images/s, {:.1} a thread; {check}{decoder}", rate / threads as f64);
    record::say(world, &text);
    Ok(())
}

/// Mean and deviation of some images, prepared as for evaluation.
fn check(samples: &Samples) -> Result<String> {
    let mut image = vec![0.0; samples.sample().iter().product()];
    let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
    for index in 0..samples.len().min(CHECKED) {
        samples.read(0, index, &mut image, &mut DecodeBuffers::default())?;
        sum += image.iter().map(|&value| f64::from(value)).sum::<f64>();
        squares += image.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
        count += image.len() as f64;
    }
    if count == 0.0 {
        return Err(Error::internal("a data set without images"));
    }
    let mean = sum / count;
    Ok(format!("evaluated images: mean {mean:.4}, deviation {:.4}", (squares / count - mean * mean).sqrt()))
}
