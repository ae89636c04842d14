//! What a run tells its record: of itself, of each step and epoch. All as measured or reduced by the caller.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use crate::device::Usage;

/// What is known of a run before its first step.
#[derive(Debug, Clone)]
pub struct Description {
    /// Name of the model.
    pub model: String,
    /// Trainable parameters of the model.
    pub parameters: u64,
    /// One line: the device, its library and version.
    pub device: String,
    /// Threads a rank.
    pub threads: usize,
    /// Images a rank, step and accumulation.
    pub batch: usize,
    /// Batches whose gradients one update adds up.
    pub accumulation: usize,
    /// Epochs to train; 0 for a synthetic run, which has steps only.
    pub epochs: u64,
    /// Steps of the whole run, warm-up included.
    pub steps: u64,
    /// The first steps, left out of rates and totals.
    pub warmup: u64,
    /// Bytes of each gradient bucket; empty where nothing is communicated.
    pub buckets: Vec<u64>,
    /// For each of these the collective that sums it, and the seconds that it is expected to take.
    pub choices: Vec<(String, f64)>,
    /// Bytes of a rank as planned, by kind.
    pub memory: Vec<(String, u64)>,
    /// Where gradients are compressed.
    pub compression: Option<Compression>,
    /// Texts for the results file's `config`: the whole configuration, hosts, versions, the plan's hash. Each
    /// name once; `revision`, `mpicc`, `dltrain_version`, `hdf5_version`, `ranks` and `started` are added here.
    pub attributes: Vec<(String, String)>,
    /// Directory for TensorBoard, and how many steps lie between its histograms.
    pub events: Option<(PathBuf, Option<u64>)>,
    /// When the program started.
    pub started: Instant,
}

impl Description {
    /// One of the attributes; empty where it is not there.
    pub(super) fn text(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(given, _)| given == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

/// How gradients are compressed, and bytes that a rank sends in a step by rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compression {
    /// The scheme, as `--compress` has it.
    pub scheme: String,
    /// Whether that is done on a GPU, behind what it computes; else on the host.
    pub on_device: bool,
    /// Bytes that a rank sent.
    pub sent: u64,
    /// Bytes that it would have sent without compression.
    pub uncompressed: u64,
}

/// One step. Times in seconds; `seconds` is the whole step and what the three parts leave is "other".
#[derive(Debug, Clone, Copy)]
pub struct StepRecord<'a> {
    /// Counts from 0 through the whole run.
    pub step: u64,
    /// Counts from 1; 0 in a synthetic run.
    pub epoch: u64,
    /// Images of all ranks.
    pub images: u64,
    /// Mean over the step's images.
    pub loss: f64,
    /// Share of the step's images classified right, 0 to 1; NaN where not known.
    pub accuracy: f64,
    /// Learning rate of the step's update.
    pub learning_rate: f64,
    /// Time of the whole step, in seconds.
    pub seconds: f64,
    /// Time in which the device worked, in seconds.
    pub compute: f64,
    /// The exposed part: what no computation hid.
    pub communication: f64,
    /// Time in which the next batch was waited for, in seconds.
    pub input: f64,
    /// What of it all went into encoding and decoding compressed gradients.
    pub encoding: f64,
    /// Before the step, for a checkpoint's copy.
    pub copying: f64,
    /// What the meter of rank 0's GPU showed after the step.
    pub usage: Option<Usage>,
    /// Whether a checkpoint was being written in the background.
    pub saving: bool,
    /// One entry for each of the description's buckets.
    pub buckets: &'a [BucketTime],
}

/// One bucket's allreduce, in seconds from the start of the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BucketTime {
    /// When the collective started, in seconds from the step's start.
    pub start: f64,
    /// When it had finished, in seconds from the step's start.
    pub finish: f64,
    /// The part of it that no computation hid.
    pub exposed: f64,
}

/// One number of every rank, reduced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Mean over ranks.
    pub mean: f64,
    /// Least over ranks.
    pub min: f64,
    /// Most over ranks.
    pub max: f64,
}

/// One epoch. Accuracies 0 to 1; NaN where there is no test set.
#[derive(Debug, Clone, Copy)]
pub struct EpochRecord {
    /// Counts from 1.
    pub epoch: u64,
    /// Mean over the epoch's training images.
    pub train_loss: f64,
    /// Share of the epoch's training images classified right.
    pub train_accuracy: f64,
    /// Mean over all test images; NaN without a test.
    pub test_loss: f64,
    /// Share of all test images classified right; NaN without a test.
    pub test_accuracy: f64,
    /// Training images of all ranks a second.
    pub images_per_second: f64,
    /// Of the whole epoch, evaluation included.
    pub seconds: f64,
    /// Shares of the training time, 0 to 1, over the ranks.
    pub compute: Spread,
    /// Share of the training time in exposed communication.
    pub communication: Spread,
    /// Share of the training time in which a batch was waited for.
    pub input: Spread,
    /// Of a rank's GPU during the steps, means over ranks.
    pub usage: Option<Usage>,
}

/// Bytes of the rank that has most, at its peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Peak bytes of a rank as planned.
    pub planned: usize,
    /// Peak bytes of a rank as measured.
    pub measured: usize,
}

/// How far a run had come that goes on.
#[derive(Debug, Clone, Default)]
pub struct Reached {
    /// Steps done.
    pub step: u64,
    /// Epochs done.
    pub epochs: u64,
    /// What `Recorder::numbers` gave then.
    pub numbers: BTreeMap<String, f64>,
}
