//! Which arrays a network learns from, and what it is compared by.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, ValueEnum};
use serde::Serialize;

use super::objective::{Loss, Metric, Named, NamedLoss, NetworkOutput, Objective};
use super::values::{first, number, without_flags};
use crate::error::{Error, Result};

/// What becomes of numbers that a file has none for: NaN, and those that `_FillValue` and `missing_value` name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// The run ends at the first, and names it.
    #[default]
    Refuse,
    /// In a target they count neither in loss nor in metric; in an input they are 0, behind what rescales it.
    Mask,
    /// They are 0, behind what rescales them.
    Zero,
}

/// Training from arrays of HDF5 and netCDF-4 files as they lie (docs/fields.md).
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Arrays")]
pub struct FieldOptions {
    /// Array that the network reads, and which of its axes number samples: `temperature[n,h,w]` (dltrain inspect says
    /// them); :standard, :minmax, :log1p behind it rescale it. Several are put one behind the other as channels.
    #[arg(long = "input", value_name = "VIEW")]
    #[serde(rename = "input")]
    pub inputs: Vec<String>,
    /// Array that it is to give, as for --input: `temperature[n+1,h,w]` is what follows.
    #[arg(long = "target", value_name = "VIEW")]
    #[serde(rename = "target")]
    pub targets: Vec<String>,
    /// Files to test on, as for --data.
    #[arg(long, value_name = "PATH")]
    pub test_data: Option<PathBuf>,
    /// By what output and target are compared; or output:NAME, an output of an ONNX file that is the loss.
    #[arg(long, value_name = "NAME", value_parser = Named::<Loss, _>::new(NamedLoss::from_str))]
    pub loss: Option<NamedLoss>,
    /// What is shown of how good the network is [default: accuracy, rmse or mae, by the loss].
    #[arg(long, value_name = "NAME", value_parser = Named::<Metric, _>::new(Metric::named))]
    pub metric: Option<Metric>,
    /// Array that the losses of points are multiplied by, as for --target, of which it may lack axes: `area[h]`,
    /// `land[h,w]`, `quality[n]`. Metrics are weighted means.
    #[arg(long = "weight", value_name = "VIEW")]
    #[serde(rename = "weight")]
    pub weights: Vec<String>,
    /// What the loss of a point is multiplied by, for each class.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = number, action = ArgAction::Set)]
    pub class_weights: Vec<f32>,
    /// Class of points that count neither in loss nor in metric.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub ignore_label: Option<i64>,
    /// What becomes of numbers that are missing in a file or NaN.
    #[arg(long, value_enum, default_value = "refuse", value_name = "HOW")]
    pub missing: Missing,
}

impl Default for FieldOptions {
    fn default() -> FieldOptions {
        without_flags()
    }
}

impl FieldOptions {
    /// Whether samples are made of arrays; else of pictures.
    pub fn are_given(&self) -> bool {
        !self.inputs.is_empty() || !self.targets.is_empty()
    }

    /// Loss and metric of a run on arrays; `None` of one on pictures.
    pub fn objective(&self, smoothing: f32) -> Option<Objective> {
        // Where nothing is compared, none is asked for.
        let loss = self.loss().unwrap_or(Loss::Mse);
        let objective = Objective { loss, metric: self.metric.unwrap_or(loss.metric()), smoothing };
        Some(objective).filter(|_| self.are_given())
    }

    /// By what the network is trained.
    pub fn loss(&self) -> Option<Loss> {
        self.loss.as_ref().map(|named| named.loss)
    }

    /// The output of the network that is the loss. What is called target then is read by the network too.
    pub fn loss_output(&self) -> Option<&str> {
        self.loss.as_ref()?.output.as_deref()
    }

    /// What the network is asked for: of arrays that are no classes what it ends in.
    pub fn network_output(&self) -> NetworkOutput<'_> {
        match self.loss_output() {
            Some(name) => NetworkOutput::Loss(name),
            None if self.inputs.is_empty() || self.is_of_classes() => NetworkOutput::Scores,
            None => NetworkOutput::Whole,
        }
    }

    /// Whether targets are numbers of classes.
    pub fn is_of_classes(&self) -> bool {
        self.loss().is_some_and(Loss::is_of_classes)
    }

    /// `predicts`: the network is only asked what it gives.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn check(&self, has_data: bool, predicts: bool, smoothing: f32) -> Result<()> {
        let given = [
            (self.test_data.is_some(), "test-data"),
            (self.loss.is_some(), "loss"),
            (self.metric.is_some(), "metric"),
            (!self.weights.is_empty(), "weight"),
            (!self.class_weights.is_empty(), "class-weights"),
            (self.ignore_label.is_some(), "ignore-label"),
            (self.missing != Missing::Refuse, "missing"),
        ];
        if !self.are_given() {
            let wrong = |flag| {
                Error::usage(format!(
                    "--{flag} is for arrays: say which the network reads and gives (--input VIEW --target VIEW)"
                ))
            };
            return first(&given).map_or(Ok(()), |flag| Err(wrong(flag)));
        }
        let lacks = [
            (!has_data, "--data: the files they are in"),
            (self.inputs.is_empty(), "--input: the array that the network reads"),
            (
                self.targets.is_empty() && !predicts && self.loss_output().is_none(),
                "--target: the array that it is to give",
            ),
            (
                self.loss.is_none() && !predicts,
                "--loss: cross-entropy for classes, mse, mae, huber, bce for numbers, output:NAME within the network",
            ),
        ];
        if let Some(what) = first(&lacks) {
            return Err(Error::usage(format!("arrays are trained from; what lacks is {what}")));
        }
        if let [_, _, ..] = self.weights[..] {
            return Err(Error::usage(format!(
                "--weight is given more than once ({}): losses are multiplied by one array; write the product of \
                 several as one",
                self.weights.join(", ")
            )));
        }
        let Some(loss) = self.loss() else { return Ok(()) };
        self.check_loss(loss, smoothing)
    }

    /// That what is said beside a loss goes with it.
    fn check_loss(&self, loss: Loss, smoothing: f32) -> Result<()> {
        let of_classes = loss.is_of_classes();
        if let Some(metric) = self.metric.filter(|metric| !metric.fits(loss)) {
            let fitting = Metric::value_variants().iter().filter(|metric| metric.fits(loss));
            let fitting = fitting.map(|metric| metric.name()).collect::<Vec<_>>().join(", ");
            return Err(Error::usage(format!(
                "--metric {}: does not go with this --loss, with which go {fitting}",
                metric.name()
            )));
        }
        let wrong = [
            (
                !self.weights.is_empty() && loss == Loss::Output,
                "--weight: a loss that is in the network reads what it multiplies by as an --input",
            ),
            (
                loss == Loss::Output && self.missing == Missing::Mask,
                "--missing mask: no points can be left out of a loss that is in the network; --missing zero takes 0",
            ),
            (
                !of_classes && smoothing > 0.0,
                "--label-smoothing is for classes, which --loss cross-entropy has alone",
            ),
            (
                !of_classes && (!self.class_weights.is_empty() || self.ignore_label.is_some()),
                "--class-weights and --ignore-label are for --loss cross-entropy",
            ),
            (
                !self.class_weights.is_empty() && self.class_weights.iter().all(|weight| *weight == 0.0),
                "--class-weights: all are 0, so that nothing would be learned",
            ),
        ];
        if let Some(what) = first(&wrong) {
            return Err(Error::usage(what));
        }
        if let Some(label) = self.ignore_label.filter(|label| label.unsigned_abs() > 1 << 24) {
            return Err(Error::usage(format!(
                "--ignore-label {label}: must be within 2^24, to which numbers are whole"
            )));
        }
        match self.class_weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
            Some(weight) => Err(Error::usage(format!("--class-weights {weight}: must be 0 or more"))),
            None => Ok(()),
        }
    }
}
