//! The arrays of a run as flags name them, and the shapes that come of them.

use super::field::Field;
use crate::config::{FieldOptions, Loss, Missing};
use crate::data::NetworkInput;
use crate::error::{Error, Result};
use crate::fields::ViewSamples;
use crate::graph::SampleShape;

/// The arrays of a run: those that the network reads, those that it is to give, and what weighs the points of these.
#[derive(Clone)]
pub struct FieldList {
    pub fields: Vec<Field>,
    /// How many of them are inputs; they come first.
    pub inputs: usize,
    /// How many are inputs and targets; behind them is what weighs points, if anything does.
    pub compared: usize,
    /// The shape of one sample of each.
    pub shapes: Vec<FieldShape>,
    /// Where inputs begin in what the network reads, and targets in what it is to give.
    pub places: Vec<usize>,
    /// The inputs of a network that has several, in its order, and which field each is given.
    pub network: Vec<(String, usize)>,
    /// The axes of what a network of one input reads of a sample, channels first.
    pub axes: Vec<usize>,
    /// What a network reads of a sample.
    pub image: SampleShape,
    /// The axes of a target, without that of samples; none where there is no target.
    pub target: Vec<usize>,
    /// The axes along which points of a target are weighed, and which of these the array of weights has: it is the same
    /// along the others. Channels are none of them where it has none.
    pub weights: Vec<(usize, bool)>,
    /// Targets are numbers of so many classes.
    pub classes: Option<usize>,
    pub ignored: Option<i64>,
    pub missing: Missing,
    /// Whether targets are shares from 0 to 1.
    pub shares: bool,
    /// Whether the network has its loss in it, which says of a sample that is there 0 as target.
    pub in_network: bool,
}

impl FieldList {
    /// The fields of flags, whose samples have these shapes.
    ///
    /// # Errors
    /// `Usage`: they are not those of a network with these inputs, have unlike places or more axes than images have, or
    /// are no numbers of classes.
    pub fn new(
        options: &FieldOptions,
        fields: Vec<Field>,
        shapes: Vec<FieldShape>,
        of_network: &[NetworkInput],
    ) -> Result<FieldList> {
        let (loss, of_classes) = (options.loss(), options.is_of_classes());
        let in_network = loss == Some(Loss::Output);
        let compared = options.inputs.len() + options.targets.len();
        let inputs = if in_network { compared } else { options.inputs.len() };
        if let Some(weight) = fields[compared..].iter().find(|field| field.is_rescaled()) {
            return Err(
                weight.wrong("losses are multiplied by it as it is; leave out what stands behind the view")
            );
        }
        let (targets, of_targets) = (&fields[inputs..compared], &shapes[inputs..compared]);
        if let Some(target) = targets.iter().find(|field| of_classes && field.is_rescaled()) {
            return Err(
                target.wrong("numbers of classes are not rescaled; leave out what stands behind the view")
            );
        }
        let channels: usize = of_targets.iter().map(FieldShape::channels).sum();
        if of_classes && channels > 1 {
            return Err(targets[0].wrong(format!(
                "with --loss cross-entropy a target is one number of a class for each place, and this has {channels} \
                 channels"
            )));
        }
        let target = if targets.is_empty() { FieldShape::default() } else { stacked(targets, of_targets)? };
        let order = in_order(&fields[..inputs], &shapes[..inputs], of_network)?;
        let network = of_network.iter().filter(|_| of_network.len() > 1).zip(&order);
        let network = network.map(|(input, &at)| (input.name.clone(), at)).collect();
        let mut places = vec![0; compared];
        for order in [order, (inputs..compared).collect()] {
            let mut from = 0;
            for at in order {
                places[at] = from;
                from += shapes[at].numbers();
            }
        }
        let (axes, image) = image(&fields[..inputs], &shapes[..inputs], of_network)?;
        let weight = fields.get(compared).map(|of| of.weights(&shapes[compared], &target)).transpose()?;
        Ok(FieldList {
            axes,
            image,
            weights: weight.unwrap_or_default(),
            target: target.lengths().collect(),
            fields,
            inputs,
            compared,
            shapes,
            places,
            network,
            classes: of_classes.then_some(usize::MAX),
            ignored: options.ignore_label,
            missing: options.missing,
            shares: loss == Some(Loss::Bce),
            in_network,
        })
    }

    /// What flags say, in their order.
    pub fn texts(&self) -> Vec<&str> {
        self.fields.iter().map(|field| &*field.text).collect()
    }
}

impl Field {
    /// The axes of `FieldList::weights`, of an array of this shape.
    fn weights(&self, shape: &FieldShape, target: &FieldShape) -> Result<Vec<(usize, bool)>> {
        let (FieldShape(own), FieldShape(target)) = (shape, target);
        if let Some((name, along)) = own.iter().find(|axis| !target.contains(axis)) {
            let axes: Vec<String> = target.iter().map(|(name, along)| format!("{name} of {along}")).collect();
            return Err(self.wrong(format!(
                "it has an axis {name} of {along} places, and a target has {}; name in brackets the axes that both \
                 have",
                if axes.is_empty() { "none".into() } else { axes.join(", ") }
            )));
        }
        let counts = |axis: &&(char, usize)| axis.0 != 'c' || own.contains(axis);
        Ok(target.iter().filter(counts).map(|axis| (axis.1, own.contains(axis))).collect())
    }
}

/// The axes of a sample of such inputs, channels first, and as a network sees them.
fn image(
    inputs: &[Field],
    shapes: &[FieldShape],
    of_network: &[NetworkInput],
) -> Result<(Vec<usize>, SampleShape)> {
    if of_network.len() > 1 {
        let numbers = shapes.iter().map(FieldShape::numbers).sum();
        return Ok((vec![numbers], SampleShape::image([numbers, 1, 1])));
    }
    let image = stacked(inputs, shapes)?;
    let (channels, places) = (image.channels(), image.places());
    let shape = match places[..] {
        [] => SampleShape::image([channels, 1, 1]),
        [width] => SampleShape::image([channels, 1, width]),
        [height, width] => SampleShape::image([channels, height, width]),
        [depth, height, width] => SampleShape::cube([channels, depth, height, width]),
        _ => {
            let axes = places.len();
            return Err(
                inputs[0].wrong(format!("samples with {axes} axes beside channels; there can be three"))
            );
        }
    };
    Ok(([&[channels], &places[..]].concat(), shape))
}

/// In which order inputs come in what a network reads: in that of flags, but inputs that a network has by names are in
/// its order.
fn in_order(inputs: &[Field], shapes: &[FieldShape], of_network: &[NetworkInput]) -> Result<Vec<usize>> {
    let in_turn: Vec<usize> = (0..inputs.len()).collect();
    if of_network.len() <= 1 {
        return Ok(in_turn);
    }
    let names = of_network.iter().map(|input| &*input.name).collect::<Vec<_>>().join(", ");
    if inputs.len() != of_network.len() {
        return Err(Error::usage(format!(
            "--input: {} arrays for a network with {} inputs: {names}",
            inputs.len(),
            of_network.len()
        )));
    }
    // By names where all are known; else in the order of the flags, if that gives no input the array that is called as
    // another one.
    let by_name = |input: &NetworkInput| inputs.iter().position(|field| field.view.is_called(&input.name));
    let anothers = |(field, own): (&Field, &NetworkInput)| {
        of_network.iter().any(|other| other.name != own.name && field.view.is_called(&other.name))
    };
    let order = match of_network.iter().map(by_name).collect::<Option<Vec<usize>>>() {
        Some(by_names) => by_names,
        None if inputs.iter().zip(of_network).any(anothers) => {
            return Err(Error::usage(format!(
                "--input: the network's inputs are {names}, of which only some are names of arrays: give the arrays in \
                 this order"
            )));
        }
        None => in_turn,
    };
    for (&at, input) in order.iter().zip(of_network) {
        // How long axes are that it names the array says.
        let (own, wanted, what) = match input.numbers() {
            Some(numbers) => (shapes[at].numbers(), numbers, "numbers"),
            None => (shapes[at].lengths().count(), input.axes.len(), "axes"),
        };
        if own != wanted {
            let what = format!("{own} {what} a sample, and the network's input {} has {wanted}", input.name);
            return Err(inputs[at].wrong(what));
        }
    }
    Ok(order)
}

/// The axes of one sample of a field, each with its length; channels come first.
#[derive(Clone, Default)]
pub struct FieldShape(Vec<(char, usize)>);

impl FieldShape {
    /// An axis without a name is one of space, but the only one, which is of channels, as the first of three or four
    /// is, and of two that are a sequence.
    pub fn of(samples: &ViewSamples, is_sequence: bool) -> FieldShape {
        let (shape, letters) = (samples.shape(), samples.letters());
        let is_bare = letters.iter().all(|letter| matches!(letter, None | Some('s')));
        let has_channels = is_bare && ([1, 3, 4].contains(&shape.len()) || is_sequence);
        let of_space = |at: usize| "whd".chars().nth(shape.len() - 1 - at).unwrap_or('s');
        let name = |(at, letter): (usize, Option<char>)| match letter.filter(|_| !is_bare) {
            None if at == 0 && has_channels => 'c',
            letter => letter.unwrap_or_else(|| of_space(at)),
        };
        FieldShape(letters.into_iter().enumerate().map(name).zip(shape.iter().copied()).collect())
    }

    pub fn channels(&self) -> usize {
        if let [('c', channels), ..] = self.0[..] { channels } else { 1 }
    }

    /// Without that of channels.
    fn places(&self) -> Vec<usize> {
        self.0.iter().filter(|(name, _)| *name != 'c').map(|(_, along)| *along).collect()
    }

    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(_, along)| *along)
    }

    pub fn numbers(&self) -> usize {
        self.lengths().product()
    }
}

/// The shape of fields one behind the other as channels.
fn stacked(fields: &[Field], shapes: &[FieldShape]) -> Result<FieldShape> {
    let places = shapes[0].places();
    if let Some(other) = shapes.iter().position(|shape| shape.places() != places) {
        return Err(Error::usage(format!(
            "{} {} and {}: they have {places:?} and {:?} places; only arrays of the same places are put one behind the \
             other as channels",
            fields[0].flag,
            fields[0].text,
            fields[other].text,
            shapes[other].places()
        )));
    }
    if let [one] = shapes {
        return Ok(one.clone());
    }
    let channels = ('c', shapes.iter().map(FieldShape::channels).sum());
    let of_space = shapes[0].0.iter().filter(|(name, _)| *name != 'c');
    Ok(FieldShape([channels].into_iter().chain(of_space.copied()).collect()))
}
