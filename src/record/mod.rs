//! What a run says and keeps: the results file, the progress bar, the tables, the log.
//!
//! Rank awareness lives here: every rank makes a `Recorder` and calls it; on rank 0 it writes and talks, on the
//! others the calls do nothing. All numbers arrive as the caller measured or reduced them; nothing here
//! communicates. May use: `config`, `device` (for the bytes of numbers, and a GPU's use),
//! `trace`, `files`, `host`, `error`. Used by: `train`, `bench`, `elastic`,
//! `main`.

mod checkpoint;
mod checkpoint_dir;
mod dimensions;
mod field_predictions;
mod file;
mod logging;
mod mllog;
mod names;
mod path;
mod predictions;
mod progress;
mod read;
mod safetensors_file;
mod series;
mod summary;
mod table;
mod tensorboard;
mod terminal;
mod timeline;
mod weights;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use checkpoint::{Array, Contents};
pub use checkpoint_dir::{
    Checkpoints, find_checkpoint, is_checkpoint_name, newest_checkpoint, newest_step, own_checkpoints,
};
pub use field_predictions::{FieldOrigin, FieldPredictions, PredictedFields};
use file::ResultsFile;
pub use logging::{Verbosity, start_logging};
use mllog::MlperfLog;
pub use mllog::{MlperfKeys, check_mllog};
pub use names::check_names;
pub use path::{check_output, is_results_file, results_path, resumed_path};
pub use predictions::Predictions;
pub use progress::ProgressLine;
pub use read::{RunRecord, run_file};
pub use series::write_table;
use summary::Closing;
pub use table::plural;
use tensorboard::EventFile;
pub use tensorboard::check_events;
pub use terminal::{outcome_of, printed, say as print};
pub use timeline::{RankEvents, TimelineFile};
pub use weights::{
    ModelMetadata, OfRun, WeightsFile, check_new, check_weights, is_hdf5, left_out, write_weights,
};

use crate::config::Metric;
use crate::device::Usage;
use crate::error::{Error, Result};
pub use crate::files::date::iso as date;
pub use crate::trace::BucketTime;

/// How long rows wait in memory at most (while steps come in), and so what a kill can take.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// In a synthetic run every so many steps have a line.
const STEPS_A_LINE: u64 = 10;

/// Which rank of how many this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankInfo {
    /// This rank's number.
    pub rank: usize,
    /// How many ranks the job has.
    pub size: usize,
}

/// Everything a run says or keeps; every rank has one. Finish it before MPI: closing the file may take a while.
pub struct Recorder {
    /// `None` on the ranks that are silent.
    writer: Option<RecordWriter>,
}

impl Recorder {
    /// Opens the record: on rank 0 creates the results file (`path`, see `results_path`; none for a run that
    /// keeps nothing), says what is run and starts the progress bar. On other ranks nothing. A run that goes on from
    /// `at` does so in the file of its earlier part, where `path` is there, whose rows from that step on are replaced.
    ///
    /// # Errors
    /// `ErrorKind::Output`: the file cannot be written, is there already, or is not that of this run. Rank 0 alone can
    /// fail here.
    pub fn open(
        place: RankInfo,
        path: Option<&Path>,
        about: &Description,
        at: Option<&Reached>,
    ) -> Result<Recorder> {
        if place.rank != 0 {
            return Ok(Recorder { writer: None });
        }
        let now = date(std::time::SystemTime::now());
        let mut added = vec![
            ("revision", git_revision().to_string()),
            ("dltrain_version", env!("CARGO_PKG_VERSION").to_string()),
            ("hdf5_version", hdf5_version()),
            ("ranks", place.size.to_string()),
            ("started", now.clone()),
        ];
        if let Some(at) = at {
            added.push(("resumed", format!("at step {} with {} ranks on {now}", at.step, place.size)));
        }
        added.retain(|(name, _)| about.attributes.iter().all(|(given, _)| given != name));
        let open = |path: &Path| match at {
            Some(at) if path.exists() => ResultsFile::resume(path, about, &added, at),
            _ => ResultsFile::create(path, about, &added),
        };
        let file = path.map(open).transpose()?;
        let resumed = at.map(|at| at.step);
        let events = |(directory, every): &(PathBuf, Option<u64>)| {
            let layers = if resumed.is_none() { &about.layers[..] } else { &[] };
            EventFile::create(directory, *every, resumed, layers)
        };
        let events = about.events.as_ref().map(events).transpose()?;
        let mllog = |of| MlperfLog::create(of, about.metric, about.started.elapsed(), at.is_some());
        let mllog = about.mllog.as_ref().map(mllog).transpose()?;
        terminal::tell(&table::introduction(place, about));
        terminal::start_bar(about.size.steps);
        Ok(Recorder {
            writer: Some(RecordWriter {
                place,
                about: about.clone(),
                path: path.map(Path::to_path_buf),
                file,
                events,
                mllog,
                lost: None,
                flushed: Instant::now(),
                closing: at.map_or_else(Closing::new, |at| Closing::from_numbers(&at.numbers)),
                speed: table::Speed::default(),
                finished: false,
                header: false,
            }),
        })
    }

    /// What a checkpoint has to keep of this record. The rows so far are written before: a run that goes on there finds
    /// all of them.
    pub fn numbers(&mut self) -> BTreeMap<String, f64> {
        let Some(writer) = &mut self.writer else { return BTreeMap::new() };
        writer.flush();
        let seconds = writer.closing.earlier + writer.about.started.elapsed().as_secs_f64();
        let numbers = writer.closing.numbers().into_iter().chain([("summary.seconds", seconds)]);
        let numbers = numbers.map(|(name, value)| (name.to_string(), value));
        numbers.chain(writer.closing.staleness()).collect()
    }

    /// One step. Costs about a microsecond; once a second the rows so far are written.
    pub fn step(&mut self, record: &StepRecord) {
        self.write(|writer| writer.step(record));
    }

    /// One epoch: a line of the table, and everything so far is written.
    pub fn epoch(&mut self, record: &EpochRecord) {
        self.write(|writer| writer.epoch(record));
    }

    /// Whether `histogram` is to be called after so many steps; never on a rank that is silent.
    pub fn wants_histograms(&self, done: u64) -> bool {
        let events = self.writer.as_ref().and_then(|writer| writer.events.as_ref());
        events.is_some_and(|events| events.wants_histograms(done))
    }

    /// The numbers of a tensor after the last step, for TensorBoard.
    pub fn histogram(&mut self, tag: &str, values: &[f32]) {
        self.write(|writer| writer.on_events(|events| events.histogram(tag, values)));
    }

    /// What the rank that sends most sent in a step, in bytes.
    pub fn sent_a_step(&mut self, bytes: u64) {
        self.write(|writer| writer.closing.sent_a_step = bytes);
    }

    /// How many updates of this part of the run were by gradients so stale: 0, 1, … updates late.
    pub fn staleness(&mut self, counts: &[u64]) {
        self.write(|writer| writer.closing.stale[0] = counts.to_vec());
    }

    /// What the run had in memory, as planned and as it came.
    pub fn memory(&mut self, memory: MemoryRecord) {
        self.write(|writer| writer.closing.memory = Some(memory));
    }

    /// Ends the run: writes the closing values and, where it succeeded, the closing table, whose last line is
    /// `total images/sec: N`. A failed run passes its error.
    ///
    /// # Errors
    /// `ErrorKind::Output`: the results could not be written, now or earlier in the run (training went on).
    pub fn finish(mut self, outcome: std::result::Result<(), &Error>) -> Result<()> {
        self.writer.take().map_or(Ok(()), |mut writer| writer.finish(outcome))
    }

    fn write(&mut self, what: impl FnOnce(&mut RecordWriter)) {
        if let Some(writer) = &mut self.writer {
            what(writer);
        }
    }
}

/// Rank 0's half of a `Recorder`.
struct RecordWriter {
    place: RankInfo,
    about: Description,
    path: Option<PathBuf>,
    file: Option<ResultsFile>,
    events: Option<EventFile>,
    mllog: Option<MlperfLog>,
    /// Why one of them was given up.
    lost: Option<Error>,
    flushed: Instant,
    closing: Closing,
    speed: table::Speed,
    /// Whether the epochs' table has its header.
    header: bool,
    finished: bool,
}

impl RecordWriter {
    fn step(&mut self, r: &StepRecord) {
        if self.closing.setup_seconds.is_nan() {
            self.closing.setup_seconds =
                (self.about.started.elapsed().as_secs_f64() - r.spent.seconds).max(0.0);
        }
        let counts = r.step >= self.about.size.warmup;
        if counts {
            self.closing.step(r);
            if let Some(compression) = &self.about.compression {
                self.closing.sent[0] += compression.sent;
                self.closing.sent[1] += compression.uncompressed;
            }
        }
        if let Some(file) = &mut self.file {
            file.step(r);
        }
        let metric = self.about.metric;
        self.on_events(|events| events.step(r, metric));
        self.on_mllog(|log| log.step(r));
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flush();
        }
        let (about, closing) = (&self.about, &self.closing);
        terminal::move_bar(r.step + 1, || table::progress(about, closing, r));
        if counts {
            self.speed.add(r);
        }
        if self.about.size.epochs == 0 && counts {
            if self.speed.steps() == STEPS_A_LINE {
                terminal::tell(table::STEP_HEADER);
            }
            if self.speed.steps().is_multiple_of(STEPS_A_LINE) {
                terminal::tell(&self.speed.line(r));
            }
        }
    }

    fn epoch(&mut self, r: &EpochRecord) {
        if !std::mem::replace(&mut self.header, true) {
            terminal::tell(&table::epoch_header(r, &self.about));
        }
        self.closing.epoch(r, self.about.metric);
        terminal::tell(&table::epoch(r, self.about.metric));
        if let Some(file) = &mut self.file {
            file.epoch(r);
        }
        let metric = self.about.metric;
        self.on_events(|events| events.epoch(r, metric));
        self.on_mllog(|log| log.epoch(r));
        self.flush();
    }

    /// Does something with TensorBoard's file, which is given up with a message where it cannot be written.
    fn on_events(&mut self, write: impl FnOnce(&mut EventFile) -> Result<()>) {
        let Some(events) = &mut self.events else { return };
        if let Err(error) = write(events) {
            log::error!("{error}; training goes on without them");
            self.events = None;
            self.lost = Some(error);
        }
    }

    /// The same of MLPerf's log.
    fn on_mllog(&mut self, write: impl FnOnce(&mut MlperfLog) -> Result<()>) {
        let Some(log) = &mut self.mllog else { return };
        if let Err(error) = write(log) {
            log::error!("{error}; training goes on without it");
            self.mllog = None;
            self.lost = Some(error);
        }
    }

    /// Writes the waiting rows. A file that cannot be written (full disk, quota) is given up with a message: the
    /// training it records is worth more, and `finish` will say so again.
    fn flush(&mut self) {
        self.flushed = Instant::now();
        self.on_events(EventFile::flush);
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.flush() {
            log::error!("{error}; training goes on, the results after this point are lost");
            if let Some(file) = self.file.take() {
                file.abandon();
            }
            self.lost = Some(error);
        }
    }

    fn finish(&mut self, outcome: std::result::Result<(), &Error>) -> Result<()> {
        self.finished = true;
        self.closing.seconds = self.closing.earlier + self.about.started.elapsed().as_secs_f64();
        terminal::end_bar();
        let status = match outcome {
            Ok(()) => "finished".to_string(),
            Err(why) if why.kind.is_stop() => why.message.clone(),
            Err(why) => format!("failed: {}", why.message),
        };
        self.on_events(EventFile::flush);
        // What was only stopped goes on in the same log.
        if outcome.err().is_none_or(|why| !why.kind.is_stop()) {
            self.on_mllog(|log| log.finish(outcome.is_ok()));
        }
        let kept = self.file.take().map_or(Ok(()), |file| file.finish(&self.closing, &status));
        let kept = kept.and(self.lost.take().map_or(Ok(()), Err));
        let path = self.path.as_deref().filter(|_| kept.is_ok());
        if outcome.is_ok() {
            terminal::tell(&summary::closing(self.place, &self.about, &self.closing, &self.speed, path));
        } else if let Some(path) = path {
            terminal::tell(&format!("results so far: {}", path.display()));
        }
        kept
    }
}

impl Drop for RecordWriter {
    /// A run that stopped without `finish` still leaves a closed file and a clean terminal.
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = self.finish(Err(&Error::internal("stopped before its end")))
        {
            log::error!("{error}");
        }
    }
}

/// Text for the reader on standard output, said once for the whole job.
pub fn say(place: impl Into<RankInfo>, text: &str) {
    if place.into().rank == 0 {
        terminal::say(text);
    }
}

/// Prints progress on rank 0, unless `--quiet` was given.
pub fn tell(place: impl Into<RankInfo>, text: &str) {
    if place.into().rank == 0 {
        terminal::tell(text);
    }
}

/// A message of the job, said by rank 0.
pub fn log(place: impl Into<RankInfo>, level: log::Level, text: &str) {
    if place.into().rank == 0 {
        log::log!(level, "{text}");
    }
}

/// What is done once for the whole job, by rank 0; the others have nothing of it.
///
/// # Errors
/// What rank 0 fails with, on rank 0.
pub fn once<T: Default>(place: impl Into<RankInfo>, what: impl FnOnce() -> Result<T>) -> Result<T> {
    if place.into().rank == 0 { what() } else { Ok(T::default()) }
}

static REVISION: OnceLock<&str> = OnceLock::new();

/// Tells what the program was built from, once, at its start. The library does not know: it would be compiled anew for
/// every commit.
pub fn built_from(revision: &'static str) {
    let _ = REVISION.set(revision);
}

/// The git revision this program was built from, "-dirty" where its sources differed; "unknown" outside git, and in
/// other programs that use this library.
pub fn git_revision() -> &'static str {
    REVISION.get().unwrap_or(&"unknown")
}

/// "0.2.0 (revision 0123456789ab)".
pub fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| format!("{} (revision {})", env!("CARGO_PKG_VERSION"), git_revision()))
}

/// The version of the HDF5 library in use: "1.10.8".
pub fn hdf5_version() -> String {
    let (major, minor, release) = hdf5::library_version();
    format!("{major}.{minor}.{release}")
}

/// An action of a step, and when it is expected.
#[derive(Debug, Clone)]
pub struct Scheduled {
    /// In words.
    pub action: String,
    /// The bucket whose sum it starts.
    pub bucket: Option<usize>,
    /// Whether it runs steps of the plan.
    pub computes: bool,
    /// Its begin and end in seconds from the start of the step; NaN where nothing is known.
    pub times: [f64; 2],
}

/// What is known of a run before its first step.
#[derive(Debug, Clone)]
pub struct Description {
    /// Name of the model.
    pub model: String,
    /// Trainable parameters of the model.
    pub parameters: u64,
    /// What is shown of how good it is.
    pub metric: Metric,
    /// One line: the device, its library and version.
    pub device: String,
    /// How large it is.
    pub size: RunSize,
    /// Bytes of parameters that each rank updates.
    pub owned: Vec<u64>,
    /// Bytes of each gradient bucket; empty where nothing is communicated.
    pub buckets: Vec<u64>,
    /// For each of these the collective that sums it, and the seconds that it is expected to take.
    pub choices: Vec<(String, f64)>,
    /// What rank 0 does in a step, as rehearsed; empty where nothing was.
    pub script: Vec<Scheduled>,
    /// Bytes of a rank as planned, by kind.
    pub memory: Vec<(String, u64)>,
    /// Where gradients are compressed.
    pub compression: Option<CompressionRecord>,
    /// Where updates are asynchronous: how many values of their staleness are told apart.
    pub staleness: usize,
    /// Texts for the results file's `config`: the whole configuration, hosts, versions, the plan's hash. Each
    /// name once; `revision`, `dltrain_version`, `hdf5_version`, `ranks` and `started` are added here.
    pub attributes: Vec<(String, String)>,
    /// Directory for TensorBoard, and how many steps lie between its histograms.
    pub events: Option<(PathBuf, Option<u64>)>,
    /// MLPerf's log, and what it says of the run.
    pub mllog: Option<MlperfKeys>,
    /// What TensorBoard draws of the network.
    pub layers: Vec<Layer>,
    /// When the program started.
    pub started: Instant,
}

/// How large a run is.
#[derive(Debug, Clone, Copy)]
pub struct RunSize {
    /// Threads a rank.
    pub threads: usize,
    /// Images a rank, step and accumulation.
    pub batch: usize,
    /// Batches whose gradients one update adds up.
    pub accumulation: usize,
    /// Images of all ranks in an update.
    pub global_batch: usize,
    /// Epochs to train; 0 for a synthetic run, which has steps only.
    pub epochs: u64,
    /// Steps of the whole run, warm-up included.
    pub steps: u64,
    /// The first steps, left out of rates and totals.
    pub warmup: u64,
    /// Ranks that compute gradients.
    pub computing: usize,
}

impl Description {
    /// What its samples are called.
    fn unit(&self) -> &str {
        match self.text("unit") {
            "" => "images",
            unit => unit,
        }
    }

    /// One of the attributes; empty where it is not there.
    fn text(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(given, _)| given == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

/// A layer of the network, or an input of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// As `--dry-run` has it; dots tell what it is part of.
    pub name: String,
    /// What it computes.
    pub op: String,
    /// The layers that it reads, by their places in the list.
    pub inputs: Vec<usize>,
    /// The extents of what it gives, outermost first.
    pub shapes: Vec<Vec<usize>>,
    /// How many numbers it learns.
    pub parameters: usize,
}

/// How gradients are compressed, and bytes that a rank sends in a step by rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompressionRecord {
    /// The scheme, as `--compress` has it.
    pub scheme: String,
    /// Whether that is done on a GPU, behind what it computes; else on the host.
    pub on_device: bool,
    /// Bytes that a rank sent.
    pub sent: u64,
    /// Bytes that it would have sent without compression.
    pub uncompressed: u64,
}

/// Seconds of steps, and what they went to: what the three parts leave is "other".
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// The whole steps.
    pub seconds: f64,
    /// In which the device worked.
    pub compute: f64,
    /// The exposed part: what no computation hid.
    pub communication: f64,
    /// In which the next batch was waited for.
    pub input: f64,
    /// What of it all went into encoding and decoding compressed gradients.
    pub encoding: f64,
}

impl Spent {
    /// Adds another step's.
    pub fn add(&mut self, step: &Spent) {
        self.seconds += step.seconds;
        self.compute += step.compute;
        self.communication += step.communication;
        self.input += step.input;
        self.encoding += step.encoding;
    }
}

/// One step.
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
    /// The metric over the step's images (`Description::metric`); NaN where not known.
    pub metric: f64,
    /// Learning rate of the step's update.
    pub learning_rate: f64,
    /// What its time went to.
    pub spent: Spent,
    /// Before the step, for a checkpoint's copy.
    pub copying: f64,
    /// What the meter of rank 0's GPU showed after the step.
    pub usage: Option<Usage>,
    /// Whether a checkpoint was being written in the background.
    pub saving: bool,
    /// One entry for each of the description's buckets.
    pub buckets: &'a [BucketTime],
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

/// One epoch. Metrics are NaN where there is no test set.
#[derive(Debug, Clone, Copy)]
pub struct EpochRecord {
    /// Counts from 1.
    pub epoch: u64,
    /// Mean over the epoch's training images.
    pub train_loss: f64,
    /// The metric over the epoch's training images.
    pub train_metric: f64,
    /// Mean over all test images; NaN without a test.
    pub test_loss: f64,
    /// The metric over all test images; NaN without a test.
    pub test_metric: f64,
    /// Where ranks have parameters of their own: how far they were from their mean, which was tested, as a share of its
    /// norm; else NaN.
    pub ranks_apart: f64,
    /// Training images of all ranks a second.
    pub images_per_second: f64,
    /// Seconds of the whole epoch, evaluation included.
    pub seconds: f64,
    /// Shares of the training time, 0 to 1, over the ranks.
    pub compute: Spread,
    /// Share of the training time in exposed communication.
    pub communication: Spread,
    /// Share of the training time in which a batch was waited for.
    pub input: Spread,
    /// Use of a rank's GPU during the steps, means over ranks.
    pub usage: Option<Usage>,
}

/// Bytes of the rank that has most, at its peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRecord {
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
