//! What a network of fields is trained by and shown by: the loss of its output and target, and a metric.

use std::ffi::OsStr;
use std::marker::PhantomData;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PossibleValue, Resettable, StyledStr, TypedValueParser};
use serde::Serialize;

use super::values::{name_of, names_of};

/// What a network is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkOutput<'a> {
    /// Scores of classes, of which the loss takes a softmax: one at the end is left out.
    Scores,
    /// What it ends in.
    Whole,
    /// The output of this name, which is the loss.
    Loss(&'a str),
}

/// By what the output of a network is compared with its target. The loss of a sample is the mean over all points of its
/// target. A point whose target is NaN adds 0 to it, and is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Softmax over the channels (N, C, …), and numbers of classes (N, …).
    CrossEntropy,
    /// Sigmoid of each number, and shares from 0 to 1: PyTorch's `BCEWithLogitsLoss`.
    Bce,
    /// Mean squared error.
    Mse,
    /// Mean absolute error: PyTorch's `L1Loss`.
    Mae,
    /// Half the square up to an error of 1, beyond it the error less a half: Huber, 1964.
    Huber,
    /// What the network gives of a sample is its loss (`NamedLoss::output`).
    #[value(skip)]
    Output,
}

impl Loss {
    /// Whether targets are numbers of classes, one for each place, in place of numbers for each channel.
    pub fn is_of_classes(self) -> bool {
        self == Loss::CrossEntropy
    }

    /// The metric that is shown unless another is asked for.
    pub fn metric(self) -> Metric {
        match self {
            Loss::CrossEntropy | Loss::Bce => Metric::Accuracy,
            Loss::Mse => Metric::Rmse,
            Loss::Mae | Loss::Huber => Metric::Mae,
            Loss::Output => Metric::Loss,
        }
    }
}

/// What `--loss` takes: a loss by name, or `output:NAME`, an output of an ONNX file that is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct NamedLoss {
    /// By what the network is trained.
    pub loss: Loss,
    /// The output that it is.
    pub output: Option<String>,
}

impl FromStr for NamedLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedLoss, String> {
        if let Some(name) = text.strip_prefix("output:").filter(|name| !name.is_empty()) {
            return Ok(NamedLoss { loss: Loss::Output, output: Some(name.into()) });
        }
        let known = Loss::from_str(text, false).map(|loss| NamedLoss { loss, output: None });
        let names = || names_of::<Loss>().join(", ");
        known.map_err(|_| {
            format!("there are {}, and output:NAME, an output of an ONNX file that is a loss", names())
        })
    }
}

impl From<NamedLoss> for String {
    fn from(named: NamedLoss) -> String {
        named.output.map_or_else(|| name_of(&named.loss), |output| format!("output:{output}"))
    }
}

/// Reads a value that is one of an enum, of which shells then know the names, or something else.
#[derive(Clone)]
pub struct Named<E, T> {
    read: fn(&str) -> Result<T, String>,
    of: PhantomData<fn() -> E>,
}

impl<E, T> Named<E, T> {
    /// By this function.
    pub fn new(read: fn(&str) -> Result<T, String>) -> Named<E, T> {
        Named { read, of: PhantomData }
    }
}

impl<E, T> TypedValueParser for Named<E, T>
where
    E: ValueEnum + 'static,
    T: Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        self.read.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = E::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        Some(Box::new(names.map(|value| value.help(Resettable::<StyledStr>::Reset))))
    }
}

/// What is shown of how good a network is. It is a few sums a sample, and a formula of their means over all samples, so
/// that ranks add exactly. Points without a target are in none; a sample of such points alone has sums of 0, and is one
/// of the samples of which the mean is. With `bce` the output is what its sigmoid is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The share of a sample's points whose class is right: the largest channel, or with `bce` the nearer of 0 and 1.
    Accuracy,
    /// Intersection over union: the mean over classes of TP/(TP+FP+FN), 1 for a class that neither has, of a sample;
    /// the mean over samples.
    Iou,
    /// Mean absolute error.
    Mae,
    /// Root of the mean squared error.
    Rmse,
    /// 1 less the squared error over the variance of the targets; unknown where their deviation is less than a
    /// hundredth of their size, so that they are to be rescaled.
    R2,
    /// The share of a sample's points of whose classes fewer than five have larger scores than the right one.
    Top5,
    /// The loss, and nothing else.
    Loss,
}

impl Metric {
    /// What `--metric` names.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn named(text: &str) -> Result<Metric, String> {
        let of_auc = "the area under a curve is no sum over samples: it wants all scores in one order, which no rank \
                      has. dltrain predict writes them to compute it from; ";
        let reason = if text == "auc" { of_auc } else { "" };
        Metric::from_str(text, false)
            .map_err(|_| format!("{reason}there are {}", names_of::<Metric>().join(", ")))
    }

    /// Sums of one sample, of an output with so many channels: the first `carried` are means over its points that have
    /// a target, and those behind are counts of TP, FP and FN, by class.
    pub fn sums(self, channels: usize) -> usize {
        match self {
            Metric::Iou => 1 + 3 * channels,
            _ => self.carried(),
        }
    }

    /// How many of these its formula needs.
    pub fn carried(self) -> usize {
        if self == Metric::R2 { 3 } else { 1 }
    }

    /// What comes of the means over samples of the loss and of its sums. Of R² these are the squared error, the target
    /// and its square.
    pub fn of(self, loss: f64, means: [f64; 3]) -> f64 {
        let [first, second, third] = means;
        match self {
            Metric::Rmse => first.sqrt(),
            // The sums are f32: of targets that vary little beside what they are nothing can be said.
            Metric::R2 if third - second * second <= 1e-4 * third => f64::NAN,
            Metric::R2 => 1.0 - first / (third - second * second),
            Metric::Loss => loss,
            Metric::Accuracy | Metric::Iou | Metric::Mae | Metric::Top5 => first,
        }
    }

    /// Whether `a` is better than `b`.
    pub fn prefers(self, a: f64, b: f64) -> bool {
        if matches!(self, Metric::Mae | Metric::Rmse | Metric::Loss) { a < b } else { a > b }
    }

    /// Whether it is a share, which is shown in per cent.
    pub fn is_share(self) -> bool {
        matches!(self, Metric::Accuracy | Metric::Iou | Metric::Top5)
    }

    /// Whether it is of classes, and so of a loss of classes.
    pub fn fits(self, loss: Loss) -> bool {
        match self {
            Metric::Accuracy => matches!(loss, Loss::CrossEntropy | Loss::Bce),
            Metric::Iou | Metric::Top5 => loss == Loss::CrossEntropy,
            Metric::Mae | Metric::Rmse | Metric::R2 => !matches!(loss, Loss::CrossEntropy | Loss::Output),
            Metric::Loss => true,
        }
    }

    /// As `--metric` has it.
    pub fn name(self) -> String {
        name_of(&self)
    }
}

/// Loss and metric of a run on fields.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Objective {
    /// What is made small.
    pub loss: Loss,
    /// What is shown.
    pub metric: Metric,
    /// Share of a target class that is spread evenly over all classes.
    pub smoothing: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r2_is_unknown_where_the_targets_hardly_vary() {
        assert_eq!(Metric::R2.of(0.0, [0.5, 0.0, 1.0]), 0.5);
        assert!(Metric::R2.of(0.0, [0.5, 1e5, 1e10 + 3.0]).is_nan());
        assert_eq!(Metric::Rmse.of(0.0, [4.0, 0.0, 0.0]), 2.0);
        assert_eq!(Metric::Loss.of(3.0, [4.0, 0.0, 0.0]), 3.0);
        assert!(Metric::Rmse.prefers(0.1, 0.2) && Metric::R2.prefers(0.2, 0.1));
    }

    #[test]
    fn losses_and_metrics_are_named_and_what_is_none_is_explained() {
        let parsed: NamedLoss = "output:total".parse().unwrap();
        assert_eq!((parsed.loss, parsed.output.as_deref()), (Loss::Output, Some("total")));
        for text in ["output:total", "cross-entropy", "mse"] {
            assert_eq!(String::from(text.parse::<NamedLoss>().unwrap()), text);
        }
        assert!(
            "output:".parse::<NamedLoss>().unwrap_err().contains("cross-entropy, bce, mse, mae, huber, and")
        );
        assert_eq!(Metric::named("top5"), Ok(Metric::Top5));
        assert!(Metric::named("auc").unwrap_err().contains("no sum over samples"));
    }
}
