//! What is trained: a model for the images and classes of this run.

use std::ops::Range;

use super::groups;
use crate::comm::World;
use crate::config::{Augment, Config, Loss, Objective, Precision, SyncBatchNorm};
use crate::data::{Normalisation, RawSamples};
use crate::error::{Error, Result};
use crate::fields::extents;
use crate::graph::{DType, Frozen, Graph, NodeCost, SampleShape, Shape, SplitLayers, TensorGroup, countable};
use crate::model::onnx::{self, OnnxFile};
use crate::model::{self, Model};
use crate::record;

/// A model with the choices of a run. Its evaluation uses the same loss.
#[derive(Clone)]
pub struct Network {
    pub model: Model,
    pub image: SampleShape,
    pub classes: usize,
    label_smoothing: f32,
    /// Where it learns from arrays: by what, and what the classes of a target weigh.
    objective: Option<(Objective, Vec<f32>)>,
    /// Weights of points behind each target.
    weights: usize,
    /// Whether it learns from mixed images.
    mixed: bool,
    precision: Precision,
    /// Whether it drops elements and samples in training.
    dropout: bool,
    /// Where samples are not sent as numbers: how the device makes numbers of them.
    raw: Option<RawSamples>,
    /// What is not learned.
    frozen: Option<Frozen>,
    /// Whether its evaluation gives the probabilities of classes.
    predicts: bool,
    /// Ranks that share the statistics of batch normalisation.
    pub statistics_of: usize,
    /// Among how many ranks images are cut by rows, and which of these this one is.
    rows: [usize; 2],
    /// Where large linear layers are split: among whom.
    split: Option<TensorGroup>,
}

impl Network {
    /// The same on all ranks, each of which reads its own copy of a file, with what a user should know of it. The model
    /// is this one, or that of --model. Collective.
    ///
    /// # Errors
    /// As for `new`; `Mismatch` when ranks have unlike files.
    pub fn agree(world: &World, config: &Config, model: Option<Model>, ranks: usize) -> Result<Network> {
        let model =
            model.map_or_else(|| model::find_for(&config.model, config.fields.network_output(), None), Ok);
        let split = groups::group(config, [world.rank(), world.size()]);
        let network = model.and_then(|model| Self::new(config, model, [world.rank(), ranks]));
        let network = network.map(|network| Network { split, ..network });
        let network = world.agree(network.and_then(|network| network.checked(config)))?;
        world.check_same(&[("the network of --model".into(), network.model.identity())])?;
        let trains = !config.evaluate && config.predict.is_none();
        for note in network.model.file().iter().flat_map(|file| file.notes(trains)) {
            record::say(world, &format!("{}: {note}", config.model));
        }
        // Building a network takes time, and those by name end in scores.
        if network.model.file().is_some() && config.evaluate && !network.predicts {
            let graph = world.agree(network.model.build_to_test(1, network.image, network.classes))?;
            if let Some(shares) = network.shares(&graph) {
                let what =
                    format!("ends in {shares}: the loss is that of the shares it gives, taken for scores");
                record::say(world, &format!("{}: {what}", config.model));
            }
        }
        if network.model.file().is_some() && !config.evaluate && config.fields.loss_output().is_none() {
            let build = |batch| network.model.build_to_test(batch, network.image, network.classes);
            if let Err(Error { message, .. }) = onnx::export::check(build) {
                let what = "dltrain export will write what it learns as weights, and as no network";
                record::say(world, &format!("{}: {what}: {message}", config.model));
            }
        }
        Ok(network)
    }

    /// # Errors
    /// `Usage` for an unknown model, and where the ranks do not divide into the groups asked for; `Data` for a file
    /// whose network cannot be trained.
    fn new(config: &Config, model: Model, [rank, ranks]: [usize; 2]) -> Result<Network> {
        let rows = rows(config, [rank, ranks])?;
        Ok(Network {
            image: match (config.network.sample, config.network.image_size) {
                (Some(sample), _) => sample,
                (None, Some(size)) => model.image.of_size(size),
                (None, None) => model.image,
            },
            objective: config
                .fields
                .objective(config.network.label_smoothing)
                .map(|objective| (objective, config.fields.class_weights.clone())),
            weights: config.network.weights,
            classes: config.network.classes.unwrap_or(model.classes),
            model,
            label_smoothing: config.network.label_smoothing,
            mixed: config.input.augment.as_ref().is_some_and(Augment::mixes),
            precision: config.precision,
            dropout: !config.network.no_dropout,
            raw: None,
            frozen: frozen(&config.network.freeze),
            predicts: config.predict.is_some(),
            statistics_of: group(config.sync_bn, ranks)?,
            rows,
            split: None,
        })
    }

    /// Checks, before time goes into data, that the network's tensors can be counted and that its last layer can have
    /// as many scores as `--classes` says: synthetic images of the largest size take seconds. What another batch or
    /// another way to share the work decides is found with its plan.
    fn checked(self, config: &Config) -> Result<Network> {
        if config.max_batch.is_some() || config.parallel.is_some() {
            // Before anything is planned too: the last layer of a file may be none that can be another.
            if config.network.classes.is_some() && self.model.file().is_some() {
                self.model.build_to_test(1, self.image, self.classes)?;
            }
            return Ok(self);
        }
        // The images by themselves first: swin_t has masks for each of their windows, which take seconds to write down.
        let [parts, _] = self.rows;
        let mut images = Shape([&[config.batch], &self.image[..]].concat());
        images.0[2] = images.0[2].div_ceil(parts);
        countable(self.model.name(), &Shape(self.image.to_vec()), "images", &images)?;
        match config.evaluate {
            true => self.evaluation(config.batch)?,
            false => self.learning(config.batch)?,
        };
        Ok(self)
    }

    /// The same reading pixels or codes, where it says how they become numbers.
    pub fn reading(self, raw: Option<RawSamples>) -> Network {
        // Pixels are not cut.
        let is_cut = self.rows[0] > 1;
        Network { raw: raw.filter(|raw| !is_cut || !matches!(raw, RawSamples::Pixels(_))), ..self }
    }

    /// The same for another number of ranks, and as this run shares its layers and images among them: that of one of
    /// them.
    ///
    /// # Errors
    /// `Usage` where they do not divide into the groups asked for.
    pub fn among(&self, config: &Config, [rank, ranks]: [usize; 2]) -> Result<Network> {
        let (statistics_of, rows) = (group(config.sync_bn, ranks)?, rows(config, [rank, ranks])?);
        let split = groups::group(config, [rank, ranks]);
        let raw = self.raw.clone();
        Ok(Network { statistics_of, rows, split, ..self.clone() }.reading(raw))
    }

    /// What the forward pass of a training step costs a rank, how often it tells others rows of its images, and in how
    /// many bytes (`Graph::told_of_rows`).
    ///
    /// # Errors
    /// As for `training`.
    pub fn outline(&self, batch: usize) -> Result<(NodeCost, [usize; 2])> {
        let graph = self.learning(batch)?;
        Ok((graph.total_cost(true), graph.told_of_rows()))
    }

    /// Among how many ranks images are cut.
    pub fn parts(&self) -> usize {
        self.rows[0]
    }

    /// Among whom layers are split.
    pub fn group(&self) -> Option<TensorGroup> {
        self.split
    }

    /// The same as the first of those among whom images are cut has it; `None` on that one, and where none are cut.
    pub fn of_first_place(&self) -> Option<Network> {
        let [parts, place] = self.rows;
        (place > 0).then(|| Network { rows: [parts, 0], ..self.clone() })
    }

    /// The graph of a training step for a batch.
    ///
    /// # Errors
    /// `Usage` when the image is too small for a layer, and where no layer is worth splitting that are to be split.
    pub fn training(&self, batch: usize) -> Result<Graph> {
        Ok(self.split(self.learning(batch)?, batch)?.differentiate().trade_rows())
    }

    /// The layers of it that are split; none where none are to be.
    ///
    /// # Errors
    /// As for `training`.
    pub fn split_layers(&self, batch: usize) -> Result<Vec<SplitLayers>> {
        let Some(group) = self.split else { return Ok(Vec::new()) };
        let layers = self.learning(batch)?.worth_splitting(group);
        match layers.is_empty() {
            false => Ok(layers),
            true => Err(Error::usage(format!(
                "--tensor {}: {} has no linear layer whose gradients are more to send than its inputs and outputs are \
                 for --batch {batch}, and whose width {} ranks divide; leave the flag out, or take a smaller batch",
                group.ranks,
                self.model.name(),
                group.ranks
            ))),
        }
    }

    fn split(&self, graph: Graph, batch: usize) -> Result<Graph> {
        match self.split {
            Some(group) => Ok(graph.split(&self.split_layers(batch)?, group)),
            None => Ok(graph),
        }
    }

    /// The forward graph of a training step.
    fn learning(&self, batch: usize) -> Result<Graph> {
        let graph = self.model.build(batch, self.image, self.classes)?;
        if let Some(shares) = self.shares(&graph) {
            return Err(Error::usage(format!(
                "{}: ends in {shares}, and the loss takes a softmax or a sigmoid of scores by itself: what the network \
                 gives would be squeezed twice. Export it without its last layer",
                self.model.name()
            )));
        }
        let mut graph = self.forward(graph)?;
        if let Some(frozen) = &self.frozen {
            graph = graph.freeze(frozen)?;
        }
        let mut graph = self.compact(if self.dropout { graph } else { graph.without_dropout() });
        if self.mixed {
            graph = graph.mix_labels();
        }
        let [parts, place] = self.rows;
        if parts > self.image[1] {
            return Err(Error::usage(format!(
                "--spatial {parts}: {}",
                match self.image[..] {
                    [_, 1, 1] => "samples that have no axes of space are not cut; leave the flag out".into(),
                    [_, 1, ..] =>
                        "sequences, and samples of one place on their first axis of space, are not cut; \
                                   leave the flag out"
                            .into(),
                    [_, planes, _, _] => format!("cubes of {planes} planes cannot be cut so often"),
                    _ => format!("images of {} rows cannot be cut so often", self.image[1]),
                }
            )));
        }
        let graph = graph.split_rows(parts, place).synchronise_batch_norms(self.statistics_of);
        self.coded(graph).within_limits()
    }

    /// The graph of an evaluation step for a batch.
    ///
    /// # Errors
    /// As for `training`.
    pub fn evaluation(&self, batch: usize) -> Result<Graph> {
        let graph = self.model.build_to_test(batch, self.image, self.classes)?;
        let graph = self.compact(self.forward(graph)?.for_evaluation());
        let graph = match self.rows {
            // Images are tested as a whole, and looked at so.
            [parts, place] if parts > 1 && self.objective.is_some() && !self.predicts => {
                graph.split_rows(parts, place).within_limits()?.trade_rows()
            }
            _ => graph.within_limits()?,
        };
        let graph = self.split(self.coded(graph), batch)?;
        Ok(if self.predicts { graph.with_probabilities() } else { graph })
    }

    /// The axes of what it gives of a sample.
    ///
    /// # Errors
    /// As for `training`.
    pub fn output(&self) -> Result<Vec<usize>> {
        let graph = self.model.build_to_test(1, self.image, self.classes)?;
        Ok(graph.tensor(graph.logits).spec.shape.0[1..].to_vec())
    }

    /// The rows of each target that this rank reads; `None` where it reads all of them.
    ///
    /// # Errors
    /// As for `training`.
    pub fn target_rows(&self) -> Result<Option<Range<usize>>> {
        match self.objective.as_ref().filter(|_| self.rows[0] > 1) {
            Some(_) => Ok(self.evaluation(1)?.target_rows().map(|rows| rows.own())),
            None => Ok(None),
        }
    }

    fn forward(&self, graph: Graph) -> Result<Graph> {
        if let Some((objective, weights)) = &self.objective {
            let weights = Some(&weights[..]).filter(|weights| !weights.is_empty());
            let graph = graph.with_objective(*objective, weights)?;
            return if self.weights > 0 { graph.with_weights(self.weights) } else { Ok(graph) };
        }
        let shape = &graph.tensor(graph.logits).spec.shape;
        let reads_images = self.image.len() == 3 && self.model.file().is_none_or(OnnxFile::reads_images);
        if shape.rank() != 2 || !reads_images {
            let of_sample = extents(&shape.0[1..]);
            let what = match self.model.file().map_or(1, |file| file.inputs().len()) {
                _ if reads_images => {
                    format!(
                        "its first output is not the scores of classes (N, K): it gives {of_sample} of a sample"
                    )
                }
                1 => "what it is given is no batch of images (N, C, H, W)".into(),
                count => format!("it has {count} inputs, and images are one"),
            };
            return Err(Error::usage(format!(
                "{}: {what}. To train it from arrays say which (--input VIEW --target VIEW --loss NAME; \
                 docs/fields.md)",
                self.model.name()
            )));
        }
        let graph = graph.smooth_labels(self.label_smoothing);
        Ok(match self.raw {
            Some(RawSamples::Pixels(Normalisation { scale, shift })) => graph.from_pixels(scale, shift),
            _ => graph,
        })
    }

    /// Whether it ends in a sigmoid or a softmax.
    ///
    /// # Errors
    /// As for `Model::build_to_test`.
    pub fn gives_shares(&self) -> Result<bool> {
        Ok(self.model.build_to_test(1, self.image, self.classes)?.ends_in_shares().is_some())
    }

    /// What the network ends in that the loss does by itself.
    fn shares(&self, graph: &Graph) -> Option<&'static str> {
        let takes_scores =
            |(objective, _): &(Objective, Vec<f32>)| matches!(objective.loss, Loss::CrossEntropy | Loss::Bce);
        graph.ends_in_shares().filter(|_| self.objective.as_ref().is_none_or(takes_scores))
    }

    fn coded(&self, graph: Graph) -> Graph {
        match &self.raw {
            // Targets are written beside what is predicted, as numbers.
            Some(RawSamples::Codes([inputs, targets])) => {
                graph.from_codes([inputs.as_ref(), targets.as_ref().filter(|_| !self.predicts)])
            }
            _ => graph,
        }
    }

    fn compact(&self, graph: Graph) -> Graph {
        match self.precision {
            Precision::Auto | Precision::F32 | Precision::Tf32 => graph.simplify(),
            Precision::Bf16 => graph.simplify().in_bf16(),
            Precision::F16 => graph.simplify().narrowed_to(DType::F16),
        }
    }
}

fn frozen(names: &[String]) -> Option<Frozen> {
    match names {
        [] => None,
        [all] if all == "backbone" => Some(Frozen::Backbone),
        layers => Some(Frozen::Layers(layers.into())),
    }
}

/// Among how many ranks images are cut, and which of them one is.
fn rows(config: &Config, [rank, ranks]: [usize; 2]) -> Result<[usize; 2]> {
    match ranks.is_multiple_of(config.spatial) {
        true => Ok([config.spatial, rank % config.spatial]),
        false => Err(Error::usage(format!(
            "--spatial {0}: this job has {ranks} rank{1}; start a multiple of {0}",
            config.spatial,
            if ranks == 1 { "" } else { "s" }
        ))),
    }
}

/// Ranks in a group that shares statistics.
fn group(sync: SyncBatchNorm, ranks: usize) -> Result<usize> {
    match sync {
        SyncBatchNorm::Off => Ok(1),
        SyncBatchNorm::All => Ok(ranks),
        SyncBatchNorm::Groups(size) if ranks.is_multiple_of(size) => Ok(size),
        SyncBatchNorm::Groups(size) => {
            let sizes: Vec<String> =
                (1..=ranks).filter(|size| ranks.is_multiple_of(*size)).map(|size| size.to_string()).collect();
            Err(Error::usage(format!(
                "--sync-bn {size}: {ranks} rank{} cannot be divided into groups of {size}; what works is {}, or \
                 --sync-bn alone for all ranks",
                if ranks == 1 { "" } else { "s" },
                sizes.join(", ")
            )))
        }
    }
}
