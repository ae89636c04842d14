//! Batches read ahead of their use.
//!
//! One thread goes through the batches in order and fills each with a pool of workers, an image at a time; two filled
//! batches wait at most. Whoever takes one gives an old one back, so that nothing is allocated after the start. What is
//! in a batch is a function of its number: whoever asks for another than the next one gets it, at the price of a
//! restart.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rayon::iter::{ParallelBridge, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::fields::{Codes, CodesMut, MissingCount};
use super::sample::{DecodeBuffers, Samples};
use crate::config::most;
use crate::error::{Error, Result};
use crate::graph::DType;

/// The label of a place in a batch that holds no image: it counts neither in loss nor in accuracy.
pub const PADDING: i32 = -1;

/// Batches that are read and wait, or are being read.
pub const AHEAD: usize = 2;

/// So many images in a row that cannot be read are no accident.
const HOPELESS: usize = 64;

thread_local! {
    static SCRATCH: RefCell<DecodeBuffers> = RefCell::default();
}

/// By whom batches are read, and what of images that cannot be.
#[derive(Clone)]
pub struct Reading {
    /// `None`: whoever asks reads.
    pool: Option<Arc<ThreadPool>>,
    strict: bool,
}

impl Reading {
    /// # Errors
    /// `Usage` for threads without end, `Environment` when the system gives none.
    pub fn new(threads: usize, strict: bool) -> Result<Reading> {
        if threads > most::LOADER_THREADS {
            let limit = most::LOADER_THREADS;
            return Err(Error::usage(format!("--loader-threads {threads}: must be at most {limit}")));
        }
        let pool =
            || ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("loader-{i}")).build();
        let pool = (threads > 0)
            .then(pool)
            .transpose()
            .map_err(|error| Error::environment(format!("--loader-threads {threads}: {error}; use fewer")))?;
        Ok(Reading { pool: pool.map(Arc::new), strict })
    }

    /// Threads that read.
    pub fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, |pool| pool.current_num_threads())
    }

    /// By whoever asks.
    pub fn inline() -> Reading {
        Reading { pool: None, strict: false }
    }
}

/// Which images a batch consists of.
pub trait Order: Clone + Send + 'static {
    /// The images of a batch; `None` behind the last one.
    fn images(&mut self, batch: u64) -> Option<Chosen>;
}

/// The images of a batch.
#[derive(Default)]
pub struct Chosen {
    pub epoch: usize,
    /// First its own, fewer than it has room for at the end; then those which are read only to be mixed with its last
    /// ones. With so many of these, so far behind an image lies the one that it is mixed with.
    pub images: Vec<u32>,
    /// How many are its own.
    pub count: usize,
}

/// What a rank reads at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// (N,C,H,W), or the rows of these that are kept, at the beginning; empty where there are `codes`.
    pub images: Vec<f32>,
    /// (N) classes; `PADDING` where there is no image.
    pub labels: Vec<i32>,
    /// (N) classes of what was mixed into the images, and the shares of the images themselves: 1 where nothing was.
    pub others: Vec<i32>,
    /// For mixed images the share of `labels` in each target; else empty.
    pub shares: Vec<f32>,
    /// Targets of samples that are arrays, NaN where there is no sample; empty for pictures.
    pub targets: Vec<f32>,
    /// In place of `images` and of `targets` what files have, for a device that knows what becomes of it: pixels
    /// (N,H,W,C) of `Samples` that are `pixels`, codes of arrays that have `FieldSet::tables`; else empty.
    pub codes: [Codes; 2],
    /// How many numbers of samples that are arrays are missing.
    pub missing: MissingCount,
    /// Images that are mixed with the last ones, and their classes.
    partners: (Vec<f32>, Vec<i32>),
}

impl Batch {
    /// Room for so many images of so many values.
    pub fn new(count: usize, values: usize) -> Batch {
        Batch {
            images: vec![0.0; count * values],
            labels: vec![PADDING; count],
            others: vec![PADDING; count],
            shares: vec![1.0; count],
            targets: Vec::new(),
            codes: Default::default(),
            missing: MissingCount::default(),
            partners: Default::default(),
        }
    }

    /// Room for so many samples: of what types their input and target are, and how many numbers each has of a sample.
    pub fn of_parts(count: usize, parts: [(DType, usize); 2]) -> Batch {
        let [images, targets] = parts.map(|(dtype, values)| if dtype == DType::F32 { values } else { 0 });
        let codes = parts.map(|(dtype, values)| Codes::new(dtype, count * values));
        Batch { targets: vec![f32::NAN; count * targets], codes, ..Batch::new(count, images) }
    }
}

/// Where an image goes, or a sample of arrays and its target; pictures have none.
type Parts<'a> = [CodesMut<'a>; 2];

/// A batch under way from the thread that fills it, or back.
struct BatchParcel {
    number: u64,
    batch: Batch,
    /// Places that belong to images, readable or not.
    count: usize,
    read: Result<()>,
}

struct Ahead {
    ready: Receiver<BatchParcel>,
    /// One that was looked for and found.
    found: Option<BatchParcel>,
    empty: Option<Sender<BatchParcel>>,
    thread: Option<JoinHandle<()>>,
}

/// Fills batches of one set in one order.
pub struct Reader<O> {
    samples: Samples,
    order: O,
    reading: Reading,
    bad: Arc<Bad>,
    ahead: Option<Ahead>,
}

impl<O: Order> Reader<O> {
    pub fn new(samples: Samples, order: O, reading: Reading) -> Reader<O> {
        // An array that cannot be read is no accident of one picture among many.
        let strict = reading.strict || samples.fields().is_some();
        let bad = Arc::new(Bad { strict, ..Bad::default() });
        Reader { samples, order, reading, bad, ahead: None }
    }

    /// Fills a batch, or exchanges it for a filled one; places without a readable image are zeros with the label
    /// `PADDING`. Returns how many places belong to images, and how many of those could not be read.
    ///
    /// # Errors
    /// `Data` for an image that cannot be read, where those are not to be skipped, and when nothing can be read any
    /// more.
    pub fn fill(&mut self, number: u64, batch: &mut Batch) -> Result<(usize, usize)> {
        let count = match self.reading.pool {
            None => {
                let chosen = self.order.images(number).unwrap_or_default();
                let (job, epoch) = (self.job(), chosen.epoch);
                for (index, parts, label) in job.places(&chosen, batch) {
                    *label = job.read(epoch, index as usize, parts);
                }
                job.finish(&chosen, batch);
                self.bad.outcome()?;
                chosen.count
            }
            Some(_) => self.take(number, batch)?,
        };
        let unread = batch.labels[..count].iter().filter(|&&label| label == PADDING).count();
        Ok((count, unread))
    }

    /// Whether a batch can be had without waiting for the threads that read; where there are none, whoever asks reads
    /// it.
    pub fn has(&mut self, number: u64) -> bool {
        let Some(ahead) = &mut self.ahead else { return self.reading.pool.is_none() };
        if ahead.found.is_none() {
            ahead.found = ahead.ready.try_recv().ok();
        }
        ahead.found.as_ref().is_some_and(|parcel| parcel.number == number)
    }

    /// Goes by another order from now on.
    pub fn reorder(&mut self, order: O) {
        self.rest();
        self.order = order;
    }

    /// Lets go of what was read ahead.
    pub fn rest(&mut self) {
        self.ahead = None;
    }

    fn take(&mut self, number: u64, batch: &mut Batch) -> Result<usize> {
        for _ in 0..2 {
            let mut ahead = match self.ahead.take() {
                Some(ahead) => ahead,
                None => self.start(number, batch)?,
            };
            let Ok(mut parcel) = ahead.found.take().map_or_else(|| ahead.ready.recv(), Ok) else { continue };
            if parcel.number != number {
                continue;
            }
            std::mem::swap(batch, &mut parcel.batch);
            let (count, read) = (parcel.count, std::mem::replace(&mut parcel.read, Ok(())));
            // The thread has ended where there is nothing more to read.
            if let Some(empty) = &ahead.empty {
                let _ = empty.send(parcel);
            }
            self.ahead = Some(ahead);
            return read.map(|()| count);
        }
        Err(Error::internal("the thread that reads samples ended"))
    }

    fn start(&self, first: u64, like: &Batch) -> Result<Ahead> {
        let (give, ready) = channel();
        let (empty, waiting) = channel::<BatchParcel>();
        for _ in 0..AHEAD {
            // The receiver is in this function.
            let _ = empty.send(BatchParcel { number: 0, batch: like.clone(), count: 0, read: Ok(()) });
        }
        let (mut order, job, reading) = (self.order.clone(), self.job(), self.reading.clone());
        let work = move || {
            let Some(pool) = reading.pool else { return };
            for number in first.. {
                let Some(chosen) = order.images(number) else { return };
                let Ok(mut parcel) = waiting.recv() else { return };
                (parcel.number, parcel.count) = (number, chosen.count);
                let places: Vec<_> = job.places(&chosen, &mut parcel.batch).collect();
                // In their order, in which chunks of files serve several samples.
                let places = places.into_iter().par_bridge();
                pool.install(|| {
                    places.for_each(|(index, parts, label)| {
                        *label = job.read(chosen.epoch, index as usize, parts);
                    });
                });
                job.finish(&chosen, &mut parcel.batch);
                parcel.read = job.bad.outcome();
                if give.send(parcel).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loader".into()).spawn(work);
        let thread =
            thread.map_err(|error| Error::environment(format!("no thread to read samples: {error}")))?;
        Ok(Ahead { ready, found: None, empty: Some(empty), thread: Some(thread) })
    }

    fn job(&self) -> Preparer {
        Preparer { samples: self.samples.clone(), bad: self.bad.clone(), missing: Mutex::default() }
    }
}

impl Drop for Ahead {
    /// The thread ends as soon as it wants an empty batch, or wants to give a full one away.
    fn drop(&mut self) {
        self.empty = None;
        while self.ready.try_recv().is_ok() {}
        if let Some(thread) = self.thread.take() {
            // A panic of it has been told by the missing batch.
            let _ = thread.join();
        }
    }
}

struct Preparer {
    samples: Samples,
    bad: Arc<Bad>,
    /// Of the batch in hand.
    missing: Mutex<MissingCount>,
}

impl Preparer {
    /// Numbers of an image; of an array those of the rows that are kept, since nothing else of it is read.
    fn size(&self) -> usize {
        let (image, samples) = (self.samples.sample(), &self.samples);
        let whole = image.iter().product::<usize>();
        if samples.fields().is_some() { whole / image[1] * samples.rows().len() } else { whole }
    }

    /// Where each of the images goes, with its label.
    fn places<'a>(
        &self,
        chosen: &'a Chosen,
        batch: &'a mut Batch,
    ) -> impl Iterator<Item = (u32, Parts<'a>, &'a mut i32)> {
        let (size, more) = (self.size(), chosen.images.len() - chosen.count);
        batch.partners.0.resize(more * size, 0.0);
        batch.partners.1.resize(more, PADDING);
        let ([input, target], length) = (&mut batch.codes, self.samples.target_len().max(1));
        // Of numbers and codes one is empty.
        let inputs = batch.images.chunks_exact_mut(size).map(CodesMut::Numbers).chain(input.samples(size));
        let targets =
            batch.targets.chunks_exact_mut(length).map(CodesMut::Numbers).chain(target.samples(length));
        let own = inputs.take(chosen.count).zip(&mut batch.labels);
        let partners =
            batch.partners.0.chunks_exact_mut(size).map(CodesMut::Numbers).zip(&mut batch.partners.1);
        let none = std::iter::repeat_with(|| CodesMut::Numbers(&mut []));
        let places = own.chain(partners).zip(targets.chain(none));
        let indices = chosen.images.iter();
        indices.zip(places).map(|(&index, ((input, label), target))| (index, [input, target], label))
    }

    /// Moves the rows that are kept of images (C,H,W) to the beginning, one behind the other.
    fn keep_rows(&self, images: &mut [f32]) {
        let ([_, height, width], rows) = (self.samples.sample(), self.samples.rows());
        if rows.len() == height || self.samples.fields().is_some() {
            return;
        }
        let (plane, kept) = (height * width, rows.len() * width);
        for index in 0..images.len() / plane {
            let from = index * plane + rows.start * width;
            images.copy_within(from..from + kept, index * kept);
        }
    }

    /// Mixes what was read, where it is to be, makes zeros where there is no image, and keeps what is to be kept.
    fn finish(&self, chosen: &Chosen, batch: &mut Batch) {
        self.mix(chosen, batch);
        self.keep_rows(&mut batch.images);
        batch.missing = std::mem::take(&mut self.missing.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn mix(&self, chosen: &Chosen, batch: &mut Batch) {
        let (size, count, apart) = (self.size(), chosen.count, chosen.images.len() - chosen.count);
        batch.images.iter_mut().skip(count * size).for_each(|value| *value = 0.0);
        batch.labels[count..].fill(PADDING);
        batch.targets.iter_mut().skip(count * self.samples.target_len()).for_each(|value| *value = f32::NAN);
        let lengths = [size, self.samples.target_len()];
        batch.codes.iter_mut().zip(lengths).for_each(|(codes, length)| codes.clear_from(count * length));
        batch.others.copy_from_slice(&batch.labels);
        batch.shares.fill(1.0);
        if apart == 0 {
            return;
        }
        // In this order an image's partner, which lies behind it, has not been mixed itself.
        for place in 0..count {
            let (before, behind) = batch.images.split_at_mut((place + 1) * size);
            let image = &mut before[place * size..];
            let (partner, label) = match (place + apart).checked_sub(count) {
                Some(more) => (&batch.partners.0[more * size..][..size], batch.partners.1[more]),
                None => (&behind[(apart - 1) * size..][..size], batch.labels[place + apart]),
            };
            let mix = self.samples.mix(chosen.epoch, chosen.images[place] as usize);
            // What could not be read is mixed with nothing, and into nothing.
            if let (Some(mix), true) = (mix, batch.labels[place] != PADDING && label != PADDING) {
                let [_, height, width] = self.samples.sample();
                mix.apply(image, partner, [height, width]);
                (batch.others[place], batch.shares[place]) = (label, mix.share());
            }
        }
    }

    fn read(&self, epoch: usize, index: usize, mut parts: Parts) -> i32 {
        let read = |scratch: &mut DecodeBuffers| {
            let read = self.samples.read_parts(epoch, index, &mut parts, scratch);
            let missing = std::mem::take(&mut scratch.missing);
            if missing != MissingCount::default() {
                *self.missing.lock().unwrap_or_else(PoisonError::into_inner) += missing;
            }
            read
        };
        let read = SCRATCH.with_borrow_mut(read);
        match read {
            Ok(label) => {
                self.bad.in_a_row.store(0, Ordering::Relaxed);
                label
            }
            Err(error) => {
                let [mut input, mut target] = parts;
                input.fill(0.0);
                target.fill(f32::NAN);
                self.bad.note(index % self.samples.set().len(), error);
                PADDING
            }
        }
    }
}

/// What could not be read so far.
#[derive(Default)]
struct Bad {
    /// Whether the first one ends the run.
    strict: bool,
    images: Mutex<HashSet<usize>>,
    /// Since an image could be read.
    in_a_row: AtomicUsize,
    last: Mutex<Option<Error>>,
}

impl Bad {
    /// Says it, once for each image that is skipped.
    fn note(&self, index: usize, error: Error) {
        self.in_a_row.fetch_add(1, Ordering::Relaxed);
        let is_new = || self.images.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
        if !self.strict && is_new() {
            log::warn!("skipped: {error}");
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(error);
    }

    fn outcome(&self) -> Result<()> {
        let in_a_row = self.in_a_row.load(Ordering::Relaxed);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last.take() {
            Some(error) if self.strict => Err(error),
            Some(error) if in_a_row >= HOPELESS => {
                Err(error.context(format!("{in_a_row} samples in a row could not be read, the last of them")))
            }
            _ => Ok(()),
        }
    }
}
