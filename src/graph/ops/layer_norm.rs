//! Layer normalisation over the last axes, and group normalisation, which is one of groups of channels.

use crate::error::{Error, Result};
use crate::graph::differentiate::BackwardPass;
use crate::graph::{BackwardOp, Binary, Builder, DType, Init, Node, Op, Role, Shape, TensorId, dims};

impl Builder {
    /// Layer normalisation over the last `axes` axes (Ba, Kiros, Hinton 2016). Parameters `name.weight` and
    /// `name.bias`, of the shape of these axes.
    ///
    /// # Errors
    /// `Usage` where x has not more axes than that.
    pub fn layer_norm(&mut self, name: &str, x: TensorId, axes: usize, epsilon: f32) -> Result<TensorId> {
        let shape = self.shape(x).clone();
        let Some(first) = shape.rank().checked_sub(axes).filter(|&first| first > 0 && axes > 0) else {
            return Err(Error::usage(format!("layer {name}: {shape} has no {axes} axes behind others")));
        };
        let last = Shape(shape.0[first..].to_vec());
        let weight = self.parameter(format!("{name}.weight"), last.clone(), Init::One, false);
        let bias = self.parameter(format!("{name}.bias"), last, Init::Zero, false);
        Ok(self.normalised(name, vec![x, weight, bias], first, epsilon))
    }

    /// Layer normalisation over the channels of images, for each pixel by itself.
    ///
    /// # Errors
    /// `Usage` where x is no image.
    pub fn layer_norm_of_channels(&mut self, name: &str, x: TensorId, epsilon: f32) -> Result<TensorId> {
        self.image_shape(name, x)?;
        let axes = self.shape(x).rank();
        let last: Vec<usize> = [0].into_iter().chain(2..axes).chain([1]).collect();
        let y = self.permute(&format!("{name}.channels_last"), x, &last)?;
        let y = self.layer_norm(name, y, 1, epsilon)?;
        let first: Vec<usize> = [0, axes - 1].into_iter().chain(1..axes - 1).collect();
        self.permute(&format!("{name}.channels_first"), y, &first)
    }

    /// Group normalisation (Wu and He 2018): over the channels of a group and all pixels, for each sample by itself.
    /// With as many groups as channels it is instance normalisation. Parameters `name.weight` and `name.bias`, a number
    /// a channel.
    ///
    /// # Errors
    /// `Usage` where the channels do not divide into groups.
    pub fn group_norm(&mut self, name: &str, x: TensorId, groups: usize, epsilon: f32) -> Result<TensorId> {
        let ([n, c], size) = self.image_shape(name, x)?;
        let shape = self.shape(x).clone();
        if groups == 0 || !c.is_multiple_of(groups) {
            return Err(Error::usage(format!(
                "layer {name}: {c} channels do not divide into {groups} groups"
            )));
        }
        let [weight, bias] = [("weight", Init::One), ("bias", Init::Zero)]
            .map(|(of, init)| self.parameter(format!("{name}.{of}"), dims([c]), init, false));
        let part = |part: &str| format!("{name}.{part}");
        let y =
            self.reshape(&part("groups"), x, dims([n, groups, c / groups * size.iter().product::<usize>()]))?;
        let y = self.normalised(&part("norm"), vec![y], 2, epsilon);
        let of_channels = shape.of_channels(c);
        let mut y = self.reshape(&part("channels"), y, shape)?;
        for (of, parameter, what) in [(Binary::Multiply, weight, "scale"), (Binary::Add, bias, "shift")] {
            let stretched = self.reshape(&part(&format!("{what}.number")), parameter, of_channels.clone())?;
            y = self.binary(&part(what), of, y, stretched)?;
        }
        Ok(y)
    }

    /// Each row of the last `axes` axes normalised by itself, without parameters.
    ///
    /// # Errors
    /// `Usage` where x has not more axes than that.
    pub fn normalise_rows(&mut self, name: &str, x: TensorId, axes: usize, epsilon: f32) -> Result<TensorId> {
        let shape = self.shape(x);
        match shape.rank().checked_sub(axes).filter(|&first| first > 0 && axes > 0) {
            Some(first) => Ok(self.normalised(name, vec![x], first, epsilon)),
            None => Err(Error::usage(format!("layer {name}: {shape} has no {axes} axes behind others"))),
        }
    }

    fn normalised(&mut self, name: &str, inputs: Vec<TensorId>, first: usize, epsilon: f32) -> TensorId {
        let shape = self.shape(inputs[0]).clone();
        let rows = shape.0[..first].iter().product();
        let affine = inputs.len() == 3;
        let y = self.node(name, Op::LayerNorm { epsilon, affine }, inputs, shape);
        let moments = ["mean", "variance"]
            .map(|of| self.tensor(&format!("{name}.{of}"), dims([rows]), DType::F32, Role::Activation));
        self.nodes.last_mut().expect("the node just added").outputs.extend(moments);
        y
    }
}

pub fn backward(b: &mut BackwardPass, node: &Node, (epsilon, affine): (f32, bool), dy: TensorId) {
    let (x, mut inputs) = (node.inputs[0], vec![dy, node.inputs[0]]);
    inputs.extend(node.inputs.get(1));
    inputs.extend(&node.outputs[1..]);
    let (dx, weights) = (b.graph.gradient_like(x), &node.inputs[1..]);
    let gradients = b.graph.gradients_of(weights);
    b.push(BackwardOp::LayerNorm { epsilon, affine }, inputs, [&[dx], &gradients[..]].concat());
    b.contribute_to(weights, &gradients);
    b.contribute(x, dx);
}
