//! The losses: softmax and cross-entropy of scores, and what compares any output with a target (`Objective`).

use std::sync::Arc;

use crate::config::{Loss, Metric, Objective};
use crate::error::{Error, Result};
use crate::graph::{Builder, DType, Graph, Op, Role, Rows, Shape, Spec, Tensor, TensorId, dims};

/// Settings of the loss of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FieldLoss {
    /// What is compared, and what is added up.
    pub objective: Objective,
    /// Where rows are cut over places: which of them there are here.
    pub rows: Option<Rows>,
}

impl FieldLoss {
    /// Numbers that the points of a sample, or of a part of it, add up to: their part of the loss, how many have a
    /// target, and what the metric wants: sums, or of IoU points of each class that are found to be of it, all found to
    /// be of it, and all of it.
    pub fn totals(self, channels: usize) -> usize {
        2 + match self.objective.metric {
            Metric::Iou => 3 * channels,
            metric => metric.carried(),
        }
    }

    /// Points of a sample's target at all places, of which there are so many here.
    pub fn points(self, here: usize) -> usize {
        self.rows.map_or(here, |rows| here / rows.own().len().max(1) * rows.height)
    }

    /// What a gradient is divided by: these, over the places.
    pub fn divisor(self, here: usize) -> f32 {
        self.points(here) as f32 / self.rows.map_or(1, |rows| rows.parts) as f32
    }
}

impl Builder {
    /// Losses and hits.
    pub(in crate::graph) fn loss(
        &mut self,
        name: &str,
        logits: TensorId,
        labels: TensorId,
        weight: f32,
    ) -> [TensorId; 2] {
        let batch = self.shape(labels).clone();
        let op = Op::SoftmaxCrossEntropy { smoothing: 0.0, weight };
        let losses = self.node(name, op, vec![logits, labels], batch.clone());
        let hits = self.tensor(&format!("{name}.hits"), batch, DType::F32, Role::Activation);
        self.nodes.last_mut().expect("the node just added").outputs.push(hits);
        [losses, hits]
    }
}

impl Graph {
    /// The network trained by this objective in place of the classes of images: `labels` becomes the target, `hits` the
    /// sums of the metric. For a forward graph, before anything else is made of it.
    ///
    /// # Errors
    /// `Usage` for as many class weights as there are no classes, and where other heads give scores of classes too.
    pub fn with_objective(mut self, objective: Objective, class_weights: Option<&[f32]>) -> Result<Graph> {
        if self.nodes.iter().filter(|node| node.op.is_loss()).count() > 1 {
            return Err(Error::usage(format!(
                "model {}: its auxiliary heads learn classes of images, and have no target of their own",
                self.name
            )));
        }
        let output = self.tensor(self.logits).spec.shape.clone();
        let (batch, channels) = (output.batch(), output.channels());
        if objective.metric == Metric::Top5 && channels <= 5 {
            let what =
                format!("--metric top5: model {} tells {channels} classes apart, of which any is", self.name);
            return Err(Error::usage(format!("{what} among five; take accuracy")));
        }
        if let Some(weights) = class_weights
            && weights.len() != channels
        {
            let count = weights.len();
            return Err(Error::usage(format!(
                "--class-weights: {count} numbers, but model {} gives {channels} classes",
                self.name
            )));
        }
        let target = if objective.loss.is_of_classes() { places(&output) } else { output };
        let labels = &mut self.tensors[self.labels.0];
        (labels.name, labels.spec) = ("target".into(), Spec { shape: target, dtype: DType::F32 });
        let sums = &mut self.tensors[self.hits.0];
        (sums.name, sums.spec.shape) = ("loss.sums".into(), dims([batch, objective.metric.sums(channels)]));
        let weights = class_weights.map(|weights| {
            let spec = Spec { shape: dims([channels]), dtype: DType::F32 };
            let values = Some(Arc::from(weights));
            self.add_tensor(Tensor { values, ..Tensor::new("class weights", spec, Role::Constant) })
        });
        let loss = self.nodes.iter_mut().find(|node| node.op.is_loss());
        let loss = loss.ok_or_else(|| Error::internal(format!("{} has no loss", self.name)))?;
        loss.op = Op::FieldLoss(FieldLoss { objective, rows: None });
        loss.inputs.extend(weights);
        Ok(self)
    }

    /// The network as one that is measured learns: where it gives no scores of classes of images, by softmax
    /// cross-entropy of its points.
    ///
    /// # Errors
    /// As for `with_objective`.
    pub fn with_usual_loss(self) -> Result<Graph> {
        match self.gives_scores() {
            true => Ok(self),
            false => {
                let (loss, metric) = (Loss::CrossEntropy, Metric::Accuracy);
                self.with_objective(Objective { loss, metric, smoothing: 0.0 }, None)
            }
        }
    }

    /// The network whose target has so many weights of its points behind it: one for each place of a channel, or one
    /// for each number. For a graph that has its objective.
    ///
    /// # Errors
    /// `Usage` for another number of weights.
    pub fn with_weights(mut self, weights: usize) -> Result<Graph> {
        let axes = self.tensor(self.logits).spec.shape.0.get(2..).unwrap_or_default();
        let target = &self.tensor(self.labels).spec.shape;
        let (places, numbers) = (axes.iter().product::<usize>(), target.per_sample());
        if weights != places && weights != numbers {
            let what = format!("--weight: {weights} weights of a sample, for a target of {numbers} numbers");
            return Err(Error::usage(format!("{what} in {places} places")));
        }
        let shape = [&[target.batch(), (numbers + weights) / places], axes].concat();
        self.tensors[self.labels.0].spec.shape = Shape(shape);
        Ok(self)
    }

    /// What it is trained by, where that is no classes of images.
    pub fn objective(&self) -> Option<Objective> {
        self.nodes.iter().find_map(|node| match node.op {
            Op::FieldLoss(FieldLoss { objective, .. }) => Some(objective),
            _ => None,
        })
    }

    /// Where the target is cut by rows over ranks: which of them are read.
    pub fn target_rows(&self) -> Option<Rows> {
        self.nodes.iter().find_map(|node| match node.op {
            Op::FieldLoss(FieldLoss { rows, .. }) => rows,
            _ => None,
        })
    }
}

/// The shape without the channels.
fn places(output: &Shape) -> Shape {
    let mut shape = output.0.clone();
    if shape.len() > 1 {
        shape.remove(1);
    }
    Shape(shape)
}
