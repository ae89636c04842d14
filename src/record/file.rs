//! The results file: HDF5, readable while it is being written (SWMR) and after the writer was killed.
//!
//! Everything is created before SWMR writing starts, since nothing can be added after; from then on data
//! sets only grow, and closing values go into data sets that are there already. `docs/results.md` is the
//! schema. Rows wait in memory and are written about once a second: a step costs a few pushes.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use hdf5::file::LibraryVersion;
use hdf5::types::{FixedUnicode, VarLenUnicode};
use hdf5::{Dataset, File, Group, H5Type};

use super::read::Earlier;
use super::series::{SeriesGroup, series};
use super::summary::Closing;
use super::{Description, EpochRecord, Scheduled, Spread, StepRecord};
use crate::config::Metric;
use crate::device::Usage;
use crate::error::{Error, OrError, Result};
use crate::files;

/// The schema's version, an attribute of the file. Raised when a reader of the older one would misread.
const SCHEMA: u32 = 1;
/// Rows in one chunk: 8 KB of a series.
pub(super) const STEP_CHUNK: usize = 1024;
const EPOCH_CHUNK: usize = 64;
/// Bytes of the data set `summary/status`.
pub(super) const STATUS_BYTES: usize = 512;

type StatusText = FixedUnicode<STATUS_BYTES>;
pub(super) type Hdf5Result = hdf5::Result<()>;

/// (name, unit, meaning) of data sets, in the order in which `step` and `epoch` push them.
pub type Columns = [(&'static str, &'static str, &'static str)];

const STEP_COUNTS: &Columns = &[
    ("step", "1", "step, counted from 0 through the whole run"),
    ("epoch", "1", "epoch, counted from 1; 0 in a synthetic run"),
    ("images", "1", "images of all ranks in this step"),
];
const STEP_VALUES: &Columns = &[
    ("loss", "1", "training loss, mean over the images of the step"),
    ("accuracy", "1", "share of the step's images classified right"),
    ("learning_rate", "1", "learning rate of the step's update"),
    ("seconds", "s", "time of the whole step"),
    ("compute", "s", "time in which the device worked"),
    ("communication", "s", "exposed communication: time in which only messages were waited for"),
    ("input", "s", "time in which the next batch was waited for"),
    (
        "encoding",
        "s",
        "time in which gradients were encoded and decoded, within the others; 0 without compression",
    ),
    ("copying", "s", "time before the step in which a checkpoint was copied; nothing is trained meanwhile"),
    ("saving", "1", "1 where a checkpoint was being written in the background during the step, else 0"),
    ("gpu_busy", "1", "share of the last moments in which rank 0's GPU worked (NVML)"),
    ("gpu_memory", "B", "memory of rank 0's GPU in use, by whomever"),
    ("gpu_power", "W", "power of rank 0's GPU"),
];
const BUCKET_TIMES: &Columns = &[
    ("bucket_start", "s", "when the bucket's allreduce started, from the step's start"),
    ("bucket_finish", "s", "when it had finished, from the step's start"),
    ("bucket_exposed", "s", "the part of it that nothing hid"),
];
const EPOCH_COUNTS: &Columns = &[("epoch", "1", "epoch, counted from 1")];
const EPOCH_VALUES: &Columns = &[
    ("train_loss", "1", "training loss, mean over the epoch's images"),
    ("train_accuracy", "1", "share of the epoch's training images classified right"),
    ("test_loss", "1", "loss, mean over all test images"),
    ("test_accuracy", "1", "share of all test images classified right"),
    (
        "ranks_apart",
        "1",
        "how far ranks with parameters of their own were from their mean, as a share of its norm",
    ),
    ("images_per_second", "1/s", "training images of all ranks a second"),
    ("seconds", "s", "time of the epoch, evaluation included"),
    ("compute", "1", "share of the training time in compute, mean over ranks"),
    ("compute_min", "1", "the same, least over ranks"),
    ("compute_max", "1", "the same, most over ranks"),
    ("communication", "1", "share of the training time in exposed communication, mean over ranks"),
    ("communication_min", "1", "the same, least over ranks"),
    ("communication_max", "1", "the same, most over ranks"),
    ("input", "1", "share of the training time waiting for input, mean over ranks"),
    ("input_min", "1", "the same, least over ranks"),
    ("input_max", "1", "the same, most over ranks"),
    ("gpu_busy", "1", "share of the training time in which a rank's GPU worked (NVML), mean over ranks"),
    ("gpu_memory", "B", "most memory of a rank's GPU in use, by whomever, mean over ranks"),
    ("gpu_power", "W", "power of a rank's GPU, mean over ranks"),
];
const SUMMARY_COUNTS: &Columns = &[
    ("steps", "1", "steps that count (warm-up left out)"),
    ("images", "1", "images of all ranks in these steps"),
    ("sent", "B", "what a rank sent of compressed gradients in these steps, by rings; 0 without compression"),
    ("sent_uncompressed", "B", "what it would have sent without compression"),
    (
        "sent_a_step",
        "B",
        "sent in a step by the rank that sends most, of gradients, parameters and the step's sums; 0 where MPI, GPUs or \
         shared memory carry them",
    ),
    ("planned_memory", "B", "peak memory of a rank as planned, the largest of all ranks"),
    ("peak_memory", "B", "peak memory of a rank as measured (resident set), the largest of all ranks"),
];
const SUMMARY_VALUES: &Columns = &[
    ("seconds", "s", "from the program's start to the run's end"),
    ("setup_seconds", "s", "from the program's start to the first step's start"),
    ("training_seconds", "s", "time of the steps that count"),
    ("images_per_second", "1/s", "images / training_seconds, all ranks"),
    ("best_test_accuracy", "1", "best test accuracy of any epoch"),
    ("final_test_accuracy", "1", "test accuracy of the last epoch"),
    ("compute", "1", "share of training_seconds in compute"),
    ("communication", "1", "share of training_seconds in exposed communication"),
    ("input", "1", "share of training_seconds waiting for input"),
    ("gpu_busy", "1", "share of training_seconds in which rank 0's GPU worked (NVML)"),
    ("gpu_memory", "B", "most memory of rank 0's GPU in use in that time, by whomever"),
    ("gpu_power", "W", "mean power of rank 0's GPU in that time"),
];

/// The columns as a run's metric has them: of another than the accuracy they are called after it.
fn named(columns: &Columns, metric: Metric) -> Vec<(String, &'static str, &'static str)> {
    let about = match metric {
        Metric::Accuracy => None,
        Metric::Iou => Some(("1", "mean over samples of the mean IoU of classes")),
        Metric::Mae => Some(("", "mean absolute error, of rescaled numbers")),
        Metric::Rmse => Some(("", "root of the mean squared error, of rescaled numbers")),
        Metric::R2 => Some(("1", "1 less the squared error over the variance of the targets")),
        Metric::Top5 => Some(("1", "share of points whose class is among the five of the largest scores")),
        Metric::Loss => None,
    };
    let of = |&(name, unit, meaning): &(&str, &'static str, &'static str)| {
        let (unit, meaning) = about.filter(|_| name.contains("accuracy")).unwrap_or((unit, meaning));
        (name.replace("accuracy", &metric.name()), unit, meaning)
    };
    columns.iter().filter(|(name, ..)| has(metric, name)).map(of).collect()
}

/// Whether a column is there: of the loss as metric there is none besides the loss's own.
fn has(metric: Metric, name: &str) -> bool {
    metric != Metric::Loss || !name.contains("accuracy")
}

/// The values of the columns that are there.
fn values(columns: &Columns, metric: Metric, all: &[f64]) -> Vec<f64> {
    columns.iter().zip(all).filter(|((name, ..), _)| has(metric, name)).map(|(_, value)| *value).collect()
}

/// An open results file. On any error the file is lost: see `abandon`.
pub(super) struct ResultsFile {
    /// What is shown of how good the network is.
    metric: Metric,
    file: File,
    path: PathBuf,
    steps: SeriesGroup,
    epochs: SeriesGroup,
    summary: Group,
}

/// The figures of a GPU; NaN where there are none.
fn usage(shown: Option<Usage>) -> [f64; 3] {
    shown.map_or([f64::NAN; 3], |usage| [usage.busy, usage.memory, usage.power])
}

/// A data set of numbers or texts.
fn data<T: H5Type>(group: &Group, name: &str, values: &[T], unit: &str, meaning: &str) -> Hdf5Result {
    describe(&group.new_dataset_builder().with_data(values).create(name)?, unit, meaning)
}

pub(super) fn texts<'a>(texts: impl IntoIterator<Item = &'a String>) -> hdf5::Result<Vec<VarLenUnicode>> {
    texts.into_iter().map(|text| unicode(text)).collect()
}

/// What was rehearsed, a value an action in each data set.
fn script(config: &Group, script: &[Scheduled]) -> Hdf5Result {
    let actions = texts(script.iter().map(|at| &at.action))?;
    data(config, "script_action", &actions, "", "what rank 0 does in a step, one after the other")?;
    let buckets: Vec<i64> = script.iter().map(|at| at.bucket.map_or(-1, |bucket| bucket as i64)).collect();
    let meaning = "the bucket whose sum an action starts; -1 for others";
    data(config, "script_bucket", &buckets, "1", meaning)?;
    let computes: Vec<u64> = script.iter().map(|at| u64::from(at.computes)).collect();
    data(config, "script_computes", &computes, "1", "1 where an action runs steps of the network, else 0")?;
    for (index, name, meaning) in [
        (0, "script_begin", "when an action is expected to begin, from the step's start"),
        (1, "script_end", "when it, or the transfer that it starts, is expected to be over"),
    ] {
        let times: Vec<f64> = script.iter().map(|scheduled| scheduled.times[index]).collect();
        data(config, name, &times, "s", meaning)?;
    }
    Ok(())
}

/// The group `config`: how the run was asked for and planned.
fn config(file: &File, about: &Description, added: &[(&str, String)]) -> Hdf5Result {
    let config = file.create_group("config")?;
    let given = about.attributes.iter().map(|(name, value)| (name.as_str(), value));
    for (name, value) in given.chain(added.iter().map(|(name, value)| (*name, value))) {
        text(&config, name, value)?;
    }
    let meaning = "bytes of each gradient bucket, in the order of readiness";
    data(&config, "bucket_bytes", &about.buckets, "B", meaning)?;
    data(&config, "owned_bytes", &about.owned, "B", "bytes of parameters that each rank updates")?;
    let names = texts(about.choices.iter().map(|(name, _)| name))?;
    data(&config, "bucket_allreduce", &names, "", "the collective that sums each bucket")?;
    let seconds: Vec<f64> = about.choices.iter().map(|(_, seconds)| *seconds).collect();
    data(&config, "bucket_predicted", &seconds, "s", "what each bucket's sum is expected to take")?;
    script(&config, &about.script)?;
    let kinds = texts(about.memory.iter().map(|(kind, _)| kind))?;
    data(&config, "memory_kind", &kinds, "", "what a rank needs memory for")?;
    let bytes: Vec<u64> = about.memory.iter().map(|(_, bytes)| *bytes).collect();
    data(&config, "memory_bytes", &bytes, "B", "what each kind takes of a rank's planned_memory")
}

/// The group `summary`, whose values come at the run's end.
fn summary(file: &File, about: &Description) -> hdf5::Result<Group> {
    let summary = file.create_group("summary")?;
    scalars(&summary, SUMMARY_COUNTS, 0u64)?;
    scalars(&summary, &named(SUMMARY_VALUES, about.metric), f64::NAN)?;
    let meaning =
        "updates by gradients that were 0, 1, … updates late, the last: or more; none unless asynchronous";
    data(&summary, "staleness", &vec![0u64; about.staleness], "1", meaning)?;
    let status = summary.new_dataset::<StatusText>().create("status")?;
    describe(&status, "", "running, finished, or failed: why")?;
    status.write_scalar(&fixed("running"))?;
    let ended = summary.new_dataset::<StatusText>().create("ended")?;
    describe(&ended, "", "UTC date and time of the run's end; empty while it runs")?;
    ended.write_scalar(&fixed(""))?;
    Ok(summary)
}

impl ResultsFile {
    /// Creates the file, with the configuration in it, and lets readers in. Never replaces a file. It has its name when
    /// it can be read: a job that is killed before, and goes on from its first checkpoint, finds none.
    pub fn create(path: &Path, about: &Description, added: &[(&str, String)]) -> Result<ResultsFile> {
        if path.symlink_metadata().is_ok() {
            return Err(super::path::exists(path));
        }
        let temporary = files::temporary(path);
        let file =
            Self::build(&temporary, about, added, None).or_output(path, "cannot create the results file")?;
        files::name(&temporary, path).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => super::path::exists(path),
            _ => Error::output(path, format!("cannot be given its name: {error}")),
        })?;
        Ok(ResultsFile { path: path.to_path_buf(), ..file })
    }

    /// Goes on in the file of a run that was interrupted: in a copy of its rows up to the step and epoch at which the
    /// run goes on, which then takes its name. A reader who has the old one open keeps that.
    ///
    /// # Errors
    /// Where the file is not that of this run: it is not touched then.
    pub fn resume(
        path: &Path,
        about: &Description,
        added: &[(&str, String)],
        at: &super::Reached,
    ) -> Result<ResultsFile> {
        let earlier = Earlier::open(path, about, at)?;
        let mut added = added.to_vec();
        for (name, value) in &mut added {
            match *name {
                "started" => *value = earlier.text("started").unwrap_or_else(|| value.clone()),
                "resumed" => {
                    *value = earlier
                        .text("resumed")
                        .into_iter()
                        .chain([value.clone()])
                        .collect::<Vec<_>>()
                        .join("; ")
                }
                _ => {}
            }
        }
        let file = files::write_whole(path, "the results file", |temporary| {
            Self::build(temporary, about, &added, Some(&earlier))
                .or_output(path, "cannot go on in the results file")
        })?;
        Ok(ResultsFile { path: path.to_path_buf(), ..file })
    }

    fn build(
        path: &Path,
        about: &Description,
        added: &[(&str, String)],
        earlier: Option<&Earlier>,
    ) -> hdf5::Result<ResultsFile> {
        // SWMR needs the format of HDF5 1.10; no newer one, so that every HDF5 from 1.10 on reads the file.
        let file = File::with_options()
            .with_fapl(|access| access.libver_bounds(LibraryVersion::V110, LibraryVersion::V110))
            .create_excl(path)?;
        Self::fill(file, path, about, added, earlier).inspect_err(|_| {
            // Half a file would only stand in the way of the next try.
            let _ = std::fs::remove_file(path);
        })
    }

    fn fill(
        file: File,
        path: &Path,
        about: &Description,
        added: &[(&str, String)],
        earlier: Option<&Earlier>,
    ) -> hdf5::Result<ResultsFile> {
        text(&file, "format", "dltrain results")?;
        file.new_attr::<u32>().create("schema")?.write_scalar(&SCHEMA)?;
        config(&file, about, added)?;
        let group = file.create_group("steps")?;
        let mut steps = SeriesGroup {
            counts: series(&group, STEP_COUNTS, STEP_CHUNK, None)?,
            values: series(&group, &named(STEP_VALUES, about.metric), STEP_CHUNK, None)?,
            buckets: match about.buckets.len() {
                0 => Vec::new(),
                // A chunk stays near 8 KB however many buckets there are.
                n => series(&group, BUCKET_TIMES, (2 * STEP_CHUNK / n).max(1), Some(n))?,
            },
        };
        let group = file.create_group("epochs")?;
        let mut epochs = SeriesGroup {
            counts: series(&group, EPOCH_COUNTS, EPOCH_CHUNK, None)?,
            values: series(&group, &named(EPOCH_VALUES, about.metric), EPOCH_CHUNK, None)?,
            buckets: Vec::new(),
        };
        let summary = summary(&file, about)?;
        if let Some(earlier) = earlier {
            steps.copy(&earlier.file, "steps", earlier.steps)?;
            epochs.copy(&earlier.file, "epochs", earlier.epochs)?;
        }
        file.start_swmr()?;
        Ok(ResultsFile { metric: about.metric, file, path: path.to_path_buf(), steps, epochs, summary })
    }

    pub fn step(&mut self, r: &StepRecord) {
        let [busy, memory, power] = usage(r.usage);
        self.steps.push(
            &[r.step, r.epoch, r.images],
            &values(
                STEP_VALUES,
                self.metric,
                &[
                    r.loss,
                    r.metric,
                    r.learning_rate,
                    r.spent.seconds,
                    r.spent.compute,
                    r.spent.communication,
                    r.spent.input,
                    r.spent.encoding,
                    r.copying,
                    f64::from(u8::from(r.saving)),
                    busy,
                    memory,
                    power,
                ],
            ),
        );
        // A step that reports other than the planned buckets leaves the rest unknown.
        for (series, of) in self.steps.buckets.iter_mut().zip([
            (|b| b.start) as fn(&super::BucketTime) -> f64,
            |b| b.finish,
            |b| b.exposed,
        ]) {
            let times = r.buckets.iter().map(|bucket| of(bucket) as f32);
            series.waiting.extend(times.chain(std::iter::repeat(f32::NAN)).take(series.width()));
        }
    }

    pub fn epoch(&mut self, r: &EpochRecord) {
        let spread = |s: &Spread| [s.mean, s.min, s.max];
        let mut values = vec![
            r.train_loss,
            r.train_metric,
            r.test_loss,
            r.test_metric,
            r.ranks_apart,
            r.images_per_second,
            r.seconds,
        ];
        values.extend([&r.compute, &r.communication, &r.input].into_iter().flat_map(spread));
        values.extend(usage(r.usage));
        self.epochs.push(&[r.epoch], &self::values(EPOCH_VALUES, self.metric, &values));
    }

    /// Writes the waiting rows and hands them to the operating system, where a kill cannot reach them. The flush of
    /// the whole file puts its present length into the superblock: `h5clear -s` cuts a file at the length it finds
    /// there.
    pub fn flush(&mut self) -> Result<()> {
        self.steps
            .write()
            .and_then(|()| self.epochs.write())
            .and_then(|()| self.file.flush())
            .or_output(&self.path, "cannot write the results")
    }

    /// The closing values, and the end of the file.
    pub fn finish(mut self, closing: &Closing, status: &str) -> Result<()> {
        self.flush()?;
        self.close(closing, status).or_output(&self.path, "cannot write the closing values")?;
        drop((self.steps, self.epochs, self.summary));
        self.file.close().or_output(&self.path, "cannot close the file")?;
        // HDF5 gives its data to the operating system only; results should outlive a power failure too.
        std::fs::File::open(&self.path)
            .and_then(|file| file.sync_all())
            .or_output(&self.path, "cannot bring the results to disk")
    }

    fn close(&self, closing: &Closing, status: &str) -> Hdf5Result {
        let c = closing;
        let memory = |of: fn(&super::MemoryRecord) -> usize| c.memory.as_ref().map_or(0, of) as u64;
        let [sent, uncompressed] = c.sent;
        let [planned, measured] = [memory(|m| m.planned), memory(|m| m.measured)];
        let counts = [c.steps, c.images, sent, uncompressed, c.sent_a_step, planned, measured];
        for ((name, ..), value) in SUMMARY_COUNTS.iter().zip(counts) {
            self.summary.dataset(name)?.write_scalar(&value)?;
        }
        let staleness = self.summary.dataset("staleness")?;
        let mut stale = vec![0u64; staleness.size()];
        if let Some(last) = stale.len().checked_sub(1) {
            c.stale_in_all().iter().enumerate().for_each(|(late, count)| stale[late.min(last)] += count);
            staleness.write_raw(&stale)?;
        }
        let [busy, memory, power] = usage(c.usage.usage());
        let values = [
            c.seconds,
            c.setup_seconds,
            c.spent.seconds,
            c.images_per_second(),
            c.best_test_metric.0,
            c.final_test_metric,
            c.share(c.spent.compute),
            c.share(c.spent.communication),
            c.share(c.spent.input),
            busy,
            memory,
            power,
        ];
        let values = self::values(SUMMARY_VALUES, self.metric, &values);
        for ((name, ..), value) in named(SUMMARY_VALUES, self.metric).iter().zip(values) {
            self.summary.dataset(name)?.write_scalar(&value)?;
        }
        self.summary.dataset("ended")?.write_scalar(&fixed(&super::date(std::time::SystemTime::now())))?;
        self.summary.dataset("status")?.write_scalar(&fixed(status))
    }

    /// Lets go of a file that cannot be written any more. Closing it would only try, and fail, again.
    pub fn abandon(self) {
        std::mem::forget(self);
    }
}

fn scalars<T: H5Type>(group: &Group, columns: &[(impl AsRef<str>, &str, &str)], value: T) -> Hdf5Result {
    columns.iter().try_for_each(|(name, unit, meaning)| {
        let dataset = group.new_dataset::<T>().create(name.as_ref())?;
        describe(&dataset, unit, meaning)?;
        dataset.write_scalar(&value)
    })
}

pub(super) fn describe(dataset: &Dataset, unit: &str, meaning: &str) -> Hdf5Result {
    text(dataset, "unit", unit)?;
    text(dataset, "description", meaning)
}

pub(super) fn text(location: &hdf5::Location, name: &str, value: &str) -> Hdf5Result {
    location.new_attr::<VarLenUnicode>().create(name)?.write_scalar(&unicode(value)?)
}

/// HDF5's texts end at a zero byte.
fn unicode(text: &str) -> hdf5::Result<VarLenUnicode> {
    VarLenUnicode::from_str(&text.replace('\0', " ")).map_err(|e| hdf5::Error::from(e.to_string()))
}

/// As much of a text as the data set `status` holds.
fn fixed(text: &str) -> StatusText {
    let mut text = text.replace('\0', " ");
    while text.len() > STATUS_BYTES {
        text.pop();
    }
    StatusText::from_str(&text).unwrap_or_default()
}
