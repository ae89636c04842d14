//! The arrays of a run as flags name them, and the shapes that come of them.

use super::field::{Field, Rescaling};
use crate::config::{FieldOptions, Loss, Missing};
use crate::error::{Error, Result};
use crate::fields::ViewSamples;
use crate::graph::SampleShape;

/// The arrays of a run: those that the network reads, and those that it is to give.
#[derive(Clone)]
pub struct FieldList {
    pub fields: Vec<Field>,
    /// How many of them are inputs; they come first.
    pub inputs: usize,
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
        let mut list = FieldList {
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
        if of_classes && list.fields[list.inputs..].iter().any(is_rescaled) {
            return Err(Error::usage(format!(
                "--target {}: numbers of classes are not rescaled; leave out what stands behind the view",
                list.texts[list.inputs]
            )));
        }
        let channels: usize = list.channels[list.inputs..].iter().sum();
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
        let targets = &shapes[self.inputs..];
        if targets.is_empty() {
            return Ok(Vec::new());
        }
        let target = stacked(targets, &self.texts[self.inputs..], "--target")?;
        let has_channels = targets.len() > 1 || targets[0].has_channels;
        Ok(has_channels.then_some(target.channels).into_iter().chain(target.places).collect())
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
        let (inputs, all) = (self.inputs, self.fields.len());
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
            // By names where all are known; else in the order of the flags.
            order = names.iter().map(by_name).collect::<Option<Vec<usize>>>().unwrap_or(order);
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
}

impl FieldShape {
    /// An axis without a name is one of space, but the only one, which is of channels, as the first of three or four
    /// is.
    pub fn of(samples: &ViewSamples) -> FieldShape {
        let (shape, letters) = (samples.shape(), samples.letters());
        let is_bare = letters.iter().all(|letter| matches!(letter, None | Some('s')));
        let has_channels =
            letters.first() == Some(&Some('c')) || (is_bare && [1, 3, 4].contains(&shape.len()));
        match has_channels {
            true => FieldShape { channels: shape[0], has_channels, places: shape[1..].to_vec() },
            false => FieldShape { channels: 1, has_channels, places: shape },
        }
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
    Ok(FieldShape { channels, has_channels: true, places: shapes[0].places.clone() })
}
