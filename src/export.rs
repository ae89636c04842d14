//! `dltrain export`: weights from one kind of file to another, or with their network as an ONNX file.
//!
//! May use: `train` (which weights fit a network), `model`, `record`, `data` (what a view says), `files`, `comm`,
//! `error`. Used by: `main`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::comm::World;
use crate::data::Field;
use crate::error::{Error, Result};
use crate::graph::{NetworkOutput, SampleShape};
use crate::model::onnx::{NetworkInput, OnnxFile, SampleArrays};
use crate::model::{self, LearnedArray, Model, onnx};
use crate::record::{self, ModelMetadata, WeightsFile, check_new, write_weights};
use crate::train::{EXPORTED, Start};

/// Write weights as safetensors, which torchvision's models load, or as HDF5; or with their network as an ONNX file.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// File of weights: a checkpoint, safetensors, HDF5 or an ONNX file.
    from: PathBuf,
    /// File to write: safetensors, HDF5 where the name ends in .h5, or a network where it ends in .onnx.
    to: PathBuf,
    #[command(flatten)]
    network: ExportedNetwork,
}

/// What is said of a network that is written.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "For an ONNX file")]
struct ExportedNetwork {
    /// Network that the weights are of: a name that dltrain models lists, or an ONNX file [default: that of the
    /// weights, where they are from an ONNX file].
    #[arg(long)]
    model: Option<String>,
    /// Classes that it tells apart [default: those it was made for].
    #[arg(long, value_name = "N")]
    classes: Option<usize>,
    /// Height and width of its images, in one number or as 64x48; of cubes all three, as 64x32x32; channels may stand
    /// before these, as 4x64x32x32 [default: what the weights learned from, else what it was made for].
    #[arg(long, value_name = "N")]
    image_size: Option<SampleSize>,
    /// Make batch normalisation part of the convolution before it.
    #[arg(long)]
    fold: bool,
}

/// How long samples are to be along their axes.
#[derive(Debug, Clone)]
struct SampleSize(Vec<usize>);

impl SampleSize {
    /// The shape of samples that are like these otherwise: of one number all axes of space are so long, and channels
    /// stay what they are unless they are named.
    fn of(&self, others: SampleShape) -> Result<SampleShape> {
        let whole = match &self.0[..] {
            [size] => return Ok(others.of_size(*size)),
            space if space.len() + 1 == others.len() => [&others[..1], space].concat(),
            whole => whole.to_vec(),
        };
        SampleShape::of(&whole).ok_or_else(|| {
            Error::usage(format!("--image-size has {} numbers, and samples are {others}", self.0.len()))
        })
    }
}

impl FromStr for SampleSize {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> std::result::Result<SampleSize, Self::Err> {
        text.split(['x', '×']).map(str::parse).collect::<std::result::Result<_, _>>().map(SampleSize)
    }
}

/// Reads one file and writes the other, on the first rank.
///
/// # Errors
/// Those of reading and writing, the same on every rank.
pub fn run(args: &Args, world: &World) -> Result<()> {
    let is_network = model::is_file(&args.to.to_string_lossy());
    let write = || if is_network { args.write_network() } else { args.write_weights() };
    let tensors = world.agree(record::once(world, write))?;
    record::say(world, &format!("{tensors} tensors: {}", args.to.display()));
    Ok(())
}

impl Args {
    /// Returns how many tensors were written.
    fn write_weights(&self) -> Result<usize> {
        let ExportedNetwork { model, classes, image_size, fold } = &self.network;
        let given = [
            (model.is_some(), "--model"),
            (classes.is_some(), "--classes"),
            (image_size.is_some(), "--image-size"),
            (*fold, "--fold"),
        ];
        if let Some((_, flag)) = given.iter().find(|(is_given, _)| *is_given) {
            return Err(Error::usage(format!(
                "{flag} is about a network, and {} is a file of weights alone; give it a name that ends in .onnx, or \
                 leave {flag} out",
                self.to.display()
            )));
        }
        let file = WeightsFile::open(&self.from)?;
        let left_out = record::left_out(file.unread());
        if file.shapes().is_empty() {
            let what = left_out.map_or(String::new(), |what| format!(" ({what})"));
            return Err(Error::data(&self.from, format!("has no tensor of f16, bf16, f32 or f64{what}")));
        }
        left_out.iter().for_each(|what| record::print(what));
        write_weights(&self.to, file.shapes(), file.about(), &|name| file.values(name), None)?;
        Ok(file.shapes().len())
    }

    /// The same for a network with its weights.
    fn write_network(&self) -> Result<usize> {
        check_new(&self.to)?;
        let file = WeightsFile::open(&self.from)?;
        // One that ends in LogSoftmax is known without it alone.
        let mut about = file.about().clone();
        let of = |gives: NetworkOutput| self.model(gives, &about);
        let model = of(NetworkOutput::Whole).or_else(|_| of(NetworkOutput::Scores))?;
        if model.file().is_some_and(OnnxFile::has_channels_last) {
            let what =
                "reads channels on the last axis; what is written has them first, in what it reads and gives";
            record::print(&format!("{}: {what}", model.name()));
        }
        let image = self.image(&model, &mut about)?;
        let classes = self.network.classes.unwrap_or(model.classes);
        if classes == 0 || image.contains(&0) {
            return Err(Error::usage("--classes and --image-size must be at least 1"));
        }
        let build = |batch| model.build_to_test(batch, image, classes);
        let start = Start::fitting(file, &build(1)?, &[], [model.name(), EXPORTED])?;
        let axes = model.file().map_or(image.len() + 1, onnx::OnnxFile::axes);
        // One rank reads and writes, and says so.
        start.note().into_iter().for_each(record::print);
        let values = |name: &str| {
            start.values(name)?.ok_or_else(|| Error::internal(format!("no values of {name} to write")))
        };
        let mut network = onnx::export::network(build, axes, self.network.fold, &values)?;
        if let Some(inputs) = model.file().map(onnx::OnnxFile::input_axes).filter(|inputs| inputs.len() > 1) {
            network.with_inputs(&inputs);
        }
        network.say(&about.texts());
        if let Some(bytes) = network.write(&self.to, onnx::export::LARGEST)? {
            let beside = onnx::export::beside(&self.to);
            let what = "an ONNX file holds 2 GB: the network goes by it, and keeps its weights in";
            record::print(&format!("{what} {} ({} MB)", beside.display(), bytes / 1_000_000));
        }
        Ok(start.tensors())
    }

    /// The shape of the network's samples: that which is asked for, else that which the weights learned from, else the
    /// model's own. What the file says of its samples is made to agree with it.
    fn image(&self, model: &Model, about: &mut ModelMetadata) -> Result<SampleShape> {
        let learned = about.preprocessing.as_ref().map(|of| SampleShape::image(of.image));
        let learned = about.sample.or_else(|| learned.filter(|of| of[0] == model.image[0]));
        let own = learned.unwrap_or(model.image);
        let size = self.network.image_size.as_ref();
        let wanted = size.map_or(Ok(own), |size| size.of(own))?;
        let images = about.preprocessing.as_mut().map(|of| &mut of.image);
        if let Some(image) = images.filter(|image| wanted.len() == 3 && image[0] == wanted[0]) {
            image.copy_from_slice(&wanted);
        }
        about.sample = about.sample.map(|_| wanted);
        if let (Some(learned), None) = (learned.filter(|of| *of != model.image), size) {
            let what = if about.sample.is_some() { "samples" } else { "images" };
            record::print(&format!(
                "{}: learned from {what} of {learned}, which the network is written for; --image-size says others",
                self.from.display()
            ));
        }
        Ok(wanted)
    }

    /// The network that is to be written, as it reads and gives what its weights learned from.
    fn model(&self, gives: NetworkOutput, about: &ModelMetadata) -> Result<Model> {
        let samples = |path: &Path| OnnxFile::inputs_of(path, gives).map(|inputs| learned(about, &inputs));
        match &self.network.model {
            Some(name) if model::is_file(name) => {
                model::find_for(name, gives, samples(Path::new(name))?.as_ref())
            }
            Some(name) => model::find_for(name, gives, None),
            None if model::is_file(&self.from.to_string_lossy()) => {
                model::open_for(&self.from, gives, samples(&self.from)?.as_ref())
            }
            None => Err(Error::usage(format!(
                "{}: an ONNX file holds a network, and {} has weights alone; name their network with --model",
                self.to.display(),
                self.from.display()
            ))),
        }
    }
}

/// The samples that weights learned from, as a network with these inputs is given them.
fn learned(about: &ModelMetadata, inputs: &[NetworkInput]) -> Option<SampleArrays> {
    let view = |of: &LearnedArray| of.field.parse::<Field>().map(|field| field.view);
    let lies_last = |of: &LearnedArray| view(of).ok().and_then(|view| view.channels_last());
    let is_called = |of: &LearnedArray, name: &str| view(of).is_ok_and(|view| view.is_called(name));
    let sample = about.sample?;
    // One input has the channels of several arrays.
    let mut channels = 0;
    let before = |of: &&LearnedArray| {
        let is_before = channels < sample[0];
        channels += of.scale.len();
        is_before
    };
    let count = if inputs.len() > 1 { inputs.len() } else { about.fields.iter().take_while(before).count() };
    let (given, targets) = about.fields.split_at_checked(count)?;
    let are_named = inputs.iter().all(|input| given.iter().any(|of| is_called(of, &input.name)));
    let of_one = |(at, input): (usize, &NetworkInput)| {
        let named = given.iter().find(|of| are_named && is_called(of, &input.name));
        let own = named.or(given.get(at))?;
        let axes = [own.scale.len()].into_iter().chain(input.axes[1..].iter().map(|_| 0)).collect();
        Some((axes, lies_last(own)))
    };
    let inputs = match inputs.len() > 1 {
        true => inputs.iter().enumerate().map(of_one).collect::<Option<_>>()?,
        false => vec![(sample.to_vec(), lies_last(given.first()?))],
    };
    Some(SampleArrays { inputs, target: Field::target_axes(targets) })
}
