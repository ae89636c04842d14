//! The arrays of a run as flags name them, and the shapes that come of them.

use super::field::{Field, Rescaling};
use crate::config::{FieldOptions, Loss, Missing};
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
    /// As flags have them.
    pub texts: Vec<String>,
    /// Numbers of one sample of each, how many channels these are, and where they begin in the input or target.
    pub numbers: Vec<usize>,
    pub places: Vec<usize>,
    pub channels: Vec<usize>,
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
    /// `Usage`: they are not those of a network with these inputs, or no numbers of classes.
    pub fn new(
        options: &FieldOptions,
        (fields, texts): (Vec<Field>, Vec<String>),
        shapes: &[FieldShape],
        of_network: &[(&str, usize)],
    ) -> Result<FieldList> {
        let loss = options.loss();
        let of_classes = options.is_of_classes();
        let compared = fields.len() - usize::from(options.weight.is_some());
        let mut list = FieldList {
            compared,
            numbers: shapes.iter().map(FieldShape::numbers).collect(),
            channels: shapes.iter().map(|shape| shape.channels).collect(),
            places: Vec::new(),
            inputs: if loss == Some(Loss::Output) { fields.len() } else { options.inputs.len() },
            fields,
            texts,
            classes: of_classes.then_some(usize::MAX),
            ignored: options.ignore_label,
            missing: options.missing,
            shares: loss == Some(Loss::Bce),
            in_network: loss == Some(Loss::Output),
        };
        list.places = list.in_order(of_network)?;
        let is_rescaled = |field: &Field| field.log1p || field.rescaling != Rescaling::Nothing;
        if list.fields[compared..].iter().any(is_rescaled) {
            let what = "losses are multiplied by it as it is; leave out what stands behind the view";
            return Err(Error::usage(format!("--weight {}: {what}", list.texts[compared])));
        }
        if of_classes && list.fields[list.inputs..compared].iter().any(is_rescaled) {
            return Err(Error::usage(format!(
                "--target {}: numbers of classes are not rescaled; leave out what stands behind the view",
                list.texts[list.inputs]
            )));
        }
        let channels: usize = list.channels[list.inputs..compared].iter().sum();
        match of_classes && channels > 1 {
            true => Err(Error::usage(format!(
                "--target {}: with --loss cross-entropy a target is one number of a class for each place, and this has \
                 {channels} channels",
                list.texts[list.inputs]
            ))),
            false => Ok(list),
        }
    }

    /// What a network reads of a sample.
    ///
    /// # Errors
    /// `Usage`: arrays of unlike places, or of more axes than images have.
    pub fn image(&self, shapes: &[FieldShape], of_network: &[(&str, usize)]) -> Result<SampleShape> {
        let inputs = &shapes[..self.inputs];
        if of_network.len() > 1 {
            return Ok(SampleShape::image([inputs.iter().map(FieldShape::numbers).sum(), 1, 1]));
        }
        let image = stacked(inputs, &self.texts, "--input")?;
        match image.places[..] {
            [] => Ok(SampleShape::image([image.channels, 1, 1])),
            [width] => Ok(SampleShape::image([image.channels, 1, width])),
            [height, width] => Ok(SampleShape::image([image.channels, height, width])),
            [depth, height, width] => Ok(SampleShape::cube([image.channels, depth, height, width])),
            _ => Err(Error::usage(format!(
                "--input {}: samples with {} axes beside channels; there can be three",
                self.texts[0],
                image.places.len()
            ))),
        }
    }

    /// The axes of a target, without that of samples; none where there is no target.
    ///
    /// # Errors
    /// `Usage`: arrays of unlike places.
    pub fn target(&self, shapes: &[FieldShape]) -> Result<Vec<usize>> {
        let targets = &shapes[self.inputs..self.compared];
        if targets.is_empty() {
            return Ok(Vec::new());
        }
        let target = stacked(targets, &self.texts[self.inputs..], "--target")?;
        Ok(target.axes().into_iter().map(|(_, along)| along).collect())
    }

    /// The axes along which points of a target are weighed, and which of these the array of weights has: it is the same
    /// along the others. Channels are none of them where it has none.
    ///
    /// # Errors
    /// `Usage`: it has an axis that the target has not.
    pub fn weights(&self, shapes: &[FieldShape]) -> Result<Vec<(usize, bool)>> {
        let Some(weights) = shapes.get(self.compared) else { return Ok(Vec::new()) };
        let target = stacked(&shapes[self.inputs..self.compared], &self.texts[self.inputs..], "--target")?;
        let own = weights.axes();
        let is_other = |axis: &&(char, usize)| !target.axes().contains(axis);
        if let Some((name, along)) = own.iter().find(is_other) {
            let axes: Vec<String> =
                target.axes().iter().map(|(name, along)| format!("{name} of {along}")).collect();
            return Err(Error::usage(format!(
                "--weight {}: it has an axis {name} of {along} places, and a target has {}; name in brackets the axes \
                 that both have",
                self.texts[self.compared],
                if axes.is_empty() { "none".into() } else { axes.join(", ") }
            )));
        }
        let counts = |axis: &(char, usize)| axis.0 != 'c' || own.contains(axis);
        let of = |axis: (char, usize)| (axis.1, own.contains(&axis));
        Ok(target.axes().into_iter().filter(counts).map(of).collect())
    }

    /// Where each field begins in the input or the target: in the order of flags, but inputs that a network has by
    /// names are in its order.
    fn in_order(&self, of_network: &[(&str, usize)]) -> Result<Vec<usize>> {
        let starts = |order: &[usize]| {
            let mut places = vec![0; order.len()];
            let mut from = 0;
            for &at in order {
                places[at] = from;
                from += self.numbers[at];
            }
            places
        };
        let (inputs, all) = (self.inputs, self.compared);
        let mut order: Vec<usize> = (0..inputs).collect();
        if of_network.len() > 1 {
            let names: Vec<&str> = of_network.iter().map(|(name, _)| *name).collect();
            if inputs != names.len() {
                return Err(Error::usage(format!(
                    "--input: {inputs} arrays for a network with {} inputs: {}",
                    names.len(),
                    names.join(", ")
                )));
            }
            let called = |at: usize| self.fields[at].view.array.rsplit('/').next().unwrap_or_default();
            let by_name = |name: &&str| (0..inputs).find(|&at| called(at) == *name);
            // By names where all are known; else in the order of the flags, if that gives no input the array that is
            // called as another one.
            let known: Vec<Option<usize>> = names.iter().map(by_name).collect();
            let mut by_flags = known.iter().enumerate();
            match known.iter().copied().collect::<Option<Vec<usize>>>() {
                Some(by_names) => order = by_names,
                None if by_flags.any(|(input, at)| at.is_some_and(|at| at != input)) => {
                    return Err(Error::usage(format!(
                        "--input: the network's inputs are {}, of which only some are names of arrays: give the \
                         arrays in this order",
                        names.join(", ")
                    )));
                }
                None => {}
            }
            for (&at, (name, numbers)) in order.iter().zip(of_network) {
                if self.numbers[at] != *numbers {
                    return Err(Error::usage(format!(
                        "--input {}: {} numbers a sample, and the network's input {name} has {numbers}",
                        self.texts[at], self.numbers[at]
                    )));
                }
            }
        }
        let mut places = starts(&order);
        let first: usize = self.numbers[..inputs].iter().sum();
        let targets: Vec<usize> = starts(&(0..all).collect::<Vec<_>>());
        places.extend(targets[inputs..].iter().map(|from| from - first));
        Ok(places)
    }
}

/// The shape of one sample of a field.
pub struct FieldShape {
    pub channels: usize,
    /// Whether an axis of the array is the channels.
    pub has_channels: bool,
    pub places: Vec<usize>,
    /// What the axes of these are called: by the view, or as those of space.
    letters: Vec<char>,
}

impl FieldShape {
    /// An axis without a name is one of space, but the only one, which is of channels, as the first of three or four
    /// is.
    pub fn of(samples: &ViewSamples) -> FieldShape {
        let (shape, letters) = (samples.shape(), samples.letters());
        let is_bare = letters.iter().all(|letter| matches!(letter, None | Some('s')));
        let has_channels =
            letters.first() == Some(&Some('c')) || (is_bare && [1, 3, 4].contains(&shape.len()));
        let places = shape[usize::from(has_channels)..].to_vec();
        let of_space = |at: usize| "whd".chars().nth(shape.len() - 1 - at).unwrap_or('s');
        let letter =
            |(at, letter): (usize, &Option<char>)| letter.filter(|_| !is_bare).unwrap_or(of_space(at));
        let letters = letters.iter().enumerate().map(letter).skip(usize::from(has_channels)).collect();
        FieldShape { channels: if has_channels { shape[0] } else { 1 }, has_channels, places, letters }
    }

    /// The axes of a sample, each with its length.
    fn axes(&self) -> Vec<(char, usize)> {
        let places = self.letters.iter().copied().zip(self.places.iter().copied());
        self.has_channels.then_some(('c', self.channels)).into_iter().chain(places).collect()
    }

    pub fn numbers(&self) -> usize {
        self.channels * self.places.iter().product::<usize>()
    }
}

/// The shape of fields one behind the other as channels.
fn stacked(shapes: &[FieldShape], texts: &[String], flag: &str) -> Result<FieldShape> {
    if let Some(other) = (1..shapes.len()).find(|&other| shapes[other].places != shapes[0].places) {
        return Err(Error::usage(format!(
            "{flag} {} and {}: they have {:?} and {:?} places; only arrays of the same places are put one behind the \
             other as channels",
            texts[0], texts[other], shapes[0].places, shapes[other].places
        )));
    }
    let channels = shapes.iter().map(|shape| shape.channels).sum();
    let has_channels = shapes.len() > 1 || shapes[0].has_channels;
    let (places, letters) = (shapes[0].places.clone(), shapes[0].letters.clone());
    Ok(FieldShape { channels, has_channels, places, letters })
}
