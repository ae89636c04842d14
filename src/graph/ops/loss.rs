//! The losses: softmax and cross-entropy of scores, and what compares any output with a target (`Objective`).

use std::sync::Arc;

use crate::config::Objective;
use crate::error::{Error, Result};
use crate::graph::{Builder, DType, Graph, Op, Role, Shape, Spec, Tensor, TensorId, dims};

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
            self.tensors.push(Tensor { values, ..Tensor::new("class weights", spec, Role::Constant) });
            TensorId(self.tensors.len() - 1)
        });
        let loss = self.nodes.iter_mut().find(|node| node.op.is_loss());
        let loss = loss.ok_or_else(|| Error::internal(format!("{} has no loss", self.name)))?;
        loss.op = Op::FieldLoss(objective);
        loss.inputs.extend(weights);
        Ok(self)
    }

    /// What it is trained by, where that is no classes of images.
    pub fn objective(&self) -> Option<Objective> {
        self.nodes.iter().find_map(|node| match node.op {
            Op::FieldLoss(objective) => Some(objective),
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
