//! `dltrain export`: weights from one kind of file to another, or with their network as an ONNX file.
//!
//! May use: `train` (which weights fit a network), `model`, `record`, `files`, `comm`, `error`. Used by: `main`.

use std::path::PathBuf;

use crate::comm::World;
use crate::error::{Error, Result};
use crate::graph::SampleShape;
use crate::model::{self, Model, onnx};
use crate::record::{self, ModelMetadata, WeightsFile, check_new, write_weights};
use crate::train::Start;

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
    /// Height and width of its images [default: those that the weights learned from, else those it was made for].
    #[arg(long, value_name = "N")]
    image_size: Option<usize>,
    /// Make batch normalisation part of the convolution before it.
    #[arg(long)]
    fold: bool,
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
        let model = self.model()?;
        let mut about = file.about().clone();
        let image = self.image(&model, &mut about);
        let classes = self.network.classes.unwrap_or(model.classes);
        if classes == 0 || image.contains(&0) {
            return Err(Error::usage("--classes and --image-size must be at least 1"));
        }
        let build = |batch| model.build_to_test(batch, image, classes);
        let start = Start::fitting(file, &build(1)?, &[], [model.name(), "the weights"])?;
        let axes = model.file().map_or(image.len() + 1, onnx::OnnxFile::axes);
        // One rank reads and writes, and says so.
        start.note().into_iter().for_each(record::print);
        let values = |name: &str| {
            start.values(name)?.ok_or_else(|| Error::internal(format!("no values of {name} to write")))
        };
        let mut network = onnx::export::network(build, axes, self.network.fold, &values)?;
        network.say(&about.texts());
        if let Some(bytes) = network.write(&self.to, onnx::export::LARGEST)? {
            let beside = onnx::export::beside(&self.to);
            let what = "an ONNX file holds 2 GB: the network goes by it, and keeps its weights in";
            record::print(&format!("{what} {} ({} MB)", beside.display(), bytes / 1_000_000));
        }
        Ok(start.tensors())
    }

    /// The shape of the network's images: of the size that is asked for, else of that which the weights learned from,
    /// else the model's own. What the file says of its images is made to agree with it.
    fn image(&self, model: &Model, about: &mut ModelMetadata) -> SampleShape {
        let own = self.network.image_size.map_or(model.image, |size| model.image.of_size(size));
        let Some(expected) = &mut about.preprocessing else { return own };
        let [channels, height, width] = own.rows();
        if channels != expected.image[0] {
            return own;
        }
        if self.network.image_size.is_some() {
            expected.image = [channels, height, width];
            return own;
        }
        let [_, rows, columns] = expected.image;
        if [rows, columns] != [height, width] {
            let whose = format!("{}: learned from images of {rows}×{columns}", self.from.display());
            record::print(&format!(
                "{whose}, which the network is written for; --image-size says another size"
            ));
        }
        SampleShape::image(expected.image)
    }

    fn model(&self) -> Result<Model> {
        match &self.network.model {
            Some(name) => model::find(name),
            None if model::is_file(&self.from.to_string_lossy()) => model::open(&self.from),
            None => Err(Error::usage(format!(
                "{}: an ONNX file holds a network, and {} has weights alone; name their network with --model",
                self.to.display(),
                self.from.display()
            ))),
        }
    }
}
